"""What becomes of a round's figures when a native engine is lost in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from refill.phases.round_plan import Cell, Settings
from refill.phases.round_record import accounted, cell_figures, warned
from test_rounds_record import CELL, ledger_of, moment, trial

NONE = {
    "gc_count": 0.0, "gc_s": 0.0, "heap_used_bytes": 1.0, "request_cache_hits": 0.0,
    "request_cache_misses": 0.0, "query_cache_hits": 0.0, "query_cache_misses": 0.0,
}  # fmt: skip
NATIVE = replace(CELL, engine="opensearch")


def settings(cell: Cell, trials: int) -> Settings:
    return Settings((cell,), trials, 0, 10.0, 60.0)


def test_a_gateways_trial_in_which_an_idle_engine_is_lost_stays_and_is_told(
    tmp_path: Path,
) -> None:
    rows = ledger_of(tmp_path, ["ok"] * 6)
    made = trial(moment(100, hits=6))
    made = replace(made, before=replace(made.before, natives={"opensearch": NONE}))
    (cell,) = cell_figures(settings(CELL, 1), [made], rows, {}, True, lost={"opensearch": "why"})
    assert cell["valid"], cell["invalid"]
    assert warned([cell])[-1] == (
        "warm, read-document, gateway, 2 clients, trial 1: opensearch, idle beside it, was lost "
        "meanwhile"
    )


def test_an_engine_that_is_lost_behind_its_trial_has_not_shown_what_it_did(
    tmp_path: Path,
) -> None:
    rows = ledger_of(tmp_path, ["ok"] * 6)
    made = replace(trial(moment(100)), cell=NATIVE)
    made = replace(made, before=replace(made.before, natives={"opensearch": NONE}))
    lost = {"opensearch": "opensearch has ended (signal SIGKILL).\n    its log"}
    (cell,) = cell_figures(settings(NATIVE, 2), [made], rows, {}, True, lost=lost)
    assert cell["invalid"] == [
        "trial 1: opensearch was lost before its counters could show what it did",
        "1 of 2 trials were run: opensearch has ended (signal SIGKILL).",
    ]


def test_requests_of_a_trial_that_broke_off_are_counted_and_held_against_nothing(
    tmp_path: Path,
) -> None:
    rows = ledger_of(tmp_path, ["ok"] * 5 + ["error"])
    done = trial(moment(100)).done
    # The row of window 5 has no account of a client.
    assert accounted(rows, done, (), None)["violations"]
    kept = accounted(rows, done, {5}, None)
    assert kept["violations"] == []
    assert kept["counts"]["issued"] == len(rows) == 7
    assert sum(n for status, n in kept["counts"].items() if status != "issued") == 7
    hidden = rows[rows["window"] != 4]
    assert accounted(hidden, done, {5}, None)["violations"]
    broken = accounted(rows, [], {5}, "valkey has ended")
    assert broken["violations"] == ["the round broke off, so not all requests can be accounted for"]

"""What a round's ledger and counters become: trials, verdicts, growth, the final ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from refill.engines.gateway import counted
from refill.engines.valkey import Aof, growth
from refill.load.ledger import Judgement, Ledger
from refill.load.loops import Row
from refill.load.worker import Done
from refill.phases.round_ledger import write_ledger
from refill.phases.round_plan import Cell, Settings
from refill.phases.round_record import (
    cell_figures,
    hit_ratio,
    judged,
    profile_figures,
    raw_profile,
    unproven,
)
from refill.phases.round_run import Trial
from refill.phases.round_stack import Moment

NO_READS = {
    "hits": 0, "misses": 0, "fills": 0, "rejected": 0, "bypassed": 0, "repeated": 0,
    "unsettled": 0, "swept": 0, "writes": 0, "qdrant_calls": 0,
    "misses_by_reason": {}, "rejected_by_reason": {},
}  # fmt: skip
CELL = Cell("gateway", "warm", "read-document", "read one document", 2, 6)
SETTINGS = Settings((CELL,), 1, 0, 10.0, 60.0)


def moment(aof: int, **cache: Any) -> Moment:
    used = {"rss_bytes": 5.0, "cpu_s": 1.0, "read_bytes": None, "write_bytes": None}
    return Moment(NO_READS | cache, Aof(aof, 10, 0, False, aof // 10), {"gateway": used})


def ledger_of(tmp_path: Path, statuses: list[str]) -> pd.DataFrame:
    """Rows of one window: three requests of each of two clients, 1 to 6 ms long."""
    kept = Ledger(tmp_path / "ledger", lambda row: Judgement(statuses[row.key], 1, 0.0, "why"))
    rows = []
    for client in (0, 1):
        at = 1.0
        for number in range(3):
            took = (3 * client + number + 1) / 1000
            key = 3 * client + number
            answered = statuses[key] in ("ok", "wrong")
            outcome = "answered" if answered else statuses[key]
            rows.append(
                Row("warm", "closed", 4, client, key, at, at, at + took, outcome, 200, b"{}", "")
            )
            at += took
    kept.add(rows)
    # A slow row of another trial, which is none of this one's.
    other = rows[0]._replace(window=5, done=rows[0].sent + 2)
    kept.add([other])
    return kept.frame()


def trial(after: Moment, issued: int = 6) -> Trial:
    done = [
        Done(0, 4, 1.0, 1.006, 3, 0.0, 0.0, None),
        Done(1, 4, 1.0, 1.015, issued - 3, 0.0, 0.0, None),
    ]
    return Trial(CELL, 1, 4, 0.99, 1.02, moment(100), after, done)


def only(figures: list[dict[str, Any]]) -> dict[str, Any]:
    (cell,) = figures
    (block,) = cell["trials"]
    assert isinstance(block, dict)
    return block


def test_a_trial_has_nearest_rank_quantiles_of_all_clients_together(tmp_path: Path) -> None:
    rows = ledger_of(tmp_path, ["ok"] * 6)
    block = only(cell_figures(SETTINGS, [trial(moment(100, hits=6))], rows, {}, True))
    assert block["valid"], block["invalid"]
    assert block["stats"]["n"] == block["stats"]["ok"] == 6
    assert block["stats"]["p50_ms"] == pytest.approx(3.0)
    assert block["stats"]["p95_ms"] == pytest.approx(6.0)
    assert block["hit_ratio"] == 1.0
    assert block["aof"]["bytes"] == 0
    assert block["resources"]["gateway"] == {
        "rss_bytes": 5.0, "cpu_s": 0.0, "read_bytes": None, "write_bytes": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "words"),
    [("wrong", "are wrong"), ("error", "failed"), ("timeout", "timed out")],
)
def test_one_response_that_is_not_right_makes_the_trial_invalid(
    tmp_path: Path, status: str, words: str
) -> None:
    rows = ledger_of(tmp_path, ["ok", "ok", status, "ok", "ok", "ok"])
    shown = {4: [{"status": status}]}
    figures = cell_figures(SETTINGS, [trial(moment(100, hits=6))], rows, shown, True)
    block = only(figures)
    assert f"1 of 6 responses {words}" in block["invalid"]
    assert block["wrong"] == [{"status": status}]
    assert not figures[0]["valid"]
    assert figures[0]["invalid"][0].startswith("trial 1: 1 of 6")


def test_a_request_that_left_no_row_is_found(tmp_path: Path) -> None:
    rows = ledger_of(tmp_path, ["ok"] * 6).drop(index=2)
    block = only(cell_figures(SETTINGS, [trial(moment(100, hits=6))], rows, {}, True))
    assert "5 of 6 requests were issued within the limit" in block["invalid"]
    assert any("issued 6, but the ledger holds 5" in why for why in block["invalid"])


def test_missing_trials_make_a_cell_invalid(tmp_path: Path) -> None:
    wanted = Settings((CELL,), 3, 0, 10.0, 60.0)
    rows = ledger_of(tmp_path, ["ok"] * 6)
    (cell,) = cell_figures(wanted, [trial(moment(100, hits=6))], rows, {}, True)
    assert cell["invalid"] == ["1 of 3 trials were run"]


@pytest.mark.parametrize(
    ("profile", "serving", "cache", "words"),
    [
        ("warm", True, {"hits": 9, "misses": 1}, ["9 hits", "1 misses"]),
        ("cold", True, {"hits": 1, "misses": 9, "fills": 9}, ["1 hits", "9 misses", "9 fills"]),
        ("cold", True, {"misses": 10, "fills": 9}, ["9 fills"]),
        ("cold", False, {"bypassed": 9}, ["9 bypassed"]),
        ("cold", False, {"bypassed": 10, "fills": 1}, ["1 fills"]),
        ("warm", True, {"hits": 11}, ["11 hits"]),
    ],
)
def test_counters_that_do_not_show_the_profile_are_named(
    profile: str, serving: bool, cache: dict[str, int], words: list[str]
) -> None:
    found = unproven(profile, serving, 10, {**NO_READS, **cache})
    assert len(found) == len(words)
    assert all(word in why for word, why in zip(words, found, strict=True))
    assert all(why.startswith(f"not {profile}: ") for why in found)


def test_counters_that_show_the_profile_pass() -> None:
    assert unproven("warm", True, 10, {**NO_READS, "hits": 10}) == []
    assert unproven("cold", True, 10, {**NO_READS, "misses": 10, "fills": 10}) == []
    assert unproven("cold", False, 10, {**NO_READS, "bypassed": 10}) == []


def test_counters_are_differences_and_reasons_only_those_that_occurred() -> None:
    before = {**NO_READS, "hits": 3, "misses_by_reason": {"absent": 2, "writer": 1}}
    after = {**NO_READS, "hits": 5, "misses_by_reason": {"absent": 2, "writer": 4, "build": 1}}
    found = counted(before, after)
    assert found["hits"] == 2
    assert found["misses_by_reason"] == {"build": 1, "writer": 3}


def test_a_hit_ratio_of_no_reads_is_not_known() -> None:
    assert hit_ratio(NO_READS) is None
    assert hit_ratio({**NO_READS, "hits": 1, "bypassed": 3}) == 0.25


@pytest.mark.parametrize(
    ("after", "rewritten"),
    [
        (Aof(150, 10, 0, False, 12), False),
        (Aof(150, 10, 1, False, 12), True),
        (Aof(150, 10, 0, True, 12), True),
        (Aof(150, 20, 0, False, 12), True),
    ],
)
def test_growth_is_known_only_without_a_rewrite(after: Aof, rewritten: bool) -> None:
    found = growth(Aof(100, 10, 0, False, 10), after)
    assert found["rewritten"] is rewritten
    assert found["bytes"] == (None if rewritten else 50)
    assert found["replication_offset"] == 2


def test_a_profile_spans_its_trials_and_a_raw_one_has_every_latency(tmp_path: Path) -> None:
    rows = ledger_of(tmp_path, ["ok"] * 6)
    trials = [trial(moment(160, hits=6))]
    figures = cell_figures(SETTINGS, trials, rows, {}, True)
    (profile,) = profile_figures(figures, trials, SETTINGS)
    assert profile["name"] == "warm"
    assert profile["valid"]
    assert profile["aof"]["bytes"] == 60
    assert profile["requests"] == 6
    raw = raw_profile({"id": "x"}, profile, figures, rows)
    assert sorted(raw["cells"][0]["trials"][0]["latencies_ms"]) == [1, 2, 3, 4, 5, 6]


def test_the_final_ledger_names_cell_and_trial_and_keeps_other_rows(tmp_path: Path) -> None:
    rows = ledger_of(tmp_path, ["ok", "wrong", "ok", "ok", "ok", "ok"])
    extra = rows.iloc[:1].assign(window=0, phase="warm-up")
    path = tmp_path / "x.parquet"
    whole = pd.concat([extra, rows[rows["window"] == 4]], ignore_index=True)
    engines = {0: "opensearch", 4: "gateway"}
    assert write_ledger(path, whole, [trial(moment(100))], engines) == 7
    read = pq.read_table(path).to_pandas()
    assert list(read["status"])[:3] == ["ok", "ok", "wrong"]
    assert list(read["engine"]) == ["opensearch", *["gateway"] * 6]
    assert read["operation"].isna().tolist() == [True, *[False] * 6]
    assert set(read["clients"].dropna()) == {2}
    assert set(read["trial"].dropna()) == {1}
    assert list(read["request"]) == [0, 0, 1, 2, 3, 4, 5]
    assert not list(tmp_path.glob("*.writing"))


def test_a_round_is_invalid_for_its_failure_its_warm_up_and_its_cells() -> None:
    cells = [
        {
            "profile": "cold", "operation": "o", "engine": "gateway", "clients": 8,
            "invalid": ["trial 1: x"], "trials": [{"invalid": ["x"]}],
        }
    ]  # fmt: skip
    kept = {"violations": ["x", "y"]}
    outcome, invalid = judged(cells, {"ok": 5, "wrong": 1, "error": 0}, kept, None)
    assert outcome == "completed"
    # What a trial says already is not said again.
    assert invalid == ["warm-up: 1 wrong", "cold, o, gateway, 8 clients, trial 1: x", "y"]
    outcome, invalid = judged([], {"ok": 5}, {"violations": []}, "valkey has ended")
    assert (outcome, invalid) == ("failed", ["valkey has ended"])
    assert judged([], {"ok": 5}, {"violations": []}, None) == ("completed", [])

"""Tables and page of the gateway rounds, from synthetic records in the shape of real ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refill.config import load_claims
from refill.operations.catalog import load_operations
from refill.phases.round_plan import order
from refill.report import text
from refill.report.aa import aa_table, sentence
from refill.report.natives_view import natives_table
from refill.report.page import render
from refill.report.rounds import Expected, aof_table, rounds_table, write_tables
from refill.report.rounds_view import section

OPERATIONS = load_operations()
COLD = OPERATIONS.cold.id
EXPECTED = Expected(
    {
        "warm": [{"id": o.id, "title": o.title} for o in OPERATIONS.warm],
        "cold": [{"id": COLD, "title": OPERATIONS.cold.title}],
    },
    [1, 8],
    ["gateway"],
    ["on-main", "off-control"],
)
PUBLISHED = load_claims()["experiments"]["gateway"]
AOF = {"current_size": 1000, "base_size": 10, "rewrites": 0}


def make_record(profile: str, image: str, n: int) -> dict[str, Any]:
    """A valid round; p50 is 1 ms of a warm and 4 ms of a cold cell, less for the new image."""
    serving = profile == "on-main"
    factor = {"old": 1.0, "new": 0.5}[image]
    cells = []
    for kind, entries in (("warm", EXPECTED.operations["warm"] if serving else ()),
                          ("cold", EXPECTED.operations["cold"])):  # fmt: skip
        base = 1.0 if kind == "warm" else 4.0 * factor
        cells += [
            {
                "engine": "gateway", "profile": kind, "operation": entry["id"], "clients": clients,
                "valid": True, "invalid": [], "title": entry["title"], "requests": 200,
                "trials": [
                    {
                        "trial": t,
                        "invalid": [],
                        "wrong": [],
                        "hit_ratio": 1.0 if kind == "warm" else 0.0,
                        "stats": {"n": 200, "p50_ms": base + t * t + 10 * n, "p95_ms": base * 10},
                    }
                    for t in (1, 2, 3)
                ],
            }
            for entry in entries
            for clients in (1, 8)
        ]  # fmt: skip
    grown = 1200 * 7500 if image == "old" and serving else 0
    profiles = [
        {
            "name": kind,
            "valid": True,
            "requests": 1200,
            "cache": {"fills": 1200 if kind == "cold" and serving else 0},
            "aof": {
                "before": AOF,
                "after": {**AOF, "current_size": 1000 + (grown if kind == "cold" else 0)},
                "rewritten": False,
                "bytes": grown if kind == "cold" else 0,
                "replication_offset": 0,
            },
        }
        for kind in (("warm", "cold") if serving else ("cold",))
    ]
    place = order(2).index((image, n))
    return {
        "round": f"{profile}/{image}-{n}", "id": f"{profile}/{image}", "profile": profile,
        "image": image, "repeat": n, "valid": True, "invalid": [], "outcome": "completed",
        "started_at": f"2026-01-0{1 + (not serving)}T10:0{place}:00.000Z",
        "ended_at": f"2026-01-0{1 + (not serving)}T10:0{place}:30.000Z",
        "scale": "test", "code": "c", "corpus": {"name": "synthetic", "documents": 5},
        "configuration": {"counts": 1}, "host": {"warnings": []},
        "driver": {"floor_p50_ms": 0.05}, "wall": {"measured_s": 1.0, "total_s": 2.0},
        "engines": {
            "gateway": {
                "name": "gateway", "version": "x",
                "image": {"id": f"sha256:{image}", "tag": f"t:{image}", "tree": "abc"},
            },
            "qdrant": {"name": "qdrant", "title": "qdrant - embedded", "embedded": True},
            "valkey": {"name": "valkey", "version": "8.1.8"},
        },
        "cells": cells, "profiles": profiles,
        "ledger": {"counts": {"issued": 10, "ok": 10}},
    }  # fmt: skip


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return [
        make_record(profile, image, n)
        for profile in ("on-main", "off-control")
        for image, n in (("old", 1), ("new", 1), ("new", 2), ("old", 2))
    ]


def row(table: pd.DataFrame, **wanted: Any) -> Any:
    found = table
    for key, value in wanted.items():
        found = found[found[key] == value]
    assert len(found) == 1, found
    return found.iloc[0]


def cold(table: pd.DataFrame, profile: str = "on-main", clients: int = 8) -> Any:
    return row(table, profile=profile, cell="cold", engine="gateway", clients=clients)


def test_there_are_42_rows_whatever_was_measured(records: list[dict[str, Any]]) -> None:
    for measured in (records, records[:3], []):
        table = rounds_table(measured, EXPECTED, PUBLISHED)
        assert len(table) == 42
        assert not table["status"].isna().any()
    assert (table["status"] != "completed").all()


def test_a_cell_has_medians_of_six_trials_their_extremes_and_ratios(
    records: list[dict[str, Any]],
) -> None:
    found = cold(rounds_table(records, EXPECTED, PUBLISHED))
    # The trials' p50 are 4 + 11, 14, 19, 21, 24, 29 of old, 2 + the same of new.
    assert found["old_p50_ms"] == pytest.approx((23 + 25) / 2)
    assert found["new_p50_ms"] == pytest.approx((21 + 23) / 2)
    assert (found["old_p50_low_ms"], found["old_p50_high_ms"]) == (15, 33)
    assert found["p50_ratio"] == pytest.approx(22 / 24)
    assert found["p95_ratio"] == pytest.approx(0.5)
    assert (found["old_trials"], found["new_trials"], found["responses"]) == (6, 6, 2400)
    assert found["hit_ratio"] == 0.0
    assert found["status"] == "completed"


def test_published_figures_stand_beside_their_cells(records: list[dict[str, Any]]) -> None:
    table = rounds_table(records, EXPECTED, PUBLISHED)
    found = cold(table)
    assert found["published_old_p50_ms"] == 4.578
    assert found["published_p50_ratio"] == pytest.approx(3.614 / 4.578)
    assert found["published_new_p95_ms"] == 14.169
    assert cold(table, "off-control")["published_old_p95_ms"] == 44.38
    native = row(table, profile="on-main", cell="cold", engine="opensearch", clients=1)
    assert native["published_new_p50_ms"] == 0.498
    assert pd.isna(native["published_old_p95_ms"])
    assert native["status"].startswith("not measured: opensearch is not in rounds.engines")
    known = table["published_old_p50_ms"].notna().sum()
    assert known == len(PUBLISHED["figures"]) == 18


def spoil_trial(records: list[dict[str, Any]]) -> None:
    cell = records[0]["cells"][-1]
    cell["valid"], cell["invalid"] = False, ["trial 1: 1 of 200 responses are wrong"]


def spoil_outcome(records: list[dict[str, Any]]) -> None:
    records[2] |= {"outcome": "failed", "valid": False, "invalid": ["valkey has ended"]}


def spoil_code(records: list[dict[str, Any]]) -> None:
    records[1]["code"] = "other"


def spoil_machine(records: list[dict[str, Any]]) -> None:
    records[1]["host"] = {"cpu": {"model": "another"}, "warnings": ["busy"]}


def spoil_node(records: list[dict[str, Any]]) -> None:
    records[1]["host"] = {**records[1]["host"], "node": "n2"}


def spoil_image(records: list[dict[str, Any]]) -> None:
    records[3]["engines"]["gateway"]["image"]["id"] = "sha256:third"


def spoil_runtime(records: list[dict[str, Any]]) -> None:
    records[1]["engines"]["gateway"]["runtime"] = "docker"


def spoil_budget(records: list[dict[str, Any]]) -> None:
    for record in records:
        record["engines"]["gateway"] |= {"runtime": "docker", "applied": {"budget": "exact"}}
    records[1]["engines"]["gateway"]["applied"] = {"budget": "relaxed"}


def spoil_base(records: list[dict[str, Any]]) -> None:
    """The tag of the base was moved after `old` was built and before `new` was."""
    for record in records[:4]:
        base = {"reference": "python:3.11", "id": f"sha256:{record['image']}", "pinned": None}
        record["engines"]["gateway"]["image"]["base"] = base


def spoil_count(records: list[dict[str, Any]]) -> None:
    records[2]["cells"][-1]["trials"].pop()


def spoil_presence(records: list[dict[str, Any]]) -> None:
    del records[3]


DIFFER = "invalid: the rounds differ in"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_trial, "invalid: on-main/old-1: trial 1: 1 of 200 responses are wrong"),
        (spoil_outcome, "invalid: on-main/new-2 failed: valkey has ended"),
        (spoil_code, "invalid: the rounds differ in code: measure them anew"),
        (spoil_machine, "invalid: the rounds differ in machine (cpu.model): measure them anew"),
        (spoil_node, "invalid: the rounds differ in node: measure them anew"),
        (spoil_image, "invalid: the rounds of old are of different images: measure them anew"),
        (spoil_runtime, f"{DIFFER} runtime and limits of the gateway: measure them anew"),
        (spoil_budget, f"{DIFFER} runtime and limits of the gateway: measure them anew"),
        (
            spoil_base,
            "invalid: the gateways are built on different images that python:3.11 meant in turn: "
            "delete results/images/gateway-*.json and measure them anew",
        ),
        (spoil_count, "invalid: the rounds have [2, 3] trials: measure them anew"),
        (spoil_presence, "not measured: no record of old-2"),
    ],
)
def test_a_cell_that_does_not_count_has_no_figures_and_says_why(
    records: list[dict[str, Any]], spoil: Any, words: str
) -> None:
    spoil(records)
    table = rounds_table(records, EXPECTED, PUBLISHED)
    found = cold(table)
    assert found["status"] == words
    assert found[["old_p50_ms", "new_p50_ms", "p50_ratio", "old_p95_ms"]].isna().all()
    # The other profile has rounds of its own.
    assert cold(table, "off-control")["status"] == "completed"


def test_one_bad_cell_leaves_the_others(records: list[dict[str, Any]]) -> None:
    spoil_trial(records)
    table = rounds_table(records, EXPECTED, PUBLISHED)
    assert cold(table, clients=1)["status"] == "completed"


def test_the_log_has_one_row_a_raw_profile(records: list[dict[str, Any]]) -> None:
    table = aof_table(records, EXPECTED, PUBLISHED)
    assert len(table) == 12
    old = row(table, profile="on-main", image="old", n=2, cell="cold")
    assert (old["growth_bytes"], old["bytes_per_fill"]) == (9_000_000, 7500)
    assert old["published_growth_bytes"] == 9_103_723
    new = row(table, profile="on-main", image="new", n=1, cell="cold")
    assert (new["growth_bytes"], new["fills"]) == (0, 1200)
    off = row(table, profile="off-control", image="old", n=1, cell="cold")
    assert pd.isna(off["bytes_per_fill"])


def test_a_rewritten_log_has_no_growth(records: list[dict[str, Any]]) -> None:
    records[0]["profiles"][1]["aof"] |= {"rewritten": True, "bytes": None}
    found = row(
        aof_table(records, EXPECTED, PUBLISHED), profile="on-main", image="old", n=1, cell="cold"
    )
    assert found["rewritten"]
    assert pd.isna(found["growth_bytes"])
    assert pd.isna(found["bytes_per_fill"])


def test_files_hold_whole_numbers_whole(records: list[dict[str, Any]], tmp_path: Path) -> None:
    paths = write_tables(records[:5], EXPECTED, PUBLISHED, tmp_path)
    assert "9000000,7500," in paths["aof"].read_text()
    assert len(paths["rounds"].read_text().splitlines()) == 43


def page(records: list[dict[str, Any]]) -> str:
    return render([], {}, {}, load_claims(), rounds=records, expected=EXPECTED)


def test_a_round_that_was_measured_out_of_turn_is_said_twice(
    records: list[dict[str, Any]],
) -> None:
    assert section(records, EXPECTED, PUBLISHED)["late"] == []
    assert "out of turn" not in page(records)
    for name in ("on-main/new-1", "off-control/old-1"):
        late = next(record for record in records if record["round"] == name)
        late["started_at"] = "2026-01-09T10:00:00.000Z"
    # Whichever round of a profile was measured again: it is the one that stands behind later ones.
    found = section(records, EXPECTED, PUBLISHED)["late"]
    assert found == ["on-main/new-1", "off-control/old-1"]
    shown = page(records)
    assert shown.count("Measured out of turn: on-main/new-1, off-control/old-1") == 2


def test_bounds_that_say_nothing_are_told_by_a_word() -> None:
    shown = {
        (0.546, 0.815): "[0.55, 0.81]",
        (0.0123, 3.5): "[0.012, 3.50]",
        (1e-9, 0.7): "[0, 0.70]",
        (0.5, 4e4): "[0.50, not bounded]",
        (1e-9, 1e16): "[not bounded]",
    }
    assert {bounds: text.between(*bounds) for bounds in shown} == shown


def test_a_cell_has_ratio_interval_verdict_and_drift(records: list[dict[str, Any]]) -> None:
    found = cold(rounds_table(records, EXPECTED, PUBLISHED))
    # Two rounds of old are 10 ms apart: nothing can be said.
    assert found["p50_verdict"] == "undecidable"
    assert found["p50_ratio_low"] < found["p50_ratio"] < found["p50_ratio_high"]
    assert "would have been called" in found["p50_why"]
    # Medians of old-1 and old-2: 4 + 4 + 10 and 4 + 4 + 20.
    assert found["p50_drift_block"] == pytest.approx(28 / 18)
    # p95 is 40 and 20 ms in every trial.
    assert found["p95_verdict"] == "faster"
    assert found["p95_drift_block"] == 1.0
    assert (found["p95_mde_faster"], found["p95_mde_slower"]) == pytest.approx((1 / 1.05, 1.05))
    assert (found["interval_method"], found["margin"], found["blocks"]) == ("exact", 0.05, 1)
    warm = row(
        rounds_table(records, EXPECTED, PUBLISHED),
        operation="read-document", engine="gateway", clients=8,
    )  # fmt: skip
    assert warm["p95_verdict"] == "equivalent"


def test_what_was_not_measured_or_invalid_is_so_in_the_verdict_too(
    records: list[dict[str, Any]],
) -> None:
    table = rounds_table(records, EXPECTED, PUBLISHED)
    native = row(table, profile="on-main", cell="cold", engine="opensearch", clients=1)
    assert native["p50_verdict"] == "not measured"
    assert native["p50_why"] == "opensearch is not in rounds.engines of the configuration"
    spoil_trial(records)
    spoilt = cold(rounds_table(records, EXPECTED, PUBLISHED))
    assert (spoilt["p95_verdict"], spoilt["p95_why"]) == (
        "invalid", "on-main/old-1: trial 1: 1 of 200 responses are wrong",
    )  # fmt: skip


def in_two_blocks() -> list[dict[str, Any]]:
    return [
        make_record(profile, image, n)
        for profile in ("on-main", "off-control")
        for image in ("old", "new")
        for n in (1, 2, 3, 4)
    ]


def test_more_blocks_are_all_used_and_what_is_not_asked_for_is_not() -> None:
    records = in_two_blocks()
    two = replace(EXPECTED, blocks=2)
    found = cold(rounds_table(records, two, PUBLISHED))
    assert (found["old_trials"], found["new_trials"], found["responses"]) == (12, 12, 4800)
    assert found["interval_method"] == "drawn"
    assert cold(rounds_table(records, EXPECTED, PUBLISHED))["old_trials"] == 6
    missing = [r for r in records if r["round"] != "on-main/new-3"]
    assert cold(rounds_table(missing, two, PUBLISHED))["status"] == (
        "not measured: no record of new-3"
    )
    log = aof_table(records, two, PUBLISHED)
    assert len(log) == 24
    assert log[log["n"] > 2]["published_growth_bytes"].isna().all()
    assert log[log["n"] <= 2]["published_growth_bytes"].notna().all()


def test_a_native_engine_is_a_drift_control_of_its_cell(records: list[dict[str, Any]]) -> None:
    for record in records:
        for cell in [c for c in record["cells"] if c["profile"] == "cold"]:
            native = copy.deepcopy(cell) | {"engine": "opensearch"}
            for trial in native["trials"]:
                trial["stats"] |= {"p50_ms": 1.0, "p95_ms": 2.0 if record["image"] == "old" else 1}
            record["cells"].append(native)
    expected = replace(EXPECTED, engines=["gateway", "opensearch"])
    table = rounds_table(records, expected, PUBLISHED)
    found = cold(table)
    assert found["p95_drift_controls"] == "opensearch 0.500"
    assert found["p50_drift_controls"] == "opensearch 1.000"
    # The control moved as much as the gateway.
    assert found["p95_verdict"] == "undecidable"
    assert "opensearch moved by 2.00x" in found["p95_why"]
    native = row(table, profile="on-main", cell="cold", engine="opensearch", clients=8)
    assert native["p95_ratio"] == 0.5
    assert native["p95_verdict"] == "faster"
    assert native["p95_drift_controls"] == ""
    shown = section(records, expected, PUBLISHED)
    gauges = [
        cells
        for table in shown["cells"]
        for cells in table.rows
        if cells[0].published == "opensearch"
    ]
    words = {cell.text for cells in gauges for cell in cells if cell.kind.startswith("state")}
    # Of an engine that is the same in all rounds no figure is a gain.
    assert "drifted" in words
    assert not words & {"faster", "slower", "equivalent"}


@pytest.mark.parametrize("lost", [["new-1"], ["new-1", "new-2"]])
@pytest.mark.parametrize("how", ["absent", "wrong"])
def test_a_gauge_that_a_round_lost_makes_no_verdict_firmer(
    records: list[dict[str, Any]], lost: list[str], how: str
) -> None:
    for record in records:
        gone = record["round"].removeprefix("on-main/") in lost
        if gone and how == "absent":
            record["natives"] = {"opensearch": {"status": "not measured", "why": "a jar changed"}}
            continue
        for cell in [c for c in record["cells"] if c["profile"] == "cold"]:
            native = copy.deepcopy(cell) | {"engine": "opensearch"}
            native["invalid"] = ["1 response was wrong"] if gone else []
            for trial in native["trials"]:
                trial["stats"] |= {"p50_ms": 1.0, "p95_ms": 2.0 if record["image"] == "old" else 1}
            record["cells"].append(native)
    expected = replace(EXPECTED, engines=["gateway", "opensearch"])
    found = cold(rounds_table(records, expected, PUBLISHED))
    # Without any gauge it is `faster`, see above.
    assert found["p95_verdict"] == "undecidable"
    if len(lost) == 1:
        assert found["p95_drift_controls"] == "opensearch 0.500"
    else:
        assert found["p95_drift_controls"] == "opensearch lost"
        assert "was lost in all rounds of an image" in found["p95_why"]


def test_an_aa_run_counts_false_verdicts(records: list[dict[str, Any]]) -> None:
    same = replace(EXPECTED, images={"old": "gateway-old", "new": "gateway-old"})
    table = aa_table(records, same, PUBLISHED)
    # 14 cells of the gateway at two quantiles; the cold p95 of both profiles and client counts is
    # half of old's.
    assert len(table) == 28
    assert table["false"].sum() == 4
    assert set(table[table["false"]]["quantile"]) == {"p95"}
    assert set(table["false_verdicts"]) == {4}
    assert sentence(table) == (
        "A/A: 4 of 28 verdicts are false (14.3%), in 4 of 14 cells, in the worst 1 of 2; "
        "so this session holds a false one"
    )
    none = table[~table["false"]]
    assert sentence(none) == "A/A: 0 of 24 verdicts are false (0.0%), so none in this session"
    assert "Both arms are one image. A/A: 4 of 28 verdicts are false" in render(
        [], {}, {}, load_claims(), rounds=records, expected=same
    )
    broken = [{**r, "outcome": "failed", "invalid": ["it broke off"]} for r in records]
    assert "Both arms are one image. A/A: no cell has a verdict." in render(
        [], {}, {}, load_claims(), rounds=broken, expected=same
    )
    in_table = rounds_table(records, same, PUBLISHED)["arms"]
    assert set(in_table) == {"one image (A/A): gateway-old in both arms"}
    two = replace(EXPECTED, images={"old": "gateway-old", "new": "gateway-new"})
    assert set(rounds_table(records, two, PUBLISHED)["arms"]) == {"gateway-old against gateway-new"}
    assert "verdicts are false" not in render(
        [], {}, {}, load_claims(), rounds=records, expected=two
    )
    with pytest.raises(ValueError, match=r"config/aa\.yaml"):
        aa_table(records, two, PUBLISHED)
    with pytest.raises(ValueError, match="no cell was measured"):
        aa_table([], same, PUBLISHED)


def test_the_page_shows_verdict_words_beside_intervals(records: list[dict[str, Any]]) -> None:
    html = page(records)
    for word in ("faster", "equivalent", "undecidable"):
        assert f'<span class="chip">{word}</span>' in html
    assert "0.50 [0.50, 0.50]" in html
    assert "called below" in html
    assert "Drift is the last round of a block by its first" in html
    # Engines that were not to be measured take no rows on the page.
    assert html.count("is not in rounds.engines of the configuration") <= 4 * 2 + 8


def test_the_page_shows_cells_rounds_log_and_picture(records: list[dict[str, Any]]) -> None:
    html = page(records)
    assert "on-main/new-2" in html
    assert "sha256:new" in html
    assert "embedded engine" in html
    assert "9,103,721" in html
    assert html.count("<svg xmlns") >= 2
    assert 'src="http' not in html


WITH_NATIVE = replace(EXPECTED, engines=["gateway", "opensearch"])


def with_native(records: list[dict[str, Any]], status: str = "measured") -> None:
    """Add OpenSearch's cells to each round: as the gateway's, twice as slow."""
    for number, record in enumerate(records):
        record["natives"] = {"opensearch": {"status": status, "why": "no Java"}}
        for cell in record["cells"]:
            for trial in cell["trials"]:
                used = {"rss_bytes": 5e6, "cpu_s": 0.02}
                trial |= {"resources": {"opensearch": used}, "start_s": 1.0, "end_s": 2.0}
        if status != "measured":
            continue
        record["natives"]["opensearch"] |= {"started_s": 7.0 + number, "primed": {"load_s": 2.0}}
        record["engines"]["opensearch"] = {
            "name": "opensearch", "version": "3.9.0", "runtime": "process",
            "jvm": {"version": "25.0.3", "vendor": "V"},
        }  # fmt: skip
        own = copy.deepcopy(record["cells"])
        for cell in own:
            cell["engine"] = "opensearch"
            for trial in cell["trials"]:
                trial["stats"]["p50_ms"] *= 2
                trial["natives"] = {"opensearch": {"gc_s": 0.001}}
                trial["resources"]["opensearch"] = {"rss_bytes": 9e8, "cpu_s": 0.5}
        record["cells"] += own


def native_cell(records: list[dict[str, Any]]) -> Any:
    table = rounds_table(records, WITH_NATIVE, PUBLISHED)
    return row(table, profile="on-main", cell="cold", engine="opensearch", clients=8)


def test_a_native_engines_row_has_its_own_figures_and_no_hit_ratio(
    records: list[dict[str, Any]],
) -> None:
    with_native(records)
    found = native_cell(records)
    assert found["status"] == "completed"
    assert found["old_p50_ms"] == pytest.approx(23 + 25)
    assert pd.isna(found["hit_ratio"])


def test_a_native_engine_that_was_not_at_hand_says_why(records: list[dict[str, Any]]) -> None:
    with_native(records, "not measured")
    assert native_cell(records)["status"] == "not measured: no Java"


def test_a_native_engine_that_failed_in_one_round_spoils_its_own_cells(
    records: list[dict[str, Any]],
) -> None:
    with_native(records)
    bad = records[1]
    bad["natives"]["opensearch"] = {"status": "failed", "why": "it has ended"}
    bad["cells"] = [cell for cell in bad["cells"] if cell["engine"] == "gateway"]
    assert native_cell(records)["status"] == "invalid: on-main/new-1: it has ended"
    assert cold(rounds_table(records, WITH_NATIVE, PUBLISHED))["status"] == "completed"


def test_another_version_in_one_round_spoils_the_native_cells_alone(
    records: list[dict[str, Any]],
) -> None:
    with_native(records)
    records[2]["engines"]["opensearch"]["version"] = "3.8.0"
    assert "differ in opensearch" in native_cell(records)["status"]
    assert cold(rounds_table(records, WITH_NATIVE, PUBLISHED))["status"] == "completed"


def test_the_page_shows_what_the_native_engines_took(records: list[dict[str, Any]]) -> None:
    with_native(records)
    table = natives_table(records)
    assert table is not None
    (shown,) = table.rows
    assert [cell.text for cell in shown] == [
        "opensearch 3.9.0", "measured", "25.0.3, V", "8", "14.0", "2.00", "900", "0.168", "2 %",
    ]  # fmt: skip
    assert "Native engines" in render([], {}, {}, load_claims(), rounds=records, expected=EXPECTED)
    assert natives_table([]) is None


def test_a_wrong_response_is_shown_with_request_and_answer(records: list[dict[str, Any]]) -> None:
    spoil_trial(records)
    records[0]["valid"] = False
    records[0]["cells"][-1]["trials"][0]["wrong"] = [
        {
            "status": "wrong",
            "http": 200,
            "request": {"method": "POST", "path": "/flights/_search", "body": "{<b>}"},
            "detail": "hits.total.value: expected 3, got 4",
            "response": "<script>alert(1)</script>",
        }
    ]
    html = page(records)
    assert "expected 3, got 4" in html
    assert "{&lt;b&gt;}" in html
    assert "<script>" not in html


def test_no_round_at_all_is_a_page_that_says_so() -> None:
    html = page([])
    assert "No round was measured" in html
    assert "No picture: no cold cell was completed." in html
    shown = section([], EXPECTED, PUBLISHED)
    assert len(shown["missing"]) == 8


def test_records_are_only_read(records: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(records)
    page(records)
    assert records == before


def test_limits_are_told_apart_by_whose_figures_they_limit(records: list[dict[str, Any]]) -> None:
    records[0]["cells"][0]["requests"] = 60
    limits = dict(section(records, EXPECTED, PUBLISHED)["limits"])
    assert limits["Published"][1:] == PUBLISHED["caveats"]
    assert (
        "A trial of 60 requests has 3 samples above its p95: the tail is coarse."
        in (limits["Measured here"])
    )
    assert not set(limits["Published"]) & set(limits["Measured here"])
    assert dict(section([], EXPECTED, PUBLISHED)["limits"])["Measured here"] == []

"""The table of comparisons, from synthetic runs in the shape of real ones."""

import copy

import pandas as pd
import pytest
from refill.report.optimizer_verdicts import COLUMNS, COMPARISONS, optimizer_verdicts
from refill.report.verdicts_view import comparisons
from report_fixture import SHAPES, make_run

IDENTICAL = ["A1", "B2", "C2"]


@pytest.fixture(scope="module")
def measured():
    return [make_run(id_, repeat=n, scale=0.2).record for id_ in SHAPES for n in (1, 2)]


@pytest.fixture
def records(measured):
    return copy.deepcopy(measured)


def row(records, comparison, phase="steady", statistic="p50_ms"):
    table = optimizer_verdicts(records, IDENTICAL)
    found = table[
        (table["comparison"] == comparison)
        & (table["phase"] == phase)
        & (table["statistic"] == statistic)
    ]
    assert len(found) == 1
    return found.iloc[0]


def steady(records, id_, loop, *values):
    mine = [r for r in records if r["id"] == id_]
    for record, value in zip(mine, values, strict=True):
        record["phases"][2][loop]["p50_ms"] = value


def test_every_comparison_of_the_protocol_is_there(records):
    table = optimizer_verdicts(records, IDENTICAL)
    assert tuple(table.columns) == COLUMNS
    assert list(dict.fromkeys(table["comparison"])) == [f"{a}-{b}" for a, b in COMPARISONS]
    assert {"A3-A1", "B1-B2", "B3-B2", "B4-B2", "C1-C2", "D1-D2", "E2-E1", "A2-A1"} <= set(
        table["comparison"]
    )
    d1 = table[table["comparison"] == "D1-D2"]
    assert set(d1["phase"]) == {"draining", "steady", "followup-draining", "followup-steady"}


def test_the_open_loop_comes_first_and_the_closed_stands_beside(records):
    for id_, open_ms in (("A2", 4.0), ("A1", 1.0), ("C2", 1.01)):
        steady(records, id_, "open", open_ms, open_ms * 1.01)
        steady(records, id_, "closed", 1.0, 1.01)
    found = row(records, "A2-A1")
    assert float(found["left"]) == pytest.approx(4.02)
    assert found["ratio"] == pytest.approx(4.0)
    assert found["ratio_low"] < 4.0 < found["ratio_high"]
    assert (found["verdict"], found["closed_verdict"]) == ("slower", "equivalent")
    assert found["left_recall"] == 1.0
    assert 0.9 < found["right_recall"] < 1.0
    assert (found["left_visible_share"], found["left_repeats"]) == (1.0, 2)
    assert set(found["identical_runs"].split()) == {"A1/1", "A1/2", "C2/1", "C2/2"}
    assert found["embedded"]
    assert found["scale"].startswith("smoke: ")


def test_an_effect_within_the_noise_of_identical_runs_is_undecidable(records):
    steady(records, "A1", "open", 1.0, 1.5)
    steady(records, "C2", "open", 0.7, 1.2)
    steady(records, "A2", "open", 1.4, 1.45)
    found = row(records, "A2-A1")
    assert found["verdict"] == "undecidable"
    assert "would have been called" in found["why"]
    assert found["noise"] > 1.5


def test_hidden_points_stand_beside_a_fast_search(records):
    found = row(records, "A3-A1", "draining")
    assert found["left_visible_share"] == pytest.approx(0.6, abs=0.01)
    assert found["left_recall"] < found["right_recall"]


def test_drains_have_no_loop_and_bounds_are_marked(records):
    for record in records:
        if record["id"] == "A2":
            record["drain_s"] = 0.0
    found = row(records, "A2-A1", "draining", "drain_s")
    assert found["left"] == "<=0.25"
    assert found["verdict"] == "faster"
    assert pd.isna(found["closed_verdict"])
    follow = row(records, "D1-D2", "followup-draining", "drain_s")
    assert follow["verdict"] == "not measured"
    assert "has no drain time in followup-draining" in follow["why"]
    for record in records:
        if record["id"] in ("D1", "D2"):
            record["phases"][3]["drain_s"] = 9.0 if record["id"] == "D1" else 2.0
    assert row(records, "D1-D2", "followup-draining", "drain_s")["verdict"] == "slower"


def test_missing_and_mixed_runs_say_so(records):
    kept = [r for r in records if r["id"] != "B1"]
    found = row(kept, "B1-B2")
    assert (found["verdict"], found["why"]) == ("not measured", "no record of B1")
    kept[0]["code"] = "other"
    assert "differ in code" in row(kept, "A2-A1")["why"]
    assert row(kept, "A2-A1")["verdict"] == "undecidable"


@pytest.mark.parametrize(
    "engine", [{"runtime": "docker"}, {"applied": {"budget": "relaxed"}}, {"image": {"id": "b"}}]
)
def test_runs_under_another_runtime_budget_or_image_are_not_compared(records, engine):
    for record in records:
        if record["id"] == "A2":
            record["engine"] = {**record["engine"], **engine}
    found = row(records, "A2-A1")
    assert found["verdict"] == "undecidable"
    assert "the runs differ in engine: measure them anew" in found["why"]


def test_twins_in_containers_tell_nothing_of_the_noise_of_processes(records):
    twins = [r for r in records if r["id"] in ("A1", "C2")]
    for record, value in zip(twins, (1.0, 9.0, 3.0, 0.2), strict=True):
        record["engine"] = {**record["engine"], "runtime": "docker"}
        record["phases"][2]["open"]["p50_ms"] = value
    alone = [r for r in records if r not in twins]
    assert row(records, "B3-B2")["noise"] == row(alone, "B3-B2")["noise"]


def test_without_records_every_row_is_not_measured():
    assert set(optimizer_verdicts([], IDENTICAL)["verdict"]) == {"not measured"}


def test_the_page_shows_words_and_intervals(records):
    steady(records, "A2", "open", 4.0, 4.04)
    table = comparisons(records, IDENTICAL)
    shown = [cell.text for cells in table.rows for cell in cells]
    assert {"faster", "slower", "undecidable"} & set(shown)
    assert any("[" in cell for cell in shown)
    assert all(len(cells) == len(table.heads) + 1 for cells in table.rows)


@pytest.mark.parametrize(
    ("recall", "note", "look"),
    [(0.5, "2 and 2 runs; not the same work: other recall", "state warn"),
     (None, "2 and 2 runs", "state bad")],
)  # fmt: skip
def test_a_latency_with_other_answers_is_not_coloured(records, recall, note, look):
    steady(records, "A2", "open", 4.0, 4.04)
    for record in records:
        record["phases"][2]["visible_share_min"] = 1.0
        record["phases"][2]["open"]["recall_mean"] = 0.9
        if record["id"] == "A2" and recall:
            record["phases"][2]["open"]["recall_mean"] = recall
    table = comparisons(records, IDENTICAL)
    (found,) = [
        cells[table.heads.index("verdict") + 1]
        for cells in table.rows
        if (cells[0].text, cells[0].published, cells[2].text) == ("A2 by A1", "steady", "p50, ms")
    ]
    assert (found.text, found.note, found.kind) == ("slower", note, look)

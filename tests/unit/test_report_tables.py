import copy
from pathlib import Path

import pandas as pd
import pytest
import yaml
from refill.report import text
from refill.report.tables import optimizer_table, phase_table, write_tables
from report_fixture import SHAPES, make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def claims():
    return yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured():
    return [make_run(id_, scale=0.2).record for id_ in ("A1", "A2", "B1", "D1")]


@pytest.fixture
def records(measured):
    return copy.deepcopy(measured)


def test_one_row_a_run_with_the_published_figure_beside(records, claims):
    table = optimizer_table(records, claims).set_index("run")
    assert list(table.index) == sorted(SHAPES)
    a1 = table.loc["A1"]
    assert a1["drain_s"] == records[0]["drain_s"]
    assert a1["drain_resolution_s"] == 0.25
    assert a1["draining_open_p50_ms"] == records[0]["phases"][1]["open"]["p50_ms"]
    assert a1["steady_closed_n"] == records[0]["phases"][2]["closed"]["n"]
    assert a1["draining_visible_share_min"] == 1.0
    assert a1["rss_peak_bytes"] == 212_000_000
    assert (a1["published_drain_s"], a1["published_steady_p50_ms"]) == (683.679, 4.3)
    assert a1["lower_bounds"] == ""


def test_a_missing_run_says_so_and_keeps_the_published_figures(records, claims):
    c1 = optimizer_table(records, claims).set_index("run").loc["C1"]
    assert c1["status"] == "not measured"
    assert pd.isna(c1["drain_s"])
    assert c1["published_draining_n"] == 20888


@pytest.mark.parametrize(
    ("valid", "outcome"), [(False, "completed"), (False, "failed"), (True, "failed")]
)
def test_an_invalid_run_has_no_figures(records, claims, valid, outcome):
    records[0].update(valid=valid, outcome=outcome, invalid=["3 answers are wrong"])
    a1 = optimizer_table(records, claims).set_index("run").loc["A1"]
    assert a1["status"].endswith(": 3 answers are wrong")
    own = [c for c in a1.index if c.startswith(("draining_", "steady_", "drain_s", "rss"))]
    assert a1[own].isna().all()
    phases = phase_table(records, claims).set_index("run").loc["A1"]
    assert phases[["seconds", "open_p50_ms", "ended_by"]].isna().all().all()


def test_a_drain_limit_is_a_lower_bound_without_a_steady_phase(records, claims):
    b1 = records[2]
    b1["outcome"] = b1["phases"][1]["outcome"] = "drain_limit"
    b1["phases"] = b1["phases"][:2]
    row = optimizer_table(records, claims).set_index("run").loc["B1"]
    assert row["status"] == "drain limit reached"
    assert row["lower_bounds"] == "drain_s"
    assert pd.isna(row["steady_open_p50_ms"])


def test_a_censored_quantile_is_named_as_a_lower_bound(records, claims):
    records[0]["phases"][2]["closed"].update(timeout=60, p99_ms=10_000.0, max_ms=10_000.0)
    row = optimizer_table(records, claims).set_index("run").loc["A1"]
    bounds = row["lower_bounds"].split()
    assert "steady_closed_p99_ms" in bounds
    assert "steady_closed_p50_ms" not in bounds


def test_one_row_a_phase(records, claims):
    table = phase_table(records, claims)
    d1 = table[table["run"] == "D1"].set_index("phase")
    assert list(d1.index) == [
        "upload",
        "draining",
        "steady",
        "followup-draining",
        "followup-steady",
    ]
    assert d1.loc["followup-draining", "optimizers_seen"] == "vacuum"
    assert d1.loc["followup-draining", "published_p50_ms"] == 9.7
    assert pd.isna(d1.loc["followup-steady", "published_p50_ms"])
    assert d1.loc["upload", "upload_n"] == 40


def test_an_empty_loop_is_empty_not_zero(records, claims):
    records[1]["phases"][1].update(open=None, closed=None, visible_share=None)
    a2 = optimizer_table(records, claims).set_index("run").loc["A2"]
    assert pd.isna(a2["draining_open_n"])
    assert pd.isna(a2["draining_visible_share_min"])


def test_files_are_the_same_twice(records, claims, tmp_path):
    first = {
        name: path.read_bytes() for name, path in write_tables(records, claims, tmp_path).items()
    }
    again = write_tables(list(reversed(records)), claims, tmp_path / "b")
    assert set(first) == {"optimizers", "optimizer_phases", "optimizer_verdicts", "claims"}
    assert {name: path.read_bytes() for name, path in again.items()} == first


def test_tables_without_records(claims):
    assert set(optimizer_table([], claims)["status"]) == {"not measured"}
    assert len(phase_table([], claims)) == 0


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.number(1234.5), "1,234"),
        (text.number(0.26049), "0.260"),
        (text.number(12.345), "12.3"),
        (text.number(None), "–"),
        (text.number(0), "0"),
        (text.bounded(10_000.0, True, "ms"), "≥ 10,000 ms"),
        (text.share(1.0), "100 %"),
        (text.share(0.99999), "> 99.9 %"),
        (text.share(0.6), "60 %"),
        (text.share(0.0), "0 %"),
        (text.recall(0.9999), "> 0.999"),
        (text.recall(1.0), "1.000"),
        (text.printed(5.2), "5.2"),
        (text.printed(1970.0), "1,970"),
        (text.bytes_(212e6), "212 MB"),
        (text.bytes_(None), "–"),
    ],
)
def test_figures_as_text(shown, expected):
    assert shown == expected

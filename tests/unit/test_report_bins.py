import numpy as np
import pandas as pd
import pytest
from refill.report.bins import activity, latency_bins, point_counts, request_latency_ms


def ledger(rows):
    columns = ["phase", "loop", "planned", "sent", "done", "status"]
    return pd.DataFrame(rows, columns=columns)


def polls(rows):
    frame = pd.DataFrame(rows, columns=["t", "running", "queued"])
    return frame.assign(points=100.0, visible=100.0, indexed=50.0)


def test_the_open_loop_counts_from_the_planned_time():
    rows = ledger(
        [("steady", "open", 1.0, 1.5, 1.6, "ok"), ("steady", "closed", 1.0, 1.5, 1.6, "ok")]
    )
    assert request_latency_ms(rows, 10.0).tolist() == pytest.approx([600.0, 100.0])


def test_timeouts_are_at_least_the_limit_and_errors_are_none():
    rows = ledger(
        [
            ("steady", "closed", 0.0, 0.0, np.nan, "timeout"),
            ("steady", "open", 0.0, 2.0, 12.0, "timeout"),
            ("steady", "closed", 0.0, 0.0, 0.5, "error"),
        ]
    )
    found = request_latency_ms(rows, 10.0)
    assert found.tolist()[:2] == [10_000.0, 12_000.0]
    assert np.isnan(found[2])


def test_bins_keep_median_max_and_the_unanswered():
    rows = ledger(
        [("steady", "closed", t, t, t + ms / 1e3, "ok") for t, ms in ((0.1, 1), (0.2, 3), (0.3, 9))]
        + [
            ("steady", "closed", 0.4, 0.4, 0.5, "error"),
            ("steady", "closed", 1.5, 1.5, 1.502, "ok"),
        ]
    )
    bins = latency_bins(rows, 10.0, end_s=2.0, count=2)
    assert bins["n"].tolist() == [4, 1]
    assert bins["median_ms"].tolist() == pytest.approx([3.0, 2.0])
    assert bins["max_ms"].tolist() == pytest.approx([9.0, 2.0])
    assert bins["unanswered"].tolist() == [1, 0]


def test_a_bin_does_not_mix_phases_or_loops():
    rows = ledger(
        [
            ("draining", "open", 0.1, 0.1, 0.2, "ok"),
            ("draining", "closed", 0.1, 0.1, 0.2, "ok"),
            ("steady", "open", 0.2, 0.2, 0.3, "ok"),
        ]
    )
    assert len(latency_bins(rows, 10.0, end_s=1.0, count=1)) == 3


def test_no_rows_no_bins():
    assert len(latency_bins(ledger([]), 10.0, end_s=1.0, count=5)) == 0


def test_activity_merges_adjoining_polls_and_shows_waiting_work():
    found = activity(
        polls(
            [
                (0, "indexing", 0),
                (1, "indexing,merge", 0),
                (2, "", 3),
                (3, "", 0),
                (4, "indexing", 0),
            ]
        ),
        end_s=5.0,
    )
    assert sorted(found.itertuples(index=False, name=None)) == [
        ("indexing", 0.0, 2.0),
        ("indexing", 4.0, 5.0),
        ("merge", 1.0, 2.0),
        ("waiting", 2.0, 3.0),
    ]


def test_point_counts_keep_a_short_dip():
    frame = polls([(float(t), "", 0) for t in range(100)])
    frame.loc[57, "visible"] = 7.0
    found = point_counts(frame, end_s=100.0, count=10)
    visible = found[found["series"] == "visible"]
    assert visible["points"].min() == 7.0
    assert len(visible) == 10

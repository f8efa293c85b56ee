import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refill.stats.quantiles import is_lower_bound, nearest_rank, rank, recall_summary, search_stats

finite = st.floats(0, 1e6, allow_nan=False)


def stats(latency, status, recall=None, hits=None, seconds=None):
    return search_stats(latency, status, recall, hits, limit=10, timeout_s=10.0, seconds=seconds)


def test_nearest_rank_by_hand():
    # The classic example: 15, 20, 35, 40, 50.
    values = [35, 50, 15, 40, 20]
    assert [nearest_rank(values, q) for q in (0.05, 0.3, 0.4, 0.5, 1.0)] == [15, 20, 20, 35, 50]


def test_rank_is_exact_where_binary_floats_are_not():
    assert 0.07 * 100 > 7  # ceil would say 8
    assert rank(0.07, 100) == 7
    assert rank(0.99, 1000) == 990
    assert rank(0.95, 20) == 19


@given(
    st.lists(finite, min_size=1, max_size=60), st.sampled_from([0.01, 0.05, 0.5, 0.95, 0.99, 1.0])
)
def test_nearest_rank_is_a_sample_with_enough_at_or_below(values, q):
    found = nearest_rank(values, q)
    assert found in values
    assert sum(v <= found for v in values) >= q * len(values) - 1e-9
    assert sum(v < found for v in values) < q * len(values) + 1e-9


@given(st.lists(finite, min_size=1, max_size=60), st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_nearest_rank_is_numpys_inverted_cdf(values, q):
    assert nearest_rank(values, q) == np.quantile(values, q, method="inverted_cdf")


@pytest.mark.parametrize(
    ("values", "q", "message"),
    [
        ([], 0.5, "no values"),
        ([1.0], 0.0, "in \\(0, 1\\]"),
        ([1.0, math.nan], 0.5, "NaN"),
        ([[1.0]], 0.5, "one dim"),
    ],
)
def test_nearest_rank_refuses(values, q, message):
    with pytest.raises(ValueError, match=message):
        nearest_rank(values, q)


def test_stats_by_hand():
    block = stats(
        [0.004, 0.001, 0.003, 0.002],
        ["ok", "ok", "wrong", "ok"],
        recall=[1.0, 0.9, 0.0, math.nan],
        hits=[10, 10, 3, 10],
        seconds=2.0,
    )
    assert block == {
        "n": 4, "ok": 3, "wrong": 1, "error": 0, "timeout": 0,
        "p50_ms": 2.0, "p95_ms": 4.0, "p99_ms": 4.0, "max_ms": 4.0, "mean_ms": pytest.approx(2.5),
        "per_s": 2.0, "p99_resolved": False, "censored": False,
        "recall_mean": pytest.approx((1.0 + 0.9 + 0.0) / 3), "hits_short": 1,
    }  # fmt: skip


def test_error_rows_are_counted_but_are_no_latency():
    block = stats([0.001, 0.002, 0.003, 99.0], ["ok"] * 3 + ["error"], hits=[10, 10, 10, 0])
    assert (block["n"], block["error"]) == (4, 1)
    assert (block["p50_ms"], block["max_ms"]) == (2.0, 3.0)
    assert block["hits_short"] == 0


def test_a_quantile_on_a_timeout_is_a_lower_bound_and_one_below_is_exact():
    block = stats([0.001] * 95 + [math.nan] * 5, ["ok"] * 95 + ["timeout"] * 5)
    assert (block["p95_ms"], block["p99_ms"], block["max_ms"]) == (1.0, 10_000.0, 10_000.0)
    assert block["censored"] is True
    bounds = {k: is_lower_bound(block, k, 10.0) for k in ("p50_ms", "p95_ms", "p99_ms", "mean_ms")}
    assert bounds == {"p50_ms": False, "p95_ms": False, "p99_ms": True, "mean_ms": True}


def test_a_slow_answer_above_the_limit_is_no_exact_quantile_beside_a_timeout():
    # Open loop: 12 s from the planned send, answered; one more timed out and may have taken longer.
    block = stats([12.0, math.nan], ["ok", "timeout"])
    assert block["max_ms"] == 12_000.0
    assert is_lower_bound(block, "max_ms", 10.0)
    assert not is_lower_bound(stats([12.0], ["ok"]), "max_ms", 10.0)


def test_a_timeout_recorded_below_the_limit_is_raised_to_it_and_above_it_is_kept():
    assert stats([0.2], ["timeout"])["p50_ms"] == 10_000.0
    assert stats([11.5], ["timeout"])["p50_ms"] == 11_500.0


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.sampled_from(["ok", "wrong", "error", "timeout"])),
        max_size=80,
    )
)
def test_conservation_and_bounds(rows):
    block = stats([r[0] for r in rows], [r[1] for r in rows])
    assert block["n"] == len(rows) == sum(block[k] for k in ("ok", "wrong", "error", "timeout"))
    figures = [block[k] for k in ("p50_ms", "p95_ms", "p99_ms", "max_ms")]
    if block["n"] == block["error"]:
        assert figures == [None] * 4
    else:
        assert figures == sorted(figures)
        assert block["mean_ms"] <= block["max_ms"] * (1 + 1e-12)


@given(
    st.lists(st.floats(0, 30), min_size=1, max_size=60),
    st.sampled_from(["p50_ms", "p95_ms", "p99_ms", "max_ms"]),
)
def test_censoring_never_claims_more_than_the_truth(truth, key):
    """What a client with a 10 s limit sees bounds what one without a limit would have seen."""
    seen = stats([min(t, 10.0) for t in truth], ["timeout" if t > 10 else "ok" for t in truth])
    whole = stats(truth, ["ok"] * len(truth))
    if is_lower_bound(seen, key, 10.0):
        assert seen[key] <= whole[key]
    else:
        assert seen[key] == whole[key]


def test_p99_is_resolved_from_1000_samples():
    assert stats([0.001] * 999, ["ok"] * 999)["p99_resolved"] is False
    assert stats([0.001] * 1000, ["ok"] * 1000)["p99_resolved"] is True


def test_unknown_is_none_not_zero():
    block = stats([], [])
    assert block["n"] == 0
    assert all(
        block[k] is None for k in ("p50_ms", "mean_ms", "per_s", "recall_mean", "hits_short")
    )


@pytest.mark.parametrize(
    ("latency", "status", "message"),
    [
        ([0.1], ["ok", "ok"], "equal length"),
        ([0.1], ["lost"], "unknown status lost"),
        ([math.nan], ["ok"], "1 answered requests have no latency"),
        ([-0.1], ["ok"], "negative"),
    ],
)
def test_stats_refuses(latency, status, message):
    with pytest.raises(ValueError, match=message):
        stats(latency, status)


def test_stats_refuses_recall_of_another_length():
    with pytest.raises(ValueError, match="recall has shape"):
        stats([0.1], ["ok"], recall=[1.0, 1.0])


def test_recall_summary_by_hand():
    values = [i / 20 for i in range(1, 21)]  # 0.05 .. 1.0: the p05 of 20 values is the first
    assert recall_summary([*values, math.nan]) == {
        "mean": pytest.approx(0.525),
        "min": 0.05,
        "p05": 0.05,
    }
    assert recall_summary([math.nan]) == {"mean": None, "min": None, "p05": None}

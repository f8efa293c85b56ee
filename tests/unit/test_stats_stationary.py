import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refill.stats.stationary import mann_kendall, stationary


def noisy(n=1000, base=0.004, seed=0):
    return base * np.random.default_rng(seed).lognormal(0, 0.2, n)


def test_mann_kendall_by_hand():
    # 1, 3, 2, 4: five pairs rise, one falls: S = 4; variance 4*3*13/18; z = 3/sqrt(8.667).
    z, change = mann_kendall([1, 3, 2, 4])
    assert z == pytest.approx(3 / (4 * 3 * 13 / 18) ** 0.5)
    # slopes 2, 0.5, 1, -1, 0.5, 2: median 0.75 over three steps.
    assert change == pytest.approx(2.25)


def test_mann_kendall_constant_series_has_no_trend():
    assert mann_kendall([5.0] * 10) == (0.0, 0.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=25))
def test_mann_kendall_reverses_sign_with_time(values):
    forward, backward = mann_kendall(values), mann_kendall(values[::-1])
    assert forward[0] == pytest.approx(-backward[0])
    assert forward[1] == pytest.approx(-backward[1])


def test_level_noise_is_stationary():
    block = stationary(np.arange(1000.0), noisy(), optimizer_polls=0)
    assert block["ok"] is True
    assert block["reason"] == ""
    assert block["ratio"] == pytest.approx(block["second_half_p50_ms"] / block["first_half_p50_ms"])


def test_a_step_between_the_halves_is_found():
    latency = np.concatenate([np.full(500, 0.004), np.full(500, 0.002)])
    block = stationary(np.arange(1000.0), latency, optimizer_polls=0)
    assert (block["first_half_p50_ms"], block["second_half_p50_ms"]) == (4.0, 2.0)
    assert block["ratio"] == 0.5
    assert not block["ok"]
    assert "halves differs by 2.000 ms, more than 0.400 ms" in block["reason"]


def test_a_slow_trend_within_the_halves_tolerance_is_found():
    latency = noisy() * np.linspace(0.85, 1.15, 1000)
    block = stationary(np.arange(1000.0), latency, optimizer_polls=0)
    assert "halves" not in block["reason"]
    assert "trend" in block["reason"]
    assert not block["ok"]


def test_order_of_sending_counts_not_order_of_rows():
    sent = np.arange(1000.0)
    latency = np.where(sent < 500, 0.004, 0.002)
    shuffle = np.random.default_rng(1).permutation(1000)
    assert stationary(sent[shuffle], latency[shuffle], 0) == stationary(sent, latency, 0)


def test_a_change_below_the_floor_does_not_matter():
    latency = np.concatenate([np.full(500, 0.00010), np.full(500, 0.00014)])
    assert stationary(np.arange(1000.0), latency, 0)["ok"]
    assert not stationary(np.arange(1000.0), latency, 0, floor_ms=0.01)["ok"]


def test_optimizer_activity_is_never_steady():
    block = stationary(np.arange(1000.0), noisy(), optimizer_polls=3)
    assert not block["ok"]
    assert "in 3 polls" in block["reason"]


def test_too_few_samples_is_not_ok():
    block = stationary(np.arange(99.0), np.full(99, 0.004), 0)
    assert block == {
        "ok": False, "first_half_p50_ms": None, "second_half_p50_ms": None, "ratio": None,
        "reason": "99 samples, at least 100 are needed",
    }  # fmt: skip


def test_few_false_alarms_on_level_noise():
    flagged = [
        not stationary(np.arange(1000.0), noisy(seed=s), optimizer_polls=0)["ok"]
        for s in range(200)
    ]
    assert sum(flagged) <= 2


def test_refuses_nan_and_unequal_lengths():
    with pytest.raises(ValueError, match="NaN"):
        stationary([0.0] * 200, [np.nan] * 200, 0)
    with pytest.raises(ValueError, match="equal length"):
        stationary([0.0], [0.0, 1.0], 0)


def test_wild_level_noise_is_no_trend():
    """A large Sen slope alone is no evidence: the test must be significant as well."""
    reasons = []
    for seed in range(200):
        latency = 0.004 * np.random.default_rng(seed).lognormal(0, 1.0, 100)
        reasons.append(stationary(np.arange(100.0), latency, optimizer_polls=0)["reason"])
    assert sum("trend" in reason for reason in reasons) <= 6

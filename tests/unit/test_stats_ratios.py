"""Verdicts on ratios: the bootstrap against brute force, Student's t, the rule of the words."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refill.stats import resampling
from refill.stats.quantiles import nearest_rank
from refill.stats.ratios import (
    Drift,
    Interval,
    block_drift,
    compare,
    half_width,
    ratio_verdict,
)
from refill.stats.resampling import arm_median, ratio_interval
from refill.stats.student import inside, two_sided

OLD = [[1.00, 1.03, 0.98], [1.02, 1.01, 1.05]]
latency = st.floats(0.05, 50).map(lambda v: round(v, 4))
arm = st.lists(st.lists(latency, min_size=3, max_size=3), min_size=2, max_size=2)


def scaled(rounds, factor):
    return [[value * factor for value in trials] for trials in rounds]


def by_brute_force(old, new, q):
    """The quantile over all pairs of resamples, formed one after another."""

    def medians(rounds):
        for chosen in itertools.product(rounds, repeat=len(rounds)):
            for drawn in itertools.product(*[itertools.product(t, repeat=len(t)) for t in chosen]):
                yield statistics.median(itertools.chain(*drawn))

    ratios = [b / a for a in medians(old) for b in medians(new)]
    return nearest_rank(ratios, q)


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_exact_interval_is_that_of_all_resamples(level):
    # 2 rounds of 2 trials: 64 resamples an arm, 4,096 pairs.
    old, new = [[1.0, 1.4], [1.1, 1.2]], [[0.7, 0.9], [1.3, 0.8]]
    low, high, method = ratio_interval(old, new, level)
    assert method == "exact"
    assert low == by_brute_force(old, new, (1 - level) / 2)
    assert high == by_brute_force(old, new, 1 - (1 - level) / 2)


def test_two_rounds_of_three_trials_are_exact_and_more_are_drawn():
    assert resampling.resamples(2, 3) == 2916
    assert ratio_interval(OLD, OLD, 0.95)[2] == "exact"
    four = OLD + scaled(OLD, 1.01)
    assert ratio_interval(four, four, 0.95)[2] == "drawn"


def test_what_is_drawn_agrees_with_what_is_formed(monkeypatch):
    rng = np.random.default_rng(3)
    # Many distinct values: a quantile of few jumps from one to the next.
    old, new = rng.lognormal(0, 0.1, (2, 3)).tolist(), rng.lognormal(0, 0.1, (2, 3)).tolist()
    exact = ratio_interval(old, new, 0.8)
    monkeypatch.setattr(resampling, "EXACT_LIMIT", 0)
    drawn = ratio_interval(old, new, 0.8)
    assert drawn[2] == "drawn"
    assert drawn[:2] == pytest.approx(exact[:2], rel=0.04)
    assert ratio_interval(old, new, 0.8) == drawn


def test_rounds_are_drawn_before_trials():
    # Within each round nothing varies; only drawing rounds can give a spread.
    old, new = [[1.0] * 3, [2.0] * 3], [[1.0] * 3, [1.0] * 3]
    low, high, _ = ratio_interval(old, new, 0.95)
    assert (low, high) == (0.5, 1.0)
    # And rounds alike, trials apart: only drawing trials can.
    low, high, _ = ratio_interval([[1.0, 2.0, 3.0]] * 2, [[1.0] * 3] * 2, 0.95)
    assert low < 0.5 < high


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([], "at least one round"),
        ([[1.0], []], "at least one trial"),
        ([[1.0, 2.0], [1.0]], r"\[1, 2\] trials"),
        ([[1.0, 0.0]], "above 0"),
        ([[1.0, math.nan]], "finite"),
    ],
)
def test_what_is_no_arm_is_refused(rounds, words):
    with pytest.raises(ValueError, match=words):
        arm_median(rounds)


@pytest.mark.parametrize(
    ("df", "level", "t"),
    # Abramowitz and Stegun, table 26.10, and any other.
    [(1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.95, 3.182), (5, 0.95, 2.571), (11, 0.95, 2.201),
     (2, 0.99, 9.925), (10, 0.99, 3.169), (30, 0.95, 2.042), (120, 0.95, 1.980)],
)  # fmt: skip
def test_student_is_that_of_the_tables(df, level, t):
    assert two_sided(level, df) == pytest.approx(t, abs=6e-4)
    assert inside(two_sided(level, df), df) == pytest.approx(level)


def test_student_refuses_nonsense():
    with pytest.raises(ValueError, match="level"):
        two_sided(1.0, 3)
    with pytest.raises(ValueError, match="df"):
        inside(1.0, 0)


def test_half_width_by_hand():
    old, new = [[1.0], [math.e]], [[1.0], [1.0]]
    # Logarithms 0, 1 | 0, 0: the block's mean and the arms' leave 0.25 + 0.25 = 0.5 on 2 degrees.
    expected = two_sided(0.95, 2) * math.sqrt(0.5 / 2 * (1 / 2 + 1 / 2))
    assert half_width(old, new, 0.95, in_blocks=True) == pytest.approx(expected)


def test_what_a_whole_block_shares_is_no_noise():
    rng = np.random.default_rng(1)
    blocks = [1.0, 1.0, 3.0, 3.0, 0.5, 0.5]
    old = [list(b * rng.normal(1, 0.01, 3)) for b in blocks]
    new = [list(b * rng.normal(0.8, 0.01, 3)) for b in blocks]
    level = 0.95
    assert half_width(old, new, level, in_blocks=True) < 0.03
    assert half_width(old, new, level, in_blocks=False) > 0.5


def test_faster_slower_equivalent_undecidable():
    assert compare(OLD, scaled(OLD, 0.7)).verdict == "faster"
    assert compare(OLD, scaled(OLD, 1.4)).verdict == "slower"
    tight = [[1.0, 1.001, 0.999], [1.0, 1.0, 1.001]]
    same = compare(tight, tight)
    assert same.verdict == "equivalent"
    assert "within the margin of 5%" in same.why
    wide = compare([[1.0, 2.0, 0.5], [1.5, 0.7, 1.0]], scaled(OLD, 0.9))
    assert wide.verdict == "undecidable"
    assert "would have been called" in wide.why


def test_a_small_effect_that_is_certain_is_equivalent_within_the_margin():
    tight = [[1.0, 1.001, 0.999], [1.0, 1.0, 1.001]]
    assert compare(tight, scaled(tight, 0.98), margin=0.05).verdict == "equivalent"
    assert compare(tight, scaled(tight, 0.98), margin=0.01).verdict == "faster"


def test_one_round_of_an_arm_decides_nothing():
    found = compare(OLD[:1], scaled(OLD, 0.2))
    assert (found.verdict, found.interval) == ("undecidable", None)
    assert "one round" in found.why


def test_an_effect_no_larger_than_the_drift_is_not_called():
    new = scaled(OLD, 0.8)
    assert compare(OLD, new, drift=Drift(1.1, {})).verdict == "faster"
    for drift in (Drift(1.3, {}), Drift(1 / 1.3, {}), Drift(None, {"opensearch": 0.77})):
        found = compare(OLD, new, drift=drift)
        assert found.verdict == "undecidable"
        assert "moved by 1.30x" in found.why
        assert found.mde_faster == pytest.approx(0.77, abs=0.001)
    assert "opensearch" in found.why


def test_drift_of_a_block_is_last_by_first_of_one_arm():
    old = [[1.0], [1.2], [5.0], [7.0]]
    new = [[3.0], [4.0], [2.0], [2.2]]
    # Block 1 begins and ends with old, block 2 with new: factors 1.2 and 1.1.
    assert block_drift(old, new) == pytest.approx(math.sqrt(1.2 * 1.1))
    assert block_drift(old[:1], new[:1]) is None


@settings(max_examples=60, deadline=None)
@given(arm, arm)
def test_arms_the_other_way_round_give_the_opposite(old, new):
    opposite = {"faster": "slower", "slower": "faster"}
    found, turned = compare(old, new), compare(new, old)
    # Bounds that fall on 1 exactly can round to either side of it.
    edges = (found.interval.low, found.interval.high, 1 / turned.interval.low)
    assume(all(abs(edge - 1) > 1e-9 for edge in edges))
    assert turned.verdict == opposite.get(found.verdict, found.verdict)
    assert turned.ratio == pytest.approx(1 / found.ratio)


@settings(max_examples=60, deadline=None)
@given(arm, arm, st.floats(0.01, 100))
def test_units_do_not_matter(old, new, unit):
    found, other = compare(old, new), compare(scaled(old, unit), scaled(new, unit))
    assert other.ratio == pytest.approx(found.ratio)
    assert other.interval.low == pytest.approx(found.interval.low)
    assert other.interval.high == pytest.approx(found.interval.high)


@settings(max_examples=60, deadline=None)
@given(arm, arm, st.floats(1.0, 1.5), st.sampled_from([0.02, 0.05]))
def test_the_smallest_effects_are_where_the_verdict_changes(old, new, drift, margin):
    given_drift = Drift(drift, {})
    found = compare(old, new, margin, given_drift)
    for edge, verdict in ((found.mde_faster, "faster"), (found.mde_slower, "slower")):
        beyond, short = (0.999, 1.001) if verdict == "faster" else (1.001, 0.999)
        for nudge, called in ((beyond, True), (short, False)):
            there = scaled(new, edge * nudge / found.ratio)
            assert (compare(old, there, margin, given_drift).verdict == verdict) is called


def test_the_bootstrap_can_widen_the_interval_and_students_t_too():
    rounds_alike = [[1.0, 5.0, 9.0]] * 2
    found = compare(rounds_alike, rounds_alike)
    assert half_width(rounds_alike, rounds_alike, 0.95, True) == 0.0
    assert found.interval.low < 0.5
    trials_alike = [[1.0] * 3, [1.3] * 3]
    low, high, _ = ratio_interval(trials_alike, trials_alike, 0.95)
    wider = compare(trials_alike, trials_alike).interval
    assert wider.low < low
    assert wider.high > high


def test_an_interval_states_its_level():
    found = ratio_verdict(0.8, Interval(0.7, 0.9, 0.9, "exact"))
    assert found.why.startswith("the 90% interval 0.700 to 0.900 is below 1")

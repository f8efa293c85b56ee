"""Verdicts over repeats of whole runs, against the noise of identical ones."""

import math

import numpy as np
import pytest
from refill.stats.ratios import LEVEL
from refill.stats.repeats import compare_runs, effect, noise
from refill.stats.student import two_sided
from refill.stats.verdict import Value, judge


def values(*numbers):
    return [Value(number) for number in numbers]


def test_noise_pools_groups_by_hand():
    found = noise(values(1.0, math.e), [values(2.0, 2.0, 2.0), values(7.0)], relative=True)
    # Squares 0.5 + 0 on 1 + 2 degrees of freedom; a group of one says nothing.
    assert (found.df, found.runs) == (3, 5)
    assert found.size == pytest.approx(math.sqrt(0.5 / 3))
    half = two_sided(LEVEL, 3) * math.sqrt(0.5 / 3) * math.sqrt(1 / 2 + 1 / 1)
    assert found.half_width(2, 1) == pytest.approx(half)
    assert found.floor(2, 1).size == pytest.approx(math.exp(half))


@pytest.mark.parametrize(
    ("same", "words"),
    [
        ([], "0 identical runs, at least 2 are needed"),
        (values(1.0), "1 identical runs, at least 2 are needed"),
        ([Value(1.0), Value(9.0, bound=True)], "lower bound"),
        ([Value(1.0), Value(0.2, at_most=True)], "too short"),
        (values(1.0, 0.0), "no factor"),
    ],
)
def test_no_noise_says_why_and_decides_nothing(same, words):
    found = noise(same, [values(2.0)], relative=True)
    assert found.size is None
    assert words in found.why
    decided = compare_runs(values(1.0), values(9.0), found)
    assert decided.verdict == "undecidable"
    assert words in decided.why


def test_a_bound_among_repeats_leaves_the_noise_of_the_others():
    short = [Value(0.25, at_most=True)] * 2
    assert noise(values(1.0, 1.1), [short, values(0.0, 0.0)], relative=True) == noise(
        values(1.0, 1.1), [], relative=True
    )


def test_words_over_repeats():
    quiet = noise(values(1.0, 1.01, 0.99, 1.0), [], relative=True)
    assert compare_runs(values(0.5, 0.51), values(1.0, 1.01), quiet).verdict == "faster"
    assert compare_runs(values(2.0), values(1.0), quiet).verdict == "slower"
    assert compare_runs(values(1.03), values(1.0), quiet).verdict == "undecidable"
    quieter = noise(values(1.0, 1.001, 0.999, 1.0), [], relative=True)
    assert compare_runs(values(1.001), values(1.0), quieter).verdict == "equivalent"


def test_repeats_that_vary_widen_the_interval():
    quiet = noise(values(1.0, 1.0001), [], relative=True)
    left, right = values(0.5, 1.5), values(1.0, 1.0)
    span = effect(left, right, [quiet])
    assert (span.low, span.high) == (0.5, 1.5)
    assert compare_runs(left, right, quiet).verdict == "undecidable"


def test_bounds_decide_only_where_the_truth_is_further():
    quiet = noise(values(10.0, 10.1), [], relative=True)
    drained = [Value(0.25, at_most=True)]
    found = compare_runs(drained, values(10.0), quiet)
    assert (found.verdict, found.interval) == ("faster", None)
    assert compare_runs([Value(99.0, bound=True)], values(10.0), quiet).verdict == "slower"
    assert compare_runs(values(99.0), [Value(10.0, bound=True)], quiet).verdict == "undecidable"


def test_shares_are_compared_by_difference():
    quiet = noise(values(0.98, 0.981), [], relative=False)
    span = effect(values(0.77), values(0.98), [quiet])
    assert span.effect == pytest.approx(-0.21)
    assert span.low < span.effect < span.high < 0
    same = effect(values(0.0), values(0.0), [quiet])
    assert same.low < 0 < same.high


@pytest.mark.parametrize(("identical", "repeats"), [(2, 1), (3, 1), (2, 3)])
def test_equal_configurations_are_called_in_at_most_five_percent(identical, repeats):
    """One of the identical runs is a side itself, as A1 is of A3 against A1."""
    rng = np.random.default_rng(5)
    sessions, calls = 2000, 0
    for _ in range(sessions):
        drawn = np.exp(rng.normal(0, 0.3, (identical + 1, repeats)))
        same = values(*drawn[:identical].ravel())
        left, right = values(*drawn[-1]), same[:repeats]
        calls += compare_runs(left, right, noise(same, [left], relative=True)).verdict in (
            "faster",
            "slower",
        )
    assert calls / sessions <= 0.055


def test_equal_runs_are_no_proof_of_no_noise():
    """Saturated shares and chance: the resolution decides, and where none is known nothing does."""
    for number, relative in ((1.0, False), (3.0, True)):
        unknown = noise(values(number, number), [], relative=relative)
        assert unknown.size is None
        assert "exactly the same" in unknown.why
        assert effect(values(number * 0.5), values(number), [unknown]) is None
    assert compare_runs(values(3.0001), values(3.0), unknown).verdict == "undecidable"
    one = [Value(1.0, resolution=1e-4)] * 2
    known = noise(one, [], relative=False)
    assert known.half_width(1, 1) == pytest.approx(
        two_sided(LEVEL, 1) * 1e-4 / math.sqrt(12) * math.sqrt(2)
    )
    span = effect([Value(0.55, resolution=1e-4)], one[:1], [known])
    assert span.low < -0.45 < span.high < 0
    floors = [known.floor(1, 1)]
    assert judge([Value(0.55)], one[:1], "below", floors).verdict == "reproduced"
    assert judge([Value(0.9999)], one[:1], "below", floors).verdict == "undecidable"


def test_no_effect_within_one_step_is_called_however_many_runs_there_are():
    many = noise([Value(10.0, resolution=0.25)] * 40, [], relative=True)
    assert many.floor(40, 40).size == pytest.approx(1.025)
    # The coarsest value counts, also that of a side with one run.
    short = noise([Value(10.0, resolution=0.25)] * 40, [[Value(1.0, resolution=0.25)]], True)
    assert short.floor(40, 40).size == pytest.approx(1.25)

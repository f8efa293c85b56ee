"""How many blocks a decision takes, held against sessions that are drawn."""

import math

import numpy as np
import pytest
from refill.stats.planning import MOST_BLOCKS, blocks_to_decide
from refill.stats.ratios import PER_BLOCK, half_width

SPREAD = 0.12


def drawn(rng, blocks, ratio=1.0):
    """Draw both arms of a session: one trial a round, rounds that vary by `SPREAD`."""
    logs = rng.normal(0, SPREAD, size=(2, PER_BLOCK * blocks))
    # What a whole block shares is in both arms.
    logs += np.repeat(rng.normal(0, 0.3, size=blocks), PER_BLOCK)
    old, new = np.exp(logs)
    return [[v] for v in old], [[v * ratio] for v in new]


def mean_of_logs(arm):
    return float(np.mean([math.log(trial) for (trial,) in arm]))


def power(blocks, ratio, called):
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(2000):
        old, new = drawn(rng, blocks, ratio)
        found = mean_of_logs(new) - mean_of_logs(old)
        hits += called(found, half_width(old, new, 0.95, in_blocks=True))
    return hits / 2000


def measured():
    """Many rounds, so that their spread is known well."""
    return drawn(np.random.default_rng(1), 150)


def test_the_number_of_blocks_has_the_power_to_call_the_ratio():
    blocks = blocks_to_decide(*measured(), wanted=0.85)

    def called(found, half):
        return found + half < 0

    assert 3 <= blocks <= 6
    assert 0.76 <= power(blocks, 0.85, called) <= 0.92
    assert power(blocks - 1, 0.85, called) < 0.8


def test_the_number_of_blocks_has_the_power_to_call_equal_what_is_equal():
    blocks = blocks_to_decide(*measured(), wanted=1.0, margin=0.10)
    edge = math.log1p(0.10)

    def called(found, half):
        return abs(found) + half <= edge

    assert blocks > 5
    assert 0.76 <= power(blocks, 1.0, called) <= 0.88
    assert power(blocks - 2, 1.0, called) < 0.8


def test_a_ratio_within_the_margin_asks_for_equivalence():
    arms = measured()
    assert blocks_to_decide(*arms, 1.04, margin=0.05) == blocks_to_decide(*arms, 1.0, margin=0.05)
    assert blocks_to_decide(*arms, 1.06, margin=0.05) != blocks_to_decide(*arms, 1.0, margin=0.05)


def test_a_slower_and_a_faster_arm_take_as_many_blocks():
    arms = measured()
    assert blocks_to_decide(*arms, 1 / 0.8) == blocks_to_decide(*arms, 0.8)


def test_a_spread_that_no_number_of_blocks_overcomes_has_none():
    old, new = [[1.0], [9.0]], [[9.0], [1.0]]
    assert blocks_to_decide(old, new, 1.07) is None
    assert blocks_to_decide(old, new, 0.05) <= MOST_BLOCKS


def test_rounds_that_do_not_vary_need_one_block():
    assert blocks_to_decide([[2.0], [2.0]], [[2.0], [2.0]], 0.9) == 1


def test_a_ratio_is_above_zero():
    with pytest.raises(ValueError, match="above 0"):
        blocks_to_decide([[1.0], [1.0]], [[1.0], [1.0]], 0.0)

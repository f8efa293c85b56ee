"""The order of the rounds: blocks, numbers, priorities."""

from __future__ import annotations

from collections import Counter

import pytest
from refill.phases.round_plan import order


def test_one_block_is_the_published_order() -> None:
    assert order(1) == (("old", 1), ("new", 1), ("new", 2), ("old", 2))


def test_every_second_block_is_turned_round_and_numbers_go_on() -> None:
    assert order(3)[4:] == (
        ("new", 3), ("old", 3), ("old", 4), ("new", 4),
        ("old", 5), ("new", 5), ("new", 6), ("old", 6),
    )  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 2, 5, 8])
def test_more_blocks_leave_the_first_as_they_are(blocks: int) -> None:
    rounds = order(blocks)
    assert order(blocks + 1)[: len(rounds)] == rounds
    assert len(set(rounds)) == len(rounds) == 4 * blocks
    assert Counter(arm for arm, _ in rounds) == {"old": 2 * blocks, "new": 2 * blocks}
    assert {n for _, n in rounds} == set(range(1, 2 * blocks + 1))


def test_a_linear_drift_meets_both_arms_alike() -> None:
    for blocks in (1, 2, 3):
        places: dict[str, int] = Counter()
        for place, (arm, _) in enumerate(order(blocks)):
            places[arm] += place
        assert places["old"] == places["new"]

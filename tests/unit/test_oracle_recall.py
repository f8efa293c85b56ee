"""recall@k: ties, duplicates, deletions, and the end of what is known."""

from __future__ import annotations

import numpy as np
import pytest
from refill.oracle.recall import Truth, TruthError


def truth(scores: list[float], k: int) -> Truth:
    return Truth(
        np.arange(len(scores), dtype=np.int64)[None] + 10, np.array([scores], np.float32), k
    )


def test_an_id_counts_when_it_is_among_the_best() -> None:
    known = truth([0.9, 0.8, 0.7, 0.6], 2)
    assert known.recall(0, [10, 11]) == 1.0
    assert known.recall(0, [11, 10]) == 1.0
    assert known.recall(0, [10, 12]) == 0.5
    assert known.recall(0, [12, 13]) == 0.0
    assert known.recall(0, []) == 0.0


def test_a_tie_with_the_kth_is_right() -> None:
    known = truth([0.9, 0.8, 0.8, 0.79999995, 0.7999], 2)
    assert known.recall(0, [10, 12]) == 1.0
    assert known.recall(0, [10, 13]) == 1.0
    assert known.recall(0, [10, 14]) == 0.5


def test_the_tolerance_grows_with_large_scores() -> None:
    known = truth([-1000.0, -2000.0, -2000.001, -2000.1], 2)
    assert known.recall(0, [10, 12]) == 1.0
    assert known.recall(0, [10, 13]) == 0.5


def test_an_id_counts_once_and_never_above_one() -> None:
    known = truth([0.9, 0.8, 0.8, 0.1], 2)
    assert known.recall(0, [10, 10]) == 0.5
    assert known.recall(0, [10, 11, 12]) == 1.0


def test_after_a_deletion_the_next_ones_count() -> None:
    known = truth([0.9, 0.8, 0.7, 0.6], 2)
    after = known.without({10, 99})
    assert after.recall(0, [11, 12]) == 1.0
    assert after.recall(0, [10, 11]) == 0.5
    assert known.recall(0, [10, 11]) == 1.0
    assert after.without([11]).recall(0, [12, 13]) == 1.0


def test_too_few_known_neighbours_are_an_error() -> None:
    known = truth([0.9, 0.8, 0.7], 2)
    with pytest.raises(TruthError, match="query 0 has 1"):
        known.without(np.array([10, 12]))
    with pytest.raises(TruthError, match=r"recall@4 .* search\.limit"):
        truth([0.9, 0.8, 0.7], 4)


def test_ties_that_reach_the_end_of_what_is_known_are_told() -> None:
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    scores = np.array([[0.9, 0.5, 0.5], [0.9, 0.5, 0.4]], np.float32)
    known = Truth(ids, scores, 2)
    assert known.ambiguous().tolist() == [True, False]
    assert known.without([6]).ambiguous().tolist() == [True, True]

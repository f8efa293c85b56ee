"""Recall against the exact neighbours; ties are right answers, unknown neighbours an error."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from refill.oracle.exact import Bools, Float32, Int64

# Scores that an engine in float32 cannot be asked to tell apart (relative above 1).
TOLERANCE = 1e-6


class TruthError(Exception):
    """The exact neighbours that are known do not reach as far as is asked."""


class Truth:
    """The exact neighbours of each query, for recall@k.

    Args:
        ids: int64, shape (queries, depth), best first; -1 behind the last known neighbour.
        scores: float32, the same shape, larger is better, never rising along a row.
        k: neighbours that count.

    Raises:
        TruthError: fewer than `k` neighbours are known for some query.
    """

    def __init__(self, ids: Int64, scores: Float32, k: int) -> None:
        if ids.shape != scores.shape or ids.ndim != 2 or k < 1:
            raise ValueError(f"ids {ids.shape}, scores {scores.shape}, k {k}: do not fit together")
        known = (ids >= 0).sum(axis=1)
        if len(ids) and known.min() < k:
            raise TruthError(
                f"recall@{k} needs {k} exact neighbours of each query, query {known.argmin()} has "
                f"{known.min()}: search.limit is too large for this corpus, or too many points "
                "were deleted"
            )
        self.ids = ids
        self.scores = scores
        self.k = k
        kth = scores[:, k - 1]
        self._limits = kth - TOLERANCE * np.maximum(1, np.abs(kth))
        right = (scores >= self._limits[:, None]) & (ids >= 0)
        self._right = [frozenset(row[good].tolist()) for row, good in zip(ids, right, strict=True)]

    def without(self, deleted_ids: Collection[int] | NDArray[np.integer]) -> Truth:
        """Give the truth once some points are deleted.

        Raises:
            TruthError: fewer than `k` of the known neighbours of some query survive.
        """
        deleted = np.fromiter(deleted_ids, np.int64, len(deleted_ids))
        gone = np.isin(self.ids, deleted)
        order = np.argsort(gone, axis=1, kind="stable")
        gone = np.take_along_axis(gone, order, axis=1)
        ids = np.where(gone, -1, np.take_along_axis(self.ids, order, axis=1))
        scores = np.take_along_axis(self.scores, order, axis=1)
        return Truth(ids, np.where(gone, -np.inf, scores).astype(np.float32), self.k)

    def recall(self, query: int, returned_ids: Iterable[int]) -> float:
        """Give the share of the `k` best places that an answer fills rightly: 0 to 1.

        An id is right when its exact score reaches the k-th best one (less 1e-6); it counts once.
        """
        right = len(self._right[query].intersection(returned_ids))
        return min(right, self.k) / self.k

    def ambiguous(self) -> Bools:
        """Tell for which queries, shape (queries,), the ties of the k-th neighbour reach the end
        of what is known: points beyond it may be right as well, so their recall may be too low."""
        last = (self.ids >= 0).sum(axis=1) - 1
        ends = np.take_along_axis(self.scores, last[:, None], axis=1)[:, 0]
        return np.asarray(ends >= self._limits)

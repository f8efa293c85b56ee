"""Exact top-k of every query: blocked float32 matrix products, decided in float64.

A float32 product of `d` terms may be off by `d` rounding errors, enough to swap near neighbours.
So the products only rule points out, with the proven error bound as a margin (Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., section 3.1), and the few points that are left
are scored again in float64, which decides order and ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

DISTANCES = ("Cosine", "Dot", "Euclid")
# Norms outside of these over- or underflow when float32 squares them (NaN is outside, too).
SMALLEST_NORM, LARGEST_NORM = 1e-12, 1e12
# Unit roundoff of float32, and what a sum of underflows may lose.
ROUNDOFF, UNDERFLOW = 2.0**-24, 1e-36
# Float32 scores of one product: 16 MB stay in the cache between the product and the compare.
SCORES_PER_BLOCK = 4_000_000
MAX_BLOCK_ROWS = 8192
QUERIES_PER_BLOCK = 1000
# Float64 values of one step of the scoring of pairs.
VALUES_PER_STEP = 1 << 19


class Points(Protocol):
    """Points with ids 0 to `len(points) - 1`, float32 rows of one dimension."""

    def __len__(self) -> int: ...

    def blocks(self, rows: int) -> Iterable[tuple[int, Float32]]:
        """Give (first id, rows) of all points in the order of ids, at most `rows` at a time."""
        ...

    def take(self, ids: Int64) -> Float32:
        """Give the rows of some ids, ascending and each once: shape (len(ids), dimension)."""
        ...


class ArrayPoints:
    """Points that stand in memory: float32, shape (points, dimension)."""

    def __init__(self, rows: Float32) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def blocks(self, rows: int) -> Iterator[tuple[int, Float32]]:
        """Give views of `rows` points, the last one shorter."""
        for first in range(0, len(self._rows), rows):
            yield first, self._rows[first : first + rows]

    def take(self, ids: Int64) -> Float32:
        """Give a copy of the rows of some ids."""
        return self._rows[ids]


@dataclass(frozen=True)
class TopK:
    """The nearest points of each query, best first; equal scores stand in the order of ids.

    Attributes:
        ids: int64, shape (queries, depth).
        scores: float32, shape (queries, depth), larger is better: the cosine, the dot product,
            or minus the Euclidean distance.
    """

    ids: Int64
    scores: Float32


def exact_topk(points: Points, queries: Float32, distance: str, depth: int = 100) -> TopK:
    """Find the `min(depth, len(points))` nearest points of each query.

    Memory is bounded by a block of points and the answer, whatever the data.

    Args:
        points: read once from start to end, then where near neighbours stand.
        queries: float32, shape (queries, dimension).
        distance: Cosine, Dot or Euclid, as Qdrant names them.
        depth: how many points to find.

    Raises:
        ValueError: another distance, nothing to search, or a vector whose norm float32 cannot
            square (zero under Cosine, NaN, infinite, above 1e12).
    """
    if distance not in DISTANCES:
        raise ValueError(f"distance {distance!r}: must be one of {', '.join(DISTANCES)}")
    if len(points) < 1 or len(queries) < 1 or depth < 1:
        raise ValueError(
            f"{len(points)} points, {len(queries)} queries, depth {depth}: each must be at least 1"
        )
    depth = min(depth, len(points))
    parts = [
        _search(points, queries[first : first + QUERIES_PER_BLOCK], distance, depth)
        for first in range(0, len(queries), QUERIES_PER_BLOCK)
    ]
    return TopK(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )


def score64(rows: Float32, queries: Float32, distance: str) -> Float64:
    """Score pairs in float64: rows and queries have the same shape (pairs, dimension).

    Larger is better (Euclid: minus the distance). The same pair gets the same bits wherever it
    stands, so points that are equal tie exactly.
    """
    x, q = rows.astype(np.float64), queries.astype(np.float64)
    # Sums along a contiguous axis run in one order for one length; a matrix product's may differ
    # between the edge and the middle of a block.
    if distance == "Euclid":
        return np.asarray(-np.sqrt(np.square(x - q).sum(axis=1)))
    dot = (x * q).sum(axis=1)
    if distance == "Dot":
        return np.asarray(dot)
    squares = np.square(x).sum(axis=1) * np.square(q).sum(axis=1)
    return np.asarray(dot / np.sqrt(squares))


def usable_norms(norms: Float32 | Float64, distance: str) -> Bools:
    """Tell which vectors can be scored, by their norms: shape (vectors,)."""
    usable = norms <= LARGEST_NORM
    if distance == "Cosine":
        usable &= norms >= SMALLEST_NORM
    return np.asarray(usable)


def _search(points: Points, queries: Float32, distance: str, depth: int) -> TopK:
    product = _Product(queries, distance)
    candidates = _Candidates(points, queries, distance, depth)
    rows = max(depth, min(MAX_BLOCK_ROWS, SCORES_PER_BLOCK // len(queries)))
    for first, block in points.blocks(rows):
        start = 0
        while start < len(block):
            # What is known rules out most where little has been seen, so blocks double first.
            stop = start + max(2 * depth, first + start)
            scores = product(block[start:stop])
            candidates.add(first + start, scores, product.error)
            start = stop
    return candidates.decide()


class _Product:
    """Float32 scores of blocks, shape (rows, queries), with a bound on their error.

    Euclid is a dot product too: |q - x|² = |q|² - 2 (q·x - |x|²/2), so the largest
    q·x - |x|²/2 is the nearest; the last term is one more column of the product.
    """

    def __init__(self, queries: Float32, distance: str) -> None:
        self._distance = distance
        self._norms = np.sqrt(np.square(queries.astype(np.float64)).sum(axis=1))
        self._check(self._norms, "query")
        self._largest = 0.0
        if distance == "Cosine":
            queries = (queries / self._norms[:, None]).astype(np.float32)
        elif distance == "Euclid":
            queries = np.column_stack([queries, np.ones(len(queries), np.float32)])
        self._right = np.ascontiguousarray(queries.T)
        self._buffer = np.empty((0, len(queries)), np.float32)

    def __call__(self, block: Float32) -> Float32:
        """Score a block; the answer stands until the next call."""
        squares = np.einsum("ij,ij->i", block, block)
        norms = np.sqrt(squares)
        self._check(norms, "point")
        self._largest = max(self._largest, float(norms.max()))
        left = block
        if self._distance == "Cosine":
            left = block * (np.float32(1) / norms)[:, None]
        elif self._distance == "Euclid":
            left = np.column_stack([block, squares * np.float32(-0.5)])
        if len(self._buffer) < len(block):
            self._buffer = np.empty((len(block), len(self._norms)), np.float32)
        scores: Float32 = np.matmul(left, self._right, out=self._buffer[: len(block)])
        return scores

    @property
    def error(self) -> Float64:
        """Most that a score so far is off, shape (queries,); it never falls."""
        # A rounding for each term of the sum, as many for a norm, and a few for the scaling.
        roundings = (2 * len(self._right) + 16) * ROUNDOFF
        if self._distance == "Cosine":
            return np.full(len(self._norms), roundings)
        size = self._norms * self._largest
        if self._distance == "Euclid":
            size = size + self._largest**2 / 2
        return np.asarray(roundings * size + UNDERFLOW)

    def _check(self, norms: Float32 | Float64, what: str) -> None:
        usable = usable_norms(norms, self._distance)
        if not usable.all():
            raise ValueError(
                f"a {what} has the norm {norms[int(np.argmin(usable))]}, which "
                f"{self._distance} in float32 cannot score; check vectors before the search"
            )


class _Candidates:
    """Points that may belong to the answer of each query, in tables (queries, width).

    The tables hold float32 scores of the product. `_bound` is proven: so much, in the unit of the
    product and without rounding, has the `depth`-th best point of a query at least.
    """

    def __init__(self, points: Points, queries: Float32, distance: str, depth: int) -> None:
        self._points = points
        self._queries = queries
        self._distance = distance
        self._depth = depth
        shape = (len(queries), 4 * depth)
        self._ids = np.full(shape, -1, np.int64)
        self._scores = np.full(shape, -np.inf, np.float32)
        self._counts = np.zeros(len(queries), np.int64)
        self._bound = np.full(len(queries), -np.inf)
        self._error = np.zeros(len(queries))
        self._reached = np.empty((0, len(queries)), np.bool_)
        self._next_update = 0

    def add(self, first: int, scores: Float32, error: Float64) -> None:
        """Take the points of a block that the bound does not rule out.

        Args:
            first: id of the block's first point.
            scores: float32, shape (rows, queries).
            error: most that a score so far is off, shape (queries,).
        """
        self._error = error
        if len(self._reached) < len(scores):
            self._reached = np.empty(scores.shape, np.bool_)
        reached = self._reached[: len(scores)]
        np.greater_equal(scores, self._threshold(), out=reached)
        hits = np.flatnonzero(reached)
        rows, owners = np.divmod(hits, len(self._counts))
        # Hits become grouped by query; stable, so that each group keeps the order of ids.
        order = np.argsort(owners.astype(np.int16), kind="stable")
        rows, owners = rows[order], owners[order]
        self._store(owners, first + rows, scores[rows, owners])
        seen = first + len(scores)
        if seen >= self._next_update:
            self._raise_bound()
            # A bound from n points lets about `depth` of the next n through (in random order).
            self._next_update = 2 * seen

    def decide(self) -> TopK:
        """Score what is left in float64 and give the answer."""
        owners, places = np.nonzero(self._scores >= self._threshold()[:, None])
        ids = self._ids[owners, places]
        best, scores = self._best(owners, ids)
        shape = (len(self._counts), self._depth)
        return TopK(ids[best].reshape(shape), scores.astype(np.float32).reshape(shape))

    def _threshold(self) -> Float32:
        # Rounded down, so that the rounding of the threshold rules nothing out.
        threshold = (self._bound - self._error).astype(np.float32)
        return np.nextafter(threshold, np.float32(-np.inf))

    def _store(self, owners: Int64, ids: Int64, scores: Float32) -> None:
        """Append points, grouped by query, to the tables."""
        new = np.bincount(owners, minlength=len(self._counts))
        full = self._counts + new > self._ids.shape[1]
        if full.any():
            mine = full[owners]
            self._settle(full, owners[mine], ids[mine], scores[mine])
            owners, ids, scores = owners[~mine], ids[~mine], scores[~mine]
            new[full] = 0
        starts = np.cumsum(new) - new
        places = (self._counts - starts)[owners] + np.arange(len(owners))
        self._ids[owners, places] = ids
        self._scores[owners, places] = scores
        self._counts += new

    def _raise_bound(self) -> None:
        """Raise the bound by the points that are known, and drop what it rules out."""
        place = self._scores.shape[1] - self._depth
        kth = np.partition(self._scores, place, axis=1)[:, place]
        self._bound = np.maximum(self._bound, kth - self._error)
        owners, places = np.nonzero(self._scores >= self._threshold()[:, None])
        ids, scores = self._ids[owners, places], self._scores[owners, places]
        known = ids >= 0
        self._clear(slice(None))
        self._store(owners[known], ids[known], scores[known])

    def _settle(self, full: Bools, owners: Int64, ids: Int64, scores: Float32) -> None:
        """Decide now between the old and new points of queries whose tables are full.

        Data with many near ties come here, which float32 cannot tell apart, and data whose order
        is not random. Without it the tables would have no bound.
        """
        old_owners, places = np.nonzero((self._ids >= 0) & full[:, None])
        owners = np.concatenate([old_owners, owners])
        ids = np.concatenate([self._ids[old_owners, places], ids])
        scores = np.concatenate([self._scores[old_owners, places], scores])
        best, exact = self._best(owners, ids)
        self._clear(full)
        self._store(owners[best], ids[best], scores[best])
        kth = exact.reshape(-1, self._depth)[:, -1]
        if self._distance == "Euclid":
            squares = np.square(self._queries[full].astype(np.float64)).sum(axis=1)
            kth = (squares - np.square(kth)) / 2
        self._bound[full] = np.maximum(self._bound[full], kth)

    def _clear(self, queries: slice | Bools) -> None:
        self._ids[queries] = -1
        self._scores[queries] = -np.inf
        self._counts[queries] = 0

    def _best(self, owners: Int64, ids: Int64) -> tuple[Int64, Float64]:
        """Give the places of the best `depth` pairs of each query, best first, and their scores.

        Every query among `owners` has at least `depth` pairs.
        """
        scores = self._score(owners, ids)
        order = np.lexsort((ids, -scores, owners))
        grouped = owners[order]
        starts = np.flatnonzero(np.diff(grouped, prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        best = order[rank < self._depth]
        return best, scores[best]

    def _score(self, owners: Int64, ids: Int64) -> Float64:
        scores = np.empty(len(ids))
        by_id = np.argsort(ids, kind="stable")
        step = max(1, VALUES_PER_STEP // self._queries.shape[1])
        for start in range(0, len(ids), step):
            pairs = by_id[start : start + step]
            wanted, places = np.unique(ids[pairs], return_inverse=True)
            rows = self._points.take(wanted)[places]
            scores[pairs] = score64(rows, self._queries[owners[pairs]], self._distance)
        return scores

"""Exact top-k against brute force in float64: order, ties, rounding, bounded tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refill.corpora.store import VectorFile
from refill.oracle import exact
from refill.oracle.exact import DISTANCES, ArrayPoints, Float32, exact_topk
from refill.oracle.recall import Truth

POINTS, DIMENSION, QUERIES, DEPTH = 3000, 12, 40, 100


def brute_force(points: Float32, query: Float32, distance: str) -> np.ndarray:
    """Score every point in float64, larger is better."""
    x, q = points.astype(np.float64), query.astype(np.float64)
    if distance == "Euclid":
        return np.asarray(-np.sqrt(((x - q) ** 2).sum(axis=1)))
    dot = np.asarray((x * q).sum(axis=1))
    return dot if distance == "Dot" else dot / np.sqrt((x * x).sum(axis=1) * (q * q).sum())


def make(kind: str) -> tuple[Float32, Float32]:
    rng = np.random.default_rng(7)
    points = rng.standard_normal((POINTS, DIMENSION))
    queries = rng.standard_normal((QUERIES, DIMENSION))
    match kind:
        case "small whole numbers: thousands of exact ties":
            points = rng.integers(1, 3, points.shape).astype(float)
            queries = rng.integers(1, 4, queries.shape).astype(float)
        case "every point is the same":
            points = np.ones_like(points)
        case "far from the origin: float32 cannot tell the points apart":
            points, queries = points * 1e-2 + 1000, queries * 1e-2 + 1000
        case "the nearest come last":
            points = points[np.argsort(points @ queries[0])]
        case "each point four times, queries among them":
            points = np.repeat(points[: POINTS // 4], 4, axis=0)[rng.permutation(POINTS)]
            queries = points[:QUERIES]
    return points.astype(np.float32), queries.astype(np.float32)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize(
    "kind",
    [
        "normal",
        "small whole numbers: thousands of exact ties",
        "every point is the same",
        "far from the origin: float32 cannot tell the points apart",
        "the nearest come last",
        "each point four times, queries among them",
    ],
)
def test_order_and_ties_are_those_of_float64(
    distance: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "MAX_BLOCK_ROWS", 257)
    monkeypatch.setattr(exact, "QUERIES_PER_BLOCK", 16)
    points, queries = make(kind)
    top = exact_topk(ArrayPoints(points), queries, distance, DEPTH)
    assert top.ids.dtype == np.int64
    assert top.scores.dtype == np.float32
    for query, ids, scores in zip(queries, top.ids, top.scores, strict=True):
        expected = brute_force(points, query, distance)
        best = np.lexsort((np.arange(POINTS), -expected))[:DEPTH]
        assert ids.tolist() == best.tolist()
        assert scores.tolist() == expected[best].astype(np.float32).tolist()


def test_float32_products_would_have_ranked_otherwise() -> None:
    """Guards the test above: its hard case is one that rounding does decide."""
    points, queries = make("far from the origin: float32 cannot tell the points apart")
    rounded = np.argsort(-(queries @ points.T), axis=1, kind="stable")[:, :DEPTH]
    top = exact_topk(ArrayPoints(points), queries, "Dot", DEPTH)
    assert (rounded != top.ids).any()


def test_tables_stay_small_where_nothing_can_be_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "MAX_BLOCK_ROWS", 128)
    taken: list[int] = []

    class Counted(ArrayPoints):
        def take(self, ids: exact.Int64) -> Float32:
            taken.append(len(ids))
            return super().take(ids)

    points = np.ones((2000, 8), np.float32)
    top = exact_topk(Counted(points), points[:5], "Cosine", 10)
    assert top.ids.tolist() == [list(range(10))] * 5
    # A table holds 4 x depth points, and a block's are added to it: never all 2,000.
    assert max(taken) <= 4 * 10 + 128


@pytest.mark.parametrize("distance", DISTANCES)
def test_points_from_a_file_give_the_same_answer(distance: str, tmp_path: Path) -> None:
    points, queries = make("normal")
    np.save(tmp_path / "vectors.npy", points)
    from_file = exact_topk(VectorFile(tmp_path / "vectors.npy"), queries, distance)
    in_memory = exact_topk(ArrayPoints(points), queries, distance)
    assert np.array_equal(from_file.ids, in_memory.ids)
    assert np.array_equal(from_file.scores, in_memory.scores)


def test_fewer_points_than_the_depth_gives_all_of_them() -> None:
    points, queries = make("normal")
    top = exact_topk(ArrayPoints(points[:7]), queries, "Euclid", DEPTH)
    assert top.ids.shape == (QUERIES, 7)
    assert np.sort(top.ids, axis=1).tolist() == [list(range(7))] * QUERIES


def test_lengths_that_only_cosine_ignores() -> None:
    points = np.array([[1, 0], [100, 1], [0.5, 0]], np.float32)
    query = np.array([[2, 0]], np.float32)
    assert exact_topk(ArrayPoints(points), query, "Cosine").ids.tolist() == [[0, 2, 1]]
    assert exact_topk(ArrayPoints(points), query, "Dot").ids.tolist() == [[1, 0, 2]]
    top = exact_topk(ArrayPoints(points), query, "Euclid")
    assert top.ids.tolist() == [[0, 2, 1]]
    assert top.scores[0, :2].tolist() == [-1.0, -1.5]


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, 1e20])
def test_vectors_that_cannot_be_scored_are_refused(bad: float) -> None:
    points, queries = make("normal")
    points[1234] = bad
    with pytest.raises(ValueError, match="a point has the norm"):
        exact_topk(ArrayPoints(points), queries, "Cosine")
    with pytest.raises(ValueError, match="a query has the norm"):
        exact_topk(ArrayPoints(queries), points, "Cosine")


def test_other_distances_are_refused() -> None:
    points, queries = make("normal")
    with pytest.raises(ValueError, match="Cosine, Dot, Euclid"):
        exact_topk(ArrayPoints(points), queries, "Manhattan")
    with pytest.raises(ValueError, match="at least 1"):
        exact_topk(ArrayPoints(points), queries[:0], "Dot")


def test_an_exact_engine_has_recall_one_whatever_its_ties() -> None:
    points, queries = make("small whole numbers: thousands of exact ties")
    top = exact_topk(ArrayPoints(points), queries, "Cosine")
    truth = Truth(top.ids, top.scores, 10)
    clear = np.flatnonzero(~truth.ambiguous())
    assert len(clear) > 5
    for query in clear.tolist():
        scores = brute_force(points, queries[query], "Cosine")
        # Ties in the opposite order of ids: as right as the other order.
        reversed_ties = np.lexsort((-np.arange(POINTS), -np.round(scores, 9)))[:10]
        assert truth.recall(query, reversed_ties.tolist()) == 1.0

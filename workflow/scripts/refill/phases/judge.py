"""The oracle's view of answers in an optimizer run: right shape, right ids and scores, recall."""

from __future__ import annotations

import itertools
import math

import orjson

from refill.engines.qdrant import error_text, without_key
from refill.engines.qdrant_requests import read_hits
from refill.load.ledger import Judgement
from refill.load.loops import Row
from refill.oracle.recall import Truth
from refill.oracle.scores import RightScores

NOTHING = float("nan")


class OptimizerJudge:
    """Judges uploads and searches. `truth` and `deleted` change at a follow-up.

    Args:
        truth: the exact neighbours of each query.
        points: ids of the collection are 0 to points - 1.
        limit: hits asked for.
        best_is_low: whether a score is a distance (Euclid, Manhattan).
        key: the API key; it is taken out of everything that is kept of an answer.
        scores: the right scores; None: scores are held to be of the right point.
    """

    def __init__(
        self,
        truth: Truth,
        points: int,
        limit: int,
        best_is_low: bool = False,
        key: str | None = None,
        scores: RightScores | None = None,
    ) -> None:
        self.truth = truth
        self.deleted: frozenset[int] = frozenset()
        self._points = points
        self._limit = limit
        self._sign = -1.0 if best_is_low else 1.0
        self._key = key
        self._scores = scores

    def __call__(self, row: Row) -> Judgement:
        """Give the status of an answered request, its hits, and its recall."""
        verdict = self._judged(row)
        if verdict.detail and self._key:
            return verdict._replace(detail=without_key(verdict.detail, self._key))
        return verdict

    def _judged(self, row: Row) -> Judgement:
        if row.http != 200:
            return Judgement("error", -1, NOTHING, f"{row.http}: {error_text(row.body)}")
        return self._upload(row) if row.loop == "upload" else self._search(row)

    def _upload(self, row: Row) -> Judgement:
        try:
            status = orjson.loads(row.body)["result"]["status"]
        except (ValueError, KeyError, TypeError):
            return Judgement("wrong", -1, NOTHING, f"not an update's answer: {row.body[:80]!r}")
        if status not in ("acknowledged", "completed"):
            return Judgement("wrong", -1, NOTHING, f"the update's status is {status!r}")
        return Judgement("ok", -1, NOTHING, "")

    def _search(self, row: Row) -> Judgement:
        try:
            hits = read_hits(row)
        except (ValueError, KeyError, TypeError):
            return Judgement("wrong", -1, NOTHING, f"not a search's answer: {row.body[:80]!r}")
        ids = [point for point, _ in hits]
        if problem := self._problem(row.key, ids, [score for _, score in hits]):
            return Judgement("wrong", len(ids), NOTHING, problem)
        return Judgement("ok", len(ids), self.truth.recall(row.key, ids), "")

    def _problem(self, query: int, ids: list[int], scores: list[float]) -> str | None:
        if len(ids) > self._limit:
            return f"{len(ids)} hits, {self._limit} were asked for"
        if len(set(ids)) != len(ids):
            return "an id stands in the answer twice"
        if any(not 0 <= point < self._points for point in ids):
            return "an id that was never uploaded"
        if any(not math.isfinite(score) for score in scores):
            return "a score that is not a number"
        if any((a - b) * self._sign < 0 for a, b in itertools.pairwise(scores)):
            return "scores are not in order"
        if back := self.deleted.intersection(ids):
            return f"deleted point {min(back)} came back"
        if self._scores is not None:
            return self._scores.problem(query, ids, [self._sign * score for score in scores])
        return None

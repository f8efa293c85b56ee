"""The right score of a hit: what tells an answer of this query from one of another.

A corrupted id or score, and an old answer to another query, are answers of the right form; nothing
but the scores shows that they do not belong to the query.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refill.corpora.store import Corpus
from refill.oracle.exact import score64

# An engine sums in float32 and in an order of its own. For 10,000 dimensions that is an error of
# some 1e-5 of the scores' size; two points that differ by less are the same to this check.
TOLERANCE = 1e-3


class RightScores:
    """Scores of any point for any query, the near ones from what is known, the rest computed.

    Args:
        corpus: with its exact neighbours; their scores are cosines, dot products, or minus the
            Euclidean distance.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._queries = corpus.queries()
        truth = corpus.truth(1)
        self._ids, self._scores = truth.ids, truth.scores
        self._sizes = np.abs(self._scores, where=self._ids >= 0, out=np.zeros_like(self._scores))
        self._known: dict[int, dict[int, float]] = {}

    def problem(self, query: int, ids: Sequence[int], scores: Sequence[float]) -> str | None:
        """Say which hit has a score that is not its own; None when all are right.

        Args:
            query: number of the query.
            ids: of the hits; each is a point of the corpus.
            scores: theirs as the engine gave them; larger is better.
        """
        if (known := self._known.get(query)) is None:
            pairs = zip(self._ids[query].tolist(), self._scores[query].tolist(), strict=True)
            known = self._known[query] = dict(pairs)
        if far := [point for point in ids if point not in known]:
            known.update(self._computed(query, far))
        allowed = TOLERANCE * float(self._sizes[query].max())
        for point, score in zip(ids, scores, strict=True):
            # Written so that a NaN is a problem, too.
            if not abs(score - known[point]) <= allowed:
                return f"point {point} has the score {score:.6g}, {known[point]:.6g} is right"
        return None

    def _computed(self, query: int, ids: Sequence[int]) -> dict[int, float]:
        rows = self._corpus.take(np.sort(np.asarray(ids, np.int64)))
        asked = np.broadcast_to(self._queries[query], rows.shape)
        scores = score64(rows, asked, self._corpus.distance)
        return dict(zip(sorted(ids), scores.tolist(), strict=True))

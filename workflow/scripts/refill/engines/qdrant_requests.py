"""The timed requests of the optimizer experiment: searches, upserts, and how hits are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from refill.engines.qdrant import COLLECTION, VECTOR
from refill.load.loops import Row
from refill.load.wire import Address, prepare


class SearchSource:
    """Prepared searches: key i is query i.

    Args:
        queries: float32, shape (queries, dimension).
        limit: hits wanted.
        address: where the engine listens.
        headers: further request heads.
    """

    def __init__(
        self, queries: NDArray[np.float32], limit: int, address: Address, headers: dict[str, str]
    ) -> None:
        path = f"/collections/{COLLECTION}/points/query"
        self._requests = [
            prepare(
                address,
                "POST",
                path,
                orjson.dumps({"query": row.tolist(), "using": VECTOR, "limit": limit}),
                headers,
            )
            for row in np.asarray(queries, dtype=np.float32)
        ]

    def open(self) -> None:
        """All requests are ready."""

    def __call__(self, key: int) -> bytes:
        """Give the bytes of query `key`."""
        return self._requests[key]

    def __len__(self) -> int:
        return len(self._requests)


class UploadSource:
    """Upserts made as they are sent: key is the first point id of a batch of `batch` points.

    The corpus is read from its folder in the client's process, a batch at a time.
    """

    def __init__(self, corpus: Path, batch: int, address: Address, headers: dict[str, str]) -> None:
        self._corpus = corpus
        self._batch = batch
        self._address = address
        self._headers = headers
        self._reader: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def open(self) -> None:
        """Open the corpus, so that the first request does not wait for it."""
        # Imported here: only the clients that upload need it.
        from refill.corpora.store import Corpus

        self._reader = Corpus.open(self._corpus)

    def __call__(self, key: int) -> bytes:
        """Give the bytes of the upsert of points `key` to `key + batch`."""
        vectors, payloads = self._reader.rows(key, self._batch)
        body: dict[str, Any] = {
            "ids": list(range(key, key + len(vectors))),
            "vectors": {VECTOR: np.ascontiguousarray(vectors)},
        }
        if payloads is not None:
            body["payloads"] = payloads
        data = orjson.dumps({"batch": body}, option=orjson.OPT_SERIALIZE_NUMPY)
        path = f"/collections/{COLLECTION}/points?wait=false"
        return prepare(self._address, "PUT", path, data, self._headers)


def read_hits(row: Row) -> list[tuple[int, float]]:
    """Give ids and scores of a search's answer, best first.

    Raises:
        ValueError: the answer is not a list of scored points.
    """
    points = orjson.loads(row.body)["result"]["points"]
    return [(int(point["id"]), float(point["score"])) for point in points]

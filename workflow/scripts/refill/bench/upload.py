"""Upload throughput of the driver against `qdrant-client`'s `upload_collection`, same server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, OptimizersConfigDiff, VectorParams

from refill.corpora.store import Corpus
from refill.engines import qdrant
from refill.engines.description import archive_program
from refill.engines.qdrant import COLLECTION, VECTOR, Api
from refill.engines.qdrant_requests import UploadSource
from refill.load.clients import Clients
from refill.load.loops import Job, Row
from refill.load.worker import Setup
from refill.processes import wait_for
from refill.runtimes.process import ProcessEngine

# Far above the data: the optimizer stays out of both measurements.
NEVER_INDEX_KB = 1_000_000_000


def measure(image: Mapping[str, Any], root: Path, corpus: Path, rounds: int = 3) -> dict[str, Any]:
    """Upload the same corpus by both ways, in turns, each to a new collection.

    Args:
        image: record of the engine's image.
        root: folder that the record's paths are relative to.
        corpus: folder of a prepared corpus.
        rounds: how often each way is taken.

    Returns:
        Points per second of each round and way, and the ratio of the medians.
    """
    source = Corpus.open(corpus)
    speeds: dict[str, list[float]] = {"driver": [], "upload_collection": []}
    for _ in range(rounds):
        for way, upload in (("driver", _driver), ("upload_collection", _client)):
            with tempfile.TemporaryDirectory() as folder:
                description = qdrant.embedded(archive_program(root / image["archive"]), 2, 30.0)
                with ProcessEngine(
                    description, Path(folder) / "data", Path(folder) / "log"
                ) as engine:
                    api = Api(engine.address, None)
                    start = upload(api, source, corpus)
                    _wait_for_all(api, source.points)
                    speeds[way].append(source.points / (time.monotonic() - start))
                    api.close()
    medians = {way: sorted(values)[len(values) // 2] for way, values in speeds.items()}
    return {
        "points_per_s": {way: [round(v) for v in values] for way, values in speeds.items()},
        "ratio": round(medians["driver"] / medians["upload_collection"], 2),
        "wanted": ">= 2",
    }


def _wait_for_all(api: Api, points: int) -> None:
    if not wait_for(lambda: api.state().points == points, 60):
        raise RuntimeError(f"not all of {points} points arrived within a minute")


def _driver(api: Api, source: Corpus, folder: Path) -> float:
    """Upload as a run does; give the moment (time.monotonic) of the first request.

    The client processes have started by then, as the library was imported before its turn.
    """
    api.create(source.dimension, source.distance, {"indexing_threshold": NEVER_INDEX_KB}, {})
    rows: list[Row] = []
    origin = time.monotonic()
    requests = UploadSource(folder, 500, api.address, {})
    setups = [Setup(n, api.address, requests, 60.0, origin) for n in range(2)]
    firsts = range(0, source.points, 500)
    with Clients(setups, rows.extend) as clients:
        clients.run(
            [Job("upload", "upload", n, firsts[n::2], count=len(firsts[n::2])) for n in range(2)]
        )
    if failed := [row for row in rows if row.http != 200]:
        raise RuntimeError(f"{len(failed)} upserts failed: {failed[0].detail or failed[0].body!r}")
    return origin + min(row.sent for row in rows)


def _client(api: Api, source: Corpus, _: Path) -> float:
    """Upload with the library; give the moment before its first request."""
    client = QdrantClient(url=api.address.url, timeout=60)
    client.create_collection(
        COLLECTION,
        vectors_config={
            VECTOR: VectorParams(size=source.dimension, distance=Distance(source.distance))
        },
        optimizers_config=OptimizersConfigDiff(indexing_threshold=NEVER_INDEX_KB),
    )
    start = time.monotonic()
    batches = (vectors for _, vectors, _ in source.batches(500))
    client.upload_collection(
        COLLECTION,
        vectors=({VECTOR: row} for vectors in batches for row in vectors),
        batch_size=500,
        parallel=1,
        wait=False,
    )
    client.close()
    return start

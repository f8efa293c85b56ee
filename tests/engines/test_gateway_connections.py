"""The gateway's kept connections to Qdrant: few of them, dead ones, late answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from engines.gateway_server import Edge, Gate, Gateway, Parts, edge_running, running

MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}}}
DOCUMENTS = 60


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_running(tmp_path_factory.mktemp("edge")) as edge:
        yield edge


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, edge: Edge) -> Iterator[Parts]:
    with running(tmp_path_factory.mktemp("parts"), edge=edge) as parts:
        parts.gateway.ok("PUT", "/i", MAPPING)
        parts.gateway.bulk("i", {str(n): {"n": n} for n in range(DOCUMENTS)})
        yield parts


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(12) as pool:
        yield pool


@contextmanager
def reader(parts: Parts, folder: Path, port: int, **settings: str) -> Iterator[Gateway]:
    """A gateway that serves nothing from the cache, with its own way to Qdrant."""
    gateway = Gateway(
        folder, parts.valkey, port, NAMESPACE=parts.namespace, SERVING="off", **settings
    )
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.kill()


def page(least: int) -> dict[str, object]:
    return {"query": {"range": {"n": {"gte": least}}}, "sort": ["n"], "size": 2}


def right(answer: object, least: int) -> bool:
    """Whether a page holds just what was asked for, so that no answer was taken for another's."""
    assert isinstance(answer, dict)
    hits = answer["hits"]
    found = [hit["_source"]["n"] for hit in hits["hits"]]
    return bool(hits["total"]["value"] == DOCUMENTS - least and found == [least, least + 1])


def test_more_reads_than_connections(
    parts: Parts, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with reader(parts, tmp_path, parts.edge.port, QDRANT_CONNECTIONS="2") as gateway:
        wanted = [n % (DOCUMENTS - 2) for n in range(200)]
        answers = pool.map(lambda least: gateway.ok("POST", "/i/_search", page(least)), wanted)
        assert [right(a, n) for a, n in zip(answers, wanted, strict=True)] == [True] * 200
        assert gateway.process is not None
        kept = [
            connection
            for connection in psutil.Process(gateway.process.pid).net_connections("tcp")
            if connection.raddr and connection.raddr.port == parts.edge.port
        ]
        assert len(kept) == 2


def test_a_read_on_a_dead_connection_is_made_again(
    parts: Parts, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gate = Gate(parts.edge.port)
    try:
        with reader(parts, tmp_path, gate.port) as gateway:
            assert right(gateway.ok("POST", "/i/_search", page(3)), 3)
            gate.hold("answer")
            reading = pool.submit(gateway.ok, "POST", "/i/_search", page(5))
            assert gate.held.wait(20)
            gate.release(drop=True)
            assert right(reading.result(), 5)
    finally:
        gate.close()


def test_a_late_answer_is_nobody_elses(
    parts: Parts, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gate = Gate(parts.edge.port)
    few = {"QDRANT_CONNECTIONS": "1", "QDRANT_TIMEOUT_S": "1"}
    try:
        with reader(parts, tmp_path, gate.port, **few) as gateway:
            assert right(gateway.ok("POST", "/i/_search", page(3)), 3)
            gate.hold("answer")
            late = [pool.submit(gateway.call, "POST", "/i/_search", page(n)) for n in (4, 5)]
            # One had no answer in time, the other no connection.
            for reading in late:
                status, answer = reading.result()
                assert status == 503
                assert "in time" in answer["error"]["reason"]
            # That answer still does not come; nothing waits for it, and it harms nobody.
            gate.stand_aside()
            assert right(gateway.ok("POST", "/i/_search", page(6)), 6)
            gate.release()
            for least in (7, 8, 9):
                assert right(gateway.ok("POST", "/i/_search", page(least)), least)
    finally:
        gate.close()


def test_connections_that_qdrant_closed(
    parts: Parts, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with reader(parts, tmp_path, parts.edge.port, QDRANT_CONNECTIONS="2") as gateway:
        for _ in range(3):
            answers = pool.map(lambda n: gateway.ok("POST", "/i/_search", page(n)), range(8))
            assert all(right(a, n) for n, a in enumerate(answers))
            assert parts.edge.stop() == 0
            status, _ = gateway.call("POST", "/i/_search", page(1))
            assert status == 503
            parts.edge.start()
        assert right(gateway.ok("POST", "/i/_search", page(1)), 1)

"""What has no answer, or comes late: claims, writers, requests that wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from engines.gateway_server import TREE, Answer, Edge, Gate, Gateway, Parts, edge_running, until

MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}}}
QUERY = {"query": {"match_all": {}}, "sort": [{"n": "asc"}]}


class Gated(Parts):
    """Parts whose gateway reaches Qdrant and Valkey through gates."""

    def __init__(self, folder: Path, edge: Edge, **settings: str) -> None:
        super().__init__(folder, edge=edge, **settings)
        self.valkey.start()
        self.to_qdrant, self.to_valkey = Gate(edge.port), Gate(self.valkey.port)
        self.gateway.environment |= {
            "REFILL_GATEWAY_QDRANT_URL": f"http://127.0.0.1:{self.to_qdrant.port}",
            "REFILL_GATEWAY_VALKEY": f"127.0.0.1:{self.to_valkey.port}",
        }

    def kill(self) -> None:
        self.to_qdrant.close()
        self.to_valkey.close()
        super().kill()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_running(tmp_path_factory.mktemp("edge")) as edge:
        yield edge


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def make(tmp_path: Path, edge: Edge) -> Iterator[Callable[..., Gated]]:
    edge.resume()
    with ExitStack() as stack:

        def start(**settings: str) -> Gated:
            parts = Gated(tmp_path, edge, **{"VALKEY_TIMEOUT_S": "1", **settings})
            stack.callback(parts.kill)
            parts.gateway.start()
            return parts

        yield start


@pytest.fixture
def parts(make: Callable[..., Gated]) -> Gated:
    return make()


@pytest.fixture
def other(parts: Gated, tmp_path: Path) -> Iterator[Gateway]:
    """A second gateway, with a way of its own."""
    (tmp_path / "other").mkdir()
    other = parts.another(tmp_path / "other")
    try:
        other.start()
        yield other
    finally:
        other.kill()


def fill(gateway: Gateway) -> None:
    gateway.ok("PUT", "/i", MAPPING)
    gateway.bulk("i", {str(n): {"n": n} for n in range(3)})


def values(gateway: Gateway, **more: Any) -> list[int]:
    hits = gateway.ok("POST", "/i/_search", {**QUERY, **more})["hits"]["hits"]
    return [hit["_source"]["n"] for hit in hits]


def status(answer: Future[Answer]) -> int:
    return answer.result()[0]


def settled(parts: Gated) -> None:
    """Wait until the gateway owes nothing, and see that nothing stands in its way."""
    until("no unresolved claim", lambda: parts.gateway.stats()["unresolved_claims"] == 0)
    until("no writer", lambda: parts.gateway.stats()["unreleased_writers"] == 0)
    assert not parts.keys("claim")
    assert not parts.keys("writers")


def works(parts: Gated, index: str) -> None:
    """A name is not stuck, and its collections are what the catalog knows."""
    gateway = parts.gateway
    answer, _ = gateway.call("PUT", f"/{index}", MAPPING)
    assert answer in (200, 400)
    gateway.ok("PUT", f"/{index}/_doc/1", {"n": 1})
    gateway.ok("DELETE", f"/{index}")
    gateway.ok("PUT", f"/{index}", MAPPING)
    assert gateway.ok("POST", f"/{index}/_count")["count"] == 0
    with parts.valkey.client() as client:
        known = {client.hget(key, "incarnation").decode() for key in parts.keys("index")}  # type: ignore[union-attr]
    assert set(parts.collections()) == known, parts.gateway.log.read_text()


# Claims of a gateway that lives


def test_valkey_hangs_during_a_delete_and_a_create(parts: Gated, pool: ThreadPoolExecutor) -> None:
    fill(parts.gateway)
    parts.valkey.pause()
    doing = [
        pool.submit(parts.gateway.call, "DELETE", "/i"),
        pool.submit(parts.gateway.call, "PUT", "/k", MAPPING),
    ]
    assert list(map(status, doing)) == [503, 503]
    parts.valkey.resume()
    parts.gateway.wait_ready()
    settled(parts)
    works(parts, "i")
    works(parts, "k")


@pytest.mark.parametrize(("method", "index"), [("PUT", "k"), ("DELETE", "i")])
def test_a_claim_that_comes_late_does_not_come_at_all(
    parts: Gated, pool: ThreadPoolExecutor, method: str, index: str
) -> None:
    fill(parts.gateway)
    parts.to_valkey.hold("request")
    assert parts.gateway.call(method, f"/{index}")[0] == 503
    parts.to_valkey.stand_aside()
    parts.gateway.wait_ready()
    settled(parts)
    parts.to_valkey.release()
    for _ in range(2):
        works(parts, index)
    settled(parts)


def test_an_admission_that_comes_late_does_not_come_at_all(
    parts: Gated, pool: ThreadPoolExecutor
) -> None:
    gateway = parts.gateway
    fill(gateway)
    parts.to_qdrant.hold("answer")
    writing = pool.submit(gateway.call, "PUT", "/i/_doc/1", {"n": 50})
    # It has looked, and reads the document; what it sends to Valkey next is the admission.
    assert parts.to_qdrant.held.wait(20)
    parts.to_valkey.hold("request")
    parts.to_qdrant.release()
    assert status(writing) == 503
    parts.to_valkey.stand_aside()
    gateway.wait_ready()
    settled(parts)
    parts.to_valkey.release()
    for n in range(5):
        gateway.ok("PUT", "/i/_doc/1", {"n": 60 + n})
    settled(parts)
    assert values(gateway) == [0, 2, 64]


@pytest.mark.parametrize(
    ("method", "number", "what"),
    # A create sees what there is, creates the collection, and then its payload indexes.
    [
        ("PUT", 2, "request"),
        ("PUT", 2, "answer"),
        ("PUT", 3, "request"),
        ("DELETE", 1, "request"),
        ("DELETE", 1, "answer"),
    ],
)
def test_qdrant_does_not_answer_under_a_claim(
    make: Callable[..., Gated], method: str, number: int, what: str
) -> None:
    parts = make(QDRANT_ADMIN_TIMEOUT_S="4")
    gateway = parts.gateway
    index = "k" if method == "PUT" else "i"
    fill(gateway)
    parts.to_qdrant.hold(what, number)
    answer, _ = gateway.call(method, f"/{index}", MAPPING if method == "PUT" else None)
    assert parts.to_qdrant.held.is_set()
    parts.to_qdrant.stand_aside()
    assert answer == 503
    # The name is free again before what was held comes, and after it.
    until("an answer", lambda: gateway.call("POST", f"/{index}/_count")[0] in (200, 404))
    settled(parts)
    parts.to_qdrant.release()
    # What comes so late is taken away by whoever creates the next index of that name.
    works(parts, index)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_live_create_that_is_given_up_leaves_no_collection(
    parts: Gated, pool: ThreadPoolExecutor, number: int
) -> None:
    parts.to_qdrant.hold("request", number)
    creating = pool.submit(parts.gateway.call, "PUT", "/k", MAPPING)
    assert parts.to_qdrant.held.wait(20)
    parts.to_qdrant.stand_aside()
    environment = parts.gateway.environment
    parts.gateway.environment = environment | {
        "REFILL_GATEWAY_QDRANT_URL": f"http://127.0.0.1:{parts.edge.port}"
    }
    assert "undone" in parts.gateway.recover("--older-than", "0").stdout
    parts.gateway.environment = environment
    parts.to_qdrant.release()
    assert status(creating) in (500, 503)
    until("no collection", lambda: not parts.collections())
    settled(parts)
    works(parts, "k")


# Two gateways and one name


def test_two_gateways_write_first_into_a_new_index(
    parts: Gated, other: Gateway, pool: ThreadPoolExecutor
) -> None:
    for number in range(8):
        writing = [
            pool.submit(gateway.call, "PUT", f"/x{number}/_doc/{id_}", {"n": 1})
            for gateway, id_ in ((parts.gateway, "a"), (other, "b"))
        ]
        assert list(map(status, writing)) == [201, 201]
        assert parts.gateway.ok("POST", f"/x{number}/_count")["count"] == 2
    assert len(parts.collections()) == 8


def test_of_two_gateways_that_create_an_index_one_does(
    parts: Gated, other: Gateway, pool: ThreadPoolExecutor
) -> None:
    for number in range(4):
        creating = [
            pool.submit(gateway.call, "PUT", f"/x{number}", MAPPING)
            for gateway in (parts.gateway, other)
        ]
        assert sorted(map(status, creating)) == [200, 400]
        deleting = [
            pool.submit(gateway.call, "DELETE", f"/x{number}") for gateway in (parts.gateway, other)
        ]
        assert sorted(map(status, deleting)) == [200, 404]
    assert not parts.collections()


# Writes of a gateway that died


def hold_a_write(parts: Gated, pool: ThreadPoolExecutor, method: str, body: Any) -> None:
    """A gateway dies while its write of document 0 is on the way."""
    # The first call reads the document.
    parts.to_qdrant.hold("request", 2)
    writing = pool.submit(parts.gateway.call, method, "/i/_doc/0", body)
    assert parts.to_qdrant.held.wait(20)
    parts.gateway.kill()
    wait((writing,), 20)
    assert writing.exception() is not None
    parts.to_qdrant.stand_aside()


def test_a_write_lets_the_one_of_a_dead_gateway_come_first(
    make: Callable[..., Gated], tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    parts = make(SETTLE_S="4")
    fill(parts.gateway)
    hold_a_write(parts, pool, "PUT", {"n": 50})
    (tmp_path / "other").mkdir()
    other = parts.another(tmp_path / "other", SETTLE_S="4")
    try:
        other.start()
        began = time.monotonic()
        writing = pool.submit(other.call, "PUT", "/i/_doc/0", {"n": 60})
        wait((writing,), 1)
        assert not writing.done()
        parts.to_qdrant.release()
        assert status(writing) == 200
        assert time.monotonic() - began >= 4
        assert other.ok("GET", "/i/_doc/0")["_source"] == {"n": 60}
        # It is waited for once: the next writes cost no more than ever.
        began = time.monotonic()
        for n in range(20):
            other.ok("PUT", "/i/_doc/0", {"n": n})
        assert time.monotonic() - began < 60
        assert "released" in other.recover("--older-than", "0").stdout
    finally:
        other.kill()


def test_a_delete_that_comes_late_leaves_what_was_written_since(
    parts: Gated, other: Gateway, pool: ThreadPoolExecutor
) -> None:
    fill(parts.gateway)
    hold_a_write(parts, pool, "DELETE", None)
    other.ok("PUT", "/i/_doc/0", {"n": 60})
    assert "released" in other.recover("--older-than", "0").stdout
    assert values(other) == [1, 2, 60]
    parts.to_qdrant.release()
    parts.gateway.start()
    # A later write is applied behind whatever Qdrant has taken before.
    parts.gateway.ok("PUT", "/i/_doc/new", {"n": 70})
    assert values(parts.gateway, size=50) == [1, 2, 60, 70]


# Requests that wait for each other


def test_requests_do_not_wait_one_behind_the_other_for_a_qdrant_that_hangs(
    make: Callable[..., Gated], edge: Edge, pool: ThreadPoolExecutor
) -> None:
    parts = make(QDRANT_TIMEOUT_S="2")
    gateway = parts.gateway
    fill(gateway)
    assert values(gateway) == [0, 1, 2]

    def timed(*request: Any) -> tuple[int, float]:
        began = time.monotonic()
        answer, _ = gateway.call(*request)
        return answer, time.monotonic() - began

    lines = '{"index":{"_index":"i"}}\n{"n":1}\n' * 2500
    edge.pause()
    try:
        doing = [
            *(pool.submit(timed, "PUT", f"/i/_doc/w{n}", {"n": 1}) for n in range(5)),
            pool.submit(timed, "POST", "/i/_search", {**QUERY, "size": 2}),
            # Of several parts, each of which is written by itself.
            pool.submit(timed, "POST", "/_bulk", lines),
        ]
        found = [one.result() for one in doing]
    finally:
        edge.resume()
    assert [answer for answer, _ in found] == [503] * 7
    # One behind the other they took 2, 4, .. 14 s.
    assert max(took for _, took in found) < 6
    until("writes again", lambda: gateway.call("PUT", "/i/_doc/z", {"n": 9})[0] in (200, 201))
    settled(parts)


QUEUE = """
import asyncio
from gateway import deadline
from gateway.errors import UnavailableError
from gateway.locks import IndexLock

LIMIT, HELD, MANY = 2.0, 0.5, 8

async def hold(lock, fails):
    deadline.begin(LIMIT)
    try:
        async with lock.exclusive():
            assert deadline.left(LIMIT) > LIMIT / 2 or fails
            await asyncio.sleep(HELD)
            if fails:
                raise UnavailableError("held")
    except UnavailableError as error:
        return "failed" if error.reason == "held" else "overdue"
    return "done"

async def main():
    for fails in (False, True):
        lock = IndexLock()
        print(*await asyncio.gather(*(hold(lock, fails) for _ in range(MANY))))
        assert lock.idle

asyncio.run(main())
"""


def test_a_queue_that_moves_is_waited_for_and_one_that_fails_is_not() -> None:
    """Eight that hold a lock for half a second each, and may wait for two."""
    done = subprocess.run(
        [sys.executable, "-c", QUEUE],
        env=os.environ | {"PYTHONPATH": str(TREE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    moving, failing = done.stdout.splitlines()
    assert moving.split() == ["done"] * 8
    assert "overdue" in failing
    assert set(failing.split()) == {"failed", "overdue"}


def test_a_collection_that_comes_late_is_no_index_and_is_removed(parts: Gated, edge: Edge) -> None:
    """Of a create that was given up: it has no documents, so nothing is lost."""
    gateway = parts.gateway
    fill(gateway)
    prefix = parts.collections()[0].rpartition("-")[0]
    late = f"{prefix}-late"
    gateway.ok("DELETE", "/i")
    body = {"vectors": {"unused": {"size": 1, "distance": "Dot"}}}
    for remove in (lambda: fill(gateway), lambda: gateway.recover()):
        assert edge.call("PUT", f"/collections/{late}", body)[0] == 200
        if "i" not in [key.rpartition(":")[2] for key in parts.keys("index")]:
            assert gateway.call("POST", "/i/_search", QUERY)[0] == 404
        remove()
        assert late not in parts.collections()
        assert values(gateway) == [0, 1, 2]

"""Dead and slow parts, crashes at each step of a write or a claim, and the recovery."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from engines.gateway_server import Answer, Edge, Gate, Gateway, Parts, edge_running, running, until

MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}}}
QUERY = {"query": {"range": {"n": {"gte": 0}}}, "sort": [{"n": "desc"}], "size": 3}


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_running(tmp_path_factory.mktemp("edge")) as edge:
        yield edge


@pytest.fixture
def parts(tmp_path: Path, edge: Edge) -> Iterator[Parts]:
    if edge.process is None:
        edge.start()
    # A test that failed may have left it standing still.
    edge.resume()
    with running(tmp_path, edge=edge, VALKEY_TIMEOUT_S="1", QDRANT_TIMEOUT_S="4") as parts:
        parts.gateway.ok("PUT", "/i", MAPPING)
        parts.gateway.bulk("i", {str(n): {"n": n} for n in range(10)})
        yield parts


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def top(gateway: Gateway) -> list[int]:
    answer = gateway.ok("POST", "/i/_search", QUERY)
    return [hit["_source"]["n"] for hit in answer["hits"]["hits"]]


def served(gateway: Gateway) -> list[int]:
    """The top, asked until the cache serves it."""

    def hit() -> bool:
        before = gateway.stats()["hits"]
        top(gateway)
        return bool(gateway.stats()["hits"] > before)

    until("a served response", hit)
    return top(gateway)


def admitted(parts: Parts) -> None:
    until("an admitted writer", lambda: bool(parts.keys("writers")))


def released(parts: Parts) -> None:
    until("no writer", lambda: not parts.keys("writers"))


def quick_503(call: Callable[[], Answer], within_s: float) -> str:
    began = time.monotonic()
    status, answer = call()
    assert status == 503, answer
    assert time.monotonic() - began < within_s
    reason: str = answer["error"]["reason"]
    return reason


def test_a_dead_valkey_is_a_503_and_back_again(parts: Parts) -> None:
    gateway = parts.gateway
    assert served(gateway) == [9, 8, 7]
    parts.valkey.kill()
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/i/_search", QUERY),
        ("GET", "/i/_doc/1", None),
        ("PUT", "/i/_doc/1", {"n": 1}),
        ("PUT", "/new", None),
        ("HEAD", "/i", None),
        ("POST", "/_msearch", '{"index":"i"}\n{}\n'),
    ]
    for request in requests:
        began = time.monotonic()
        assert gateway.call(*request)[0] == 503
        assert time.monotonic() - began < 5
    line = '{"index":{"_index":"i","_id":"1"}}\n{"n":1}\n'
    assert "valkey" in quick_503(lambda: gateway.call("POST", "/_bulk", line), 5)
    assert gateway.ok("GET", "/_cluster/health")["status"] == "red"
    parts.valkey.start()
    gateway.wait_ready()
    assert top(gateway) == [9, 8, 7]
    gateway.ok("PUT", "/i/_doc/x", {"n": 50})
    assert top(gateway) == [50, 9, 8]


def test_a_valkey_that_hangs_is_a_503(parts: Parts) -> None:
    gateway = parts.gateway
    served(gateway)
    parts.valkey.pause()
    try:
        reason = quick_503(lambda: gateway.call("POST", "/i/_search", QUERY), 8)
        assert "valkey" in reason
    finally:
        parts.valkey.resume()
    gateway.wait_ready()
    assert top(gateway) == [9, 8, 7]


def test_a_dead_qdrant_is_a_503_and_back_again(parts: Parts) -> None:
    gateway = parts.gateway
    parts.edge.stop()
    assert "qdrant" in quick_503(lambda: gateway.call("POST", "/i/_search", QUERY), 5)
    assert "qdrant" in quick_503(lambda: gateway.call("PUT", "/i/_doc/1", {"n": 1}), 5)
    # What was not even sent leaves no claim and no writer behind.
    assert "qdrant" in quick_503(lambda: gateway.call("DELETE", "/i"), 5)
    assert "qdrant" in quick_503(lambda: gateway.call("PUT", "/new"), 5)
    assert not parts.keys("claim")
    released(parts)
    assert gateway.ok("GET", "/_cluster/health")["status"] == "red"
    parts.edge.start()
    assert top(gateway) == [9, 8, 7]
    gateway.ok("PUT", "/i/_doc/x", {"n": 50})
    assert top(gateway) == [50, 9, 8]


def cut_off_write(parts: Parts, pool: ThreadPoolExecutor) -> Future[Answer]:
    """Begin to write n=50 to a Qdrant that stands still; gives the answer that is to come.

    The id is the gateway's to make, so there is nothing to read first: the write itself is the
    first call to Qdrant, and the writer is admitted when this returns.
    """
    parts.edge.pause()
    writing = pool.submit(parts.gateway.call, "POST", "/i/_doc", {"n": 50})
    admitted(parts)
    return writing


def test_a_write_of_unknown_outcome_blocks_the_cache_until_qdrant_has_settled_it(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    gateway = parts.gateway
    assert served(gateway) == [9, 8, 7]
    writing = cut_off_write(parts, pool)
    assert "may have been made" in quick_503(writing.result, 20)
    assert gateway.stats()["unreleased_writers"] == 1
    assert parts.keys("writers")
    hits = gateway.stats()["hits"]
    assert gateway.call("POST", "/i/_search", QUERY)[0] == 503
    assert gateway.stats()["hits"] == hits
    assert parts.keys("writers"), "released before Qdrant has settled the write"
    parts.edge.resume()
    released(parts)
    # Qdrant had taken the write: it is applied before the release, so it is what is served.
    assert served(gateway) == [50, 9, 8]


def test_valkey_dies_between_admission_and_release(parts: Parts, pool: ThreadPoolExecutor) -> None:
    gateway = parts.gateway
    served(gateway)
    writing = cut_off_write(parts, pool)
    parts.valkey.kill()
    parts.edge.resume()
    assert "valkey" in quick_503(writing.result, 20)
    assert gateway.stats()["unreleased_writers"] == 1
    parts.valkey.start()
    released(parts)
    assert served(gateway) == [50, 9, 8]


def test_the_gateway_dies_between_admission_and_release(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    gateway = parts.gateway
    assert served(gateway) == [9, 8, 7]
    writing = cut_off_write(parts, pool)
    gateway.kill()
    with pytest.raises(OSError, match=r"."):
        writing.result()
    gateway.start(ready=False)
    until("a warning", lambda: "index i has unresolved writers" in gateway.log.read_text())
    parts.edge.resume()
    gateway.wait_ready()
    # Reads go to Qdrant and are right, and nothing is served or published.
    until("the write of the dead gateway", lambda: top(gateway) == [50, 9, 8])
    assert (gateway.stats()["hits"], gateway.stats()["fills"]) == (0, 0)
    assert gateway.stats()["misses_by_reason"].keys() == {"writer"}
    # Other writes go on.
    gateway.ok("PUT", "/i/_doc/1", {"n": 60})
    assert top(gateway) == [60, 50, 9]
    young = gateway.recover("--older-than", "3600")
    assert "left, younger than 3600 s" in young.stdout
    assert parts.keys("writers")
    done = gateway.recover("--older-than", "0")
    assert done.returncode == 0
    assert "released, generation advanced" in done.stdout
    assert not parts.keys("writers")
    assert served(gateway) == [60, 50, 9]
    assert gateway.recover("--older-than", "0").stdout == "nothing to recover\n"


def test_the_gateway_dies_while_it_creates_an_index(parts: Parts, pool: ThreadPoolExecutor) -> None:
    gateway = parts.gateway
    parts.edge.pause()
    creating = pool.submit(gateway.call, "PUT", "/new", MAPPING)
    until("a claim", lambda: bool(parts.keys("claim")))
    gateway.kill()
    with pytest.raises(OSError, match=r"."):
        creating.result()
    parts.edge.resume()
    gateway.start()
    for method, path in (("PUT", "/new"), ("DELETE", "/new"), ("POST", "/new/_search")):
        assert "claim" in quick_503(lambda m=method, p=path: gateway.call(m, p), 5)  # type: ignore[misc]
    assert "left, younger" in gateway.recover("--older-than", "3600").stdout
    done = gateway.recover("--older-than", "0")
    assert "claim to create" in done.stdout
    assert "undone" in done.stdout
    assert gateway.call("GET", "/new/_search")[0] == 404
    gateway.ok("PUT", "/new", MAPPING)
    assert len(parts.collections()) == 2


def test_the_gateway_dies_while_it_deletes_an_index(parts: Parts, pool: ThreadPoolExecutor) -> None:
    gateway = parts.gateway
    served(gateway)
    parts.edge.pause()
    deleting = pool.submit(gateway.call, "DELETE", "/i")
    until("a claim", lambda: bool(parts.keys("claim")))
    gateway.kill()
    with pytest.raises(OSError, match=r"."):
        deleting.result()
    parts.edge.resume()
    gateway.start()
    assert "claim" in quick_503(lambda: gateway.call("POST", "/i/_search", QUERY), 5)
    done = gateway.recover("--older-than", "0")
    assert "claim to delete" in done.stdout
    assert "completed" in done.stdout
    assert gateway.call("POST", "/i/_search", QUERY)[0] == 404
    assert parts.collections() == []
    gateway.ok("PUT", "/i", MAPPING)
    assert top(gateway) == []


def test_a_valkey_that_lost_its_data_is_not_taken_for_the_old_one(parts: Parts) -> None:
    gateway = parts.gateway
    served(gateway)
    parts.valkey.kill()
    shutil.rmtree(parts.valkey.folder / "appendonlydir")
    parts.valkey.start()
    until(
        "the loss noticed",
        lambda: "not the one" in str(gateway.call("POST", "/i/_search", QUERY)[1]),
    )
    assert gateway.call("PUT", "/i/_doc/1", {"n": 1})[0] == 503
    gateway.kill()
    gateway.start(ready=False)
    until(
        "the reason",
        lambda: "Valkey has no catalog" in str(gateway.call("POST", "/i/_search", QUERY)[1]),
    )
    assert gateway.call("PUT", "/i")[0] == 503
    done = gateway.recover()
    assert (done.returncode, "--new-epoch" in done.stderr) == (1, True)
    done = gateway.recover("--new-epoch")
    assert "belongs to no index; --drop-orphans deletes it with its 10 documents" in done.stdout
    done = gateway.recover("--new-epoch", "--drop-orphans")
    assert "belongs to no index, deleted with its 10 documents" in done.stdout
    gateway.kill()
    gateway.start()
    assert gateway.call("POST", "/i/_search", QUERY)[0] == 404
    gateway.ok("PUT", "/i", MAPPING)


def test_a_new_epoch_ends_every_fill_and_keeps_the_indices(parts: Parts) -> None:
    gateway = parts.gateway
    served(gateway)
    gateway.recover("--new-epoch")
    assert "not the one" in quick_503(lambda: gateway.call("POST", "/i/_search", QUERY), 5)
    assert gateway.stop() == 0
    gateway.start()
    assert top(gateway) == [9, 8, 7]
    assert gateway.stats()["misses_by_reason"] == {"other_epoch": 1}


def test_flushed_scripts_are_loaded_again(parts: Parts) -> None:
    gateway = parts.gateway
    served(gateway)
    with parts.valkey.client() as client:
        client.script_flush()
        hits = gateway.stats()["hits"]
        assert top(gateway) == [9, 8, 7]
        assert gateway.stats()["hits"] == hits + 1
        client.script_flush()
        gateway.ok("PUT", "/i/_doc/x", {"n": 50})
        assert top(gateway) == [50, 9, 8]


def test_the_gateway_waits_for_valkey_at_its_start(tmp_path: Path, edge: Edge) -> None:
    parts = Parts(tmp_path, edge=edge)
    try:
        parts.gateway.start(ready=False)
        assert quick_503(lambda: parts.gateway.call("PUT", "/i"), 5)
        parts.valkey.start()
        parts.gateway.wait_ready()
        parts.gateway.ok("PUT", "/i")
    finally:
        parts.kill()


def test_a_wrong_password_is_told_and_not_shown(tmp_path: Path, edge: Edge) -> None:
    parts = Parts(tmp_path, edge=edge)
    wrong = "a-secret-that-is-wrong"
    parts.gateway.environment["REFILL_GATEWAY_VALKEY_PASSWORD"] = wrong
    try:
        parts.valkey.start()
        parts.gateway.start(ready=False)
        until(
            "the refusal",
            lambda: "WRONGPASS" in str(parts.gateway.call("PUT", "/i")[1]),
        )
        assert wrong not in parts.gateway.log.read_text()
        done = parts.gateway.recover()
        assert done.returncode == 1
        assert wrong not in done.stdout + done.stderr
    finally:
        parts.kill()


def test_a_clean_stop_ends_what_is_under_way(parts: Parts, pool: ThreadPoolExecutor) -> None:
    gateway = parts.gateway
    writing = cut_off_write(parts, pool)
    stopping = pool.submit(gateway.stop)
    until("no new connections", lambda: not accepts(gateway.port))
    parts.edge.resume()
    assert writing.result()[0] == 201
    assert stopping.result() == 0
    assert not parts.keys("writers")
    gateway.start()
    assert top(gateway) == [50, 9, 8]


def accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextmanager
def slow_reader(parts: Parts) -> Iterator[tuple[Gateway, Gate]]:
    """A second gateway, whose way to Qdrant can be held up."""
    gate = Gate(parts.edge.port)
    reader = Gateway(
        parts.folder, parts.valkey, gate.port, QDRANT_TIMEOUT_S="20", NAMESPACE=parts.namespace
    )
    reader.log = parts.folder / "reader.log"
    try:
        reader.start()
        yield reader, gate
    finally:
        gate.close()
        reader.kill()


def test_an_answer_that_was_overtaken_by_a_write_is_not_published(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    with slow_reader(parts) as (reader, gate):
        assert top(reader) == [9, 8, 7]
        body = {**QUERY, "size": 2}
        gate.hold("answer")
        reading = pool.submit(reader.ok, "POST", "/i/_search", body)
        assert gate.held.wait(20)
        parts.gateway.ok("PUT", "/i/_doc/x", {"n": 50})
        gate.release()
        hits = reading.result()["hits"]
        # It took two calls, between which the index moved: it was made again.
        assert (hits["total"]["value"], hits["hits"][0]["_id"]) == (11, "x")
        stats = reader.stats()
        assert stats["rejected_by_reason"] == {"generation": 1}
        assert stats["repeated"] == 1


def test_an_answer_of_one_call_that_was_overtaken_is_given_and_not_published(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    with slow_reader(parts) as (reader, gate):
        gate.hold("answer")
        reading = pool.submit(reader.ok, "GET", "/i/_doc/3")
        assert gate.held.wait(20)
        parts.gateway.ok("PUT", "/i/_doc/3", {"n": 33})
        gate.release()
        assert reading.result()["_source"] == {"n": 3}
        assert reader.stats()["rejected_by_reason"] == {"generation": 1}
        assert reader.ok("GET", "/i/_doc/3")["_source"] == {"n": 33}


def test_an_answer_read_while_a_writer_is_active_is_not_published(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    with slow_reader(parts) as (writer, gate):
        gate.hold("answer")
        writing = pool.submit(writer.call, "POST", "/i/_doc", {"n": 50})
        admitted(parts)
        gateway = parts.gateway
        stats = gateway.stats()
        assert top(gateway)[-1] in (7, 8)
        assert gateway.stats()["misses_by_reason"]["writer"] == 1
        assert gateway.stats()["fills"] == stats["fills"]
        gate.release()
        assert writing.result()[0] == 201
        assert served(gateway) == [50, 9, 8]


def test_two_gateways_see_each_others_indices_and_fills(parts: Parts) -> None:
    with slow_reader(parts) as (other, _):
        assert served(parts.gateway) == [9, 8, 7]
        assert top(other) == [9, 8, 7]
        assert other.stats()["hits"] == 1
        other.ok("PUT", "/i/_doc/x", {"n": 50, "more": "dynamic"})
        assert top(parts.gateway) == [50, 9, 8]
        query = {"query": {"term": {"more.keyword": "dynamic"}}}
        assert parts.gateway.ok("POST", "/i/_count", query)["count"] == 1
        other.ok("DELETE", "/i")
        assert parts.gateway.call("POST", "/i/_search", QUERY)[0] == 404


def test_of_many_creates_of_one_document_one_is_made(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    for id_ in ("p", "q", "r"):
        making = [
            pool.submit(parts.gateway.call, "PUT", f"/i/_create/{id_}", {"n": n}) for n in range(4)
        ]
        assert sorted(future.result()[0] for future in making) == [201, 409, 409, 409]
    updating = [
        pool.submit(parts.gateway.call, "POST", "/i/_update/p", {"doc": {f"k{n}": n}})
        for n in range(4)
    ]
    assert {future.result()[0] for future in updating} == {200}
    assert parts.gateway.ok("GET", "/i/_doc/p")["_version"] == 5
    assert parts.gateway.ok("GET", "/i/_doc/p")["_source"].keys() >= {"k0", "k1", "k2", "k3"}


def test_a_read_of_several_calls_and_a_write_of_one_gateway_wait_for_each_other(
    parts: Parts, pool: ThreadPoolExecutor
) -> None:
    with slow_reader(parts) as (gateway, gate):
        gate.hold("answer")
        reading = pool.submit(gateway.ok, "POST", "/i/_search", {**QUERY, "size": 2})
        assert gate.held.wait(20)
        writing = pool.submit(gateway.call, "POST", "/i/_doc", {"n": 50})
        # Whatever has been sent by then is answered first.
        gateway.ok("GET", "/_refill/stats")
        gate.release()
        assert reading.result()["hits"]["total"]["value"] == 10
        assert writing.result()[0] == 201
        stats = gateway.stats()
        assert (stats["repeated"], stats["rejected"]) == (0, 0)
        assert top(gateway) == [50, 9, 8]

"""The response cache: what is served, what is not, and what it writes to the log."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.gateway_server import (
    JSON,
    Edge,
    Gateway,
    Parts,
    assemble,
    call,
    edge_running,
    running,
    until,
)

QUERY = {"query": {"range": {"n": {"gte": 3}}}, "sort": [{"n": "desc"}], "size": 5}


def fill(gateway: Gateway, index: str = "i") -> None:
    gateway.ok("PUT", f"/{index}", {"mappings": {"properties": {"n": {"type": "integer"}}}})
    gateway.bulk(index, {str(n): {"n": n} for n in range(20)})


def ids(answer: Any) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_running(tmp_path_factory.mktemp("edge")) as edge:
        yield edge


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, edge: Edge) -> Iterator[Parts]:
    with running(tmp_path_factory.mktemp("cache"), edge=edge) as parts:
        fill(parts.gateway)
        yield parts


def counted(gateway: Gateway, names: tuple[str, ...] = ("hits", "misses", "fills")) -> list[int]:
    stats = gateway.stats()
    return [stats[name] for name in names]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/i/_search", QUERY),
        ("GET", "/i/_search?size=1", None),
        ("GET", "/i/_doc/3", None),
        ("POST", "/i/_count", {"query": {"term": {"n": 3}}}),
        ("POST", "/i/_search", {"size": 0, "aggs": {"n": {"terms": {"field": "n"}}}}),
    ],
)
def test_the_second_answer_is_served_and_is_the_first(
    parts: Parts, method: str, path: str, body: Any
) -> None:
    gateway = parts.gateway
    hits, misses, fills = counted(gateway)
    calls = gateway.stats()["qdrant_calls"]
    first = gateway.ok(method, path, body)
    assert counted(gateway) == [hits, misses + 1, fills + 1]
    between = gateway.stats()["qdrant_calls"]
    assert between > calls
    assert gateway.ok(method, path, body) == first
    assert counted(gateway) == [hits + 1, misses + 1, fills + 1]
    assert gateway.stats()["qdrant_calls"] == between


@pytest.mark.parametrize("damage", ["body", "another generation", "another request"])
def test_an_entry_that_is_not_what_was_published_is_a_miss(parts: Parts, damage: str) -> None:
    gateway = parts.gateway
    body = {"query": {"term": {"n": 7}}, "size": 1}
    with parts.valkey.client() as client:

        def fills() -> list[Any]:
            return list(client.keys(f"{parts.namespace}:fill:*"))

        client.delete("none", *fills())
        first = gateway.ok("POST", "/i/_search", body)
        (key,) = fills()
        entry: Any = client.get(key)
        if damage == "body":
            assert entry.count(b'"n": 7') == 1
            client.set(key, entry.replace(b'"n": 7', b'"n": 6'), keepttl=True)
        elif damage == "another generation":
            # What a flipped digit of the generation looks like once the index has come that far.
            gateway.ok("PUT", "/i/_doc/7", {"n": 7, "changed": True})
            gateway.ok("PUT", "/i/_doc/7", {"n": 7})
            epoch, incarnation, generation, rest = entry.split(b" ", 3)
            later = str(int(generation) + 2).encode()
            client.set(key, b" ".join((epoch, incarnation, later, rest)), keepttl=True)
        else:
            gateway.ok("POST", "/i/_search", {"query": {"term": {"n": 8}}, "size": 1})
            (foreign,) = set(fills()) - {key}
            other: Any = client.get(foreign)
            client.set(key, other, keepttl=True)
        damaged = gateway.stats()["misses_by_reason"].get("damaged", 0)
        again = gateway.ok("POST", "/i/_search", body)
        assert again["hits"]["hits"][0]["_source"] == first["hits"]["hits"][0]["_source"]
        assert gateway.stats()["misses_by_reason"]["damaged"] == damaged + 1
        hits = gateway.stats()["hits"]
        assert gateway.ok("POST", "/i/_search", body) == again
        assert gateway.stats()["hits"] == hits + 1
        client.delete(*fills())


def test_each_search_of_a_multi_search_uses_the_same_cache(parts: Parts) -> None:
    gateway = parts.gateway
    gateway.ok("POST", "/i/_search", '{"size":2}')
    hits, _, _ = counted(gateway)
    answer = gateway.ok("POST", "/_msearch", '{"index":"i"}\n{"size":2}\n')
    assert answer["responses"][0]["hits"]["total"]["value"] == 20
    assert counted(gateway)[0] == hits + 1


def test_a_write_ends_what_was_served(parts: Parts) -> None:
    gateway = parts.gateway
    assert ids(gateway.ok("POST", "/i/_search", QUERY))[0] == "19"
    gateway.ok("PUT", "/i/_doc/high", {"n": 100})
    assert ids(gateway.ok("POST", "/i/_search", QUERY))[0] == "high"
    gateway.ok("DELETE", "/i/_doc/high")
    assert ids(gateway.ok("POST", "/i/_search", QUERY))[0] == "19"
    assert gateway.stats()["misses_by_reason"]["generation"] >= 2


def test_writes_that_change_nothing_leave_it(parts: Parts) -> None:
    gateway = parts.gateway
    gateway.ok("POST", "/i/_search", QUERY)
    gateway.call("DELETE", "/i/_doc/none")
    gateway.ok("POST", "/i/_update/3", {"doc": {"n": 3}})
    gateway.call("PUT", "/i/_create/3", {"n": 4})
    hits = gateway.stats()["hits"]
    gateway.ok("POST", "/i/_search", QUERY)
    assert gateway.stats()["hits"] == hits + 1


def test_another_index_and_another_incarnation_have_their_own(parts: Parts) -> None:
    gateway = parts.gateway
    fill(gateway, "j")
    gateway.ok("POST", "/j/_search", QUERY)
    gateway.ok("DELETE", "/j")
    assert gateway.call("POST", "/j/_search", QUERY)[0] == 404
    fill(gateway, "j")
    before = gateway.stats()["misses_by_reason"].get("other_incarnation", 0)
    assert ids(gateway.ok("POST", "/j/_search", QUERY))[0] == "19"
    assert gateway.stats()["misses_by_reason"]["other_incarnation"] == before + 1


def test_errors_and_missing_documents_are_not_published(parts: Parts) -> None:
    gateway = parts.gateway
    fills = gateway.stats()["fills"]
    for _ in range(2):
        assert gateway.call("GET", "/i/_doc/none")[0] == 404
        assert gateway.call("POST", "/i/_search", {"query": {"match": {}}})[0] == 400
    assert gateway.stats()["fills"] == fills


def test_the_cache_needs_no_qdrant_and_says_so_where_it_does(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge) as parts:
        gateway = parts.gateway
        fill(gateway)
        served = gateway.ok("POST", "/i/_search", QUERY)
        assert parts.edge.stop() == 0
        assert gateway.ok("POST", "/i/_search", QUERY) == served
        status, answer = gateway.call("POST", "/i/_search", {"size": 3})
        assert (status, answer["error"]["reason"]) == (503, "qdrant: cannot connect")
        parts.edge.start()


def test_ephemeral_fills_leave_no_log_traffic_and_durable_ones_their_size(
    tmp_path: Path, edge: Edge
) -> None:
    with running(tmp_path, "old", edge=edge, TTL_S="1") as parts:
        for variant in ("old", "new"):
            gateway = parts.gateway
            if variant == "new":
                assert gateway.stop() == 0
                gateway = parts.another(tmp_path, "new", TTL_S="1")
                gateway.start()
            try:
                if variant == "old":
                    fill(gateway)
                before = parts.valkey.aof_bytes()
                size = 0
                for number in range(30):
                    body = {**QUERY, "from": number}
                    size += len(str(gateway.ok("POST", "/i/_search", body)))
                assert gateway.stats()["fills"] == 30
                grown = parts.valkey.aof_bytes() - before
                until("all fills swept", lambda g=gateway: g.stats()["swept"] == 30)  # type: ignore[misc]
                assert parts.valkey.aof_bytes() - before == grown
                if variant == "new":
                    assert grown == 0
                else:
                    assert grown > size * 0.8
            finally:
                if variant == "new":
                    gateway.kill()


def test_fills_of_an_earlier_gateway_are_swept_too(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge, TTL_S="1", TTL_GRACE_S="4") as parts:
        gateway = parts.gateway
        fill(gateway)
        for number in range(10):
            gateway.ok("POST", "/i/_search", {**QUERY, "from": number})
        before = parts.valkey.aof_bytes()
        gateway.kill()
        gateway.start()
        until("fills swept", lambda: gateway.stats()["swept"] == 10)
        assert parts.valkey.aof_bytes() == before
        with parts.valkey.client() as client:
            assert client.keys(f"{parts.namespace}:fill:*") == []


def test_another_build_or_configuration_does_not_serve_it(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge) as parts:
        gateway = parts.gateway
        fill(gateway)
        gateway.ok("POST", "/i/_search", QUERY)
        for settings in ({"BUILD": "other"}, {"MAX_TERMS": "7"}):
            other = parts.another(tmp_path, **settings)
            try:
                other.start()
                other.ok("POST", "/i/_search", QUERY)
                assert other.stats()["misses_by_reason"] == {"build": 1}
            finally:
                other.kill()
        old = parts.another(tmp_path, "old")
        try:
            old.start()
            assert old.stats()["build"] != gateway.stats()["build"]
        finally:
            old.kill()


def test_serving_off_asks_qdrant_every_time(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge, SERVING="off") as parts:
        gateway = parts.gateway
        fill(gateway)
        for _ in range(3):
            assert ids(gateway.ok("POST", "/i/_search", QUERY))[0] == "19"
        stats = gateway.stats()
        assert (stats["serving"], stats["bypassed"]) == (False, 3)
        assert (stats["hits"], stats["misses"], stats["fills"]) == (0, 0, 0)
        with parts.valkey.client() as client:
            assert client.keys(f"{parts.namespace}:fill:*") == []


def test_a_response_beyond_the_bound_is_not_published(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge, MAX_ENTRY_BYTES="500") as parts:
        gateway = parts.gateway
        fill(gateway)
        for _ in range(2):
            gateway.ok("POST", "/i/_search", {"size": 20})
        stats = gateway.stats()
        assert (stats["hits"], stats["fills"]) == (0, 0)
        assert stats["rejected_by_reason"] == {"too_large": 2}


def test_an_entry_is_served_for_its_time_only(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge, TTL_S="0.05") as parts:
        gateway = parts.gateway
        fill(gateway)

        def expired() -> bool:
            gateway.ok("POST", "/i/_search", QUERY)
            return bool(gateway.stats()["misses_by_reason"].get("expired"))

        until("an expired entry", expired)


def test_a_full_valkey_costs_the_cache_alone(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge) as parts:
        gateway = parts.gateway
        fill(gateway)
        with parts.valkey.client() as client:
            client.config_set("maxmemory", 1)
            assert ids(gateway.ok("POST", "/i/_search", QUERY))[0] == "19"
            assert gateway.stats()["rejected_by_reason"] == {"out_of_memory": 1}
            gateway.ok("PUT", "/i/_doc/x", {"n": 200})
            client.config_set("maxmemory", 0)
        assert ids(gateway.ok("POST", "/i/_search", QUERY))[0] == "x"


def test_an_opaque_id_comes_back_and_is_logged(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge, LOG_REQUESTS="on") as parts:
        fill(parts.gateway)
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", parts.gateway.port, timeout=10)
        for path in ("/i/_doc/1", "/i/_doc/1", "/nowhere/_doc/1"):
            connection.request("GET", path, headers={**JSON, "X-Opaque-Id": "trace-42"})
            response = connection.getresponse()
            response.read()
            assert response.headers["x-opaque-id"] == "trace-42"
        connection.close()
        assert parts.gateway.log.read_text().count("id=trace-42") == 3
        assert parts.valkey.password not in parts.gateway.log.read_text()


def test_the_archive_runs_as_the_folder_does(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge) as parts:
        fill(parts.gateway)
        tree = assemble(tmp_path / "zipped", "new")
        archive = tmp_path / "gateway.pyz"
        with zipfile.ZipFile(archive, "w") as packed:
            for path in sorted(tree.rglob("*")):
                if path.is_file() and path.suffix in (".py", ".lua"):
                    packed.write(path, path.relative_to(tree))
        build = parts.gateway.stats()["build"]
        assert parts.gateway.stop() == 0
        parts.gateway.tree = archive
        parts.gateway.start()
        assert parts.gateway.stats()["build"] == build
        assert ids(parts.gateway.ok("POST", "/i/_search", QUERY))[0] == "19"
        assert "nothing to recover" in parts.gateway.recover().stdout
        parts.gateway.tree = tree


def test_help_names_the_commands(tmp_path: Path) -> None:
    tree = assemble(tmp_path, "old")
    done = subprocess.run(
        [sys.executable, str(tree), "--help"], capture_output=True, text=True, check=True
    )
    assert "recover" in done.stdout


def test_listening_on_a_taken_port_is_an_error(parts: Parts, tmp_path: Path) -> None:
    other = parts.another(tmp_path)
    other.environment["REFILL_GATEWAY_PORT"] = str(parts.gateway.port)
    other.run([sys.executable, str(other.tree)], other.environment)
    assert other.process is not None
    assert other.process.wait(30) == 1
    assert "cannot listen" in other.log.read_text()
    assert call(parts.gateway.port, "GET", "/")[0] == 200

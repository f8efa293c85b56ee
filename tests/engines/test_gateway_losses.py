"""What Valkey or Qdrant has lost, or could lose, is told: never a stale or an empty answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.gateway_server import Edge, Gateway, Parts, edge_running, running, until

MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}}}
QUERY = {"query": {"match_all": {}}, "sort": [{"n": "asc"}]}


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with edge_running(tmp_path_factory.mktemp("edge")) as edge:
        yield edge


@pytest.fixture(params=["new", "old"])
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def parts(tmp_path: Path, edge: Edge) -> Iterator[Parts]:
    with running(tmp_path, edge=edge) as parts:
        yield parts


def fill(gateway: Gateway, count: int = 5) -> None:
    gateway.ok("PUT", "/i", MAPPING)
    gateway.bulk("i", {str(n): {"n": n} for n in range(count)})
    assert values(gateway) == list(range(count))


def values(gateway: Gateway) -> list[int]:
    return [hit["_source"]["n"] for hit in gateway.ok("POST", "/i/_search", QUERY)["hits"]["hits"]]


def reason(gateway: Gateway, method: str, path: str, body: Any = None) -> str:
    """Why it answers 503; empty when it does not."""
    status, answer = gateway.call(method, path, body)
    return str(answer["error"]["reason"]) if status == 503 else ""


def until_refused(gateway: Gateway, text: str) -> None:
    until(f"a 503 with {text!r}", lambda: text in reason(gateway, "POST", "/i/_search", QUERY))
    for method, path, body in (
        ("GET", "/i/_doc/1", None),
        ("PUT", "/i/_doc/1", {"n": 1}),
        ("PUT", "/new", None),
        ("DELETE", "/i", None),
        ("POST", "/_refresh", None),
    ):
        assert text in reason(gateway, method, path, body), (method, path)
    assert gateway.ok("GET", "/_cluster/health")["status"] == "red"


def set_config(parts: Parts, **values: str | int) -> None:
    with parts.valkey.client() as client:
        for name, value in values.items():
            client.config_set(name.replace("_", "-"), value)


# A Valkey that could lose what it has acknowledged


@pytest.mark.parametrize(
    ("line", "instead", "told"),
    [
        ("appendonly yes", "appendonly no", "appendonly is no, must be yes"),
        ("appendfsync always", "appendfsync everysec", "appendfsync is everysec, must be always"),
        ('save ""', 'save ""\nmaxmemory-policy allkeys-lru', "must be noeviction"),
    ],
)
def test_a_valkey_that_can_lose_writes_is_refused_at_the_start(
    tmp_path: Path, edge: Edge, line: str, instead: str, told: str
) -> None:
    parts = Parts(tmp_path, edge=edge)
    config = parts.valkey.config.read_text()
    assert line in config
    parts.valkey.config.write_text(config.replace(line, instead))
    try:
        parts.valkey.start()
        parts.gateway.start(ready=False)
        until("the refusal", lambda: told in reason(parts.gateway, "PUT", "/i"))
        assert told in parts.gateway.log.read_text()
        assert parts.gateway.ok("GET", "/_cluster/health")["status"] == "red"
        parts.gateway.kill()
        parts.gateway.environment["REFILL_GATEWAY_VALKEY_DURABILITY"] = "unchecked"
        parts.gateway.start()
        fill(parts.gateway)
        assert f"{told.partition(',')[0]}" in parts.gateway.log.read_text()
        assert "not refused" in parts.gateway.log.read_text()
    finally:
        parts.kill()


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_policies_that_keep_the_catalog_are_accepted(
    tmp_path: Path, edge: Edge, policy: str
) -> None:
    parts = Parts(tmp_path, edge=edge)
    parts.valkey.config.write_text(parts.valkey.config.read_text() + f"maxmemory-policy {policy}\n")
    try:
        parts.start()
        fill(parts.gateway)
    finally:
        parts.kill()


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "no", "always"),
        ("maxmemory-policy", "allkeys-random", "noeviction"),
    ],
)
def test_a_change_while_it_runs_is_noticed_and_so_is_its_end(
    parts: Parts, name: str, value: str, good: str
) -> None:
    fill(parts.gateway)
    set_config(parts, **{name: value})
    until_refused(parts.gateway, f"{name} is {value}")
    set_config(parts, **{name: good})
    parts.gateway.wait_ready()
    assert values(parts.gateway) == [0, 1, 2, 3, 4]


def test_a_replica_is_refused_at_the_start_and_while_it_runs(parts: Parts, tmp_path: Path) -> None:
    fill(parts.gateway)
    with parts.valkey.client() as client:
        client.replicaof("127.0.0.1", "1")
        until_refused(parts.gateway, "replica")
        (tmp_path / "second").mkdir()
        second = parts.another(tmp_path / "second")
        try:
            second.start(ready=False)
            until("the refusal", lambda: "replica" in reason(second, "PUT", "/j"))
            client.replicaof("NO", "ONE")
            second.wait_ready()
            parts.gateway.wait_ready()
        finally:
            second.kill()
    assert values(parts.gateway) == [0, 1, 2, 3, 4]


def test_a_user_that_may_not_see_the_configuration_is_told(tmp_path: Path, edge: Edge) -> None:
    parts = Parts(tmp_path, edge=edge)
    parts.valkey.config.write_text(
        parts.valkey.config.read_text()
        + f"user narrow on >{parts.valkey.password} ~* &* +@all -config\n"
    )
    parts.gateway.environment["REFILL_GATEWAY_VALKEY_USER"] = "narrow"
    try:
        parts.valkey.start()
        parts.gateway.start(ready=False)
        until("the refusal", lambda: "cannot be seen" in reason(parts.gateway, "PUT", "/i"))
        parts.gateway.kill()
        parts.gateway.environment["REFILL_GATEWAY_VALKEY_DURABILITY"] = "unchecked"
        parts.gateway.start()
        fill(parts.gateway)
    finally:
        parts.kill()


# A Valkey that went back in time


class Earlier:
    """The data set of a Valkey as it was, to be put back."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._log = parts.valkey.folder / "appendonlydir"
        self._kept = parts.folder / "kept"
        parts.valkey.kill()
        shutil.copytree(self._log, self._kept)
        parts.valkey.start()
        parts.gateway.wait_ready()

    def put_back(self) -> None:
        self._parts.valkey.kill()
        shutil.rmtree(self._log)
        shutil.copytree(self._kept, self._log)
        self._parts.valkey.start()


@pytest.mark.parametrize("restarted", [False, True])
def test_an_older_data_set_of_the_same_epoch_is_not_served(
    tmp_path: Path, edge: Edge, variant: str, restarted: bool
) -> None:
    with running(tmp_path, variant, edge) as parts:
        gateway = parts.gateway
        fill(gateway)
        with parts.valkey.client() as client:
            # So that the ephemeral fills, too, are in the older data set.
            client.bgrewriteaof()
            until("a rewrite", lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        earlier = Earlier(parts)
        gateway.ok("PUT", "/i/_doc/0", {"n": 100})
        gateway.ok("PUT", "/i/_doc/9", {"n": 50})
        newest = [1, 2, 3, 4, 50, 100]
        assert values(gateway) == newest
        if restarted:
            gateway.kill()
        earlier.put_back()
        if restarted:
            gateway.start(ready=False)
        until_refused(gateway, "older than what was acknowledged")
        assert "older than what was acknowledged" in gateway.log.read_text()
        # The way out that the answer names; and nothing is numbered twice afterwards.
        done = gateway.recover("--new-epoch")
        assert "sequence numbers go on from 7, were at 5" in done.stdout
        gateway.kill()
        gateway.start()
        assert values(gateway) == newest
        gateway.bulk("i", {f"more{n}": {"n": 50} for n in range(6)})
        pages = []
        after: list[Any] = []
        while True:
            page = {**QUERY, "size": 1, **({"search_after": after} if after else {})}
            hits = gateway.ok("POST", "/i/_search", page)["hits"]["hits"]
            if not hits:
                break
            pages.append(hits[0]["_id"])
            after = hits[0]["sort"]
        assert len(pages) == len(set(pages)) == 12


def test_a_lost_delete_is_noticed_by_a_gateway_that_lives(parts: Parts) -> None:
    gateway = parts.gateway
    fill(gateway)
    earlier = Earlier(parts)
    gateway.ok("DELETE", "/i/_doc/0")
    earlier.put_back()
    until_refused(gateway, "older than what was acknowledged")


def test_the_newer_data_set_put_back_is_served_again(parts: Parts) -> None:
    gateway = parts.gateway
    fill(gateway)
    earlier = Earlier(parts)
    gateway.ok("PUT", "/i/_doc/0", {"n": 100})
    parts.valkey.kill()
    newer = parts.folder / "newer"
    shutil.copytree(parts.valkey.folder / "appendonlydir", newer)
    earlier.put_back()
    until_refused(gateway, "older than what was acknowledged")
    parts.valkey.kill()
    shutil.rmtree(parts.valkey.folder / "appendonlydir")
    shutil.copytree(newer, parts.valkey.folder / "appendonlydir")
    parts.valkey.start()
    gateway.wait_ready()
    assert values(gateway) == [1, 2, 3, 4, 100]


def test_an_older_state_without_a_restart_is_not_served(parts: Parts) -> None:
    """Such as of an index's key that was evicted, or put back by hand."""
    gateway = parts.gateway
    fill(gateway)
    with parts.valkey.client() as client:
        key = f"{parts.namespace}:index:i"
        old: Any = client.hgetall(key)
        gateway.ok("PUT", "/i/_doc/0", {"n": 100})
        assert values(gateway) == [1, 2, 3, 4, 100]
        client.hset(key, mapping=old)
    until("a refusal", lambda: bool(reason(gateway, "POST", "/i/_search", QUERY)))
    until_refused(gateway, "older than what was acknowledged")


def test_a_restart_that_lost_nothing_costs_nothing(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, "old", edge) as parts:
        gateway = parts.gateway
        fill(gateway)
        parts.valkey.kill()
        parts.valkey.start()
        gateway.wait_ready()
        hits = gateway.stats()["hits"]
        assert values(gateway) == [0, 1, 2, 3, 4]
        assert gateway.stats()["hits"] == hits + 1


# A catalog without its index, an index without its collection


def test_an_index_that_the_catalog_has_lost_is_not_created_anew(parts: Parts) -> None:
    gateway = parts.gateway
    fill(gateway)
    with parts.valkey.client() as client:
        client.delete(f"{parts.namespace}:index:i")
        client.srem(f"{parts.namespace}:indices", "i")
    for method, path, body in (
        ("PUT", "/i/_doc/new", {"n": 1}),
        ("PUT", "/i", MAPPING),
        ("POST", "/i/_search", QUERY),
        ("POST", "/i/_count", None),
        ("GET", "/i/_doc/1", None),
        ("HEAD", "/i", None),
        ("GET", "/i/_mapping", None),
        ("DELETE", "/i", None),
        ("POST", "/i/_refresh", None),
    ):
        status, answer = gateway.call(method, path, body)
        assert status == 503, (method, path, answer)
        if method != "HEAD":
            assert "is not in Valkey's catalog" in answer["error"]["reason"]
    line = '{"index":{"_index":"i","_id":"1"}}\n{"n":1}\n'
    assert "catalog" in reason(gateway, "POST", "/_bulk", line)
    assert len(parts.collections()) == 1
    assert not parts.keys("claim")
    # Another name is none of it.
    assert gateway.call("POST", "/other/_search", QUERY)[0] == 404
    gateway.ok("PUT", "/other/_doc/1", {"n": 1})
    assert "deleted" in gateway.recover("--drop-orphans").stdout
    assert gateway.call("POST", "/i/_search", QUERY)[0] == 404
    gateway.ok("PUT", "/i/_doc/new", {"n": 1})
    assert values(gateway) == [1]


def test_a_lost_collection_is_a_503_for_reads_and_writes(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        gateway = parts.gateway
        fill(gateway)
        gateway.ok("PUT", "/intact", MAPPING)
        parts.edge.kill()
        shutil.move(parts.edge.storage, tmp_path / "kept")
        parts.edge.start()
        health = gateway.ok("GET", "/_cluster/health")
        assert (health["status"], health["unassigned_shards"]) == ("red", 2)
        assert "not in Qdrant" in reason(gateway, "POST", "/_refresh")
        assert "not in Qdrant" in reason(gateway, "POST", "/i/_refresh")
        for method, path, body in (
            ("POST", "/i/_search", {"size": 1}),
            # It was cached.
            ("POST", "/i/_search", QUERY),
            ("PUT", "/i/_doc/2", {"n": 1}),
            ("PUT", "/i/_create/77", {"n": 1}),
            ("DELETE", "/i/_doc/2", None),
            ("GET", "/i/_doc/1", None),
            ("POST", "/i/_count", None),
        ):
            assert "not in Qdrant" in reason(gateway, method, path, body), (method, path)
        assert gateway.stats()["unreleased_writers"] == 0
        gateway.ok("DELETE", "/intact")
        assert gateway.call("POST", "/intact/_search", QUERY)[0] == 404
        # A gateway that starts finds it, too, and does not serve what was cached.
        gateway.kill()
        gateway.start(ready=False)
        until("the loss", lambda: "not in Qdrant" in reason(gateway, "POST", "/i/_search", QUERY))
        # And it is there again.
        parts.edge.kill()
        shutil.rmtree(parts.edge.storage)
        shutil.move(tmp_path / "kept", parts.edge.storage)
        parts.edge.start()
        gateway.wait_ready()
        until("the end", lambda: not reason(gateway, "POST", "/i/_search", QUERY))
        assert values(gateway) == [0, 1, 2, 3, 4]


def test_a_lost_collection_can_be_given_up(tmp_path: Path) -> None:
    with running(tmp_path) as parts:
        gateway = parts.gateway
        fill(gateway)
        parts.edge.kill()
        shutil.rmtree(parts.edge.storage)
        parts.edge.start()
        assert "not in Qdrant" in reason(gateway, "PUT", "/i/_doc/2", {"n": 1})
        gateway.ok("DELETE", "/i")
        fill(gateway, 3)
        assert gateway.ok("GET", "/_cluster/health")["status"] == "green"


def test_health_and_refresh_see_a_flushed_catalog(parts: Parts) -> None:
    gateway = parts.gateway
    fill(gateway)
    with parts.valkey.client() as client:
        client.flushall()
    assert gateway.ok("GET", "/_cluster/health")["status"] == "red"
    assert "not the one" in reason(gateway, "POST", "/_refresh")
    assert "not the one" in reason(gateway, "POST", "/i/_refresh")


# A full Valkey


def test_fills_do_not_block_writes_indices_or_the_sweeper(tmp_path: Path, edge: Edge) -> None:
    with running(tmp_path, edge=edge, TTL_S="2", TTL_GRACE_S="600") as parts:
        gateway = parts.gateway
        fill(gateway)
        with parts.valkey.client() as client:
            used: Any = client.info("memory")["used_memory"]
            client.config_set("maxmemory", used + 200_000)
            number = 0
            while not gateway.stats()["rejected_by_reason"].get("out_of_memory"):
                number += 1
                query = {"query": {"range": {"n": {"gte": -number}}}, "size": 5}
                gateway.ok("POST", "/i/_search", query)
            # Whatever else takes memory: nothing may be stored any more.
            client.config_set("maxmemory", used // 2)
            gateway.ok("PUT", "/i/_doc/0", {"n": 70})
            gateway.ok("PUT", "/i/_doc/1", {"n": 71, "dynamic": "field"})
            gateway.ok("PUT", "/j", MAPPING)
            gateway.ok("PUT", "/k/_doc/1", {"n": 1})
            gateway.ok("DELETE", "/j")
            gateway.ok("DELETE", "/i/_doc/0")
            assert values(gateway) == [2, 3, 4, 71]
            until("a sweep", lambda: not parts.keys("fill"))
            assert gateway.stats()["swept"] > 0
            client.config_set("maxmemory", 0)


def test_a_new_catalog_begins_in_a_full_valkey(tmp_path: Path, edge: Edge) -> None:
    parts = Parts(tmp_path, edge=edge)
    try:
        parts.valkey.start()
        set_config(parts, maxmemory=1)
        parts.gateway.start()
        fill(parts.gateway)
    finally:
        parts.kill()

"""Each Lua script of the gateway on a real Valkey with `appendfsync always`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from engines.gateway_server import TREE, Valkey
from redis import Redis
from redis.exceptions import ResponseError

EPOCH, BUILD = "e1", "b1"
EPOCH_KEY, INDEX, CLAIM, WRITERS, INDICES = (
    "t:epoch",
    "t:index:i",
    "t:claim:i",
    "t:writers:i",
    "t:s",
)
FILL, PREFIX = "t:fill:i:1", "t:fill:"
PUBLISH = {variant: TREE / "variants" / variant / "gateway" / "lua" for variant in ("old", "new")}
TTL_MS, GRACE_MS = 60_000, 60_000


class Scripts:
    """The scripts with the keys and arguments that the gateway gives them."""

    def __init__(self, client: Redis, variant: str = "new") -> None:
        self.client: Any = client
        self.variant = variant

    def run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        folder = PUBLISH[self.variant] if name == "publish" else TREE / "gateway" / "lua"
        source = (folder / f"{name}.lua").read_bytes()
        return self.client.eval(source, len(keys), *keys, *arguments)

    def claim(self, kind: str, token: str, collection: str = "c1", most: int = 10) -> Any:
        keys = (EPOCH_KEY, INDEX, CLAIM, INDICES)
        return self.run("claim", keys, (EPOCH, kind, token, collection, "here", most))

    def commit(self, kind: str, token: str, collection: str = "c1", mapping: str = "{}") -> Any:
        keys = (EPOCH_KEY, INDEX, CLAIM, INDICES, WRITERS)
        return self.run("commit", keys, (EPOCH, token, kind, collection, "i", mapping, "{}"))

    def abort(self, token: str) -> Any:
        return self.run("abort", (EPOCH_KEY, CLAIM), (EPOCH, token))

    def admit(self, token: str, count: int = 1, incarnation: str = "c1", version: int = 1) -> Any:
        keys = (EPOCH_KEY, INDEX, CLAIM, WRITERS)
        return self.run("admit", keys, (EPOCH, incarnation, version, token, count, "here"))

    def release(self, token: str, incarnation: str = "c1") -> Any:
        return self.run("release", (EPOCH_KEY, INDEX, WRITERS), (EPOCH, incarnation, token))

    def extend(self, token: str, version: int, mapping: str) -> Any:
        keys = (EPOCH_KEY, INDEX, WRITERS)
        return self.run("extend", keys, (EPOCH, "c1", token, version, mapping))

    def view(self) -> Any:
        return self.run("view", (EPOCH_KEY, INDEX, CLAIM, WRITERS), (EPOCH,))

    def lookup(self, epoch: str = EPOCH, build: str = BUILD) -> Any:
        keys = (EPOCH_KEY, INDEX, CLAIM, WRITERS, FILL)
        return self.run("lookup", keys, (epoch, build))

    def publish(
        self, body: str = "body", generation: int = 0, key: str = FILL, ttl_ms: int = TTL_MS
    ) -> Any:
        keys = (EPOCH_KEY, INDEX, CLAIM, WRITERS, key)
        arguments = (EPOCH, "c1", generation, BUILD, ttl_ms, GRACE_MS, body, PREFIX)
        return self.run("publish", keys, arguments)

    def sweep(self, *fills: str) -> Any:
        return self.run("sweep", fills, (PREFIX,))

    def create(self) -> None:
        """An index `i` with collection c1, generation 0 and mapping version 1."""
        self.run("epoch", (EPOCH_KEY,), (EPOCH, "create"))
        assert self.claim("create", "k")[0] == 1
        assert self.commit("create", "k") == [1, b""]

    def missed(self) -> str:
        reply = self.lookup()
        assert reply[0] == 0
        reason: bytes = reply[1]
        return reason.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path_factory.mktemp("lua"))
    try:
        valkey.start()
        yield valkey
    finally:
        valkey.kill()


@pytest.fixture(params=["old", "new"])
def both(server: Valkey, request: pytest.FixtureRequest) -> Iterator[Scripts]:
    with server.client() as client:
        client.flushall()
        scripts = Scripts(client, request.param)
        scripts.create()
        yield scripts


@pytest.fixture
def scripts(server: Valkey) -> Iterator[Scripts]:
    with server.client() as client:
        client.config_set("maxmemory", 0)
        client.flushall()
        scripts = Scripts(client)
        scripts.create()
        yield scripts


def aof(scripts: Scripts) -> int:
    return int(scripts.client.info("persistence")["aof_current_size"])


def test_the_variants_differ_in_the_propagation_of_the_one_set_alone() -> None:
    old, new = (
        [
            line
            for line in (PUBLISH[variant] / "publish.lua").read_text().splitlines()
            if not line.startswith("--")
        ]
        for variant in ("old", "new")
    )
    at = next(n for n, line in enumerate(old) if "server.pcall('SET'" in line)
    around = ["server.set_repl(server.REPL_NONE)", old[at], "server.set_repl(server.REPL_ALL)"]
    assert new == [*old[:at], *around, *old[at + 1 :]]


def test_epoch_is_set_once_and_replaced_on_request_only(server: Valkey) -> None:
    with server.client() as client:
        client.flushall()
        scripts = Scripts(client)

        def epoch(candidate: str, how: str) -> Any:
            return scripts.run("epoch", (EPOCH_KEY,), (candidate, how))

        assert epoch("", "read") == b""
        assert epoch("a", "create") == b"a"
        assert epoch("b", "create") == b"a"
        assert epoch("c", "replace") == b"c"
        assert epoch("", "read") == b"c"


def test_a_claim_blocks_until_it_is_resolved_and_repeats_by_token(scripts: Scripts) -> None:
    assert scripts.claim("create", "t1") == [0, b"exists", b"c1"]
    assert scripts.claim("delete", "t2") == [1, b"c1"]
    assert scripts.claim("delete", "t2") == [1, b"c1"]
    assert scripts.claim("create", "t3") == [0, b"claimed", b"delete by here"]
    assert scripts.view() == [-1, b"claim"]
    assert scripts.admit("w") == [0, b"claim"]
    assert scripts.publish() == [0, b"claim", b""]
    assert scripts.commit("delete", "other") == [0, b"unclaimed"]
    assert scripts.abort("other") == [1, b""]
    assert scripts.view() == [-1, b"claim"]
    assert scripts.abort("t2") == [1, b""]
    assert scripts.view() == [0, b"", b"c1", b"0", b"1", 0]


def test_commits_can_be_repeated(scripts: Scripts) -> None:
    assert scripts.commit("create", "k") == [1, b""]
    assert scripts.claim("delete", "t")[0] == 1
    assert scripts.commit("delete", "t") == [1, b""]
    assert scripts.commit("delete", "t") == [1, b""]
    assert scripts.view() == [-1, b"missing"]
    assert scripts.client.smembers(INDICES) == set()
    assert scripts.claim("delete", "t") == [0, b"missing", b""]


def test_a_create_that_was_undone_cannot_be_committed(scripts: Scripts) -> None:
    assert scripts.claim("delete", "t")[0] == 1
    scripts.commit("delete", "t")
    assert scripts.claim("create", "a", "c2") == [1, b"c2"]
    scripts.abort("a")
    assert scripts.commit("create", "a", "c2") == [0, b"unclaimed"]


def test_the_number_of_indices_is_bounded(scripts: Scripts) -> None:
    scripts.client.delete(INDEX)
    assert scripts.claim("create", "t", most=1) == [0, b"full", b"1"]


def test_admission_numbers_and_release_advances_the_generation(scripts: Scripts) -> None:
    assert scripts.admit("w1", 3) == [1, 0]
    assert scripts.admit("w1", 3) == [1, 0]
    assert scripts.admit("w2", 2) == [1, 3]
    assert scripts.view()[5] == 2
    assert scripts.release("w1") == [1, 1]
    assert scripts.view()[5] == 1
    # A repeat, or the writer itself after a recovery: a generation more, never one too few.
    assert scripts.release("w1") == [1, 2]
    assert scripts.release("w2") == [1, 3]
    assert scripts.view() == [0, b"", b"c1", b"3", b"1", 0]
    assert scripts.release("w2", "gone") == [0, b"missing"]
    assert scripts.admit("w3", incarnation="c0") == [0, b"moved"]
    assert scripts.admit("w3", version=2) == [0, b"moved"]


def test_release_after_deletion_leaves_nothing_behind(scripts: Scripts) -> None:
    scripts.admit("w")
    scripts.claim("delete", "t")
    scripts.commit("delete", "t")
    assert scripts.release("w") == [0, b"missing"]
    assert scripts.client.keys("t:*:i*") == []


def test_the_mapping_is_extended_by_an_admitted_writer_that_read_it(scripts: Scripts) -> None:
    assert scripts.extend("w", 1, "m2") == [0, b"unadmitted"]
    scripts.admit("w")
    assert scripts.extend("w", 1, "m2") == [1, 2]
    assert scripts.extend("w", 1, "m2") == [1, 2]
    assert scripts.extend("w", 1, "m3") == [0, b"moved"]
    assert scripts.client.hget(INDEX, "mapping") == b"m2"
    assert scripts.admit("w9", version=1) == [0, b"moved"]


def test_a_published_response_is_found(both: Scripts) -> None:
    assert both.missed() == "absent"
    status, expiry = both.publish("the body")
    assert status == 1
    found, entry = both.lookup()
    head, body = entry.split(b"\n", 1)
    assert (found, body) == (1, b"the body")
    assert head == f"{EPOCH} c1 0 {BUILD} {expiry}".encode()
    assert both.client.pexpiretime(FILL) == expiry + GRACE_MS


def test_lookup_refuses_whatever_does_not_match(both: Scripts) -> None:
    both.publish()
    assert both.lookup("e2") == [-1, b"epoch"]
    assert both.lookup(build="b2")[1] == b"build"
    both.admit("w")
    assert both.missed() == "writer"
    both.release("w")
    assert both.missed() == "generation"
    both.client.set(FILL, both.client.get(FILL).replace(b"e1 ", b"e0 ", 1))
    assert both.missed() == "other_epoch"
    both.client.set(FILL, f"{EPOCH} c0 1 {BUILD} 99999999999999\nx")
    assert both.missed() == "other_incarnation"
    both.client.set(FILL, f"{EPOCH} c1 1 {BUILD} 1000\nx")
    assert both.missed() == "expired"
    both.client.set(FILL, f"{EPOCH} c1 1 {BUILD} 99999999999999\nx")
    assert both.lookup()[0] == 1
    both.client.set(EPOCH_KEY, "e2")
    assert both.lookup() == [-1, b"epoch"]
    assert both.view() == [-1, b"epoch"]


def test_publication_refuses_whatever_moved(both: Scripts) -> None:
    both.admit("w")
    assert both.publish() == [0, b"writer", b""]
    both.release("w")
    assert both.publish(generation=0) == [0, b"generation", b""]
    assert both.publish(generation=1)[0] == 1
    both.client.hset(INDEX, "incarnation", "c2")
    assert both.publish(generation=1) == [0, b"incarnation", b""]
    both.client.set(EPOCH_KEY, "e2")
    assert both.publish(generation=1) == [0, b"epoch", b""]


def test_publication_writes_under_fill_keys_only(both: Scripts) -> None:
    assert both.publish(key=INDEX) == [0, b"key", INDEX.encode()]
    assert both.client.hget(INDEX, "incarnation") == b"c1"


def test_an_entry_expires_by_valkeys_clock(both: Scripts) -> None:
    both.publish(ttl_ms=1)
    deadline = time.monotonic() + 10
    while both.lookup()[0] == 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert both.missed() == "expired"


def test_durable_publication_is_logged_with_its_size(server: Valkey) -> None:
    with server.client() as client:
        client.flushall()
        scripts = Scripts(client, "old")
        scripts.create()
        before = aof(scripts)
        assert scripts.publish("x" * 5000)[0] == 1
        assert 5000 < aof(scripts) - before < 5400


def test_ephemeral_publication_leaves_no_log_traffic_over_its_whole_life(
    scripts: Scripts,
) -> None:
    before = aof(scripts)
    offset = scripts.client.info("replication")["master_repl_offset"]
    assert scripts.publish("x" * 5000, ttl_ms=1)[0] == 1
    deadline = time.monotonic() + 10
    while scripts.sweep(FILL) == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert scripts.client.exists(FILL) == 0
    assert aof(scripts) == before
    assert scripts.client.info("replication")["master_repl_offset"] == offset


def test_what_follows_an_ephemeral_publication_is_durable(scripts: Scripts, server: Valkey) -> None:
    """The flag is per script: neither it, nor an error under it, may leak into later writes."""
    assert scripts.publish()[0] == 1
    before = aof(scripts)
    scripts.admit("w")
    between = aof(scripts)
    assert between > before
    scripts.client.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="maxmemory"):
        scripts.publish(generation=0)
    scripts.client.config_set("maxmemory", 0)
    scripts.release("w")
    assert aof(scripts) > between
    server.kill()
    server.start()
    with server.client() as client:
        after = Scripts(client)
        assert after.view() == [0, b"", b"c1", b"1", b"1", 0]
        assert after.missed() == "absent"


def test_an_error_of_the_set_restores_propagation_in_the_same_script(scripts: Scripts) -> None:
    """The hazard itself: after a failed SET under NONE, a later write in the script is logged."""
    source = (PUBLISH["new"] / "publish.lua").read_text()
    failing = source.replace("'PXAT', key_expiry)", "'PXAT', 'never')")
    assert failing != source
    probed = failing.replace(
        "if outcome.err then", "server.call('SET', 't:probe', '1')\nif outcome.err then"
    )
    before = aof(scripts)
    keys = (EPOCH_KEY, INDEX, CLAIM, WRITERS, FILL)
    arguments = (EPOCH, "c1", 0, BUILD, TTL_MS, GRACE_MS, "body", PREFIX)
    reply = scripts.client.eval(probed, len(keys), *keys, *arguments)
    assert reply[:2] == [0, b"error"]
    assert aof(scripts) > before
    leaking = probed.replace("server.set_repl(server.REPL_ALL)\n", "")
    assert leaking != probed
    before = aof(scripts)
    scripts.client.eval(leaking, len(keys), *keys, *arguments)
    assert aof(scripts) == before, "without the restore the later write is lost from the log"


def test_all_but_publications_work_without_memory(scripts: Scripts) -> None:
    """What fills took must not keep a write from being made."""
    scripts.client.config_set("maxmemory", 1)
    try:
        assert scripts.admit("w") == [1, 0]
        assert scripts.extend("w", 1, '{"a": 1}') == [1, 2]
        assert scripts.release("w") == [1, 1]
        assert scripts.claim("delete", "t") == [1, b"c1"]
        assert scripts.abort("t") == [1, b""]
        with pytest.raises(ResponseError, match="maxmemory"):
            scripts.publish(generation=1)
    finally:
        scripts.client.config_set("maxmemory", 0)


def test_the_sweeper_takes_expired_fills_alone(scripts: Scripts) -> None:
    scripts.publish()
    assert scripts.sweep(FILL, "t:fill:absent") == 0
    with pytest.raises(ResponseError, match="not a fill"):
        scripts.sweep(INDEX)
    scripts.client.set("t:fill:broken", "no entry")
    assert scripts.sweep(FILL, "t:fill:broken") == 1
    assert scripts.client.exists(FILL, "t:fill:broken", INDEX) == 2


def test_coordination_survives_a_crash_and_ephemeral_fills_do_not(
    scripts: Scripts, server: Valkey
) -> None:
    scripts.publish()
    scripts.admit("w", 7)
    scripts.claim("delete", "t")
    server.kill()
    server.start()
    with server.client() as client:
        after = Scripts(client)
        assert after.view() == [-1, b"claim"]
        assert after.claim("delete", "t") == [1, b"c1"]
        after.abort("t")
        assert after.view() == [0, b"", b"c1", b"0", b"1", 1]
        assert after.admit("w2", 1) == [1, 7]
        after.release("w")
        after.release("w2")
        assert after.missed() == "absent"


def test_a_rewrite_carries_fills_and_their_expiry(scripts: Scripts, server: Valkey) -> None:
    _, expiry = scripts.publish()
    scripts.client.bgrewriteaof()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = scripts.client.info("persistence")
        if not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]):
            break
        time.sleep(0.01)
    server.kill()
    server.start()
    with server.client() as client:
        after = Scripts(client)
        assert after.lookup()[0] == 1
        assert client.pexpiretime(FILL) == expiry + GRACE_MS
        after.admit("w")
        after.release("w")
        assert after.missed() == "generation"


def test_no_script_of_the_package_is_left_out() -> None:
    found = {path.stem for path in Path(TREE / "gateway" / "lua").glob("*.lua")} | {"publish"}
    tested = {
        "abort", "admit", "claim", "commit", "epoch", "extend", "lookup", "publish", "release",
        "sweep", "view",
    }  # fmt: skip
    assert found == tested

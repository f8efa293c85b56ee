"""What a whole gateway asks of the server: the image's scripts and no others, and what fills cost.

The other checks call the scripts that lie in the image. That a gateway calls those, as they lie
there, and writes nothing beside them, is seen here, at the server.
"""

from __future__ import annotations

from refill.engines.description import EngineError
from refill.engines.valkey import growth
from refill.processes import wait_for
from refill.proofs.calls import FILL_PREFIX, NAMES, plain
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.monitor import Seen, sha1
from refill.proofs.servers import Server
from refill.proofs.stack import TTL_S, Http, Stack
from refill.proofs.subject import Subject

INDEX = "/things"
SEARCH = f"{INDEX}/_search"
MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}}}
# Its other fields are kept and not searched: making an index of them takes long.
FIXED = {"mappings": {**MAPPING["mappings"], "dynamic": "false"}}
SORTED = {"sort": [{"n": "desc"}]}
# A page of so many documents is about as long as the bodies of the published experiment.
DOCUMENTS, TEXT_BYTES = 10, 700
# What changes a server, its log or its role and needs an administrator's rights: MONITOR is silent
# on it, so the server's own counts tell. The harness asks for none of it beside a monitor.
ADMINISTRATION = {
    "config|set", "config|rewrite", "config|resetstat", "bgrewriteaof", "bgsave", "save", "debug",
    "replicaof", "slaveof", "failover", "module", "acl|setuser", "shutdown",
}  # fmt: skip
# Until a gateway has looked again whether its writes are durable, if it does.
WATCH_S = 5.0
# Until a gateway's sweeper has looked for fills of an earlier one.
SWEEP_S = 30.0


def scripts_called(subject: Subject, found: Findings) -> None:
    """Everything that makes a gateway call a script, and what the server saw of it."""
    with Stack(subject, monitored=True) as stack:
        stack.must("PUT", INDEX, MAPPING)
        stack.must("PUT", f"{INDEX}/_doc/1", {"n": 1, "more": "a field that the mapping lacks"})
        first = stack.must("POST", SEARCH, SORTED)
        found.same("the same request again", stack.must("POST", SEARCH, SORTED), first)
        stack.must("GET", INDEX)
        stack.must("PUT", "/gone", MAPPING)
        stack.must("DELETE", "/gone")
        # The sweeper of the next one finds the fill.
        stack.kill_gateway()
        stack.start_gateway()
        found.same("the same request after a restart", stack.must("POST", SEARCH, SORTED), first)
        looks = _counted(stack).get("config|get", 0)
        wait_for(lambda: _looked_again(stack, looks), WATCH_S)
        stack.recover()
        swept = wait_for(lambda: _sweeper_looked(stack), SWEEP_S)
        found.control(swept, f"the sweeper looked at no fill within {SWEEP_S:g} s")
        # A claim is given back when there is no Qdrant to make a collection.
        stack.qdrant.kill()
        found.same("a create without Qdrant", stack.call("PUT", "/never", MAPPING)[0], 503)
        seen = stack.monitor.seen()
        administration = _administration(stack)
        departures = stack.server.identity.departures(stack.server.client)
        # Here: in the end the server itself refuses to have been changed.
        found.note(
            administration=administration,
            scripts={name: sha1(source) for name, source in stack.server.sources.items()},
            **seen.as_json(),
        )
        _nothing_beside(seen, found)
        found.same("commands that administer the server", administration, {})
        found.same("settings that the gateway has changed", departures, [])
        for name in NAMES:
            found.expect(seen.calls[name] > 0, f"the image's script {name} was never called")
        found.same("writes of fills by scripts", seen.by_scripts["SET"], seen.calls["publish"])


def _looked_again(stack: Stack, looks: int) -> bool:
    """Say whether a gateway asked for settings again, or has changed some."""
    return _counted(stack).get("config|get", 0) > looks or bool(_administration(stack))


def _sweeper_looked(stack: Stack) -> bool:
    """Say whether what only sweeping needs was done: a range of a string read, a key unlinked."""
    stats = stack.server.client.info("commandstats")
    return "cmdstat_getrange" in stats or "cmdstat_unlink" in stats


def _counted(stack: Stack) -> dict[str, int]:
    """How often the server was asked each command, by the server's own counts."""
    stats = stack.server.client.info("commandstats")
    return {key.removeprefix("cmdstat_"): told["calls"] for key, told in stats.items()}


def _administration(stack: Stack) -> dict[str, int]:
    """How often the server was administered, by command."""
    return {
        name: calls
        for name, calls in sorted(_counted(stack).items())
        if name in ADMINISTRATION or name.partition("|")[0] in ADMINISTRATION
    }


def _nothing_beside(seen: Seen, found: Findings) -> None:
    """State that all that may change something was one of the image's scripts."""
    for what, counted in (
        ("scripts that are not the image's", seen.unknown),
        ("commands beside scripts that may change something", seen.other),
        ("commands beside scripts on responses' keys", seen.on_responses),
    ):
        found.same(what, dict(counted), {})


def gateway_hits(subject: Subject, found: Findings) -> None:
    """Cold reads, then the same again; the log's size and the replication offset between them."""
    count = subject.scale.fills
    with Stack(subject, monitored=True) as stack:
        stack.must("PUT", INDEX, FIXED)
        for n in range(DOCUMENTS):
            stack.must("PUT", f"{INDEX}/_doc/{n}", {"n": n, "text": "x" * TEXT_BYTES})
        stack.monitor.seen()
        server, before = stack.server, stack.counters()
        began_ms = _now_ms(server)
        with stack.connection() as connection:
            log = [server.aof()]
            cold = [_page(connection, number) for number in range(count)]
            log.append(server.aof())
            warm = [_page(connection, number) for number in range(count)]
            log.append(server.aof())
        after, seen = stack.counters(), stack.monitor.seen()
        published_ms = (began_ms, _now_ms(server))
        _lifetimes(server, published_ms, found)
    counted = {name: after[name] - before[name] for name in ("misses", "fills", "hits")}
    filling, hitting = growth(log[0], log[1]), growth(log[1], log[2])
    bodies = sum(len(body) for body in cold)
    found.note(
        cold_reads=count, **counted, body_bytes=bodies,
        log_before=log[0].current_size, log_after=log[2].current_size,
        log_bytes=filling["bytes"], log_bytes_of_hits=hitting["bytes"],
        replication_offset=filling["replication_offset"],
        replication_offset_of_hits=hitting["replication_offset"],
        property_holds=filling["bytes"] == 0, **seen.as_json(),
    )  # fmt: skip
    found.control(not (filling["rewritten"] or hitting["rewritten"]), "a rewrite ran meanwhile")
    found.same("the cache's own counts", counted, dict.fromkeys(counted, count))
    found.expect(warm == cold, "a hit is not what was published")
    found.same("lookups", seen.calls["lookup"], 2 * count)
    found.same("publications", seen.calls["publish"], count)
    _nothing_beside(seen, found)
    found.same("what hits added to the log", hitting["bytes"], 0)
    found.same("what hits propagated", hitting["replication_offset"], 0)
    if subject.ephemeral:
        found.same("what cold reads added to the log", filling["bytes"], 0)
        found.same("what cold reads propagated", filling["replication_offset"], 0)
    else:
        found.expect(
            (filling["bytes"] or 0) >= bodies,
            f"publications are durable in this image, yet the log grew by {filling['bytes']} bytes "
            f"for bodies of {bodies}: the measure sees nothing",
        )
        found.expect(
            filling["replication_offset"] >= count,
            f"{count} durable publications moved the replication offset by "
            f"{filling['replication_offset']}",
        )


def _now_ms(server: Server) -> int:
    seconds, micros = server.client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _lifetimes(server: Server, published_ms: tuple[int, int], found: Findings) -> None:
    """State that each fill is served as long as the gateway was told, and its key goes soon after.

    Args:
        server: with the fills.
        published_ms: when they were, at the earliest and at the latest, by the server's clock.
        found: takes it.
    """
    client, ttl_ms = server.client, TTL_S * 1000
    keys = list(client.scan_iter(match=f"{FILL_PREFIX}*", count=1000))
    # The expiry is the last word of an entry's first line.
    said = [plain(client.get(key)).partition("\n")[0].rpartition(" ")[2] for key in keys]
    whole = {key: int(word) for key, word in zip(keys, said, strict=True) if word.isdecimal()}
    ends = list(whole.values())
    lives = [int(client.pexpiretime(key)) - end for key, end in whole.items()]
    found.same("responses' keys that hold no entry", len(keys) - len(whole), 0)
    found.note(
        ttl_ms=ttl_ms,
        served_until_ms=[min(ends) - published_ms[0], max(ends) - published_ms[1]] if ends else [],
        key_outlives_entry_ms=[min(lives), max(lives)] if lives else [],
    )
    found.control(bool(keys), "there is no response whose lifetime could be looked at")
    found.expect(
        all(published_ms[0] <= end - ttl_ms <= published_ms[1] for end in ends),
        f"a response is not served for the {ttl_ms} ms that the gateway was told",
    )
    found.expect(
        all(0 <= life <= ttl_ms for life in lives),
        "a key goes before its response's end, or lives on for longer than that",
    )


def _page(connection: Http, number: int) -> bytes:
    """The body of a page with all documents, of a request that no other number makes."""
    query = {"range": {"n": {"gte": -1 - number}}}
    status, body = connection.raw("POST", SEARCH, {**SORTED, "query": query, "size": DOCUMENTS})
    if status != 200:
        raise EngineError(f"gateway: POST {SEARCH}: {status}: {body[:200]!r}")
    return body


CHECKS = (
    Check(
        "gateway-scripts",
        "The gateway calls the image's own scripts, each of them, and writes nothing beside them",
        BEYOND,
        scripts_called,
        default_only=True,
        cheap=False,
    ),
    Check(
        "gateway-publication-hit",
        "Cold reads through the whole gateway become hits while the log's size and the replication "
        "offset stay the same",
        BEYOND,
        gateway_hits,
        {"old": "grows by the bodies: a publication is durable", "new": "stays the same"},
        default_only=True,
        cheap=False,
    ),
)

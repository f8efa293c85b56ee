"""The six checks of the published crash proof."""

from __future__ import annotations

from refill.engines.valkey import growth
from refill.proofs.calls import GRACE_MS, TTL_MS, Call, Index
from refill.proofs.findings import PUBLISHED, Check, Findings
from refill.proofs.servers import Server
from refill.proofs.subject import Subject, change, create

BODY_BYTES = 7_500


def body(number: int, size: int = BODY_BYTES) -> str:
    """A response's body that says which one it is."""
    return f"response {number} ".ljust(size, "x")


def claims_and_tokens(subject: Subject, found: Findings) -> None:
    """1. Claims to create and to delete, and two writers, all unresolved when the server dies."""
    with subject.server() as server:
        written = create(server, Index("written", incarnation="c1"))
        leaving = create(server, Index("leaving", incarnation="c2"))
        coming = Index("coming", incarnation="c3")
        before = server.aof()
        found.same("admission", server.run(written.admit("w1", 7)), [1, 0])
        found.same("second admission", server.run(written.admit("w2", 2)), [1, 7])
        found.same("claim to delete", server.run(leaving.claim("delete", "d")), [1, "c2"])
        found.same("claim to create", server.run(coming.claim("create", "k")), [1, "c3"])
        grown = growth(before, server.aof())
        kept = server.snapshot()
        server.crash()
        found.note(
            log_bytes=grown["bytes"], claims=2, writers=2, keys_before=len(kept),
            keys_after=len(server.snapshot()),
        )  # fmt: skip
        found.expect((grown["bytes"] or 0) > 0, "claims and tokens left nothing in the log")
        found.same("the catalog after the crash", server.snapshot(), kept)
        found.same("writers", server.run(written.view())[5:], [2])
        found.same(
            "lookup beside a writer", server.run(written.lookup(written.fill()))[1], "writer"
        )
        found.same("the token's second admission", server.run(written.admit("w1", 7)), [1, 0])
        found.same("the next writer's numbers", server.run(written.admit("w3")), [1, 9])
        found.same("a claimed name", server.run(leaving.view()), [-1, "claim"])
        found.same("a writer beside a claim", server.run(leaving.admit("w4")), [0, "claim"])
        found.same("the claim's repeat", server.run(leaving.claim("delete", "d")), [1, "c2"])
        other = coming.but(incarnation="c4").claim("create", "other")
        found.same("another's claim", server.run(other), [0, "claimed", "create by proof"])


def commits_and_releases(subject: Subject, found: Findings) -> None:
    """2. Every durable step, with a crash right behind its answer."""
    index, second = Index(), Index("second", incarnation="c2")
    steps: list[tuple[str, Call]] = [
        ("epoch", index.set_epoch()),
        ("claim to create", index.claim("create", "k")),
        ("commit of a create", index.commit("create", "k", '{"a": 1}')),
        ("admission", index.admit("w", 3)),
        ("larger mapping", index.extend("w", '{"a": 2}')),
        ("release", index.release("w")),
        ("claim to delete", index.claim("delete", "d")),
        ("claim given back", index.abort("d")),
        ("second claim to delete", index.claim("delete", "e")),
        ("commit of a delete", index.commit("delete", "e")),
        ("claim to create another", second.claim("create", "m")),
        ("claim of another given back", second.abort("m")),
        ("new epoch", index.but(epoch="e2").set_epoch("replace")),
    ]
    with subject.server() as server:
        grown = {}
        for name, call in steps:
            before, state = server.aof(), server.snapshot()
            reply = server.run(call)
            found.expect(reply in ("e1", "e2") or reply[0] == 1, f"{name}: {reply}")
            grown[name] = server.aof().current_size - before.current_size
            found.expect(grown[name] > 0, f"{name}: left nothing in the log")
            after = server.snapshot()
            found.expect(after != state, f"{name}: changed nothing")
            server.crash()
            found.same(f"the catalog after {name} and a crash", server.snapshot(), after)
        found.note(crashes=len(steps), log_bytes=grown)


def publication_hits(subject: Subject, found: Findings) -> None:
    """3. Publications and hits; the log's size and the replication offset before and after."""
    count = subject.scale.fills
    with subject.server() as server:
        index = create(server)
        before = server.aof()
        for number in range(count):
            found.same("publication", _published(server, index, number)[0], 1)
        between = server.aof()
        hits = sum(
            _body_of(server.run(index.lookup(index.fill(n)))) == body(n) for n in range(count)
        )
        after = server.aof()
    grown = between.current_size - before.current_size
    found.note(
        fills=count, body_bytes=BODY_BYTES, hits=hits, log_before=before.current_size,
        log_after=after.current_size, log_bytes=grown, bytes_per_fill=round(grown / count, 1),
        replication_offset=between.replication_offset - before.replication_offset,
        log_bytes_of_hits=after.current_size - between.current_size,
        property_holds=grown == 0,
    )  # fmt: skip
    found.same("hits", hits, count)
    found.same("what hits added to the log", after.current_size - between.current_size, 0)
    if subject.ephemeral:
        found.same("what publications added to the log", grown, 0)
        offset = between.replication_offset - before.replication_offset
        found.same("what publications propagated", offset, 0)
    else:
        found.expect(
            grown >= count * BODY_BYTES,
            f"publications are durable in this image, yet the log grew by {grown} bytes for "
            f"{count} of {BODY_BYTES}: the measure sees nothing",
        )


def rewrite_restores(subject: Subject, found: Findings) -> None:
    """4. A rewrite captures fills; after a crash they have their expiry, and are checked."""
    with subject.server() as server:
        index = create(server)
        times = {index.fill(n): TTL_MS + n * 1000 for n in range(subject.scale.fills)}
        for number, (fill, ttl_ms) in enumerate(times.items()):
            server.run(index.publish(fill, body(number), ttl_ms=ttl_ms))
        server.run(index.publish(index.fill("brief"), body(0), ttl_ms=1))
        kept = server.snapshot(fills=True)
        server.rewrite()
        size = server.aof()
        server.crash()
        after = server.snapshot(fills=True)
        same = sum(kept[fill] == after.get(fill) for fill in times)
        hits = sum(
            _body_of(server.run(index.lookup(fill))) == body(number)
            for number, fill in enumerate(times)
        )
        spans = [kept[fill][1] - _entry_expiry(kept[fill][0]) for fill in times]
        found.note(
            fills=len(times), restored_with_equal_expiry=same, hits=hits,
            base_bytes=size.base_size, incremental_bytes=size.current_size - size.base_size,
            expiry_ms=[min(kept[fill][1] for fill in times), max(kept[fill][1] for fill in times)],
        )  # fmt: skip
        found.same("entries that came back as they were, expiry and all", same, len(times))
        found.same("hits", hits, len(times))
        found.same("how long a key outlives its entry, ms", set(spans), {GRACE_MS})
        fill = index.fill(0)
        for what, call, wanted in (
            ("another build", index.but(build="b2").lookup(fill), "build"),
            ("another epoch", index.but(epoch="e2").lookup(fill), "epoch"),
            ("an expired entry", index.lookup(index.fill("brief")), "expired"),
        ):
            found.same(what, server.run(call)[1], wanted)
        server.run(index.admit("w"))
        found.same("beside a writer", server.run(index.lookup(fill))[1], "writer")
        server.run(index.release("w"))
        found.same("after a change", server.run(index.lookup(fill))[1], "generation")


def old_generation(subject: Subject, found: Findings) -> None:
    """5. A durable change of the generation, then a crash: what was published before is no hit."""
    with subject.server() as server:
        index = create(server)
        fill = index.fill()
        _published(server, index, 0)
        found.same("before the change", server.run(index.lookup(fill))[0], 1)
        server.run(index.admit("w"))
        found.same("beside the writer", server.run(index.lookup(fill))[1], "writer")
        found.same("the release", server.run(index.release("w")), [1, 1])
        found.same("after the change", server.run(index.lookup(fill))[1], "generation")
        late = server.run(index.publish(index.fill("late"), body(1), generation=0))
        found.same("a late publication of the old generation", late, [0, "generation", ""])
        # So that the response of the old generation is there after the crash.
        server.rewrite()
        server.crash()
        found.control(server.raw(fill) is not None, "the old response is not there after the crash")
        reply = server.run(index.lookup(fill))
        found.note(generation=reply[3], reply=reply[1], old_response_in_memory=True)
        found.same("after the crash", (reply[1], reply[3]), ("generation", "1"))
        _published(server, index, 0, generation=1)
        found.same("a response of the new generation", server.run(index.lookup(fill))[0], 1)


def after_a_publication_error(subject: Subject, found: Findings) -> None:
    """6. A publication that fails, in the SET itself and for want of memory; then a writer."""
    with subject.server() as server:
        index = create(server)
        # A time to live that lies so far back makes the key's expiry invalid: the SET fails.
        reply = server.run(index.publish(index.fill(), "x", ttl_ms=-(10**15)))
        found.same("a SET that fails", reply[:2], [0, "error"])
        found.same("its fill", server.raw(index.fill()), None)
        found.note(error=reply[2])
        sizes = [server.aof().current_size]
        for call in (
            index.admit("w", 5), index.extend("w", '{"a": 2}'), index.release("w"),
            index.claim("delete", "d"), index.abort("d"),
        ):  # fmt: skip
            found.same(call.name, server.run(call)[0], 1)
            sizes.append(server.aof().current_size)
            found.expect(sizes[-1] > sizes[-2], f"{call.name}: left nothing in the log")
        kept = server.snapshot()
        server.crash()
        found.note(log_sizes=sizes, steps=len(sizes) - 1)
        found.same("the catalog after the crash", server.snapshot(), kept)
        found.same("the generation", change(server, index, "w2"), 2)


def _published(server: Server, index: Index, number: int, generation: int = 0) -> list[object]:
    reply: list[object] = server.run(
        index.publish(index.fill(number), body(number), generation=generation)
    )
    return reply


def _body_of(reply: list[object]) -> str | None:
    return str(reply[1]).partition("\n")[2] if reply[0] == 1 else None


def _entry_expiry(entry: str) -> int:
    return int(entry.partition("\n")[0].rpartition(" ")[2])


CHECKS = (
    Check(
        "claims-and-tokens",
        "Unresolved claims and writers' tokens persist across a crash",
        PUBLISHED,
        claims_and_tokens,
    ),
    Check(
        "commits-and-releases",
        "Catalog commits and releases are durable: a crash behind each step loses none",
        PUBLISHED,
        commits_and_releases,
        cheap=False,
    ),
    Check(
        "publication-hit",
        "Publishing a response produces a hit while the log's size stays the same",
        PUBLISHED,
        publication_hits,
        {"old": "grows: a publication is durable", "new": "stays the same"},
    ),
    Check(
        "rewrite-restores",
        "Entries that a rewrite captured come back with their absolute expiry and are checked",
        PUBLISHED,
        rewrite_restores,
    ),
    Check(
        "old-generation",
        "A response of an old generation is rejected after a durable generation change",
        PUBLISHED,
        old_generation,
    ),
    Check(
        "after-publication-error",
        "Writer operations after a publication error are durable",
        PUBLISHED,
        after_a_publication_error,
    ),
)

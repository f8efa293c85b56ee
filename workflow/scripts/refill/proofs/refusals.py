"""What the scripts refuse, one reason at a time, and that a refusal leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from refill.proofs.calls import FILL_PREFIX, Call, Index, Scripts, sweep, with_a_write_behind
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.servers import Server
from refill.proofs.subject import Subject, create

PROBE = "proof:probe"


def refused(
    server: Server, found: Findings, what: str, call: Call, wanted: Any, fill: str | None = None
) -> None:
    """State that a call gets this answer and changes nothing: not the catalog, log, or a fill."""
    before, size = server.snapshot(), server.aof().current_size
    try:
        reply = server.run(call)
    except ResponseError as error:
        reply = f"error: {error}"
    found.same(f"{call.name}, {what}", reply, wanted)
    found.same(f"log bytes of {call.name}, {what}", server.aof().current_size - size, 0)
    found.same(f"the catalog after {call.name}, {what}", server.snapshot(), before)
    if fill is not None:
        found.same(f"the fill after {call.name}, {what}", server.raw(fill), None)
    found.evidence["refusals"] = found.evidence.get("refusals", 0) + 1


def publication_refuses(subject: Subject, found: Findings) -> None:
    """Each reason to refuse a publication, alone."""
    with subject.server() as server:
        index = create(server)
        gone, claimed = Index("gone"), create(server, Index("claimed", incarnation="c2"))
        server.run(claimed.claim("delete", "d"))
        written = create(server, Index("written", incarnation="c3"))
        server.run(written.admit("w"))
        changed = create(server, Index("changed", incarnation="c4"))
        server.run(changed.admit("w"))
        server.run(changed.release("w"))
        fill = index.fill
        cases: Sequence[tuple[str, Call, list[str | int], str | None]] = (
            ("epoch", index.but(epoch="e2").publish(fill(), "x"), [0, "epoch", ""], fill()),
            ("claim", claimed.publish(claimed.fill(), "x"), [0, "claim", ""], claimed.fill()),
            ("no index", gone.publish(gone.fill(), "x"), [0, "incarnation", ""], gone.fill()),
            (
                "incarnation",
                index.but(incarnation="c9").publish(fill(), "x"),
                [0, "incarnation", ""],
                fill(),
            ),
            (
                "generation",
                changed.publish(changed.fill(), "x", generation=0),
                [0, "generation", ""],
                changed.fill(),
            ),
            (
                "a generation that is not there yet",
                index.publish(fill(), "x", generation=1),
                [0, "generation", ""],
                fill(),
            ),
            ("writer", written.publish(written.fill(), "x"), [0, "writer", ""], written.fill()),
            ("a durable key", index.publish(index.key, "x"), [0, "key", index.key], None),
            ("the epoch's key", index.publish("proof:epoch", "x"), [0, "key", "proof:epoch"], None),
        )
        for what, call, wanted, key in cases:
            refused(server, found, what, call, wanted, key)
        kept = server.snapshot()
        server.crash()
        found.same("the catalog after a crash", server.snapshot(), kept)


def lookup_refuses(subject: Subject, found: Findings) -> None:
    """Each reason not to serve an entry, alone, with the entry in its place."""
    with subject.server() as server:
        index = create(server)
        expiry = server.run(index.publish(index.fill(), "body"))[1]
        found.same("a valid entry", server.run(index.lookup(index.fill()))[0], 1)

        def planted(name: str, head: str) -> Call:
            server.client.set(index.fill(name), f"{head}\nbody")
            return index.lookup(index.fill(name))

        state = ["c1", "0", "1", 0]
        other = index.but(epoch="e2").lookup(index.fill())
        refused(server, found, "another epoch asks", other, [-1, "epoch"])
        other = index.but(build="b2").lookup(index.fill())
        refused(server, found, "another build asks", other, [0, "build", *state])
        for reason, head in (
            ("other_epoch", f"e0 c1 0 b1 {expiry}"),
            ("other_incarnation", f"e1 c0 0 b1 {expiry}"),
            ("generation", f"e1 c1 7 b1 {expiry}"),
            ("build", f"e1 c1 0 b0 {expiry}"),
            ("expired", "e1 c1 0 b1 1000"),
            ("expired", "e1 c1 0 b1 never"),
            ("absent", ""),
        ):
            call = planted(reason, head) if head else index.lookup(index.fill("absent"))
            refused(server, found, f"{reason}: {head}", call, [0, reason, *state])
        server.run(index.admit("w"))
        call = index.lookup(index.fill())
        refused(server, found, "a writer", call, [0, "writer", "c1", "0", "1", 1])
        server.run(index.claim("delete", "d"))
        refused(server, found, "a claim", call, [-1, "claim"])
        server.run(index.commit("delete", "d"))
        refused(server, found, "no index", call, [-1, "missing"])


def coordination_refuses(subject: Subject, found: Findings) -> None:
    """Each reason for which the durable scripts refuse, and that a repeat is no second effect."""
    with subject.server() as server:
        index, stale = create(server), Index(epoch="e2")
        gone = Index("gone", incarnation="c9")
        server.run(index.admit("w", 3))
        epochs: tuple[tuple[str, Call, Any], ...] = (
            ("admit", stale.admit("x"), [0, "epoch"]),
            ("release", stale.release("w"), [0, "epoch"]),
            ("extend", stale.extend("w", "{}"), [0, "epoch"]),
            ("claim", stale.claim("delete", "d"), [0, "epoch", ""]),
            ("commit", stale.commit("create", "create i"), [0, "epoch"]),
            ("abort", stale.abort("d"), [0, "epoch"]),
            ("view", stale.view(), [-1, "epoch"]),
            ("epoch", stale.set_epoch("create"), "e1"),
            ("epoch", stale.set_epoch("read"), "e1"),
        )
        for what, call, wanted in epochs:
            refused(server, found, f"{what} of another epoch", call, wanted)
        for what, call, wanted in (
            ("no index", gone.admit("x"), [0, "missing"]),
            ("no index", gone.release("x"), [0, "missing"]),
            ("no index", gone.extend("x", "{}"), [0, "missing"]),
            ("no index", gone.view(), [-1, "missing"]),
            ("no index", gone.claim("delete", "d"), [0, "missing", ""]),
            ("no claim", gone.commit("create", "d"), [0, "unclaimed"]),
            ("another incarnation", index.but(incarnation="c0").admit("x"), [0, "moved"]),
            ("another mapping", index.admit("x", version=2), [0, "moved"]),
            ("another incarnation", index.but(incarnation="c0").release("w"), [0, "missing"]),
            ("another incarnation", index.but(incarnation="c0").extend("w", "{}"), [0, "missing"]),
            ("not admitted", index.extend("x", "{}"), [0, "unadmitted"]),
            ("another mapping", index.extend("w", "{}", version=7), [0, "moved"]),
            ("there already", index.claim("create", "d"), [0, "exists", "c1"]),
            ("too many", gone.claim("create", "d", most=1), [0, "full", "1"]),
            ("a repeat", index.admit("w", 3), [1, 0]),
            ("a repeat", index.commit("create", "create i"), [1, ""]),
            ("a repeat", gone.commit("delete", "d"), [1, ""]),
        ):
            refused(server, found, what, call, wanted)
        found.same("extend", server.run(index.extend("w", '{"a": 1}')), [1, 2])
        refused(server, found, "a repeat", index.extend("w", '{"a": 1}'), [1, 2])
        other = index.extend("w", '{"b": 1}')
        refused(server, found, "another's mapping", other, [0, "moved"])
        found.same("claim", server.run(index.claim("delete", "d")), [1, "c1"])
        for what, call, wanted in (
            ("a repeat", index.claim("delete", "d"), [1, "c1"]),
            ("another's claim", index.claim("delete", "x"), [0, "claimed", "delete by proof"]),
            ("another's claim", index.commit("delete", "x"), [0, "unclaimed"]),
            ("another's claim", index.abort("x"), [1, ""]),
            ("a claim", index.admit("y", version=2), [0, "claim"]),
            ("a claim", index.view(), [-1, "claim"]),
        ):
            refused(server, found, what, call, wanted)
        # Without the claim the index has a writer; what is undone cannot be committed later.
        found.same("abort", server.run(index.abort("d")), [1, ""])
        refused(server, found, "a claim that was given back", index.abort("d"), [1, ""])
        late = index.commit("delete", "d")
        refused(server, found, "a claim that was given back", late, [0, "unclaimed"])
        first = server.run(index.release("w"))
        again = server.run(index.release("w"))
        found.same("generations of a release and its repeat", [first, again], [[1, 1], [1, 2]])
        found.same("tokens left", server.client.exists(index.writers_key), 0)
        found.same("the next numbers", server.run(index.admit("v", version=2)), [1, 3])
        server.run(index.claim("delete", "e"))
        found.same("commit of a delete", server.run(index.commit("delete", "e")), [1, ""])
        left = sorted(server.snapshot())
        found.same("keys after the index was deleted", left, ["proof:epoch"])


def sweeper_refuses(subject: Subject, found: Findings) -> None:
    """The sweeper takes expired fills, and nothing else."""
    with subject.server() as server:
        index = create(server)
        server.run(index.publish(index.fill("live"), "x"))
        server.client.set(index.fill("broken"), "no entry")
        refused(
            server, found, "a durable key", sweep([index.fill("live"), index.key]),
            f"error: not a fill: {index.key}",
        )  # fmt: skip
        live = sweep([index.fill("live"), index.fill("absent")])
        refused(server, found, "nothing expired", live, 0)
        server.run(index.publish(index.fill("brief"), "x", ttl_ms=0))
        size = server.aof().current_size
        taken = server.run(sweep([index.fill(n) for n in ("live", "brief", "broken", "absent")]))
        found.same("taken", taken, 2)
        found.same("log bytes of the removal", server.aof().current_size - size, 0)
        left = [plain for plain in server.snapshot(fills=True) if plain.startswith(FILL_PREFIX)]
        found.same("fills left", left, [index.fill("live")])


def as_built(subject: Subject, found: Findings) -> None:
    """The scripts without any change: create an index, write, publish, hit, sweep."""
    with subject.server() as server:
        server.scripts = Scripts(server.client, subject.sources)
        index = create(server)
        server.run(index.admit("w"))
        released = server.run(index.release("w"))
        server.run(index.publish(index.fill(), "x", generation=1))
        hit = server.run(index.lookup(index.fill()))[0]
        swept = server.run(sweep([index.fill()]))
        found.note(release=released, lookup=hit, sweep=swept)
        found.same("release", released, [1, 1])
        found.same("lookup", hit, 1)
        found.same("sweep", swept, 0)


def flag_restored(subject: Subject, found: Findings) -> None:
    """A durable write behind each way through the scripts that switch propagation off."""
    with subject.server() as server:
        index = create(server)
        for name in ("publish", "sweep"):
            server.scripts = server.scripts.with_source(
                name, with_a_write_behind(server.sources[name], PROBE)
            )
        found.note(writes=0)
        for what, call, wanted in (
            ("published", index.publish(index.fill("brief"), "x", ttl_ms=0), 1),
            ("refused", index.publish(index.fill(), "x", generation=9), 0),
            ("failed SET", index.publish(index.fill(), "x", ttl_ms=-(10**15)), 0),
            ("nothing swept", sweep([index.fill("absent")]), 0),
            ("swept", sweep([index.fill("brief")]), 1),
        ):
            before = server.aof().current_size
            reply = server.run(call)
            first = reply[0] if isinstance(reply, list) else reply
            found.same(what, first, wanted)
            grown = server.aof().current_size - before
            found.expect(grown > 0, f"{what}: a later write in the same script left no trace")
            found.evidence["writes"] += 1
        server.crash()
        found.same("the writes after a crash", server.raw(PROBE), str(found.evidence["writes"]))


CHECKS = (
    Check(
        "as-built",
        "The image's scripts run on this server as they were built",
        BEYOND,
        as_built,
    ),
    Check(
        "publication-refuses",
        "A publication whose state moved is refused and leaves nothing, in memory or in the log",
        BEYOND,
        publication_refuses,
    ),
    Check(
        "lookup-refuses",
        "An entry is served only if epoch, incarnation, generation, build and expiry match",
        BEYOND,
        lookup_refuses,
    ),
    Check(
        "coordination-refuses",
        "Durable scripts refuse what does not fit, and a repeat by token has no second effect",
        BEYOND,
        coordination_refuses,
    ),
    Check(
        "sweeper-refuses",
        "The sweeper removes expired fills alone, without a trace in the log",
        BEYOND,
        sweeper_refuses,
    ),
    Check(
        "flag-restored",
        "Propagation is on again behind every way through the scripts that switch it off",
        BEYOND,
        flag_restored,
    ),
)

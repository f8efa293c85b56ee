"""The life of a fill: what it costs the log, and what crashes, rewrites and replicas make of it."""

from __future__ import annotations

import shutil
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from refill.engines.description import EngineError
from refill.processes import wait_for
from refill.proofs.calls import NAMES, Index, Scripts, sweep
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.published import body
from refill.proofs.servers import Server
from refill.proofs.subject import Subject, change, create

# How long Valkey's own expiry may take to find keys that nobody asks for.
EXPIRY_S = 30.0
# Fills that are left to it, and how long they live: longer than it takes to publish them.
UNSWEPT, UNSWEPT_MS = 100, 1000
SAVE_DELAY_US = 10_000
FOLLOW_S = 60.0


def whole_life(subject: Subject, found: Findings) -> None:
    """Fill, hit, overwrite, hit, sweep; and the same fills left to the server's own expiry."""
    count = subject.scale.fills
    with subject.server() as server:
        index = create(server)
        fills = [index.fill(number) for number in range(count)]
        before = server.aof()
        hits = 0
        for number, fill in enumerate(fills):
            server.run(index.publish(fill, body(number)))
            hits += server.run(index.lookup(fill))[0]
            server.run(index.publish(fill, body(number + 1)))
            hits += server.run(index.lookup(fill))[0]
            server.run(index.publish(fill, body(number + 2), ttl_ms=0))
        filled = server.aof()
        swept = sum(server.run(sweep(fills[at : at + 50])) for at in range(0, count, 50))
        after = server.aof()
        for fill in fills[:UNSWEPT]:
            server.run(index.publish(fill, body(0), ttl_ms=1, grace_ms=UNSWEPT_MS))
        unswept, left = _log_and_fills(server)
        gone = wait_for(lambda: not _fills_in(server), EXPIRY_S)
        expired = server.aof()
    publications, sweeping = (
        filled.current_size - before.current_size, after.current_size - filled.current_size,
    )  # fmt: skip
    cost = expired.current_size - unswept
    found.note(
        fills=count, hits=hits, swept=swept, log_bytes_of_fills=publications,
        log_bytes_of_sweeping=sweeping,
        replication_offset=after.replication_offset - before.replication_offset,
        left_to_expiry=left, log_bytes_of_expiry=cost,
        log_bytes_a_fill_without_the_sweeper=round(cost / max(left, 1), 1),
        property_holds=publications + sweeping == 0,
    )  # fmt: skip
    found.same("hits", hits, 2 * count)
    found.same("swept", swept, count)
    found.expect(gone, f"the server's own expiry left fills after {EXPIRY_S:g} s")
    found.same("what the sweeper added to the log", sweeping, 0)
    found.control(cost > 0, "the server's own expiry left no trace: the measure sees nothing")
    if subject.ephemeral:
        found.same("what fills added to the log", publications, 0)
        offset = after.replication_offset - before.replication_offset
        found.same("what was propagated", offset, 0)
    else:
        found.expect(publications > 0, "durable fills left nothing in the log")


def _log_and_fills(server: Server) -> tuple[int, int]:
    """The log's size and the number of fills at one moment, in which none expired."""
    while True:
        size, left = server.aof().current_size, _fills_in(server)
        if server.aof().current_size == size:
            return size, left


def _fills_in(server: Server) -> int:
    # Looking a key up would expire it: the number of all keys does not.
    return int(server.client.dbsize()) - len(server.snapshot())


def old_values(subject: Subject, found: Findings) -> None:
    """A rewrite makes fills durable; then they are overwritten, or swept; then a crash."""
    with subject.server() as server:
        index, calm = create(server), create(server, Index("calm", incarnation="c2"))
        over, swept = index.fill("overwritten"), calm.fill("swept")
        server.run(index.publish(over, "first"))
        server.run(calm.publish(swept, "first", ttl_ms=300))
        server.rewrite()
        generation = change(server, index)
        server.run(index.publish(over, "second", generation=generation))
        found.expect(
            wait_for(lambda: server.run(sweep([swept])) == 1, 10), "the sweeper took nothing"
        )
        found.same("the swept fill", server.raw(swept), None)
        found.same("the overwritten fill", server.run(index.lookup(over))[0], 1)
        server.crash()
        memory = {name: str(server.raw(name)).partition("\n")[2] for name in (over, swept)}
        replies = {
            "overwritten": server.run(index.lookup(over)),
            "swept": server.run(calm.lookup(swept)),
        }
        said = {name: reply[1].partition("\n")[2] or reply[1] for name, reply in replies.items()}
        found.note(
            overwritten_in_memory=memory[over], overwritten_lookup=said["overwritten"],
            swept_in_memory=memory[swept], swept_lookup=said["swept"],
        )  # fmt: skip
        # The hazard is real: what was not propagated did not happen for the log.
        found.control(memory[swept] == "first", "the swept fill did not come back")
        found.same("the lookup of the swept fill", said["swept"], "expired")
        if subject.ephemeral:
            found.control(memory[over] == "first", "the overwritten fill's old value is not back")
            found.same("the lookup of the overwritten fill", said["overwritten"], "generation")
        else:
            found.same("the lookup of the overwritten fill", said["overwritten"], "second")
        server.run(index.publish(over, "third", generation=generation))
        found.same("a new fill in its place", server.run(index.lookup(over))[0], 1)


def during_rewrite(subject: Subject, found: Findings) -> None:
    """Fills before the fork of a rewrite and fills while it writes; then a crash."""
    with subject.server() as server:
        index = create(server)
        before = [index.fill(f"before {n}") for n in range(30)]
        for fill in before:
            server.run(index.publish(fill, "x"))
        server.client.config_set("rdb-key-save-delay", SAVE_DELAY_US)
        server.client.bgrewriteaof()
        began = wait_for(
            lambda: bool(server.client.info("persistence")["aof_rewrite_in_progress"]), 10, 0.002
        )
        during = [index.fill(f"during {n}") for n in range(10)]
        for fill in during:
            server.run(index.publish(fill, "x"))
        change(server, other := create(server, Index("other", incarnation="c2")))
        still = bool(server.client.info("persistence")["aof_rewrite_in_progress"])
        server.client.config_set("rdb-key-save-delay", 0)
        server.wait_rewritten()
        kept = server.snapshot()
        server.crash()
        hits = [
            sum(server.run(index.lookup(fill))[0] for fill in part) for part in (before, during)
        ]
        missed = {server.run(index.lookup(fill))[1].partition("\n")[0] for fill in during}
        found.note(
            before_the_fork=len(before), hits_of_those=hits[0], during_the_rewrite=len(during),
            hits_of_these=hits[1],
        )  # fmt: skip
        found.control(began and still, "the rewrite was over before the fills were made")
        found.same("the catalog", server.snapshot(), kept)
        found.same("the other index", server.run(other.view())[3], "1")
        found.same("hits of fills before the fork", hits[0], len(before))
        if subject.ephemeral:
            found.same("hits of fills during the rewrite", hits[1], 0)
            found.same("why they are missed", missed, {"absent"})
        else:
            found.same("hits of fills during the rewrite", hits[1], len(during))


def stale_after_rewrite(subject: Subject, found: Findings) -> None:
    """Rewrite, change, crash; and once more, with the stale response in the base file."""
    with subject.server() as server:
        index = create(server)
        fill = index.fill()
        server.run(index.publish(fill, "old"))
        replies = []
        for round_ in range(1, 4):
            server.rewrite()
            generation = change(server, index, f"w{round_}")
            server.crash()
            found.same("the generation", generation, round_)
            found.control(server.raw(fill) is not None, "the stale response is not there any more")
            replies.append(server.run(index.lookup(fill))[1])
        server.run(index.admit("open"))
        server.rewrite()
        server.crash()
        replies.append(server.run(index.lookup(fill))[1])
        server.run(index.release("open"))
        server.crash()
        replies.append(server.run(index.lookup(fill))[1])
        found.note(crashes=5, replies=replies)
        found.same("lookups", replies, ["generation"] * 3 + ["writer", "generation"])


def lost_data(subject: Subject, found: Findings) -> None:
    """The log's manifest, or its folder, is gone: the server starts empty without an error."""
    for what in ("manifest", "folder"):
        with subject.server() as server:
            index = create(server)
            fill = index.fill()
            server.run(index.publish(fill, "old"))
            server.run(index.admit("w"))
            server.run(index.release("w"))
            server.run(index.publish(fill, "old", generation=1))
            entry = server.raw(fill)
            server.kill()
            if what == "manifest":
                for manifest in server.log_folder.glob("*.manifest"):
                    manifest.unlink()
            else:
                shutil.rmtree(server.log_folder)
            server.start()
            found.evidence[f"keys_without_{what}"] = keys = int(server.client.dbsize())
            found.control(keys == 0, f"without its {what} the server is not empty")
            found.same("lookup of the old catalog", server.run(index.lookup(fill)), [-1, "epoch"])
            for call in (
                index.admit("x"), index.release("w"), index.claim("delete", "d"), index.view(),
                index.publish(fill, "old", generation=1), index.commit("create", "create i"),
            ):  # fmt: skip
                reply = server.run(call)
                found.same(f"{call.name} of the old catalog", reply[1], "epoch")
            found.same("keys that calls of the old catalog left", int(server.client.dbsize()), 0)
            found.same("the epoch", server.run(index.set_epoch("read")), "")
            # A new catalog in which the index has the same incarnation and generation, and the
            # old response is back: only the epoch tells them apart.
            fresh = create(server, index.but(epoch="e2"))
            change(server, fresh)
            server.client.set(fill, str(entry))
            reply = server.run(fresh.lookup(fill))
            found.evidence[f"old_response_without_{what}"] = reply[1]
            found.same("the old response in the new catalog", reply[:2], [0, "other_epoch"])
            server.run(fresh.publish(fill, "new", generation=1))
            entry = str(server.run(fresh.lookup(fill))[1])
            found.same("a new response", entry.partition("\n")[2], "new")


def unknown_scripts(subject: Subject, found: Findings) -> None:
    """After a restart the server knows no script by its hash; the source runs and is known."""
    with subject.server() as server:
        index = create(server)
        hashes = {name: server.client.script_load(s) for name, s in server.sources.items()}
        known = sum(server.client.script_exists(*hashes.values()))
        server.kill()
        server.start(load=False)
        unknown = 0
        for sha in hashes.values():
            try:
                server.client.evalsha(sha, 0)
            except NoScriptError:
                unknown += 1
            except ResponseError:
                pass  # it is known, and was called with nothing
        again = Scripts(server.client, server.sources)
        again.load()
        server.client.script_flush()
        found.same("a call by hash of a script that is not there", again.run(index.view())[0], 0)
        found.same("a write by hash likewise", again.run(index.admit("w")), [1, 0])
        found.note(scripts=len(NAMES), known_before=known, unknown_after=unknown)
        found.same("scripts known before", known, len(NAMES))
        found.same("scripts unknown after", unknown, len(NAMES))


def promoted_replica(subject: Subject, found: Findings) -> None:
    """A replica is promoted in mid-life: in step with its primary, and cut off before a change."""
    with subject.server() as primary, subject.server() as replica:
        index = create(primary)
        early, late = index.fill("early"), index.fill("late")
        primary.run(index.publish(early, "old"))
        _follow(replica, primary)
        change(primary, index)
        primary.run(index.publish(late, "new", generation=1))
        primary.run(index.admit("open"))
        primary.client.wait(1, 5000)
        primary.kill()
        replica.client.replicaof("NO", "ONE")
        found.control(replica.raw(early) is not None, "the replica has no response of before")
        beside = replica.run(index.lookup(early))[1]
        replica.run(index.release("open"))
        stale = [replica.run(index.lookup(fill)) for fill in (early, late)]
        found.note(
            fills_that_replication_carried=sum(
                replica.raw(fill) is not None for fill in (early, late)
            ),
            beside_a_writer=beside, after_its_release=[reply[1] for reply in stale],
        )  # fmt: skip
        found.same("a lookup beside the primary's writer", beside, "writer")
        found.expect(all(reply[0] == 0 for reply in stale), f"the replica serves {stale}")
    with subject.server() as primary, subject.server() as replica:
        index = create(primary)
        fill = index.fill()
        primary.run(index.publish(fill, "old"))
        _follow(replica, primary)
        replica.client.replicaof("NO", "ONE")
        change(primary, index)
        served = replica.run(index.lookup(fill))[0] == 1
        replica.run(index.but(epoch="e2").set_epoch("replace"))
        after = replica.run(index.but(epoch="e2").lookup(fill))
        found.note(cut_off_before_a_change_serves_stale=served, with_a_new_epoch=after[1])
        found.control(served, "a replica that lacks a change serves nothing: nothing was tried")
        found.same("with a new epoch", after[:2], [0, "other_epoch"])


def _follow(replica: Server, primary: Server) -> None:
    primary.client.config_set("repl-diskless-sync-delay", 0)
    replica.client.config_set("masterauth", primary.password)
    replica.client.replicaof(primary.engine.inner.host, primary.engine.inner.port)
    if not wait_for(lambda: _in_step(primary, replica), FOLLOW_S):
        raise EngineError(
            f"the replica is not in step after {FOLLOW_S:g} s.{replica.engine.tail()}"
        )


def _in_step(primary: Server, replica: Server) -> bool:
    state: Any = replica.client.info("replication")
    if state.get("master_link_status") != "up":
        return False
    offset: Any = primary.client.info("replication")["master_repl_offset"]
    return bool(state["slave_repl_offset"] >= offset)


CHECKS = (
    Check(
        "fill-life",
        "Fills cost the log nothing over a whole life: fill, hit, overwrite, sweep",
        BEYOND,
        whole_life,
        {"old": "grows: fills are durable; sweeping adds nothing", "new": "stays the same"},
    ),
    Check(
        "old-values",
        "An overwritten or swept fill is never served with an old value after a crash",
        BEYOND,
        old_values,
    ),
    Check(
        "fill-during-rewrite",
        "A fill made during a rewrite is a plain miss after a crash",
        BEYOND,
        during_rewrite,
        {"old": "a hit: the fill is durable", "new": "a plain miss"},
    ),
    Check(
        "stale-after-rewrite",
        "A stale generation stays rejected after rewrite, change and crash, again and again",
        BEYOND,
        stale_after_rewrite,
    ),
    Check(
        "lost-data-set",
        "Without its manifest or folder the server starts empty: no old response is served",
        BEYOND,
        lost_data,
    ),
    Check(
        "unknown-scripts",
        "After a restart the scripts are unknown by hash, and are run and loaded by their source",
        BEYOND,
        unknown_scripts,
    ),
    Check(
        "promoted-replica",
        "A replica promoted in mid-life serves nothing stale; one that lacks a change needs a new "
        "epoch",
        BEYOND,
        promoted_replica,
    ),
)

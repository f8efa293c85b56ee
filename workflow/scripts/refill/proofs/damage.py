"""Damage: no memory, a log that was cut off, zeroed, or whose sync fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from refill.proofs.calls import Call, Index, sweep
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.strace import Strace
from refill.proofs.subject import Subject, change, create

ZEROS = 64
END_S = 30.0


def out_of_memory(subject: Subject, found: Findings) -> None:
    """Without memory: all coordination works; publications are refused, with nothing half done."""
    with subject.server(maxmemory_policy="noeviction") as server:
        index, coming = create(server), Index("coming", incarnation="c2")
        leaving, third = create(server, Index("leaving", incarnation="c3")), Index("third")
        server.run(index.publish(index.fill("brief"), "x", ttl_ms=0))
        server.run(index.admit("w"))
        server.run(coming.claim("create", "k"))
        server.run(leaving.claim("delete", "d"))
        server.run(third.claim("create", "t"))
        server.client.config_set("maxmemory", 1)
        works: dict[str, Call] = {
            "epoch": index.but(epoch="other").set_epoch(),
            "larger mapping": index.extend("w", '{"a": 1}'),
            "admission": index.admit("x", 5, version=2),
            "claim": Index("fourth", incarnation="c4").claim("create", "f"),
            "release of another": index.release("x"),
            "release": index.release("w"),
            "commit of a create": coming.commit("create", "k"),
            "commit of a delete": leaving.commit("delete", "d"),
            "abort": third.abort("t"),
            "view": index.view(),
            "lookup": index.lookup(index.fill()),
        }
        replies = {name: server.run(call) for name, call in works.items()}
        for name, reply in replies.items():
            if name == "epoch":
                found.same(name, reply, index.epoch)
                continue
            wanted = [0] if name in ("view", "lookup") else [1]
            found.same(name, reply[:1], wanted)
        refused: dict[str, Call] = {
            "publication": index.publish(index.fill(), "x", generation=2),
        }
        kept, size = server.snapshot(), server.aof().current_size
        for name, call in refused.items():
            try:
                found.expect(False, f"{name}: {server.run(call)} without memory")
            except ResponseError as error:
                found.expect("maxmemory" in str(error), f"{name}: refused with {error}")
        found.same("the catalog after refusals", server.snapshot(), kept)
        found.same("log bytes of refusals", server.aof().current_size - size, 0)
        found.same("sweeping, which frees memory", server.run(sweep([index.fill("brief")])), 1)
        server.client.config_set("maxmemory", 0)
        server.crash()
        found.same("the catalog after a crash", server.snapshot(), kept)
        found.same("the mapping", server.run(index.view())[4], "2")
        found.same("a further admission", server.run(index.admit("y", version=2))[0], 1)
        found.same("the generation", server.run(index.release("y")), [1, 3])
        found.note(works=sorted(works), refused=sorted(refused))


def cut_tail(subject: Subject, found: Findings) -> None:
    """The log ends within the last step: it is undone as a whole, or it is there as a whole."""
    index = Index()
    outcomes = {"before": 0, "after": 0}
    for name, step in _last_steps(index).items():
        with subject.server(appendfsync="always") as server:
            create(server)
            server.run(index.admit("w", 3))
            server.run(Index("c", incarnation="c2").claim("create", "k"))
            before, size = server.snapshot(), server.aof().current_size
            server.run(step)
            after = server.snapshot()
            grown = server.aof().current_size - size
            server.kill()
            file = server.log_file("incr")
            whole = file.read_bytes()
            for cut in sorted({1, 2, grown // 4, grown // 2, 3 * grown // 4, grown - 1}):
                file.write_bytes(whole[:-cut])
                server.start()
                state = server.snapshot()
                server.kill()
                found.expect(
                    state in (before, after), f"{name}, {cut} of {grown} bytes cut: half done"
                )
                outcomes["after" if state == after else "before"] += 1
    found.note(cuts=sum(outcomes.values()), undone=outcomes["before"], whole=outcomes["after"])
    found.control(outcomes["before"] > 0, "no cut reached into a step")


def _last_steps(index: Index) -> dict[str, Call]:
    return {
        "admission": index.admit("x", 2),
        "release": index.release("w"),
        "commit": Index("c", incarnation="c2").commit("create", "k"),
        "larger mapping": index.extend("w", '{"a": 1}'),
    }


def zeroed_tail(subject: Subject, found: Findings) -> None:
    """The log's tail is zeros, as some file systems leave it: the server must not start."""
    with subject.server() as server:
        index = create(server)
        change(server, index)
        server.kill()
        file = server.log_file("incr")
        whole = file.read_bytes()
        file.write_bytes(whole[:-ZEROS] + bytes(ZEROS))
        status = server.start_or_end()
        found.note(zeroed_bytes=ZEROS, exit_status=status)
        found.expect(status not in (None, 0), "the server starts on a zeroed tail")
        file.write_bytes(whole)
        server.kill()
        server.start()
        found.same("the generation with the log restored", server.run(index.view())[3], "1")


def failed_sync(subject: Subject, found: Findings) -> None:
    """fdatasync fails behind a durable step: no answer, and a repeat by token resolves it."""
    strace = Strace.find()
    index, coming = Index(), Index("coming", incarnation="c2")
    steps: dict[str, tuple[Call, Callable[[Any], bool]]] = {
        "admission": (index.admit("x", 5), lambda reply: bool(reply == [1, 3])),
        "larger mapping": (index.extend("w", '{"a": 1}'), lambda reply: bool(reply == [1, 2])),
        "release": (index.release("w"), lambda reply: bool(reply[0] == 1 and reply[1] in (1, 2))),
        "claim": (coming.claim("create", "k"), lambda reply: bool(reply == [1, "c2"])),
        "commit": (index.commit("delete", "d"), lambda reply: bool(reply == [1, ""])),
    }
    kept = {}
    for name, (call, right) in steps.items():
        with subject.server() as server:
            create(server)
            server.run(index.admit("w", 3))
            if name == "commit":
                server.run(index.claim("delete", "d"))
            before = server.snapshot()
            with strace.failing_sync(server.pid, server.folder / "strace"):
                try:
                    reply = server.run(call)
                    found.expect(False, f"{name}: answered {reply} although it was not synced")
                except (RedisConnectionError, ResponseError):
                    pass
                status = server.engine.wait_end(END_S)
            server.kill()
            server.start()
            kept[name] = server.snapshot() != before
            reply = server.run(call)
            found.expect(right(reply), f"{name}: its repeat gives {reply}")
            state = server.snapshot()
            if name != "release":
                found.same(f"{name}: a third time", server.run(call), reply)
                found.same(f"{name}: the catalog after a third time", server.snapshot(), state)
            if name == "admission":
                found.same("the next writer's numbers", server.run(index.admit("y")), [1, 8])
            found.expect(status != 0, f"{name}: the server ended with 0")
    found.note(steps=len(steps), there_after_the_restart=kept, server="ends when a sync fails")


CHECKS = (
    Check(
        "out-of-memory",
        "Without memory commits and releases work, and what is refused leaves nothing half done",
        BEYOND,
        out_of_memory,
    ),
    Check(
        "cut-tail",
        "A log that ends within a step holds that step whole or not at all",
        BEYOND,
        cut_tail,
        cheap=False,
    ),
    Check("zeroed-tail", "A log with a zeroed tail stops the server", BEYOND, zeroed_tail),
    Check(
        "failed-sync",
        "A step whose sync failed is not acknowledged, and resolves by its token",
        BEYOND,
        failed_sync,
        needs="strace",
        cheap=False,
    ),
)

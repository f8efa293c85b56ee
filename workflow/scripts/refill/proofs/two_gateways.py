"""Two gateways on one catalog, and a gate before Qdrant that chooses who comes first.

Inside one gateway a lock keeps readers from writers, whatever the catalog says. Between two there
is the catalog alone. An answer is held in the gate until a write has overtaken it; a write is held
in it while others read, and while its gateway is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from refill.engines.description import EngineError
from refill.faults.gate import ANSWER, REQUEST, Gate
from refill.processes import wait_for
from refill.proofs.calls import FILL_PREFIX, Index, plain
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.ledger import Ledger
from refill.proofs.stack import YES, Gone, Http, Stack
from refill.proofs.subject import Subject

NAME, ID = "things", "1"
MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}, "dynamic": "false"}}
# The one request of a write that changes documents.
UPSERT = b"/points?wait=true"
GATE_S = 20.0
# How long another gateway has for a later write while a dead one's is held; then the longest that
# this one takes to be seen in Qdrant.
HEAD_START_S, LATE_S = 0.3, 0.5
# The first request of those that make a collection, the one that removes it, and the one that is
# answered when all writes before it have been applied.
CREATE, DELETE, BARRIER = b"PUT /collections/", b"DELETE /collections/", b"/points/delete?wait=true"
# A grace for a recovery, long beside a request; a clock may be read a little before it is over.
GRACE_S, ALMOST = 0.5, 0.98
NEEDS = "a gate that gateways reach: in containers, a network that this machine is on"


@contextmanager
def held(gate: Gate, what: str, naming: bytes = b"") -> Iterator[None]:
    """Hold back what comes from now on; let it go at the end."""
    gate.hold(what, naming=naming)
    try:
        yield
    finally:
        gate.release()


def wait_held(gate: Gate) -> None:
    """Wait until a gate holds something.

    Raises:
        EngineError: nothing came.
    """
    if not gate.held.wait(GATE_S):
        raise EngineError(f"gateway: it asked Qdrant nothing within {GATE_S:g} s")


class Pair:
    """One document that is written and read through two gateways, and what may be read of it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.ledger = Ledger()
        self._ways = 0
        self.stack.must("PUT", f"/{NAME}", MAPPING)
        self.write(0)

    def write(self, through: int) -> int | None:
        """Write the next number; the status, None without an answer."""
        n = self.ledger.sending(NAME, ID)
        body = {"n": n, "mark": _mark(n)}
        try:
            status, _ = self.stack.call("PUT", f"/{NAME}/_doc/{ID}", body, through)
        except Gone:
            return None
        if status in (200, 201):
            self.ledger.acknowledged(NAME, ID, n)
        return status

    def read(self, through: int, when: str, way: str = "a") -> int:
        """Read the document, and hold its number against what was told before; the number.

        A read by id is one call to Qdrant, so it is of one state of the index.

        Args:
            way: a word that changes nothing but the response's key in the cache.
        """
        path = f"/{NAME}/_doc/{ID}?preference={way}"
        floor = self.ledger.floor(NAME)
        number = int(self.stack.must("GET", path, None, through)["_source"]["n"])
        self.ledger.read(NAME, floor, {ID: number}, when)
        return number

    def read_anew(self, through: int, when: str) -> int:
        """As `read`, in a way that nobody has read before, so that no cache can have it."""
        self._ways += 1
        return self.read(through, when, f"new{self._ways}")

    def read_all(self, when: str) -> list[int]:
        """Read through both twice, so that what the cache holds is read, too."""
        return [
            self.read(through, f"{when}, gateway {through}, {time}", way)
            for way in ("a", "b")
            for through in (0, 1)
            for time in ("first", "again")
        ]

    def fills_of(self, n: int) -> int:
        """How many responses on the server hold a number."""
        return sum(_mark(n) in entry for entry in self._fills())

    def _fills(self) -> list[str]:
        client = self.stack.server.client
        keys = list(client.scan_iter(match=f"{FILL_PREFIX}*", count=1000))
        return [plain(value) for value in client.mget(keys) if value is not None] if keys else []

    def state(self) -> dict[str, int]:
        """What the catalog says: generation, writers; and how many responses there are."""
        client, index = self.stack.server.client, Index(NAME)
        return {
            "generation": int(client.hget(index.key, "generation") or 0),
            "writers": int(client.hlen(index.writers_key)),
            "responses": len(self._fills()),
        }

    def tell(self, found: Findings) -> None:
        """Tell what contradicted what was told before."""
        found.note(reads=self.ledger.counts["answers checked"])
        for failure in self.ledger.failures:
            found.expect(False, failure.removeprefix(": "))


def _mark(n: int) -> str:
    return f"state {n} of it"


def late_fills(subject: Subject, found: Findings) -> None:
    """An answer comes late: after a write through another gateway, and while one is under way."""
    with Stack(subject, gateways=2, gated=YES) as stack, ThreadPoolExecutor(2) as pool:
        pair = Pair(stack)
        reader, writer = stack.gates
        before = stack.counters()["rejected_by_reason"]
        with held(reader, ANSWER):
            late = pool.submit(pair.read, 0, "an answer that a write overtakes")
            wait_held(reader)
            found.same("the write that overtakes it", pair.write(1), 200)
        found.control(late.result() == 1, "the late answer is not of before the write")
        found.same("responses of before the write, after it", pair.fills_of(1), 0)
        found.same("reads after the write", set(pair.read_all("after the write")), {2})
        kept = pair.fills_of(2)
        found.control(kept > 0, "nothing was published, so nothing could be stale")
        with held(reader, ANSWER):
            late = pool.submit(pair.read, 0, "an answer beside a writer", "c")
            wait_held(reader)
            with held(writer, REQUEST, UPSERT):
                writing = pool.submit(pair.write, 1)
                wait_held(writer)
                reader.release()
                found.control(late.result() == 2, "the late answer is not of before the write")
                found.same("responses that came beside a writer", pair.fills_of(2) - kept, 0)
        found.same("the write beside it", writing.result(), 200)
        found.same("reads after that write", set(pair.read_all("after that write")), {3})
        after = stack.counters()["rejected_by_reason"]
        found.note(
            refused={why: n - before.get(why, 0) for why, n in after.items()},
            responses_of_each_state={str(n): pair.fills_of(n) for n in (1, 2, 3)},
        )
        pair.tell(found)


def held_writes(subject: Subject, found: Findings) -> None:
    """A write is on its way to Qdrant while others read, and while its gateway is killed."""
    with Stack(subject, gateways=2, gated=YES) as stack, ThreadPoolExecutor(1) as pool:
        pair, (gate, _) = Pair(stack), stack.gates
        pair.read_all("before the writes")
        states = [pair.state()]
        with held(gate, REQUEST, UPSERT):
            writing = pool.submit(pair.write, 0)
            wait_held(gate)
            _nothing_new(pair, found, "beside a write", states[0], 1)
            found.expect(not writing.done(), "a write is acknowledged that Qdrant has not got")
        found.same("the write", writing.result(), 200)
        states.append(pair.state())
        found.same("reads after the write", set(pair.read_all("after the write")), {2})
        pair_state = pair.state()
        with held(gate, REQUEST, UPSERT):
            writing = pool.submit(pair.write, 0)
            wait_held(gate)
            stack.kill_gateway()
            found.same("the write of a gateway that is killed", writing.result(), None)
            _nothing_new(pair, found, "beside a write whose gateway is dead", pair_state, 2)
        # Now it comes, from a gateway that is no more.
        came = wait_for(lambda: pair.read_anew(1, "when the dead one's write comes") == 3, GATE_S)
        found.control(came, "the write of the dead gateway never came")
        late = {pair.read(1, "after the dead one's write has come", way) for way in "ab"}
        found.same("reads when it has come", late, {3})
        found.same("writers before the recovery", pair.state()["writers"], 1)
        stack.recover()
        states.append(pair.state())
        stack.start_gateway()
        found.same("reads after the recovery", set(pair.read_all("after the recovery")), {3})
        hits = stack.counters(1)["hits"]
        pair.read(1, "a hit after the recovery")
        found.same("hits after the recovery", stack.counters(1)["hits"] - hits, 1)
        found.note(states=states)
        found.same("generations", [s["generation"] - states[0]["generation"] for s in states],
                   [0, 1, 2])  # fmt: skip
        found.same("writers", [s["writers"] for s in states], [0, 0, 0])
        pair.tell(found)
        if not found.failures:
            # It begins where all before it was right.
            _later_write(pair, found, gate, pool)
            pair.tell(found)


def _later_write(pair: Pair, found: Findings, gate: Gate, pool: ThreadPoolExecutor) -> None:
    """State that a write through another gateway is not undone by a dead one's that comes late."""
    with held(gate, REQUEST, UPSERT):
        dead = pool.submit(pair.write, 0)
        wait_held(gate)
        pair.stack.kill_gateway()
        found.same("another write of a gateway that is killed", dead.result(), None)
        later = pool.submit(pair.write, 1)
        waits = not wait_for(later.done, HEAD_START_S)
    found.note(later_write_waited=waits)
    found.same("the later write", later.result(), 200)
    newest = pair.ledger.floor(NAME)[ID]
    # The dead one's is let go and comes at any moment; what it undoes stays undone.
    undone = wait_for(lambda: pair.read_anew(1, "after a later write") != newest, LATE_S, 0.02)
    found.expect(not undone, "a write that was acknowledged is undone by a dead gateway's")


def recovery_grace(subject: Subject, found: Findings) -> None:
    """What a dead gateway has sent reaches Qdrant while a recovery is under way, in its grace."""
    with Stack(subject, gateways=2, gated=YES) as stack, ThreadPoolExecutor(1) as pool:
        pair, (gate, _) = Pair(stack), stack.gates
        pair.read_all("before the write")
        with held(gate, REQUEST, UPSERT):
            writing = pool.submit(pair.write, 0)
            wait_held(gate)
            stack.kill_gateway()
            found.same("the write of a gateway that is killed", writing.result(), None)
            _recover_in_grace(
                stack, found, "write", BARRIER,
                lambda: pair.state()["writers"] == 0,
                lambda: pair.read_anew(1, "when the dead one's write comes") == 2,
            )  # fmt: skip
        found.same("writers after the recovery", pair.state()["writers"], 0)
        stack.start_gateway()
        found.same("reads after it", set(pair.read_all("after the recovery")), {2})
        client, coming = stack.server.client, Index("coming")
        with held(gate, REQUEST, CREATE):
            creating = pool.submit(stack.call, "PUT", f"/{coming.name}", MAPPING)
            wait_held(gate)
            collection = plain(client.hget(coming.claim_key, "collection"))
            stack.kill_gateway()
            found.expect(creating.exception() is not None, "a create of no collection is answered")
            _recover_in_grace(
                stack, found, "create", DELETE,
                lambda: not client.exists(coming.claim_key),
                lambda: collection in _collections(stack),
            )  # fmt: skip
        found.same("the claim after the recovery", client.exists(coming.claim_key), 0)
        found.same("its collection", [c for c in _collections(stack) if c == collection], [])
        stack.must("PUT", f"/{coming.name}", MAPPING, 1)
        pair.tell(found)


def _recover_in_grace(
    stack: Stack,
    found: Findings,
    what: str,
    asks: bytes,
    resolved: Callable[[], bool],
    comes: Callable[[], bool],
) -> None:
    """Recover from what a dead gateway has begun, and let it come while the recovery waits.

    Args:
        what: the first gate holds it.
        asks: bytes of the request that a recovery makes before its grace and behind it, through
            the second gate.
        resolved: whether the catalog has nothing of it any more.
        comes: whether Qdrant has it.
    """
    gate, way = stack.gates
    with ThreadPoolExecutor(1) as pool, held(way, REQUEST, asks):
        recovering = pool.submit(stack.recover, "--grace", str(GRACE_S))
        asked = wait_for(lambda: way.held.is_set() or recovering.done(), GATE_S)
        found.expect(asked and way.held.is_set(), f"a recovery asks Qdrant nothing for a {what}")
        # Its grace begins later, whatever this machine is busy with.
        began = time.monotonic()
        way.release()
        way.hold(REQUEST, naming=asks)
        wait_for(lambda: way.held.is_set() or resolved() or recovering.done(), GATE_S)
        waited = time.monotonic() - began
        found.expect(
            waited > GRACE_S * ALMOST,
            f"a recovery from a dead gateway's {what} goes on after {waited:.2f} s of a grace of "
            f"{GRACE_S:g} s",
        )
        gate.release()
        found.control(wait_for(comes, GATE_S), f"the {what} of the dead gateway never came")
        way.release()
        found.note(**{f"grace_of_a_{what}_s": round(waited, 3)})
        recovering.result()


def _collections(stack: Stack) -> list[str]:
    with Http(stack.qdrant.address) as qdrant:
        answer = qdrant.call("GET", "/collections")[1]
    return [collection["name"] for collection in answer["result"]["collections"]]


def held_claims(subject: Subject, found: Findings) -> None:
    """A collection is about to be made, or removed: the index is claimed, and stands as before."""
    with Stack(subject, gated=YES) as stack, ThreadPoolExecutor(1) as pool:
        client, index, (gate,) = stack.server.client, Index(NAME), stack.gates
        seen = {}
        for kind, method, naming in (("create", "PUT", CREATE), ("delete", "DELETE", DELETE)):
            stood = bool(client.exists(index.key))
            with held(gate, REQUEST, naming):
                body = MAPPING if kind == "create" else None
                doing = pool.submit(stack.call, method, f"/{NAME}", body)
                wait_held(gate)
                claimed = client.hget(index.claim_key, "kind")
                seen[kind] = plain(claimed) if claimed else "no claim"
                found.same(f"the claim during a {kind}", seen[kind], kind)
                same = bool(client.exists(index.key)) == stood
                found.expect(same, f"a {kind} is in the catalog before Qdrant has done it")
                found.expect(not doing.done(), f"a {kind} is acknowledged before Qdrant has it")
            found.same(f"the {kind}", doing.result()[0], 200)
            found.same(f"claims after the {kind}", client.exists(index.claim_key), 0)
            stands = bool(client.exists(index.key))
            found.same(f"the index after the {kind}", stands, kind == "create")
        found.note(claims=seen)


def _nothing_new(pair: Pair, found: Findings, when: str, before: Mapping[str, int], n: int) -> None:
    """State that a writer stands, and that the other gateway neither serves nor publishes."""
    counted = pair.stack.counters(1)
    reads = {pair.read(1, when, "a"), pair.read(1, when, "a"), pair.read_anew(1, when)}
    after = pair.stack.counters(1)
    found.same(f"reads {when}", reads, {n})
    for name in ("hits", "fills"):
        found.same(f"{name} {when}", after[name] - counted[name], 0)
    found.same(f"the catalog {when}", pair.state(), {**before, "writers": 1})


CHECKS = (
    Check(
        "gateway-late-fill",
        "An answer that another gateway's write overtakes is not published, and never served",
        BEYOND,
        late_fills,
        needs=NEEDS,
        default_only=True,
        cheap=False,
    ),
    Check(
        "gateway-held-write",
        "While Qdrant has not got a write, its writer stands and other gateways neither serve nor "
        "publish, even when its gateway is dead; a later write is not undone by it",
        BEYOND,
        held_writes,
        needs=NEEDS,
        default_only=True,
        cheap=False,
    ),
    Check(
        "gateway-recovery-grace",
        "A recovery leaves a dead gateway's writer or claim standing for its grace, in which its "
        "write or its collection may still come",
        BEYOND,
        recovery_grace,
        needs=NEEDS,
        default_only=True,
        full_only=True,
        cheap=False,
    ),
    Check(
        "gateway-claims",
        "A collection is made and removed under a claim alone, and the catalog follows Qdrant",
        BEYOND,
        held_claims,
        needs=NEEDS,
        default_only=True,
        cheap=False,
    ),
)

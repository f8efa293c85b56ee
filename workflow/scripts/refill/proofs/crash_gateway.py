"""The gateway is killed at random points of writes, beside readers; now and then the server, too.

An episode is one data set with two gateways and several kills. One gateway writes, reads and is
killed; the other one reads, so that what keeps readers from writes is the catalog, not a lock of
one process. Before Qdrant stands a gate, where writes take a little longer: the first kill of an
episode comes while one of them is in it, the others at any time. Who does what, and when the kill
comes, follow from the episode's seed; how far the requests have come by then does not.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis.exceptions import RedisError

from refill.engines.description import EngineError, RunnerError
from refill.faults.gate import REQUEST, Gate
from refill.proofs.calls import Index
from refill.proofs.findings import BEYOND, Check, Findings, told_of_episode
from refill.proofs.ledger import Ledger, numbers_of
from refill.proofs.stack import IF_POSSIBLE, Gone, Http, Stack
from refill.proofs.subject import Subject
from refill.proofs.two_gateways import UPSERT

ID = "crash-gateway"
KILLS_AN_EPISODE = 20
MOST_FAILURES = 5
INDICES = ("g0", "g1", "g2")
TURNED = "turned"
WRITERS, READERS, GATEWAYS = 3, 2, 2
# How long a write takes in the gate, and how long the first kill waits for one, in s.
DELAY_S, GATE_S = 0.003, 20.0
IDS_A_WRITER = 2
WRITES_A_BURST = 6
RECOVER_EVERY = 3
# How many kills are of the server, beside those of the gateway.
SERVER_SHARE = 0.1
MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}, "tag": {"type": "keyword"}}}}
EVERYTHING = {"sort": [{"n": "desc"}], "size": 100}


class Episode:
    """One data set, its clients, and several kills of the gateway."""

    def __init__(self, stack: Stack, chance: random.Random, kills: int) -> None:
        self._stack = stack
        self._chance = chance
        self._kills = kills
        self.ledger = Ledger()
        self.starts_s: list[float] = []
        # Whether the turned index is there; None: not known.
        self._turned: bool | None = False
        self._burst_s = 0.2

    def run(self) -> None:
        """Run it; what it found stands in `ledger`."""
        ledger = self.ledger
        for gate in self._stack.gates:
            gate.delay(UPSERT, DELAY_S)
        for name in INDICES:
            self._must("PUT", f"/{name}", MAPPING)
        began = time.monotonic()
        self._burst(lambda: None)
        self._burst_s = time.monotonic() - began
        kill = 0
        while kill < self._kills and len(ledger.failures) < MOST_FAILURES:
            kill += 1
            ledger.now = f"kill {kill}"
            if self._chance.random() < SERVER_SHARE:
                self._server_dies()
                self._settled_read("after the server's kill")
            self._gateway_dies(in_a_write=kill == 1)
            self._settled_read("after the kill")
            if kill % RECOVER_EVERY == 1:
                self._recover()
                self._settled_read("after the recovery")
                if kill % (2 * RECOVER_EVERY) == 1:
                    # To its end, so that the next kills have an index to lose, or to bring back.
                    self._turn()
        ledger.now = "at the end"
        self._recover()
        self._use_all()

    # ---- kills

    def _gateway_dies(self, in_a_write: bool) -> None:
        before = self._writers()
        if in_a_write and self._stack.gates:
            self._burst(self._with_a_write_in(self._stack.gates[0]))
        else:
            wait = self._moment()

            def die() -> None:
                wait()
                self._stack.kill_gateway()

            self._burst(die)
        self.ledger.counts["gateway kills"] += 1
        # Those of an earlier kill stand until the next recovery.
        self.ledger.counts["gateway kills that left a writer"] += self._writers() > before
        claimed = any(":claim:" in key for key in self._stack.server.snapshot())
        self.ledger.counts["gateway kills that left a claim"] += claimed
        self.starts_s.append(self._stack.start_gateway())

    def _with_a_write_in(self, gate: Gate) -> Callable[[], None]:
        """A kill while a write is in the gate, which then comes after all, or never."""
        drop = self._chance.random() < 0.5

        def die() -> None:
            gate.hold(REQUEST, naming=UPSERT)
            try:
                if gate.held.wait(GATE_S):
                    self.ledger.count("gateway kills with a write in the gate")
                self._stack.kill_gateway()
            finally:
                gate.release(drop)

        return die

    def _server_dies(self) -> None:
        wait = self._moment()

        def die() -> None:
            wait()
            self._stack.server.crash()

        self._burst(die)
        self.ledger.counts["server kills"] += 1
        self._stack.wait_ready()

    def _moment(self) -> Callable[[], None]:
        """A wait until the kill: a time, or the moment at which one more writer is seen."""
        if self._chance.random() < 0.5:
            seconds = self._chance.uniform(0, self._burst_s * 1.1)
            return lambda: time.sleep(seconds)
        extra, before = self._chance.uniform(0, 0.004), self._writers()

        def seen() -> None:
            deadline = time.monotonic() + 2 * self._burst_s
            while time.monotonic() < deadline:
                if self._writers() > before:
                    time.sleep(extra)
                    return

        return seen

    def _writers(self) -> int:
        """How many writers stand, alive or dead."""
        client = self._stack.server.client
        return sum(int(client.hlen(Index(name).writers_key)) for name in INDICES)

    # ---- clients

    def _burst(self, kill: Callable[[], None]) -> None:
        """Let all clients work once, with a kill in between; wait for the end of all of them."""
        done = threading.Event()
        seeds = [self._chance.random() for _ in range(WRITERS + READERS + 1)]
        # Drawn in any case: what is drawn later does not depend on what was answered.
        turning = self._chance.random() < 0.4 and self._turned is not None
        with ThreadPoolExecutor(WRITERS + READERS + 1) as pool:
            writers = [
                pool.submit(self._write, number, random.Random(seeds[number]))
                for number in range(WRITERS)
            ]
            readers = [
                pool.submit(self._read, number, random.Random(seeds[WRITERS + number]), done)
                for number in range(READERS)
            ]
            turner = [pool.submit(self._turn)] if turning else []
            # Here, in the main thread: a server must not be started by one that ends.
            try:
                kill()
                for future in (*writers, *turner):
                    future.result()
            finally:
                done.set()
            for future in readers:
                future.result()

    def _write(self, number: int, chance: random.Random) -> None:
        with self._stack.connection() as connection:
            try:
                for _ in range(WRITES_A_BURST):
                    self._write_once(connection, number, chance)
            except Gone:
                self.ledger.count("writes without an answer")

    def _write_once(self, connection: Http, number: int, chance: random.Random) -> None:
        index = chance.choice(INDICES)
        ids = [f"d{number}-{n}" for n in range(IDS_A_WRITER)]
        if chance.random() < 0.4:
            sent = {id_: self.ledger.sending(index, id_) for id_ in ids}
            lines = [
                line for id_, n in sent.items()
                for line in (f'{{"index":{{"_id":"{id_}"}}}}', f'{{"n":{n},"tag":"t"}}')
            ]  # fmt: skip
            status, answer = connection.call("POST", f"/{index}/_bulk", "\n".join(lines) + "\n")
            items = answer["items"] if status == 200 else []
            for item in items:
                outcome = item["index"]
                if outcome["status"] in (200, 201):
                    self.ledger.acknowledged(index, outcome["_id"], sent[outcome["_id"]])
        else:
            id_ = chance.choice(ids)
            n = self.ledger.sending(index, id_)
            status, _ = connection.call("PUT", f"/{index}/_doc/{id_}", {"n": n, "tag": "t"})
            if status in (200, 201):
                self.ledger.acknowledged(index, id_, n)
        if status not in (200, 201, 503):
            self.ledger.fail(f"a write of {index} gives {status}")
        if status == 503:
            self.ledger.count("writes refused")

    def _read(self, number: int, chance: random.Random, done: threading.Event) -> None:
        with self._stack.connection(number % GATEWAYS) as connection:
            while not done.is_set():
                try:
                    self._read_once(connection, chance.choice(INDICES), "a read", may_fail=True)
                except Gone:
                    return

    def _read_once(self, connection: Http, index: str, when: str, may_fail: bool) -> Any:
        floor = self.ledger.floor(index)
        status, answer = connection.call("POST", f"/{index}/_search", EVERYTHING)
        if status == 503 and may_fail:
            self.ledger.count("reads refused")
            return None
        if status != 200:
            self.ledger.fail(f"{when}: {index} gives {status}")
            return None
        found, wrong = numbers_of(answer)
        if wrong:
            self.ledger.fail(f"{when}: {index}: {wrong}")
        self.ledger.read(index, floor, found, when)
        return found

    def _turn(self) -> None:
        """Create the turned index, or delete it."""
        there = self._turned
        self._turned = None
        try:
            if there:
                status, _ = self._stack.call("DELETE", f"/{TURNED}")
            else:
                status, _ = self._stack.call("PUT", f"/{TURNED}", MAPPING)
        except Gone:
            self.ledger.count("creates and deletes without an answer")
            return
        if status == 200:
            self._turned = not there
            self.ledger.count("creates and deletes acknowledged")
        elif status != 503:
            self.ledger.fail(f"{'DELETE' if there else 'PUT'} /{TURNED} gives {status}")

    # ---- between kills

    def _settled_read(self, when: str) -> None:
        """Read everything through both gateways: the second answer may come out of the cache."""
        with self._stack.connection() as connection, self._stack.connection(1) as other:
            for index in INDICES:
                first = self._read_once(connection, index, when, may_fail=False)
                again = self._read_once(other, index, f"{when}, by the other", may_fail=False)
                if first != again:
                    self.ledger.fail(f"{when}: {index} is {first}, then {again}, without a write")
            status, _ = connection.call("GET", f"/{TURNED}")
            if self._turned is not None and status != (200 if self._turned else 404):
                self.ledger.fail(f"{when}: GET /{TURNED} gives {status}, there: {self._turned}")

    def _recover(self) -> None:
        said = self._stack.recover()
        counts = self.ledger.counts
        counts["recoveries"] += 1
        counts["writers recovered"] += said.count("released, generation advanced")
        counts["creates undone"] += said.count("undone")
        counts["deletes completed"] += said.count("completed")
        left = [k for k in self._stack.server.snapshot() if ":claim:" in k or ":writers:" in k]
        if left:
            self.ledger.fail(f"left after a recovery: {left}")
        status, _ = self._stack.call("GET", f"/{TURNED}")
        if status not in (200, 404):
            self.ledger.fail(f"after a recovery: GET /{TURNED} gives {status}")
        self._turned = status == 200

    def _use_all(self) -> None:
        """Every index takes a write, shows it, and serves it from the cache."""
        with self._stack.connection() as connection:
            if not self._turned:
                self._must("PUT", f"/{TURNED}", MAPPING)
            for index in (*INDICES, TURNED):
                n = self.ledger.sending(index, "last")
                self._must("PUT", f"/{index}/_doc/last", {"n": n, "tag": "t"})
                self.ledger.acknowledged(index, "last", n)
                self._read_once(connection, index, "the last read", may_fail=False)
                hits = self._stack.counters()["hits"]
                self._read_once(connection, index, "the last read, again", may_fail=False)
                if self._stack.counters()["hits"] != hits + 1:
                    self.ledger.fail(f"{index}: a repeated read is no hit after the recovery")
                self.ledger.counts["indices usable after the recovery"] += 1

    def _must(self, method: str, path: str, body: Any) -> None:
        status, answer = self._stack.call(method, path, body)
        if status not in (200, 201):
            self.ledger.fail(f"{method} {path} gives {status}: {answer}")


def episode(subject: Subject, number: int, kills: int) -> tuple[Ledger, list[float]]:
    """Run one episode on a data set of its own; its ledger and what starts took, in s."""
    with Stack(subject, gateways=GATEWAYS, gated=IF_POSSIBLE) as stack:
        made = Episode(stack, subject.random(ID, number), kills)
        try:
            made.run()
        except RunnerError:
            raise
        except (Gone, EngineError, RedisError) as error:
            made.ledger.fail(f"{type(error).__name__}: {error}")
        hits = stack.counters()["hits"] if not made.ledger.failures else 0
        made.ledger.counts["hits since the last start"] += hits
        return made.ledger, made.starts_s


def crashes(subject: Subject, found: Findings) -> None:
    """Run all episodes."""
    kills = all_kills = subject.scale.gateway_kills[subject.image]
    counts: Counter[str] = Counter()
    starts: list[float] = []
    number = 0
    while kills > 0 and len(found.failures) < MOST_FAILURES:
        subject.tell(f"{all_kills - kills} of {all_kills} kills")
        ledger, took = episode(subject, number, min(kills, KILLS_AN_EPISODE))
        counts += ledger.counts
        starts += took
        if ledger.failures:
            again = told_of_episode(ID, subject, number, ledger.history)
            for failure in ledger.failures[:MOST_FAILURES]:
                found.expect(False, f"episode {number}, {failure}; {again}")
        kills -= KILLS_AN_EPISODE
        number += 1
    found.note(
        seed=subject.seed, episodes=number, **dict(sorted(counts.items())),
        start_s_median=round(statistics.median(starts), 3) if starts else None,
    )  # fmt: skip
    found.control(counts["gateway kills that left a writer"] > 0, "no kill met a write")
    found.control(counts["answers checked"] > 0, "no answer was read")
    turned = counts["creates and deletes acknowledged"]
    found.control(turned > 0, "no create or delete came to its end between the kills")


CHECKS = (
    Check(
        ID,
        "The gateway killed at random points of writes: nothing acknowledged is lost, nothing "
        "stale served, every index usable after the recovery",
        BEYOND,
        crashes,
        default_only=True,
        cheap=False,
    ),
)

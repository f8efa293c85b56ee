"""The two ways to issue requests: a closed loop, and an open loop from planned send times.

A closed loop sends the next request when the last one was answered: a slow server is asked less
often, so slow moments give few samples (coordinated omission; Gil Tene, "How NOT to Measure
Latency"). An open loop plans every send time beforehand and counts latency from the plan, also
when the request had to wait for its turn. The open loop is the headline of this project; the
closed loop is kept to compare with what was published.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from refill.load.wire import Address, Connection, WireError, WireTimeoutError

# Below this distance to a planned time the clock is watched instead of slept on: a sleep alone
# comes back 50 to 100 us late here, which would be a third of a warm search.
SPIN_S = 0.0003
# After a refused or broken connection: long enough not to fill the ledger from a dead engine.
BACK_OFF_S = 0.05


class Source(Protocol):
    """Gives the bytes of the request with a key."""

    def open(self) -> None:
        """Make ready, in the client's process, before its first job."""

    def __call__(self, key: int) -> bytes:
        """Give the bytes; outside of any request's time."""
        ...


class Row(NamedTuple):
    """One request as the driver saw it. Times are seconds since the run's start."""

    phase: str
    loop: str
    window: int
    client: int
    key: int
    planned: float
    sent: float
    done: float
    outcome: str  # answered, timeout, error
    http: int
    body: bytes
    detail: str


@dataclass(frozen=True)
class Job:
    """What one client process is to do in one window.

    Attributes:
        phase: the phase that the rows are written under.
        loop: `closed`, `open` or `upload`; `upload` is a closed loop of writes.
        window: number of the window within the run.
        keys: request keys in their order; taken again from the start when they run out.
        count: how many requests; None: until `seconds` have passed.
        seconds: length of the window; for an open loop it plans `seconds * per_s` requests.
        per_s: planned requests a second; for a closed loop 0 means as fast as it goes.
        first: seconds (clock of the run) of the first planned send; None: now.
        workers: connections an open loop may use at once.
    """

    phase: str
    loop: str
    window: int
    keys: Sequence[int]
    count: int | None = None
    seconds: float | None = None
    per_s: float = 0.0
    first: float | None = None
    workers: int = 1


@dataclass
class Client:
    """A client: where it sends, what a key means in bytes, and who takes the rows.

    `stop` is looked at between requests, so a request under way is always finished or censored.
    """

    number: int
    address: Address
    source: Source
    timeout_s: float
    origin: float  # time.monotonic() at the run's start
    deliver: Callable[[Row], None]
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._connections: list[Connection] = []

    def run(self, job: Job) -> None:
        """Do one job; returns when its last request is done."""
        if job.loop == "open":
            self._open_loop(job)
        else:
            self._closed_loop(job)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def now(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self.origin

    def _connection(self, worker: int) -> Connection:
        while len(self._connections) <= worker:
            self._connections.append(Connection(self.address, self.timeout_s))
        return self._connections[worker]

    def _closed_loop(self, job: Job) -> None:
        connection = self._connection(0)
        start = self.now() if job.first is None else job.first
        end = float("inf") if job.seconds is None else start + job.seconds
        limit = job.count if job.count is not None else float("inf")
        issued = 0
        while issued < limit and not self.stop.is_set():
            key = job.keys[issued % len(job.keys)]
            data = self.source(key)
            planned = start + issued / job.per_s if job.per_s else self.now()
            if planned >= end:
                return
            self._wait_until(planned)
            self._issue(connection, job, key, data, planned if job.per_s else None)
            issued += 1
            if self.now() >= end:
                return

    def _open_loop(self, job: Job) -> None:
        if job.per_s <= 0:
            raise ValueError("an open loop needs a rate above 0")
        count = job.count if job.count is not None else int((job.seconds or 0.0) * job.per_s)
        start = self.now() if job.first is None else job.first
        turns = _Turns(count)
        workers = [
            threading.Thread(
                target=self._open_worker, args=(job, self._connection(w), start, turns)
            )
            for w in range(max(1, min(job.workers, count)))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if turns.failure is not None:
            raise turns.failure

    def _open_worker(self, job: Job, connection: Connection, start: float, turns: _Turns) -> None:
        """Take the next planned request whenever free; waiting for a turn counts as latency."""
        try:
            for turn in turns:
                key = job.keys[turn % len(job.keys)]
                data = self.source(key)
                planned = start + turn / job.per_s
                self._wait_until(planned)
                if self.stop.is_set():
                    return
                self._issue(connection, job, key, data, planned)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that runs the job
            turns.fail(error)

    def _wait_until(self, planned: float) -> None:
        while (left := planned - self.now()) > SPIN_S:
            if self.stop.wait(left - SPIN_S):
                return
        while self.now() < planned:
            pass

    def _issue(
        self, connection: Connection, job: Job, key: int, data: bytes, planned: float | None
    ) -> None:
        """Issue one request and deliver its row. Connecting is outside of the request's time."""
        outcome, http, body, detail = "answered", 0, b"", ""
        sent = self.now()
        try:
            connection.open()
            sent = self.now()
            http, body = connection.request(data)
        except WireTimeoutError as error:
            outcome, detail = "timeout", str(error)
        except WireError as error:
            outcome, detail = "error", str(error)
        done = self.now()
        plan = sent if planned is None else planned
        self.deliver(
            Row(
                job.phase, job.loop, job.window, self.number, key,
                plan, sent, done, outcome, http, body, detail,
            )
        )  # fmt: skip
        if outcome == "error":
            self.stop.wait(BACK_OFF_S)


class _Turns:
    """Hands out 0, 1, 2, ... once each to several threads, and stops them all at a failure."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0
        self._lock = threading.Lock()
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[int]:
        while True:
            with self._lock:
                if self._next >= self._count or self.failure is not None:
                    return
                turn = self._next
                self._next += 1
            yield turn

    def fail(self, error: BaseException) -> None:
        """Keep the first failure."""
        with self._lock:
            self.failure = self.failure or error

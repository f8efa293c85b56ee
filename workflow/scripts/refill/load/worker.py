"""A client process: takes jobs from a pipe, runs them, and sends the rows back between requests.

Each client is a process of its own, so that one client's interpreter lock never slows another.
Rows are sent in batches right after a request was done, never while one is under way.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from refill.load.loops import Client, Job, Row, Source
from refill.load.wire import Address

# A kill of the client loses at most the rows of this span.
DELIVER_EVERY_S = 0.4


@dataclass(frozen=True)
class Setup:
    """The first message to a client: everything that holds for all of its jobs."""

    number: int
    address: Address
    source: Source
    timeout_s: float
    origin: float


@dataclass(frozen=True)
class Done:
    """A job ended; `failure` is the reason when it could not be run to its end."""

    client: int
    window: int
    start: float
    end: float
    issued: int
    delivering_s: float
    failure: str | None


class _Batches:
    """Collects rows and sends them as one message when the span is over."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._rows: list[Row] = []
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self.issued = 0
        self.delivering_s = 0.0

    def add(self, row: Row) -> None:
        with self._lock:
            self._rows.append(row)
            self.issued += 1
            if time.monotonic() - self._last >= DELIVER_EVERY_S:
                self._send()

    def flush(self) -> None:
        with self._lock:
            self._send()

    def _send(self) -> None:
        start = time.monotonic()
        if self._rows:
            self._pipe.send([tuple(row) for row in self._rows])
            self._rows.clear()
        self._last = time.monotonic()
        self.delivering_s += self._last - start


def serve(pipe: Pipe) -> None:
    """Run jobs until the pipe is closed. A `None` message stops the job under way."""
    setup: Setup = pipe.recv()
    batches = _Batches(pipe)
    client = Client(
        setup.number, setup.address, setup.source, setup.timeout_s, setup.origin, batches.add
    )
    jobs: list[Job | None] = []
    arrived = threading.Condition()

    def listen() -> None:
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                os._exit(0)  # the controller is gone: nobody takes the rows
            if message is None:
                client.stop.set()
                continue
            with arrived:
                jobs.append(message)
                arrived.notify()

    threading.Thread(target=listen, daemon=True, name="listen").start()
    # The collector's pauses would stand in the latencies; a client makes no cycles.
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        with arrived:
            arrived.wait_for(lambda: bool(jobs))
            job = jobs.pop(0)
        assert job is not None
        batches.issued, batches.delivering_s = 0, 0.0
        start, failure = client.now(), None
        try:
            client.run(job)
        except Exception as error:  # noqa: BLE001 - reported to the controller, which ends the run
            failure = f"{type(error).__name__}: {error}"
        end = client.now()
        client.stop.clear()
        batches.flush()
        pipe.send(
            Done(
                setup.number, job.window, start, end, batches.issued, batches.delivering_s, failure
            )
        )  # fmt: skip


if __name__ == "__main__":
    # Through the package, so that what is sent is known to the controller by the same name.
    from refill.load import worker

    worker.serve(Pipe(int(sys.argv[1])))

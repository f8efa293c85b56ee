"""A client process: takes jobs from a pipe, runs them, and sends the rows back between requests.

Each client is a process of its own, so that one client's interpreter lock never slows another.
Rows are sent in batches right after a request was done, never while one is under way.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from refill.load.loops import Client, Job, Row, Source
from refill.load.wire import Address

# A kill of the client loses at most the rows of this span.
DELIVER_EVERY_S = 0.4
HEART_BEAT_S = 0.1
_WAITED = Path("/proc/thread-self/schedstat")


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
    """A job ended; `failure` is the reason when it could not be run to its end.

    `delivering_s` is what rows took between `start` and `end`; `waited_s`, how long the kernel kept
    the loop from a processor in that time, within requests and between them.
    """

    client: int
    window: int
    start: float
    end: float
    issued: int
    delivering_s: float
    stalled_s: float
    failure: str | None
    waited_s: float = 0.0


@dataclass(frozen=True)
class Stop:
    """End a window after the request under way; other windows are not concerned."""

    window: int


class _Jobs:
    """Jobs that wait and the one under way. A stop ends the window that it names, whenever it
    comes: one that is over already is left alone, and so is the next."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._waiting: list[Job] = []
        self._current: int | None = None
        self._stopped: set[int] = set()
        self._arrived = threading.Condition()

    def put(self, message: Job | Stop) -> None:
        with self._arrived:
            if isinstance(message, Job):
                self._waiting.append(message)
                self._arrived.notify()
                return
            self._stopped.add(message.window)
            if self._current == message.window:
                self._stop.set()

    def take(self) -> Job:
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._waiting))
            job = self._waiting.pop(0)
            self._current = job.window
            if job.window in self._stopped:
                self._stop.set()
            return job

    def over(self) -> None:
        with self._arrived:
            self._current = None
            self._stop.clear()


class _Heart:
    """Notices that this process stood still: suspended, or starved of the processor.

    A latency that was taken meanwhile is the driver's, not the engine's.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._last = time.monotonic()
        threading.Thread(target=self._beat, daemon=True, name="heart").start()

    def reset(self) -> None:
        """Forget the pauses until now."""
        self._longest_s = 0.0

    def longest_s(self) -> float:
        """Give the longest pause since the reset, one that has just ended too."""
        return max(self._longest_s, time.monotonic() - self._last - HEART_BEAT_S)

    def _beat(self) -> None:
        while True:
            time.sleep(HEART_BEAT_S)
            self._longest_s = self.longest_s()
            self._last = time.monotonic()


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


def _waited_s() -> float:
    """Give how long this thread was ready to run and did not; 0 where the system does not tell.

    The second number of /proc/<pid>/schedstat, in nanoseconds; see Linux's sched-stats.rst.
    """
    try:
        return int(_WAITED.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def serve(pipe: Pipe) -> None:
    """Run jobs until the pipe is closed."""
    setup: Setup = pipe.recv()
    setup.source.open()
    heart = _Heart()
    batches = _Batches(pipe)
    client = Client(
        setup.number, setup.address, setup.source, setup.timeout_s, setup.origin, batches.add
    )
    jobs = _Jobs(client.stop)

    def listen() -> None:
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                os._exit(0)  # the controller is gone: nobody takes the rows
            jobs.put(message)

    threading.Thread(target=listen, daemon=True, name="listen").start()
    # The collector's pauses would stand in the latencies; a client makes no cycles.
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        job = jobs.take()
        batches.issued, batches.delivering_s = 0, 0.0
        heart.reset()
        waited_s = _waited_s()
        start, failure = client.now(), None
        try:
            client.run(job)
        except Exception as error:  # noqa: BLE001 - reported to the controller, which ends the run
            failure = f"{type(error).__name__}: {error}"
        end = client.now()
        # Before the last rows: they go behind the window.
        delivering_s, waited_s = batches.delivering_s, _waited_s() - waited_s
        jobs.over()
        batches.flush()
        pipe.send(
            Done(
                client=setup.number,
                window=job.window,
                start=start,
                end=end,
                issued=batches.issued,
                delivering_s=delivering_s,
                stalled_s=heart.longest_s(),
                failure=failure,
                waited_s=waited_s,
            )
        )


if __name__ == "__main__":
    # Through the package, so that what is sent is known to the controller by the same name.
    from refill.load import worker

    # A Ctrl+C reaches all processes of a terminal; the controller ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.serve(Pipe(int(sys.argv[1])))

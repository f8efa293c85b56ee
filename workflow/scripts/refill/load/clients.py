"""The controller's side of the client processes: start them, give jobs, take their rows."""

from __future__ import annotations

import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Self

from refill.load.loops import Job, Row
from refill.load.worker import Done, Setup, Stop
from refill.processes import die_with_parent, module_command, module_environment

LISTENER_ENDS_S = 10.0


class ClientError(Exception):
    """A client process ended, or could not run its job."""


class Clients:
    """Client processes, one for each setup. Rows come back through `on_rows`.

    Used as a context; leaving it ends the processes. `on_rows` is called in the thread that
    calls `run` or `pump`.
    """

    def __init__(self, setups: Sequence[Setup], on_rows: Callable[[Sequence[Row]], None]) -> None:
        self._setups = list(setups)
        self._on_rows = on_rows
        self._messages: queue.SimpleQueue[list[Row] | Done | ClientError] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Pipe] = []
        self._listeners: list[threading.Thread] = []
        self._windows: list[int] = []
        self._closing = False
        self._next_tick = time.monotonic()

    def __enter__(self) -> Self:
        try:
            for setup in self._setups:
                self._start(setup)
            # An empty job each: none is late to the first planned send because it still imports.
            self.run([Job("start", "closed", -1, (), count=0) for _ in self._setups])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._closing = True
        for process in self._processes:
            process.kill()
            process.wait()
        for listener, pipe in zip(self._listeners, self._pipes, strict=True):
            # It ends with its client. A pipe that is closed before may give its number to the next
            # file that is opened here, of which the listener would then read a part away.
            listener.join(LISTENER_ENDS_S)
            if not listener.is_alive():
                pipe.close()

    def _start(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            module_command("refill.load.worker", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            env=module_environment(),
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        theirs.close()
        pipe = Pipe(ours.detach())
        listener = threading.Thread(
            target=self._listen, args=(setup.number, pipe), daemon=True, name="rows"
        )
        self._processes.append(process)
        self._pipes.append(pipe)
        self._listeners.append(listener)
        listener.start()
        pipe.send(setup)

    def _listen(self, number: int, pipe: Pipe) -> None:
        while True:
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                if not self._closing:
                    self._messages.put(ClientError(f"client {number} ended in the middle"))
                return
            if isinstance(message, list):
                message = [Row(*row) for row in message]
            self._messages.put(message)

    def run(
        self,
        jobs: Sequence[Job],
        tick: Callable[[], None] | None = None,
        tick_s: float = 0.25,
    ) -> list[Done]:
        """Give each client its job (by position) and wait for all of them to end.

        `tick` is called about every `tick_s` seconds meanwhile, counted on from the last call, so
        that short jobs in a row are watched too. What it raises ends the clients.

        Raises:
            ClientError: a client process ended or failed.
        """
        self._windows = [job.window for job in jobs]
        for pipe, job in zip(self._pipes, jobs, strict=False):
            pipe.send(job)
        done: list[Done] = []
        while len(done) < len(jobs):
            if (message := self._next(self._next_tick if tick else None)) is not None:
                if isinstance(message, ClientError):
                    raise message
                if isinstance(message, Done):
                    if message.failure:
                        raise ClientError(f"client {message.client}: {message.failure}")
                    done.append(message)
                else:
                    self._on_rows(message)
            if tick is not None and time.monotonic() >= self._next_tick:
                tick()
                self._next_tick = time.monotonic() + tick_s
        return done

    def stop(self) -> None:
        """Ask all clients to end the job that `run` gave them, after the request under way."""
        for pipe, window in zip(self._pipes, self._windows, strict=False):
            pipe.send(Stop(window))

    def _next(self, deadline: float | None) -> list[Row] | Done | ClientError | None:
        """Give the next message, or None when there is none until the deadline."""
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._messages.get(timeout=left)
        except queue.Empty:
            return None

"""Run an engine as a process of this machine: free port, own folder, log, counters, and an end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address
from refill.processes import die_with_parent
from refill.runtimes.ports import free_port
from refill.runtimes.started_engine import StartedEngine
from refill.runtimes.strays import end_strays, engine_begins, engine_is_gone
from refill.runtimes.users import hand_over, other_user, place_for

STOP_TIMEOUT_S = 20.0
RUN_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Resources:
    """Counters of an engine's process and its children, summed; NaN where they cannot be had.

    `throttled_s` and `memory_peak_bytes` are told by a control group: of containers only.
    """

    rss_bytes: float = float("nan")
    cpu_s: float = float("nan")
    read_bytes: float = float("nan")
    write_bytes: float = float("nan")
    throttled_s: float = float("nan")
    memory_peak_bytes: float = float("nan")


class ProcessEngine(StartedEngine):
    """An engine that runs as a process.

    Args:
        description: what to run.
        scratch: a folder of this run's own for the engine's data. What a killed run left in it is
            removed at the start; all of it is removed at the end.
        log: file that takes the engine's output.
        data: a folder of the caller's for the engine's data, in place of one in `scratch`: it is
            neither emptied at the start nor removed at the end.
    """

    runtime = "process"

    def __init__(
        self, description: Description, scratch: Path, log: Path, data: Path | None = None
    ) -> None:
        super().__init__(description, log)
        self._user = other_user(description.user)
        # Absolute: the engine runs in its own folder.
        folder = place_for(self._user, scratch, description.plain_path)
        self._keeps_data = data is not None
        storage = data.resolve() if data else folder / description.name
        self._place = Place(free_port(), storage)
        self._process: subprocess.Popen[bytes] | None = None
        # Of the process and all that it starts; None once it was killed.
        self._group: int | None = None
        self._may_be_left = False
        self.address = Address("127.0.0.1", self._place.port)

    def __enter__(self) -> Self:
        if not self._keeps_data:
            shutil.rmtree(self._place.storage, ignore_errors=True)
        return super().__enter__()

    def spawn(self) -> None:
        """Start the engine and do not wait until it is ready.

        Raises:
            EngineError: its folder cannot be made, or its program cannot be started.
        """
        # What a process that ended by itself may have left, such as the server of a wrapper.
        self._kill_all()
        try:
            self._place.storage.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(
                f"{self.description.name} cannot be started: its folder for data cannot be made: "
                f"{error.strerror}"
            ) from error
        command = list(self.description.command(self._place))
        if self._user is not None:
            self._place.storage.parent.chmod(0o711)
            hand_over(self._place.storage, self._user)
        self._launch(command)

    def _launch(self, command: list[str]) -> None:
        given, user = self.description.standard_input, self._user
        # What another user may run as, without root's groups.
        as_user: dict[str, Any] = (
            {"user": user.uid, "group": user.gid, "extra_groups": []} if user else {}
        )
        engine_begins(self)
        with self.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if given else subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._place.storage,
                    env={**os.environ, **self.description.variables_at(self._place)},
                    start_new_session=True,
                    preexec_fn=partial(_prepare_child, self.description.cpus),
                    **as_user,
                )
            except OSError as error:
                engine_is_gone(self)
                raise EngineError(
                    f"{self.description.name} cannot be started: {command[0]}: {error.strerror}"
                ) from error
        self._group, self._may_be_left = self._process.pid, True
        if given:
            assert self._process.stdin is not None
            # It can have ended already; `check` says so.
            with suppress(BrokenPipeError):
                self._process.stdin.write(given(self._place))
                self._process.stdin.flush()
                if self.description.input_ends:
                    self._process.stdin.close()

    @property
    def inner(self) -> Address:
        """Where the other engines of a run reach it: as this process does."""
        return self.address

    @property
    def pid(self) -> int:
        """The engine's process id."""
        if self._process is None:
            raise EngineError(f"{self.description.name} has not been started")
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit status, negative: the signal that ended it; None while it runs."""
        return None if self._process is None else self._process.poll()

    def _disk(self) -> Path:
        return self._place.storage

    def kill(self) -> None:
        """Kill the engine's process and all that it started (SIGKILL); its data stay."""
        self._kill_all()

    def _kill_all(self) -> None:
        process = self._process
        if process is None or not self._may_be_left:
            return
        # Once only: the number of a group that is gone can be another's later.
        group, self._group = self._group, None
        if group is not None:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.wait()
        end_strays(process.pid, self._place.storage, self._place.port)
        self._may_be_left = False
        engine_is_gone(self)

    def owns(self, process: int) -> bool:
        """Say whether a process is the engine's: the one that was started, or of its group."""
        try:
            return self._group is not None and os.getpgid(process) == self._group
        except ProcessLookupError:
            return False

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run the engine's program once more, with further arguments, as it was started.

        Returns:
            The exit status, and what it wrote.

        Raises:
            EngineError: it did not end in time.
        """
        try:
            done = subprocess.run(
                [*self.description.command(self._place), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self._place.storage,
                env={**os.environ, **self.description.variables_at(self._place)},
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{self.description.name} {' '.join(arguments)} runs on after {RUN_TIMEOUT_S:g} s"
            ) from None
        return done.returncode, done.stdout

    def resources(self) -> Resources:
        """Give the counters of the engine's processes now."""
        if self._process is None:
            return Resources()
        rss = cpu = read = written = 0.0
        try:
            root = psutil.Process(self._process.pid)
            for process in [root, *root.children(recursive=True)]:
                with process.oneshot():
                    rss += process.memory_info().rss
                    times = process.cpu_times()
                    cpu += times.user + times.system
                    if process is root:
                        cpu += times.children_user + times.children_system
                    try:
                        counters = process.io_counters()
                        read += counters.read_bytes
                        written += counters.write_bytes
                    except psutil.AccessDenied:
                        # Another user's, and this process may not look: not known, not nothing.
                        read = written = float("nan")
        except psutil.Error:
            return Resources()  # it ended in between; `check` says so
        return Resources(rss, cpu, read, written)

    def _end(self) -> None:
        """End the engine and all that it started, and remove its data."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                process.terminate()
                if not self._ends_within(STOP_TIMEOUT_S):
                    self.kill()
            if process.stdin is not None:
                # What an engine that ended did not read of its input is tried once more here.
                with suppress(BrokenPipeError):
                    process.stdin.close()
            # A helper process that stayed behind.
            self._kill_all()
        if not self._keeps_data:
            shutil.rmtree(self._place.storage.parent, ignore_errors=True)


def _prepare_child(cpus: int | None) -> None:
    """Between fork and exec, as the engine's user, so that the kernel forgets none of it."""
    die_with_parent()
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])

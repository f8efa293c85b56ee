"""An engine that is started here, whatever runs it: how it becomes ready, and how it ends."""

from __future__ import annotations

import shutil
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from refill.engines.description import Description, EngineError
from refill.load.wire import Address
from refill.processes import wait_for
from refill.runtimes.readiness import last_lines, wait_until_ready

FULL_BELOW_BYTES = 32 << 20
EVERY_S = 0.005


class StartedEngine(ABC):
    """An engine that is started here. Used as a context: entering starts it, leaving ends it.

    Args:
        description: what to run.
        log: file that takes the engine's output.

    Attributes:
        address: where it is reached.
        start_s: how long the last start took until it was ready; NaN before the first.
    """

    address: Address

    def __init__(self, description: Description, log: Path) -> None:
        self.description = description
        self.log = log
        self.start_s = float("nan")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._end()

    # ---- what each runtime does in its own way

    @abstractmethod
    def spawn(self) -> None:
        """Start the engine and do not wait until it is ready.

        Raises:
            EngineError: it cannot be started.
        """

    @abstractmethod
    def ended(self) -> int | None:
        """Its exit status, negative: the signal that ended it; None while it runs."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the engine (SIGKILL) and wait for its end; its data stay."""

    @abstractmethod
    def _disk(self) -> Path:
        """A path on the disk that holds its data; it need not be in sight."""

    @abstractmethod
    def _end(self) -> None:
        """End it and remove what it leaves."""

    def _why_ended(self) -> str:
        """What more is known of an end that nobody asked for; empty when nothing is."""
        return ""

    # ---- start

    def start(self) -> None:
        """Start the engine and wait until it is ready; its data are what it left.

        `start_s` then holds how long that took.

        Raises:
            EngineError: it ended, or was not ready in time; with the last lines of its log.
        """
        began = time.monotonic()
        self.spawn()
        wait_until_ready(self.description, self.address, self.check, self._told)
        self.start_s = time.monotonic() - began

    # ---- how it is

    def check(self) -> None:
        """Raise EngineError when the engine has ended."""
        if (status := self.ended()) is None:
            return
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        raise EngineError(
            f"{self.description.name} has ended ({how}{self._why_ended()}).{self._told()}"
        )

    def _told(self) -> str:
        return self.trouble() + self.tail()

    def trouble(self) -> str:
        """Say what is wrong with the place that the engine runs in; empty when nothing is."""
        try:
            free = shutil.disk_usage(self._disk()).free
        except OSError:
            return ""  # out of sight
        if free >= FULL_BELOW_BYTES:
            return ""
        return f" The disk that holds its data is full ({free / 1e6:.0f} MB are free)."

    def tail(self) -> str:
        """The last lines of its log, each on a line of its own."""
        return last_lines(self.log)

    # ---- end

    def wait_end(self, seconds: float) -> int:
        """Wait for its end; its exit status as `ended` gives it.

        Raises:
            EngineError: it runs on.
        """
        if not self._ends_within(seconds):
            raise EngineError(f"{self.description.name} runs on after {seconds:g} s")
        status = self.ended()
        assert status is not None
        return status

    def _ends_within(self, seconds: float) -> bool:
        return wait_for(lambda: self.ended() is not None, seconds, EVERY_S)

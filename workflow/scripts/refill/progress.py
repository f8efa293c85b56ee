"""Progress that a person can follow: one line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PLAIN_EVERY_S = 5.0
MOVING_EVERY_S = 0.25


class Progress:
    """Says where a run stands, on the terminal and in the log.

    Args:
        title: what runs; stands at the start of every line.
        terminal: where people look; None: nobody does.
        log: gets a plain line at every change of phase and every few seconds.
    """

    def __init__(self, title: str, terminal: IO[str] | None, log: IO[str]) -> None:
        self._title = title
        self._terminal = terminal
        self._moving = terminal is not None and terminal.isatty()
        self._log = log
        self._start = time.monotonic()
        self._last_moved = self._last_plain = 0.0
        self._width = 0

    def say(self, text: str) -> None:
        """Say something that stays."""
        self._clear()
        for stream in self._plain_streams(both=True):
            print(self._line(text), file=stream, flush=True)
        self._last_plain = time.monotonic()

    def ended(self, record: Mapping[str, Any], path: Path, good: str, bad: str = "INVALID") -> None:
        """Say what came of a measurement: its warnings, then `good` or why it is `bad`.

        `record` is what was written at `path`.
        """
        for warning in record.get("warnings", ()):
            self.say(f"note: {warning}")
        if record["valid"]:
            self.say(f"{good}: {path}")
            return
        for reason in record["invalid"]:
            self.say(f"{bad}: {reason}")
        self.say(f"the record says so; for another try: rm {path}, and run as before")

    def at(self, text: str) -> None:
        """Say where the run is now; may be called as often as one likes."""
        now = time.monotonic()
        if self._moving and self._terminal and now - self._last_moved >= MOVING_EVERY_S:
            line = self._line(text)
            print(f"\r{line:<{self._width}}", end="", file=self._terminal, flush=True)
            self._width, self._last_moved = len(line), now
        if now - self._last_plain >= PLAIN_EVERY_S:
            for stream in self._plain_streams(both=not self._moving):
                print(self._line(text), file=stream, flush=True)
            self._last_plain = now

    def _plain_streams(self, both: bool) -> list[IO[str]]:
        return [self._log, self._terminal] if both and self._terminal else [self._log]

    def _line(self, text: str) -> str:
        return f"{self._title} {time.monotonic() - self._start:6.1f} s  {text}"

    def _clear(self) -> None:
        if self._moving and self._terminal and self._width:
            print("\r" + " " * self._width + "\r", end="", file=self._terminal)
            self._width = 0


def silent(title: str) -> Progress:
    """Progress for tests and commands without a log of their own."""
    return Progress(title, None, sys.stderr)

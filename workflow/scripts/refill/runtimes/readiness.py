"""When a started engine can serve, and what its log says when it cannot."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from refill.engines.description import Description, EngineError
from refill.load.wire import Address

LOG_LINES = 12
# Java, Rust and Valkey alike: a level, or the name of an exception.
ERROR = re.compile(r"\b(ERROR|FATAL|SEVERE|CRITICAL|[Ee]rror:)|Exception\b|Error\b|panicked|^# ")
EVERY_S = 0.02


def wait_until_ready(
    description: Description,
    address: Address,
    check: Callable[[], None],
    told: Callable[[], str],
) -> None:
    """Ask an engine until it is ready.

    Args:
        description: knows how to ask, and for how long.
        address: where it listens.
        check: raises when it has ended.
        told: gives what is wrong with its place, and the last lines of its log.

    Raises:
        EngineError: it ended, or was not ready in time; with what `told` gives.
    """
    deadline = time.monotonic() + description.start_timeout_s
    while time.monotonic() < deadline:
        check()
        try:
            if description.ready(address):
                return
        except OSError:
            pass  # not listening yet
        time.sleep(EVERY_S)
    raise EngineError(
        f"{description.name} was not ready within {description.start_timeout_s:g} s.{told()}"
    )


def last_lines(log: Path) -> str:
    """Give the last lines of a log, each on a line of its own, and before them its first error.

    A long trace ends in its least telling part, and leaves the error itself above.
    """
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    if not lines:
        return " Its log is empty."
    shown = lines[-LOG_LINES:]
    first = next((line for line in lines if ERROR.search(line)), None)
    if first is not None and first not in shown:
        shown = [first, "...", *shown]
    return "".join(f"\n    {line}" for line in shown)

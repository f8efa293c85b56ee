"""When a started engine can serve, and what its log says when it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from refill.engines.description import Description, EngineError
from refill.load.wire import Address

LOG_LINES = 12
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
    """Give the last lines of a log, each on a line of its own."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except FileNotFoundError:
        lines = []
    return "".join(f"\n    {line}" for line in lines) if lines else " Its log is empty."

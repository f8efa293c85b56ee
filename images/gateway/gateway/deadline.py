"""Until when a request may take: one limit for all that it waits for."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

# The end in the event loop's time, and the limit; every request runs in a task of its own, and so
# in a context of its own.
_until: ContextVar[tuple[float, float] | None] = ContextVar("until", default=None)


def begin(limit: float) -> None:
    """Give what this task does from now on so many seconds, waiting for others included."""
    _until.set((asyncio.get_running_loop().time() + limit, limit))


def extend(seconds: float) -> None:
    """Do not count so many seconds: they had a limit of their own."""
    found = _until.get()
    if found is not None:
        _until.set((found[0] + seconds, found[1]))


def renew(since: float) -> float | None:
    """Count from a moment at which those before this request got on; gives the end, if any."""
    found = _until.get()
    if found is None:
        return None
    end, limit = found
    if since + limit > end:
        end = since + limit
        _until.set((end, limit))
    return end


def left(limit: float) -> float:
    """How many seconds one step may take that has a limit itself; 0 or less: none."""
    found = _until.get()
    return limit if found is None else min(limit, found[0] - asyncio.get_running_loop().time())

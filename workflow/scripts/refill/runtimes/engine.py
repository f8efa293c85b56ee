"""What a running engine offers, whatever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from refill.engines.description import Description, EngineError
from refill.load.wire import Address
from refill.processes import wait_for
from refill.runtimes.process import Resources

EXPLAIN_S = 1.0


class Engine(Protocol):
    """An engine of any runtime. Used as a context: entering starts it, leaving ends it."""

    description: Description
    address: Address

    @property
    def runtime(self) -> str:
        """Name of the runtime in records."""
        ...

    @property
    def start_s(self) -> float | None:
        """Seconds from start to ready; None where it ran before."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None: ...

    def check(self) -> None:
        """Raise EngineError when the engine has ended."""
        ...

    def trouble(self) -> str:
        """Say what is wrong with the place that the engine runs in; empty when nothing is."""
        ...

    def tail(self) -> str:
        """The last lines of its log, each on a line of its own; empty where there is none."""
        ...

    def resources(self) -> Resources:
        """Give the counters of the engine's processes now."""
        ...


def explained(error: Exception, engines: Sequence[Engine]) -> str:
    """Give an error's words with what the engines tell that it can come of.

    An engine that has ended comes first: a broken connection can be seen a moment before the end
    of the process that caused it. Otherwise a full disk, and the log of the engine that the error
    names.

    Args:
        error: what was noticed of them.
        engines: those that were started.
    """
    words = str(error)
    ended = ""

    def look() -> bool:
        nonlocal ended
        for engine in engines:
            try:
                engine.check()
            except EngineError as found:
                ended = str(found)
                return True
        return False

    if wait_for(look, EXPLAIN_S):
        return words if ended in words else f"{ended} (seen as: {words})"
    for trouble in filter(None, (engine.trouble() for engine in engines)):
        words += "" if trouble in words else trouble
    if isinstance(error, EngineError):
        for engine in engines:
            named = words.startswith(f"{engine.description.name}:")
            words += engine.tail() if named and "\n" not in words else ""
    return words

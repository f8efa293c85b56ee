"""What a running engine offers, whatever runs it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from refill.engines.description import Description
from refill.load.wire import Address
from refill.runtimes.process import Resources


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

    def resources(self) -> Resources:
        """Give the counters of the engine's processes now."""
        ...

"""Use an engine that already runs at a URL. It is never started, stopped or reconfigured here."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from refill.engines.description import Description, EngineError
from refill.load.wire import Address
from refill.runtimes.process import Resources


class ExternalEngine:
    """An engine at a URL; its processes are out of sight, so it has no resource counters."""

    runtime = "external"
    # It ran before.
    start_s: float | None = None

    def __init__(self, description: Description, address: Address) -> None:
        self.description = description
        self.address = address

    def __enter__(self) -> Self:
        try:
            ready = self.description.ready(self.address)
        except OSError as error:
            raise EngineError(
                f"{self.description.name}: nothing answers at the address in the config "
                f"({error}); check `url` there and that the server runs"
            ) from error
        if not ready:
            raise EngineError(f"{self.description.name} at the configured `url` is not ready")
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        return

    def trouble(self) -> str:
        """Nothing can be known of its disk."""
        return ""

    def tail(self) -> str:
        """Its log is out of sight."""
        return ""

    def check(self) -> None:
        """A broken connection shows in the requests themselves."""

    def resources(self) -> Resources:
        """No counters can be had."""
        return Resources()

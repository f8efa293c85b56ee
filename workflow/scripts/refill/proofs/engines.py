"""What the proof does with an engine, whatever runs it, and a gateway's parts as processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from refill.engines import qdrant
from refill.engines.description import Description, archive_program
from refill.evidence.hashes import sha256_file
from refill.faults.gate import Gate
from refill.load.wire import Address
from refill.runtimes import engine as runtimes
from refill.runtimes.process import ProcessEngine

GATEWAY, QDRANT, VALKEY = "gateway", "qdrant", "valkey"


class Engine(runtimes.Engine, Protocol):
    """An engine that can be killed and started again on its data."""

    @property
    def inner(self) -> Address:
        """Where the other engines of the proof reach it."""
        ...

    @property
    def pid(self) -> int:
        """Process id of its main process on this machine; EngineError: it is out of sight."""
        ...

    def start(self) -> None:
        """Start it and wait until it is ready."""
        ...

    def spawn(self) -> None:
        """Start it and do not wait."""
        ...

    def ended(self) -> int | None:
        """Its exit status, negative: the signal that ended it; None while it runs."""
        ...

    def wait_end(self, seconds: float) -> int:
        """Wait for its end; its exit status. Raises EngineError when it runs on."""
        ...

    def kill(self) -> None:
        """SIGKILL, and wait for its end; nothing happens when it has ended already."""
        ...

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run its program once more beside it; the exit status and what it wrote."""
        ...

    def tail(self) -> str:
        """The last lines of its log, each on a line of its own."""
        ...


class Parts(Protocol):
    """What a whole gateway is made of, beside its server.

    Attributes:
        image_id: identity of the gateway's image.
        program: what starts the gateway.
    """

    image_id: str
    program: Sequence[str]

    def qdrant(self, cpus: int, start_timeout_s: float) -> Description:
        """The Qdrant behind the gateway."""
        ...

    def engine(self, part: str, description: Description, place: Path) -> Engine:
        """The part as it is run; `place` is a folder for its log and data."""
        ...

    def gate(self, to: Engine) -> Gate:
        """A gate in front of a part, where the others reach it; NotRunError: they could not."""
        ...


class Archives:
    """A gateway and the embedded Qdrant out of their archives, as processes.

    Args:
        gateway: the gateway's archive.
        qdrant_archive: the embedded Qdrant's.
    """

    def __init__(self, gateway: Path, qdrant_archive: Path) -> None:
        self.image_id = sha256_file(gateway)
        self.program: Sequence[str] = archive_program(gateway)
        self._qdrant = archive_program(qdrant_archive)

    def qdrant(self, cpus: int, start_timeout_s: float) -> Description:
        """The embedded Qdrant."""
        return qdrant.embedded(self._qdrant, cpus, start_timeout_s)

    def engine(self, part: str, description: Description, place: Path) -> Engine:
        """A part as a process."""
        return ProcessEngine(description, place / part, place / f"{part}.log")

    def gate(self, to: Engine) -> Gate:
        """A gate on loopback."""
        return Gate(to.address)

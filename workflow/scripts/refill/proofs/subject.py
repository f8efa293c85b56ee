"""What a check is tried on: one image's scripts on one server."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from refill.proofs.calls import Index
from refill.proofs.engines import Parts
from refill.proofs.servers import Program, Server


@dataclass(frozen=True)
class Scale:
    """How much of what can be had in any amount.

    Attributes:
        fills: responses that are published where their number matters.
        kills: of the server, in histories of calls.
        gateway_kills: of the gateway, in histories of requests.
        other_kills: of a server that is not the default.
        cut_s: seconds of writing before the power is cut.
    """

    name: str
    fills: int
    kills: int
    gateway_kills: int
    other_kills: int
    cut_s: float


@dataclass
class Subject:
    """One image on one server.

    Attributes:
        image: `old` or `new`.
        sources: the image's scripts by name.
        folder: scratch; every server has a folder of its own in it.
        seed: of everything that is drawn.
        parts: what a whole gateway is made of; None where only scripts are tried.
        tell: takes one line on how far a long check is.
        keep: takes the name and the text of a file that tells more of a failure.
    """

    image: str
    sources: Mapping[str, bytes]
    program: Program
    folder: Path
    scale: Scale
    seed: int = 1
    parts: Parts | None = None
    tell: Callable[[str], None] = lambda _: None
    keep: Callable[[str, str], None] = lambda *_: None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def server_name(self) -> str:
        """The server's name in records."""
        return self.program.name

    @property
    def ephemeral(self) -> bool:
        """Whether this image's publications are meant to leave no trace in the log."""
        return self.image == "new"

    def place(self) -> Path:
        """A path in the scratch folder that nothing has used."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{self.image}-{self.program.name}-{next(self._numbers)}"

    def server(self, data: Path | None = None, **settings: str) -> Server:
        """A new server, to be used as a context. Settings: `appendfsync="no"` and the like."""
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return Server(self.program, self.sources, self.place(), data, **given)

    def random(self, *names: object) -> random.Random:
        """A source of chance of this subject's own: the same for the same seed and names."""
        return random.Random(f"{self.seed} {self.image} {' '.join(map(str, names))}")


def create(server: Server, index: Index | None = None) -> Index:
    """Create an index: generation 0, mapping version 1."""
    made = index or Index()
    server.run(made.set_epoch())
    server.run(made.claim("create", f"create {made.name}"))
    server.run(made.commit("create", f"create {made.name}"))
    return made


def change(server: Server, index: Index, token: str = "change") -> int:
    """Make a durable change, which advances the generation; the new one."""
    server.run(index.admit(token))
    generation: int = server.run(index.release(token))[1]
    return generation

"""The three parts of a round's gateway, and how each is started: a process, or in a container."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.engines import gateway, valkey
from refill.engines.description import archive_program
from refill.evidence.hashes import sha256_file
from refill.load.wire import Address
from refill.phases import containers
from refill.phases.containers import Containers
from refill.phases.image_records import archive_of, image_block, read_image
from refill.phases.qdrant_engine import QdrantParts
from refill.runtimes.engine import Engine
from refill.runtimes.process import ProcessEngine


@dataclass(frozen=True)
class Parts:
    """What a system is made of.

    Attributes:
        root: the project's folder, which paths in image records are relative to.
        gateway_image: record of the gateway's image.
        qdrant_image: record of Qdrant's image; None for a binary or a URL.
        valkey_image: record of Valkey's image; None where it is a process.
        qdrant: the `qdrant` section of the config.
        valkey: the `rounds.valkey` section.
        gateway: the `rounds.gateway` section.
        cpus: CPUs that Qdrant may use.
        serving: whether the gateway serves from its cache.
        index: name of the index.
        namespace: prefix of the gateway's keys and collections.
    """

    root: Path
    gateway_image: Path
    qdrant_image: Path | None
    valkey_image: Path | None
    qdrant: Mapping[str, Any]
    valkey: Mapping[str, Any]
    gateway: Mapping[str, Any]
    cpus: int
    serving: bool
    index: str
    namespace: str


class Starter(ABC):
    """Gives the three parts, none of them started yet, and says what they are.

    Args:
        parts: what the system is made of.
        scratch: a folder of this target's own.
        logs: folder that takes the logs of the three.
    """

    runtime: str

    def __init__(self, parts: Parts, scratch: Path, logs: Path) -> None:
        self._parts = parts
        self._scratch = scratch
        self._logs = logs
        self._image = read_image(parts.gateway_image)
        self._qdrant = QdrantParts(parts.root, parts.qdrant_image, parts.qdrant, parts.cpus)

    @abstractmethod
    def valkey(self, password: str) -> Engine:
        """Give Valkey."""

    @abstractmethod
    def qdrant(self) -> Engine:
        """Give Qdrant."""

    @abstractmethod
    def gateway(self, backends: gateway.Backends) -> Engine:
        """Give the gateway over its two backends."""

    @abstractmethod
    def reached(self, engine: Engine) -> Address:
        """Give where another part reaches one of them."""

    def _settings(self) -> dict[str, Any]:
        return {**self._parts.gateway, "namespace": self._parts.namespace}

    def identities(
        self, engines: Mapping[str, Engine], stated: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Give what runs, by part; `stated` is what each says of itself."""
        return {
            "gateway": {
                **stated["gateway"],
                "runtime": self.runtime,
                "image": image_block(self._image),
                **self._more(engines["gateway"]),
            },
            "qdrant": self._qdrant.identity(engines["qdrant"], stated["qdrant"]),
            "valkey": {
                **stated["valkey"],
                "runtime": self.runtime,
                **self._valkey_source(),
                **self._more(engines["valkey"]),
            },
        }

    @abstractmethod
    def _valkey_source(self) -> dict[str, Any]: ...

    def _more(self, _: Engine) -> dict[str, Any]:
        return {}


class ProcessStarter(Starter):
    """Each part is a process of this machine; Qdrant may be one at a URL."""

    runtime = "process"

    def __init__(self, parts: Parts, scratch: Path, logs: Path) -> None:
        super().__init__(parts, scratch, logs)
        # What can be refused is refused before anything runs.
        self._binary = valkey.find_binary(parts.valkey["binary"])
        self._archive = archive_of(parts.root, self._image)

    def valkey(self, password: str) -> Engine:
        """Give Valkey."""
        limit = self._parts.valkey["start_timeout_s"]
        described = valkey.server([str(self._binary)], password, limit)
        return ProcessEngine(described, *self._place("valkey"))

    def qdrant(self) -> Engine:
        """Give Qdrant."""
        return self._qdrant.engine(*self._place("qdrant"), None)

    def gateway(self, backends: gateway.Backends) -> Engine:
        """Give the gateway over its two backends."""
        program = archive_program(self._archive)
        described = gateway.server(
            program, self._image["id"], backends, self._parts.serving, self._settings()
        )
        return ProcessEngine(described, *self._place("gateway"))

    def reached(self, engine: Engine) -> Address:
        """Give where another part reaches one of them."""
        return engine.address

    def _place(self, name: str) -> tuple[Path, Path]:
        # A folder each: an engine removes the folder above its own at its end.
        return self._scratch / name, self._logs / f"{name}.log"

    def _valkey_source(self) -> dict[str, Any]:
        return {"binary": sha256_file(self._binary)}


class ContainerStarter(Starter):
    """Each part is a container; the three share one budget and one network.

    Args:
        inside: where the containers belong.
    """

    runtime = "docker"

    def __init__(self, parts: Parts, scratch: Path, logs: Path, inside: Containers) -> None:
        super().__init__(parts, scratch, logs)
        assert parts.valkey_image is not None
        self._valkey_image = read_image(parts.valkey_image)
        self._inside = inside

    def valkey(self, password: str) -> Engine:
        """Give Valkey."""
        limit = self._parts.valkey["start_timeout_s"]
        described = valkey.container(self._valkey_image, password, limit)
        return self._inside.engine(described, self._valkey_image, shared=True)

    def qdrant(self) -> Engine:
        """Give Qdrant."""
        unused, log = self._scratch / "qdrant", self._logs / "qdrant.log"
        return self._qdrant.engine(unused, log, self._inside, shared=True)

    def gateway(self, backends: gateway.Backends) -> Engine:
        """Give the gateway over its two backends."""
        described = gateway.server(
            [], self._image["id"], backends, self._parts.serving, self._settings()
        )
        return self._inside.engine(described, self._image, shared=True)

    def reached(self, engine: Engine) -> Address:
        """Give where another part reaches one of them: on the network of the round."""
        return containers.inner(engine)

    def _valkey_source(self) -> dict[str, Any]:
        return {"image": image_block(self._valkey_image)}

    def _more(self, engine: Engine) -> dict[str, Any]:
        return containers.identity(engine)

"""The Qdrant of a measurement: of an image, a binary or a URL, as a process or in a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.engines import qdrant
from refill.engines.description import archive_program
from refill.evidence.hashes import sha256_file
from refill.load.wire import Address
from refill.phases import containers
from refill.phases.containers import Containers
from refill.phases.image_records import archive_of, image_block, read_image
from refill.runtimes.engine import Engine
from refill.runtimes.external import ExternalEngine
from refill.runtimes.process import ProcessEngine


@dataclass(frozen=True)
class QdrantParts:
    """What a Qdrant is made of.

    Attributes:
        root: the project's folder, which paths in image records are relative to.
        image: record of its image; None for a binary or a URL.
        given: the `qdrant` section of the config.
        cpus: CPUs that it may use.
    """

    root: Path
    image: Path | None
    given: Mapping[str, Any]
    cpus: int

    def engine(
        self, scratch: Path, log: Path, inside: Containers | None, shared: bool = False
    ) -> Engine:
        """Give the engine, which is not started yet.

        Args:
            scratch: a folder of its own for its data.
            log: file that takes its output.
            inside: where its container belongs; None: it is none.
            shared: whether a container has a part in the shared budget.

        Raises:
            EngineError: its archive or image is not the one of the record.
        """
        given, limit = self.given, self.given["start_timeout_s"]
        if inside is not None:
            assert self.image is not None
            image = read_image(self.image)
            described = qdrant.container(image, self.cpus, limit)
            return inside.engine(described, image, shared)
        if given.get("url"):
            return ExternalEngine(qdrant.external(limit), Address.from_url(given["url"]))
        if given.get("binary"):
            program = [str(Path(given["binary"]).absolute())]
            described = qdrant.server(program, self.cpus, limit)
        else:
            assert self.image is not None
            program = archive_program(archive_of(self.root, read_image(self.image)))
            described = qdrant.embedded(program, self.cpus, limit)
        return ProcessEngine(described, scratch, log)

    def identity(self, engine: Engine, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Give what a record says of the running engine.

        Args:
            engine: that is running.
            stated: what it says of itself.
        """
        binary = self.given.get("binary") if engine.runtime == "process" else None
        image = read_image(self.image) if self.image else None
        # The title tells, so that an embedded engine behind a URL does not pass as the server.
        built_here = image is not None and "reference" not in image
        return {
            "name": "qdrant",
            "runtime": engine.runtime,
            "embedded": built_here or "embedded" in str(stated.get("title")),
            "cpus": None if engine.runtime == "external" else self.cpus,
            "image": image_block(image) if image else None,
            "binary": sha256_file(Path(binary)) if binary else None,
            **(containers.identity(engine) if engine.runtime == "docker" else {}),
            **stated,
        }

"""The proof in containers: the scripts of the images themselves, and servers that run in them.

A server's data lie in a folder of this machine that its container sees: they can be damaged there,
or be on a disk whose power is cut.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from refill.engines import qdrant, valkey
from refill.engines.description import Description, EngineError
from refill.faults.gate import Gate
from refill.phases.image_records import image_block
from refill.proofs.calls import known_sources
from refill.proofs.engines import GATEWAY, QDRANT, VALKEY, Engine
from refill.proofs.findings import IMAGES, ControlError, NotRunError
from refill.proofs.identity import product_of
from refill.proofs.servers import DEFAULT, REDIS_7, START_S, VALKEY_9, Program, Server
from refill.proofs.setup import Setup
from refill.runtimes.docker import ContainerEngine, ContainerRun
from refill.runtimes.docker_daemon import connect, daemon_record, told
from refill.runtimes.docker_images import present

SCRIPTS = "gateway/lua"


@dataclass(frozen=True)
class Image:
    """An image that containers of a run are made of: the run, and the image's record."""

    run: ContainerRun
    record: Mapping[str, Any]

    def engine(
        self, description: Description, log: Path, data: Path | None = None
    ) -> ContainerEngine:
        """Give an engine in a container of it, without limits."""
        return self.run.engine(description, self.record["id"], log, shared=False, data=data)


@dataclass(frozen=True)
class ContainerProgram(Program):
    """A server's program in an image."""

    image: Image | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)

    def engine(
        self, password: str, settings: Mapping[str, str], folder: Path, data: Path
    ) -> ContainerEngine:
        """Give the server in a container that sees the folder `data`."""
        assert self.image is not None
        described = valkey.container(self.image.record, password, START_S, settings)
        named = replace(described, name=self.name)
        return self.image.engine(named, folder / "server.log", data)

    def disturbances(self) -> Sequence[str]:
        """What others did to containers of its run, a gateway's too."""
        return () if self.image is None else tuple(self.image.run.disturbances)

    def as_json(self) -> dict[str, Any]:
        """What a record says of it."""
        return {**super().as_json(), "image": self.identity["image"]}

    def engine_json(self) -> dict[str, Any]:
        """What a record says of it as an engine."""
        return {"name": self.product.lower(), "version": self.version, **self.identity}


class Images:
    """A gateway and a Qdrant out of their images, in containers of one network."""

    def __init__(self, gateway: Image, qdrant_image: Image) -> None:
        self._images = {GATEWAY: gateway, QDRANT: qdrant_image}
        self.image_id: str = gateway.record["id"]
        # The image knows what starts it.
        self.program: Sequence[str] = ()

    def qdrant(self, cpus: int, start_timeout_s: float) -> Description:
        """The Qdrant of the image."""
        return qdrant.container(self._images[QDRANT].record, cpus, start_timeout_s)

    def engine(self, part: str, description: Description, place: Path) -> Engine:
        """A part in a container, its data in a volume."""
        return self._images[part].engine(description, place / f"{part}.log")

    def gate(self, to: Engine) -> Gate:
        """A gate of this process, at this machine's address on the containers' network.

        Raises:
            NotRunError: this machine is not on it.
        """
        host = self._images[GATEWAY].run.host_address()
        try:
            return Gate(to.address, host)
        except OSError as error:
            raise NotRunError(
                f"needs a network that this machine shares with its containers, to stand between "
                f"a gateway and Qdrant: {host}: {error.strerror}"
            ) from error


@contextmanager
def in_containers(
    host: str | None,
    records: Mapping[str, Mapping[str, Any]],
    scratch: Path,
    say: Callable[[str], None],
) -> Iterator[Setup]:
    """Open what the proof is tried on in containers. Leaving it removes all of them.

    Args:
        host: the daemon's address as the config gives it.
        records: image records: `old`, `new`, `qdrant`, `valkey`.
        scratch: a folder for the first server that is started, which says what it is.
        say: told what is removed that an earlier run left.

    Raises:
        EngineError: there is no daemon, it has not the images, or does not see this machine's
            folders.
        ScriptsError: an image has other scripts than the proof knows.
    """
    with closing(connect(host)) as client:
        for record in records.values():
            present(client, record, say)
        with ContainerRun(client, None, host=host, say=say) as run:
            images = {name: Image(run, record) for name, record in records.items()}
            yield Setup(
                "docker",
                [_server_in(images[VALKEY], scratch), *_not_tried()],
                {name: image_block(record) for name, record in records.items()},
                {name: _scripts(client, run, records[name]) for name in IMAGES},
                {name: Images(images[name], images[QDRANT]) for name in IMAGES},
                {"daemon": daemon_record(client), **run.divided()},
            )


def _not_tried() -> list[Program]:
    why = "the proof in containers tries the image of docker.valkey; `runtime: process` tries this"
    return [Program(name, None, missing=why) for name in (VALKEY_9, REDIS_7)]


def _server_in(image: Image, scratch: Path) -> ContainerProgram:
    """Start a server once: what is it, and does it write where this process can read?"""
    program = ContainerProgram(DEFAULT, None, image=image)
    try:
        with Server(program, {}, scratch / "first") as server:
            info: Mapping[str, Any] = server.client.info("server")
            assert isinstance(server.engine, ContainerEngine)
            identity = server.engine.identity()
            settings = server.identity.settings
    except (NotRunError, ControlError) as error:
        raise EngineError(f"the proof cannot run in containers here: {error}") from error
    product, _, version = product_of(info).partition(" ")
    return replace(program, product=product, version=version, identity=identity, settings=settings)


def _scripts(client: Any, run: ContainerRun, record: Mapping[str, Any]) -> dict[str, bytes]:
    """Read the scripts out of a gateway's image, from below its working folder."""
    with told(f"docker: the scripts of the image {record['name']}"):
        folder = client.api.inspect_image(record["id"])["Config"]["WorkingDir"] or "/"
        made = client.api.create_container(record["id"], labels=run.labels)
        try:
            blocks, _ = client.api.get_archive(made["Id"], f"{folder}/{SCRIPTS}")
            tar = io.BytesIO(b"".join(blocks))
        finally:
            client.api.remove_container(made["Id"], v=True, force=True)
    with tarfile.open(fileobj=tar) as archive:
        found = {
            Path(member.name).stem: file.read()
            for member in archive
            if member.name.endswith(".lua") and (file := archive.extractfile(member))
        }
    return known_sources(record["name"], found)

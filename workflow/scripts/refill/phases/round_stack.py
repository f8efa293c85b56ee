"""The gateway's system of one round, made new: Valkey, Qdrant, gateway, and how it is loaded."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refill.contexts import OpensParts
from refill.corpora.documents import Documents
from refill.engines import gateway, qdrant, valkey
from refill.engines.description import Description, EngineError, archive_program
from refill.engines.valkey import Aof
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json
from refill.load.wire import Address
from refill.processes import wait_for
from refill.runtimes.external import ExternalEngine
from refill.runtimes.process import ProcessEngine

IDLE_POLLS = 3
IDLE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Parts:
    """What a system is made of.

    Attributes:
        root: the project's folder, which paths in image records are relative to.
        gateway_image: record of the gateway's image.
        qdrant_image: record of Qdrant's image; None for a binary or a URL.
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
    qdrant: Mapping[str, Any]
    valkey: Mapping[str, Any]
    gateway: Mapping[str, Any]
    cpus: int
    serving: bool
    index: str
    namespace: str


@dataclass(frozen=True)
class Moment:
    """All counters of the system at one moment, none of them inside a timed section."""

    cache: Mapping[str, Any]
    aof: Aof
    resources: Mapping[str, Mapping[str, float | None]]
    # Counters of each native engine beside it.
    natives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class GatewayStack(OpensParts):
    """Valkey, Qdrant and gateway of one round. Used as a context: leaving it ends all three.

    Args:
        parts: what it is made of.
        scratch: a folder of this target's own; removed at the end.
        logs: folder that takes the logs of the three.
    """

    name = "gateway"

    def __init__(self, parts: Parts, scratch: Path, logs: Path) -> None:
        super().__init__()
        self._parts = parts
        self._scratch = scratch
        self._logs = logs
        self.identities: dict[str, Any] = {}

    def _start(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._open.callback(shutil.rmtree, self._scratch, ignore_errors=True)
        parts = self._parts
        # What can be refused is refused before anything runs.
        binary = valkey.find_binary(parts.valkey["binary"])
        image = read_json(parts.gateway_image, "refill.image/1")
        archive = _archive(parts.root, image)
        password, key = valkey.new_password(), qdrant.api_key(parts.qdrant["api_key_env"])
        limit = parts.valkey["start_timeout_s"]
        self._valkey = self._run("valkey", valkey.server([str(binary)], password, limit))
        self._qdrant = self._qdrant_engine()
        backends = gateway.Backends(self._valkey.address, password, self._qdrant.address, key)
        settings = {**parts.gateway, "namespace": parts.namespace}
        program = archive_program(archive)
        described = gateway.server(program, image["id"], backends, parts.serving, settings)
        self._gateway = self._run("gateway", described)
        self.address: Address = self._gateway.address
        self.api = gateway.Api(self.address)
        self._control = valkey.Control(self._valkey.address, password)
        self._qdrant_api = qdrant.Api(self._qdrant.address, key)
        for control in (self.api, self._control, self._qdrant_api):
            self._open.callback(control.close)
        self.identities = self._identities(image, binary)

    def _run(self, name: str, description: Description) -> ProcessEngine:
        # A folder each: an engine removes the folder above its own at its end.
        engine = ProcessEngine(description, self._scratch / name, self._logs / f"{name}.log")
        return self._open.enter_context(engine)

    def _qdrant_engine(self) -> ProcessEngine | ExternalEngine:
        parts, given = self._parts, self._parts.qdrant
        limit = given["start_timeout_s"]
        if given.get("url"):
            kept = ExternalEngine(qdrant.external(limit), Address.from_url(given["url"]))
            return self._open.enter_context(kept)
        if given.get("binary"):
            described = qdrant.server([str(Path(given["binary"]).absolute())], parts.cpus, limit)
        else:
            assert parts.qdrant_image is not None
            image = read_json(parts.qdrant_image, "refill.image/1")
            program = archive_program(_archive(parts.root, image))
            described = qdrant.embedded(program, parts.cpus, limit)
        return self._run("qdrant", described)

    def _identities(self, image: Mapping[str, Any], binary: Path) -> dict[str, Any]:
        parts, found = self._parts, self._qdrant_api.identity()
        identity = self.api.identity()
        if identity["serving"] != parts.serving:
            raise EngineError(
                f"gateway: serving is {identity['serving']}, this round needs {parts.serving}"
            )
        given = parts.qdrant
        edge = read_json(parts.qdrant_image, "refill.image/1") if parts.qdrant_image else None
        return {
            "gateway": {**identity, "image": image_block(image)},
            "qdrant": {
                "name": "qdrant",
                "runtime": self._qdrant.runtime,
                "embedded": edge is not None or "embedded" in str(found.get("title")),
                "cpus": None if given.get("url") else parts.cpus,
                "image": image_block(edge) if edge else None,
                "binary": sha256_file(Path(given["binary"])) if given.get("binary") else None,
                **found,
            },
            "valkey": self._control.identity(binary),
        }

    # ---- priming

    def prime(self, documents: Documents) -> dict[str, Any]:
        """Create the index, load all documents, count them, wait until Qdrant is idle.

        Returns:
            What was seen: how many, how long, and the collection's state at the end.

        Raises:
            EngineError: a document was refused, the count is wrong, or Qdrant does not come to
                rest.
        """
        index, began = self._parts.index, time.monotonic()
        self.api.create_index(index, documents.index_body())
        written = self.api.load(index, documents.bulk(index))
        loaded = time.monotonic() - began
        counted = self.api.count(index)
        if not written == counted == documents.count:
            raise EngineError(
                f"gateway: {documents.count:,} documents were to be loaded, {written:,} were "
                f"acknowledged, {counted:,} are counted"
            )
        state = self._wait_until_idle(counted)
        return {
            "documents": counted,
            "load_s": loaded,
            "seconds": time.monotonic() - began,
            "collection": state,
        }

    def _wait_until_idle(self, points: int) -> dict[str, Any]:
        """Wait until several polls in a row see Qdrant's optimizers idle."""
        name = self._collection()
        idle = 0
        state = qdrant.UNKNOWN_STATE

        def look() -> bool:
            nonlocal idle, state
            self.check()
            info = self._qdrant_api.call("GET", f"/collections/{name}")
            work = self._qdrant_api.call("GET", f"/collections/{name}/optimizations?with=queued")
            state = qdrant.read_state(info, work)
            idle = idle + 1 if state.busy is None and state.points == points else 0
            return idle >= IDLE_POLLS

        if not wait_for(look, IDLE_TIMEOUT_S, 0.05):
            raise EngineError(
                f"qdrant: {state.busy or f'{state.points:,.0f} points of {points:,}'} after "
                f"{IDLE_TIMEOUT_S:g} s: the system is not at rest, so nothing is measured"
            )
        return {
            "points": int(state.points),
            "segments": _known(state.segments),
            "status": state.color,
            "idle_polls": IDLE_POLLS,
        }

    def _collection(self) -> str:
        listed = self._qdrant_api.call("GET", "/collections")["collections"]
        prefix = f"{self._parts.namespace}-"
        names = [entry["name"] for entry in listed if entry["name"].startswith(prefix)]
        if len(names) != 1:
            raise EngineError(f"qdrant: {len(names)} collections of this round, 1 was expected")
        return str(names[0])

    def drop(self) -> None:
        """Delete what a Qdrant that was not started here would keep."""
        if self._qdrant.runtime == "external":
            self.api.delete_index(self._parts.index)

    # ---- counters

    def check(self) -> None:
        """Raise EngineError when one of the three has ended."""
        for engine in (self._valkey, self._qdrant, self._gateway):
            engine.check()

    def moment(self) -> Moment:
        """Give all counters now.

        Raises:
            EngineError: a part does not answer.
        """
        self.check()
        engines = {"gateway": self._gateway, "qdrant": self._qdrant, "valkey": self._valkey}
        return Moment(
            cache=self.api.counters(),
            aof=self._control.aof(),
            resources={
                name: {key: _known(value) for key, value in asdict(engine.resources()).items()}
                for name, engine in engines.items()
            },
        )


def image_block(image: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a record says of an image: identity, tag, tree, and how it differs from another."""
    block = {key: image[key] for key in ("name", "id", "tag", "tree")}
    differs = image.get("differs_from")
    if differs:
        block["differs_from"] = {key: differs[key] for key in ("image", "files")}
    return block


def _archive(root: Path, image: Mapping[str, Any]) -> Path:
    """Give an image's archive when it is the one that its record names."""
    path = root / str(image["archive"])
    if (found := sha256_file(path)) != image["id"].removeprefix("sha256:"):
        raise EngineError(
            f"{image['archive']} has the SHA-256 {found}, its record says {image['id']}: "
            f"delete {image['archive']} and run again"
        )
    return path


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

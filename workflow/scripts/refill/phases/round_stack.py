"""The gateway's system of one round, made new: Valkey, Qdrant, gateway, and how it is loaded."""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refill.contexts import OpensParts
from refill.corpora.documents import Documents
from refill.engines import gateway, qdrant, valkey
from refill.engines.description import EngineError
from refill.engines.valkey import Aof
from refill.load.wire import Address
from refill.phases.containers import Containers
from refill.phases.round_parts import ContainerStarter, Parts, ProcessStarter, Starter
from refill.processes import wait_for
from refill.runtimes.engine import Engine, explained

IDLE_POLLS = 3
IDLE_TIMEOUT_S = 60.0
# Beside the three, in containers: what they use of their budget together.
SHARED = "shared budget"
# What begins the names of a round's collections.
NAMESPACE = re.compile(r"round[0-9a-f]{8}-")


def new_namespace() -> str:
    """Give what begins the names of a round's keys and collections: of one attempt alone."""
    return f"round{secrets.token_hex(4)}"


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
        inside: where their containers belong; None: they are processes.

    Attributes:
        left: in words, what stays in a Qdrant that was not started here, and why.
        engines: those that were started, by name.
    """

    name = "gateway"

    def __init__(
        self, parts: Parts, scratch: Path, logs: Path, inside: Containers | None = None
    ) -> None:
        super().__init__()
        self._parts = parts
        self._scratch = scratch
        self._logs = logs
        self._inside = inside
        self.identities: dict[str, Any] = {}
        self.left: list[str] = []
        self.engines: dict[str, Engine] = {}

    def _start(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._open.callback(shutil.rmtree, self._scratch, ignore_errors=True)
        parts, starter = self._parts, self._starter()
        password, key = valkey.new_password(), qdrant.api_key(parts.qdrant["api_key_env"])
        self._valkey = self._opened(starter.valkey(password))
        self._qdrant = self._opened(starter.qdrant())
        if self._qdrant.runtime == "external":
            self._tell_of_earlier(key)
            # After the gateway's end, however it ends, so that nothing is made anew.
            self._open.callback(self._drop, key)
        inner = starter.reached
        backends = gateway.Backends(inner(self._valkey), password, inner(self._qdrant), key)
        self._gateway = self._opened(starter.gateway(backends))
        self.address: Address = self._gateway.address
        self.api = gateway.Api(self.address)
        self._control = valkey.Control(self._valkey.address, password)
        self._qdrant_api = qdrant.Api(self._qdrant.address, key)
        for control in (self.api, self._control, self._qdrant_api):
            self._open.callback(control.close)
        try:
            self.identities = starter.identities(self.engines, self._stated())
        except EngineError as error:
            # While they are still there to tell.
            raise EngineError(explained(error, list(self.engines.values()))) from error

    def _starter(self) -> Starter:
        if self._inside is None:
            return ProcessStarter(self._parts, self._scratch, self._logs)
        return ContainerStarter(self._parts, self._scratch, self._logs, self._inside)

    def _opened(self, engine: Engine) -> Engine:
        opened = self._open.enter_context(engine)
        self.engines[engine.description.name] = opened
        return opened

    def _stated(self) -> dict[str, dict[str, Any]]:
        """Give what each part says of itself."""
        stated = self.api.identity()
        if stated["serving"] != self._parts.serving:
            raise EngineError(
                f"gateway: serving is {stated['serving']}, this round needs {self._parts.serving}"
            )
        return {
            "gateway": stated,
            "qdrant": self._qdrant_api.identity(),
            "valkey": self._control.identity(),
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
        prefix = f"{self._parts.namespace}-"
        names = [name for name in _collections(self._qdrant_api) if name.startswith(prefix)]
        if len(names) != 1:
            raise EngineError(f"qdrant: {len(names)} collections of this round, 1 was expected")
        return names[0]

    # ---- a Qdrant that is somebody's own

    def _tell_of_earlier(self, key: str | None) -> None:
        """Tell of what earlier rounds left: whether one of them goes on elsewhere is not known."""
        with closing(qdrant.Api(self._qdrant.address, key)) as api:
            names = _collections(api)
        found = [name for name in names if NAMESPACE.match(name)]
        self.left += [
            f"qdrant: the collection {name} is there, of another round: if none goes on elsewhere, "
            f"DELETE /collections/{name}"
            for name in found
            if not name.startswith(f"{self._parts.namespace}-")
        ]

    def _drop(self, key: str | None) -> None:
        """Delete what this round made, and say what cannot be deleted."""
        with closing(qdrant.Api(self._qdrant.address, key)) as api:
            try:
                for name in _collections(api):
                    if name.startswith(f"{self._parts.namespace}-"):
                        api.call("DELETE", f"/collections/{name}")
            except EngineError as error:
                self.left.append(
                    f"qdrant: what this round made could not be deleted ({error}): DELETE the "
                    f"collections {self._parts.namespace}-* by hand"
                )

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
        used = {name: asdict(engine.resources()) for name, engine in self.engines.items()}
        if self._inside is not None and (shared := self._inside.shared()) is not None:
            used[SHARED] = shared
        return Moment(
            cache=self.api.counters(),
            aof=self._control.aof(),
            resources={
                name: {key: _known(value) for key, value in counters.items()}
                for name, counters in used.items()
            },
        )


def _collections(api: qdrant.Api) -> list[str]:
    return [str(entry["name"]) for entry in api.call("GET", "/collections")["collections"]]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

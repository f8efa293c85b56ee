"""A native engine beside the gateway in one round: started, loaded, watched, asked for counters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refill.corpora.documents import Documents
from refill.engines import native
from refill.engines.description import EngineError
from refill.engines.installations import DIALECTS, Installed
from refill.load.wire import Address
from refill.phases import containers
from refill.phases.containers import Containers
from refill.phases.image_records import image_block
from refill.runtimes.engine import Engine, explained
from refill.runtimes.external import ExternalEngine
from refill.runtimes.process import ProcessEngine
from refill.runtimes.users import other_user, take_copy

# What the record of a round says of how its native engines were set; where they lie is not in it.
RECORDED = ("heap", "cpus", "warm_up", "request_cache", "query_cache")


@dataclass(frozen=True)
class NativeParts:
    """What a native engine of a round is made of.

    Attributes:
        name: `opensearch` or `elasticsearch`.
        installed: what is started; without a home the engine runs at a URL.
        settings: the `rounds.native` section.
        cpus: CPUs that it may use.
        index: name of the index.
        inside: where its container belongs; None: it is none.
    """

    name: str
    installed: Installed
    settings: Mapping[str, Any]
    cpus: int
    index: str
    inside: Containers | None = None


class NativeEngine:
    """A running native engine of one round.

    Args:
        parts: what it is made of.
        scratch: a folder of its own; removed at the end.
        log: file that takes its output.
        open_: ends it.

    Attributes:
        engine: what runs.
        started_s: seconds from start to ready; None where it ran before.
        primed: what `prime` saw.
    """

    def __init__(self, parts: NativeParts, scratch: Path, log: Path, open_: ExitStack) -> None:
        self._parts = parts
        self._settings = parts.settings[parts.name]
        self.name = parts.name
        self.primed: dict[str, Any] | None = None
        self.engine = self._started(scratch, log, open_)
        self.address: Address = self.engine.address
        self.headers = native.credentials(self._settings) if self._external else {}
        self._api = native.Api(self.name, self.address, self.headers)
        open_.callback(self._api.close)
        self.started_s = self.engine.start_s
        try:
            self.identity = self._identity()
        except EngineError as error:
            raise EngineError(explained(error, [self.engine])) from error

    @property
    def _external(self) -> bool:
        return self._parts.installed.home is None and self._parts.installed.image is None

    @property
    def _budget(self) -> native.Budget:
        return native.Budget(self._parts.cpus, self._parts.settings["heap"])

    def _started(self, scratch: Path, log: Path, open_: ExitStack) -> Engine:
        parts, limit = self._parts, self._settings["start_timeout_s"]
        dialect = DIALECTS[self.name]
        home, java, image = parts.installed.home, parts.installed.java, parts.installed.image
        if image is not None and parts.inside is not None:
            described = native.container(dialect, self._budget, limit)
            return open_.enter_context(parts.inside.engine(described, image, shared=False))
        if home is None or java is None:
            headers = native.credentials(self._settings)
            described = native.external(dialect, headers, limit)
            address = Address.from_url(self._settings["url"])
            return open_.enter_context(ExternalEngine(described, address))
        user = parts.settings["user"]
        node = native.Node(
            home,
            java,
            self._budget,
            user,
            limit,
            lambda source, copy: take_copy(source, copy, other_user(user)),
        )
        return open_.enter_context(ProcessEngine(native.describe(dialect, node), scratch, log))

    def _identity(self) -> dict[str, Any]:
        found = self._api.identity()
        return {"runtime": self.engine.runtime, **self._source(), **found}

    def _source(self) -> dict[str, Any]:
        """Give what it is started from, and with which arguments of Java."""
        java, image = self._parts.installed.java, self._parts.installed.image
        if image is not None:
            return {
                "java": None,
                "flags": native.heap_flags(self._budget),
                "image": image_block(image),
                **containers.identity(self.engine),
            }
        return {
            "java": java.identity() if java else None,
            "flags": native.java_flags(java, self._budget) if java else None,
        }

    def prime(self, documents: Documents) -> None:
        """Create the index, load all documents, merge them to one segment, count them.

        Raises:
            EngineError: a document was refused, the count is wrong, or the index is not green.
        """
        index, began = self._parts.index, time.monotonic()
        body = native.index_body(documents.index_body(), self._parts.settings)
        self._api.create_index(index, body)
        written = self._api.load(index, documents.bulk(index))
        loaded = time.monotonic() - began
        counted = self._api.count(index)
        if not written == counted == documents.count:
            raise EngineError(
                f"{self.name}: {documents.count:,} documents were to be loaded, {written:,} were "
                f"acknowledged, {counted:,} are counted"
            )
        state = self._api.state(index)
        if state["health"] != "green" or state["segments"] != 1:
            raise EngineError(
                f"{self.name}: the index is {state['health']} with {state['segments']} segments "
                "after it was merged to one"
            )
        self.primed = {
            "documents": counted,
            "load_s": loaded,
            "seconds": time.monotonic() - began,
            "index": state,
        }

    def drop(self) -> None:
        """Delete what an engine that was not started here would keep."""
        if self._external:
            self._api.delete_index(self._parts.index)

    def check(self) -> None:
        """Raise EngineError when it has ended."""
        self.engine.check()

    def counters(self) -> dict[str, float]:
        """Give its counters now."""
        return self._api.counters()

    def resources(self) -> dict[str, float | None]:
        """Give what its process has used until now, None where it is not known."""
        return {
            key: None if np.isnan(value) else float(value)
            for key, value in asdict(self.engine.resources()).items()
        }

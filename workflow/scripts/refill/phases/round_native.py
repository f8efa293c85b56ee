"""A native engine beside the gateway in one round: started, loaded, watched, asked for counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refill.corpora.documents import Documents
from refill.engines import native
from refill.engines.description import EngineError
from refill.engines.installations import DIALECTS, Installed
from refill.engines.native_index import Stated
from refill.load.wire import Address
from refill.phases import containers
from refill.phases.containers import Containers
from refill.phases.image_records import image_block
from refill.phases.native_differences import differences
from refill.phases.url_index import UrlIndex
from refill.runtimes.engine import Engine, explained
from refill.runtimes.external import ExternalEngine
from refill.runtimes.process import ProcessEngine
from refill.runtimes.users import other_user, take_copy

# What the record of a round says of how all its native engines were asked to be; where they lie is
# not in it, and the budget stands in the identity of each, for at a URL nobody sets one.
RECORDED = ("warm_up", "request_cache", "query_cache")


@dataclass(frozen=True)
class NativeParts:
    """What a native engine of a round is made of.

    Attributes:
        name: `opensearch` or `elasticsearch`.
        installed: what is started; without a home the engine runs at a URL.
        settings: the `rounds.native` section.
        cpus: CPUs that it may use.
        index: name of its index.
        answer_s: how long it may take to give its counters, between what is timed.
        inside: where its container belongs; None: it is none.
    """

    name: str
    installed: Installed
    settings: Mapping[str, Any]
    cpus: int
    index: str
    answer_s: float
    inside: Containers | None = None


class NativeEngine:
    """A running native engine of one round.

    Args:
        parts: what it is made of.
        scratch: a folder of its own; removed at the end.
        log: file that takes its output.
        open_: ends it.
        say: told what an earlier run left at a URL.

    Attributes:
        engine: what runs.
        started_s: seconds from start to ready; None where it ran before.
        primed: what `prime` saw.
        warnings: what is not as it was asked to be, or stays where it was not before.
    """

    def __init__(
        self,
        parts: NativeParts,
        scratch: Path,
        log: Path,
        open_: ExitStack,
        say: Callable[[str], None],
    ) -> None:
        self._parts = parts
        self._settings = parts.settings[parts.name]
        self.name = parts.name
        self.primed: dict[str, Any] | None = None
        self.warnings: list[str] = []
        self._kill: Callable[[], None] = lambda: None
        self.engine = self._started(scratch, log, open_)
        self.address: Address = self.engine.address
        self.headers = native.credentials(self._settings) if self._external else {}
        self._api = native.Api(self.name, self.address, self.headers)
        self._counting = native.Api(self.name, self.address, self.headers, parts.answer_s)
        for api in (self._api, self._counting):
            open_.callback(api.close)
        self.started_s = self.engine.start_s
        self._own: UrlIndex | None = None
        if self._external:
            self._own = self._index_at_url(open_, say)
        try:
            self.identity = self._identity()
        except EngineError as error:
            raise EngineError(explained(error, [self.engine])) from error

    def _index_at_url(self, open_: ExitStack, say: Callable[[str], None]) -> UrlIndex:
        # It has a connection of its own: one that broke in the round must not keep the index there.
        api = native.Api(self.name, self.address, self.headers, self._parts.answer_s)
        open_.callback(api.close)
        own = UrlIndex(api, self._parts.index, say)
        self.warnings = own.left
        own.sweep()
        open_.callback(own.remove)
        return own

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
            inside = open_.enter_context(parts.inside.engine(described, image, shared=False))
            self._kill = inside.kill
            return inside
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
        process = ProcessEngine(native.describe(dialect, node), scratch, log)
        self._kill = process.kill
        return open_.enter_context(process)

    def _identity(self) -> dict[str, Any]:
        found, dialect = self._api.identity(), DIALECTS[self.name]
        asked = {} if self._external else native.work_settings(self._parts.cpus)
        alone = self._given_alone()
        known = {**native.work_settings(0), **alone}
        settings = self._api.settings(known)
        if not self._external:
            heap = found["jvm"]["heap_max_bytes"]
            if unlike := native.departures(self._budget, asked, settings, heap):
                raise EngineError(f"{self.name} is not as it was started: {'; '.join(unlike)}")
        return {
            "runtime": self.engine.runtime,
            **self._source(),
            # Who runs the engine at a URL sets its budget; what it says of it stands in `jvm` and
            # `processors`.
            "budget": None if self._external else asdict(self._budget),
            "settings": settings,
            "differs": {
                "started": "by whoever runs it" if self._external else self._how(dialect),
                **differences(dialect, self._parts.settings, alone, self._external),
            },
            **found,
        }

    def _given_alone(self) -> dict[str, str]:
        """Give the settings, or variables of the image, that this engine alone is given."""
        dialect, installed = DIALECTS[self.name], self._parts.installed
        if installed.image is not None:
            return dict(dialect.image.variables)
        return {} if installed.home is None else dict(dialect.settings(installed.home))

    def _how(self, dialect: native.Dialect) -> str:
        return "by the entry point of its image" if self._parts.installed.image else dialect.started

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
            EngineError: a document was refused, the count is wrong, the index is not green, or
                its settings or mapping are not those that were asked for.
        """
        index, began = self._parts.index, time.monotonic()
        body = native.index_body(documents.index_body(), self._parts.settings)
        self._api.create_index(index, self._own.marked(body) if self._own else body)
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
        stated = Stated.read(self._api, index)
        if unlike := stated.differing(body):
            raise EngineError(
                f"{self.name}: the index is not as it was asked to be, perhaps by a template of "
                f"the cluster: {'; '.join(unlike)}"
            )
        if more := stated.more(body):
            listed = ", ".join(f"{name}={value}" for name, value in more.items())
            self.warnings.append(
                f"{self.name}: its index has settings that were not asked for, perhaps by a "
                f"template of the cluster: {listed}"
            )
        self.primed = {
            "documents": counted,
            "load_s": loaded,
            "seconds": time.monotonic() - began,
            "index": {**state, **stated.plain(body)},
        }

    def check(self) -> None:
        """Raise EngineError when it has ended."""
        self.engine.check()

    def kill(self) -> None:
        """Kill it, unless it was not started here."""
        self._kill()

    def counters(self) -> dict[str, float]:
        """Give its counters now.

        Raises:
            EngineError: it does not give them in time.
        """
        return self._counting.counters()

    def resources(self) -> dict[str, float | None]:
        """Give what its process has used until now, None where it is not known."""
        return {
            key: None if np.isnan(value) else float(value)
            for key, value in asdict(self.engine.resources()).items()
        }

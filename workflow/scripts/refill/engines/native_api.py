"""The control side of OpenSearch and Elasticsearch: readiness, identity, an index, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refill.engines.description import EngineError
from refill.engines.documents_api import DocumentsApi, json_object, understood
from refill.load.wire import Address, Connection, WireError, prepare

# Loads and merges are not timed; a busy machine may take its time, and none takes this long for
# some thousand documents.
CONTROL_TIMEOUT_S = 60.0


def is_ready(headers: Mapping[str, str]) -> Callable[[Address], bool]:
    """Give a function that asks `/_cluster/health` once: green or yellow, and no task waits."""

    def ready(address: Address) -> bool:
        connection = Connection(address, 5.0)
        try:
            status, answer = connection.request(
                prepare(address, "GET", "/_cluster/health", headers=dict(headers))
            )
        except WireError as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
        if status in (401, 403):
            raise EngineError(
                f"/_cluster/health: {status}: this user may not ask it: give an API key, or user "
                "and password, in the variables that rounds.native names, with the right to monitor"
            )
        if status != 200:
            return False
        health = json_object(answer, "/_cluster/health")
        with understood("/_cluster/health"):
            waiting = int(health["number_of_pending_tasks"])
            return health["status"] in ("green", "yellow") and waiting == 0

    return ready


class Api(DocumentsApi):
    """The control side of a node: never used inside a timed request."""

    def __init__(
        self,
        name: str,
        address: Address,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = CONTROL_TIMEOUT_S,
    ) -> None:
        super().__init__(name, address, headers, timeout_s)

    def identity(self) -> dict[str, Any]:
        """Give what is running: version, build, its Java and the plug-ins that it loaded.

        From `/_nodes`, for Elasticsearch's `/` is a module that the artifacts do not have.
        """
        with understood(f"{self.name}: /_nodes"):
            return self._identity()

    def _identity(self) -> dict[str, Any]:
        nodes = self.call("GET", "/_nodes/jvm,os,plugins,process")["nodes"]
        if len(nodes) != 1:
            raise EngineError(f"{self.name}: {len(nodes)} nodes, a round measures a single one")
        (node,) = nodes.values()
        jvm = node["jvm"]
        loaded = [part["name"] for kind in ("modules", "plugins") for part in node.get(kind, ())]
        return {
            "name": self.name,
            "version": node["version"],
            "build": node["build_hash"],
            "build_type": node["build_type"],
            "jvm": {
                "version": jvm["version"],
                "name": jvm["vm_name"],
                "vendor": jvm["vm_vendor"],
                "collectors": jvm["gc_collectors"],
                "heap_max_bytes": jvm["mem"]["heap_max_in_bytes"],
            },
            "processors": node["os"]["allocated_processors"],
            "memory_locked": node["process"]["mlockall"],
            "loaded": sorted(loaded),
        }

    def load(self, index: str, bodies: Iterable[bytes]) -> int:
        """Load as every engine of documents, then merge to one segment."""
        created = super().load(index, bodies)
        self.call("POST", f"/{index}/_forcemerge?max_num_segments=1")
        self.call("POST", f"/{index}/_refresh")
        return created

    def state(self, index: str) -> dict[str, Any]:
        """Give how an index stands: its health, segments and bytes."""
        with understood(f"{self.name}: the state of {index}"):
            return self._state(index)

    def _state(self, index: str) -> dict[str, Any]:
        health = self.call("GET", f"/_cluster/health/{index}?wait_for_status=green&timeout=30s")
        stats = self.call("GET", f"/{index}/_stats/segments,store")["_all"]["primaries"]
        return {
            "health": health["status"],
            "segments": stats["segments"]["count"],
            "store_bytes": stats["store"]["size_in_bytes"],
        }

    def stated(self, index: str) -> dict[str, Any]:
        """Give `settings` of an index, by full names, and `mappings`, as the engine has them."""
        with understood(f"{self.name}: the index {index}"):
            found = self.call("GET", f"/{index}?flat_settings=true")[index]
            return {"settings": dict(found["settings"]), "mappings": dict(found["mappings"])}

    def mappings(self, pattern: str) -> dict[str, dict[str, Any]]:
        """Give the mapping of each index whose name fits a pattern with `*`."""
        with understood(f"{self.name}: the indices {pattern}"):
            found = self.call("GET", f"/{pattern}/_mapping")
            return {name: dict(entry["mappings"]) for name, entry in sorted(found.items())}

    def settings(self, names: Iterable[str]) -> dict[str, str]:
        """Give those of the node's settings that were set, of the ones named."""
        with understood(f"{self.name}: /_nodes/settings"):
            (node,) = self.call("GET", "/_nodes/settings?flat_settings=true")["nodes"].values()
            known = node["settings"]
            return {name: str(known[name]) for name in sorted(names) if name in known}

    def counters(self) -> dict[str, float]:
        """Give the node's counters since its start: collections of garbage, caches, heap."""
        with understood(f"{self.name}: /_nodes/stats"):
            return self._counters()

    def _counters(self) -> dict[str, float]:
        nodes = self.call("GET", "/_nodes/stats/jvm,indices")["nodes"]
        (node,) = nodes.values()
        collectors = node["jvm"]["gc"]["collectors"].values()
        indices = node["indices"]
        return {
            "gc_count": sum(c["collection_count"] for c in collectors),
            "gc_s": sum(c["collection_time_in_millis"] for c in collectors) / 1e3,
            "heap_used_bytes": node["jvm"]["mem"]["heap_used_in_bytes"],
            "request_cache_hits": indices["request_cache"]["hit_count"],
            "request_cache_misses": indices["request_cache"]["miss_count"],
            "query_cache_hits": indices["query_cache"]["hit_count"],
            "query_cache_misses": indices["query_cache"]["miss_count"],
        }


# What stands for now and is no count.
LEVELS = ("heap_used_bytes",)


def counted(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Give what a node's counters show between two moments; of levels the later one."""
    return {k: v if k in LEVELS else v - before[k] for k, v in after.items()}

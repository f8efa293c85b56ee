"""The gateway under test: how it is run, loaded with documents, and asked for its counters.

It speaks part of Elasticsearch's REST API over Qdrant, with coordination and a response cache in
Valkey (`images/gateway`). It is one more process of this machine; all that is known of it here
goes over HTTP.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address, Connection, WireError, prepare

PREFIX = "REFILL_GATEWAY_"


@dataclass(frozen=True)
class Backends:
    """What a gateway works on, and the secrets that it needs there."""

    valkey: Address
    valkey_password: str
    qdrant: Address
    qdrant_api_key: str | None


def archive(
    path: Path,
    image_id: str,
    backends: Backends,
    serving: bool,
    settings: Mapping[str, Any],
) -> Description:
    """Describe a gateway that runs from an image's archive.

    Args:
        path: the Python archive.
        image_id: identity of the image; part of what a cached response is bound to.
        backends: the Valkey and the Qdrant of this run.
        serving: whether responses are served from the cache and published into it.
        settings: `ttl_s`, `max_entry_bytes`, `namespace`, `start_timeout_s`.

    Raises:
        EngineError: a variable of this process would change what is measured, or Qdrant is
            behind TLS or a path, which the gateway does not speak.
    """
    inherited = sorted(name for name in os.environ if name.startswith(PREFIX))
    if inherited:
        raise EngineError(
            f"gateway: {', '.join(inherited)} would change what is measured: unset it; what may "
            "be set stands under rounds.gateway in the config"
        )
    if backends.qdrant.tls or backends.qdrant.prefix:
        raise EngineError(
            f"gateway: it reaches Qdrant by http://host:port only, not {backends.qdrant.url}"
        )
    environment = {
        "HOST": "127.0.0.1",
        "VALKEY": f"{backends.valkey.host}:{backends.valkey.port}",
        "VALKEY_PASSWORD": backends.valkey_password,
        "QDRANT_URL": backends.qdrant.url,
        "QDRANT_API_KEY": backends.qdrant_api_key or "",
        "SERVING": "on" if serving else "off",
        "TTL_S": str(settings["ttl_s"]),
        "MAX_ENTRY_BYTES": str(settings["max_entry_bytes"]),
        "NAMESPACE": settings["namespace"],
        "INSTANCE": "round",
        "BUILD": image_id,
    }

    def command(place: Place) -> Sequence[str]:
        return ["env", f"{PREFIX}PORT={place.port}", sys.executable, str(path.resolve())]

    return Description(
        "gateway",
        command,
        is_ready,
        {PREFIX + name: value for name, value in environment.items()},
        settings["start_timeout_s"],
    )


def is_ready(address: Address) -> bool:
    """Ask `/_cluster/health` once; green: it has its catalog and reaches Qdrant and Valkey."""
    connection = Connection(address, 5.0)
    try:
        status, answer = connection.request(prepare(address, "GET", "/_cluster/health"))
    except WireError as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    return status == 200 and _json(answer, "/_cluster/health").get("status") == "green"


class Api:
    """The control side of the gateway: never used inside a timed request."""

    def __init__(self, address: Address, timeout_s: float = 60.0) -> None:
        self.address = address
        self._connection = Connection(address, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Make one call and give its answer.

        Raises:
            EngineError: it failed, or the answer is an error.
        """
        try:
            status, answer = self._connection.request(prepare(self.address, method, path, body))
        except WireError as error:
            raise EngineError(f"gateway: {method} {path}: {error}") from error
        if status not in (200, 201):
            raise EngineError(f"gateway: {method} {path}: {status}: {error_text(answer)}")
        return _json(answer, path)

    def identity(self) -> dict[str, Any]:
        """Give what is running: the API's version that it states, its build, whether it serves."""
        version, stats = self.call("GET", "/")["version"], self.call("GET", "/_refill/stats")
        return {
            "name": "gateway",
            "runtime": "process",
            "version": f"Elasticsearch API {version['number']} ({version['build_type']})",
            "build": stats["build"],
            "serving": stats["serving"],
        }

    def counters(self) -> dict[str, Any]:
        """Give the counters of the cache since the gateway's start."""
        stats = self.call("GET", "/_refill/stats")
        return {name: stats[name] for name in COUNTERS} | {
            name: dict(stats[name]) for name in REASONS
        }

    def create_index(self, index: str, body: Mapping[str, Any]) -> None:
        """Create an index; `body` holds its mappings and settings."""
        self.call("PUT", f"/{index}", orjson.dumps(body))

    def delete_index(self, index: str) -> None:
        """Delete an index."""
        self.call("DELETE", f"/{index}")

    def load(self, index: str, bodies: Iterable[bytes]) -> int:
        """Send bulk requests, read every item's outcome, refresh.

        Returns:
            How many documents were created.

        Raises:
            EngineError: an item was refused, or was there before; with the first one's outcome.
        """
        created = 0
        for body in bodies:
            answer = self.call("POST", f"/{index}/_bulk", body)
            outcomes = [outcome for item in answer["items"] for outcome in item.values()]
            others = [outcome for outcome in outcomes if outcome["status"] != 201]
            if others:
                shown = orjson.dumps(others[0]).decode()[:300]
                raise EngineError(
                    f"gateway: bulk: {len(others)} of {len(outcomes)} documents were not created; "
                    f"the first: {shown}"
                )
            created += len(outcomes)
        self.call("POST", f"/{index}/_refresh")
        return created

    def count(self, index: str) -> int:
        """Count the documents of an index."""
        return int(self.call("GET", f"/{index}/_count")["count"])


COUNTERS = (
    "hits", "misses", "fills", "rejected", "bypassed", "repeated", "unsettled", "swept", "writes",
    "qdrant_calls",
)  # fmt: skip
REASONS = ("misses_by_reason", "rejected_by_reason")


def counted(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the cache did between two moments; of reasons only those that occurred."""
    found: dict[str, Any] = {name: after[name] - before[name] for name in COUNTERS}
    for name in REASONS:
        steps = {why: n - before[name].get(why, 0) for why, n in after[name].items()}
        found[name] = {why: n for why, n in sorted(steps.items()) if n}
    return found


def error_text(answer: bytes) -> str:
    """Give the reason from an error answer, at most 200 characters."""
    try:
        text = orjson.loads(answer)["error"]["reason"]
    except (ValueError, KeyError, TypeError):
        text = answer.decode(errors="replace")
    return str(text)[:200]


def _json(answer: bytes, path: str) -> dict[str, Any]:
    try:
        value = orjson.loads(answer)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EngineError(f"gateway: {path}: not a JSON object: {answer[:80]!r}")
    return value

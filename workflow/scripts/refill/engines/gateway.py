"""The gateway under test: how it is run, loaded with documents, and asked for its counters.

It speaks part of Elasticsearch's REST API over Qdrant, with coordination and a response cache in
Valkey (`images/gateway`). All that is known of it here goes over HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refill.engines.description import Description, EngineError, Place
from refill.engines.documents_api import DocumentsApi, json_object
from refill.load.wire import Address, Connection, WireError, prepare

PREFIX = "REFILL_GATEWAY_"


@dataclass(frozen=True)
class Backends:
    """What a gateway works on, as it reaches them, and the secrets that it needs there."""

    valkey: Address
    valkey_password: str
    qdrant: Address
    qdrant_api_key: str | None


def server(
    program: Sequence[str],
    image_id: str,
    backends: Backends,
    serving: bool,
    settings: Mapping[str, Any],
) -> Description:
    """Describe a gateway.

    Args:
        program: what starts it; empty for a container, whose image knows.
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

    def variables(place: Place) -> Mapping[str, str]:
        return {f"{PREFIX}HOST": place.host, f"{PREFIX}PORT": str(place.port)}

    return Description(
        "gateway",
        lambda _: list(program),
        is_ready,
        {PREFIX + name: value for name, value in environment.items()},
        settings["start_timeout_s"],
        variables=variables,
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
    return (
        status == 200 and json_object(answer, "gateway: /_cluster/health").get("status") == "green"
    )


class Api(DocumentsApi):
    """The control side of the gateway: never used inside a timed request."""

    def __init__(self, address: Address, timeout_s: float = 60.0) -> None:
        super().__init__("gateway", address, timeout_s=timeout_s)

    def identity(self) -> dict[str, Any]:
        """Give what is running: the API's version that it states, its build, whether it serves."""
        version, stats = self.call("GET", "/")["version"], self.call("GET", "/_refill/stats")
        return {
            "name": "gateway",
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

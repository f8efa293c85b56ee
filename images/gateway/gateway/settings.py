"""Settings, all from the environment; `README.md` has the table."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from urllib.parse import urlsplit

PREFIX = "REFILL_GATEWAY_"


class SettingError(Exception):
    """A variable of the environment is wrong. The text says which, and what it may be."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what one request may ask for; beyond them it gets a 4xx that names the bound."""

    body_bytes: int
    bulk_items: int
    bulk_line_bytes: int
    window: int
    depth: int
    clauses: int
    terms: int
    aggregations: int
    distinct: int
    searches: int
    fields: int
    indices: int


@dataclass(frozen=True)
class Settings:
    """Everything that the gateway is told.

    Attributes:
        build: names the code and the configuration that answers depend on; part of every fill.
        ttl_ms: how long a fill is served.
        grace_ms: how much longer its key stays in Valkey unless the sweeper removes it.
        settle_s: how long a request that was cut off may take to reach a Qdrant that answers.
        durable: refuse a Valkey that could lose what it has acknowledged.
    """

    host: str
    port: int
    valkey_host: str
    valkey_port: int
    valkey_user: str
    valkey_password: str
    qdrant_host: str
    qdrant_port: int
    qdrant_api_key: str
    namespace: str
    instance: str
    serving: bool
    ttl_ms: int
    grace_ms: int
    settle_s: float
    durable: bool
    entry_bytes: int
    valkey_timeout_s: float
    qdrant_timeout_s: float
    qdrant_admin_timeout_s: float
    qdrant_connections: int
    request_timeout_s: float
    build: str
    log_requests: bool
    limits: Limits


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingError: a variable is unknown or wrong.
    """
    known: set[str] = set()

    def text(name: str, default: str) -> str:
        known.add(PREFIX + name)
        return environment.get(PREFIX + name, default)

    def number(name: str, default: int, least: int, most: int) -> int:
        value = text(name, str(default))
        if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
            raise SettingError(
                f"{PREFIX}{name}={value!r}: must be a whole number from {least} to {most}"
            )
        return int(value)

    def seconds(name: str, default: str) -> float:
        value = text(name, default)
        try:
            found = float(value)
        except ValueError:
            found = 0.0
        if not 0.01 <= found <= 3600:
            raise SettingError(f"{PREFIX}{name}={value!r}: must be seconds from 0.01 to 3600")
        return found

    port = number("PORT", 9200, 0, 65535)
    host = text("HOST", "127.0.0.1")
    valkey_host, valkey_port = _address("VALKEY", text("VALKEY", "127.0.0.1:6379"), 6379)
    qdrant_url = text("QDRANT_URL", "http://127.0.0.1:6333")
    parts = urlsplit(qdrant_url)
    if parts.scheme != "http" or not parts.netloc or parts.path not in ("", "/"):
        raise SettingError(
            f"{PREFIX}QDRANT_URL={qdrant_url!r}: must be of the form http://host:port"
        )
    qdrant_host, qdrant_port = _address("QDRANT_URL", parts.netloc, 6333)
    serving = text("SERVING", "on")
    if serving not in ("on", "off"):
        raise SettingError(f"{PREFIX}SERVING={serving!r}: must be on or off")
    log_requests = text("LOG_REQUESTS", "off")
    if log_requests not in ("on", "off"):
        raise SettingError(f"{PREFIX}LOG_REQUESTS={log_requests!r}: must be on or off")
    namespace = text("NAMESPACE", "refill")
    if not (namespace.isascii() and namespace.isalnum()):
        raise SettingError(f"{PREFIX}NAMESPACE={namespace!r}: must be letters and digits")
    instance = text("INSTANCE", f"{socket.gethostname()}-{os.getpid()}")
    if not instance or not instance.isprintable() or " " in instance:
        raise SettingError(f"{PREFIX}INSTANCE={instance!r}: must be one printable word")
    durability = text("VALKEY_DURABILITY", "always")
    if durability not in ("always", "unchecked"):
        raise SettingError(f"{PREFIX}VALKEY_DURABILITY={durability!r}: must be always or unchecked")
    limits = Limits(
        body_bytes=number("MAX_BODY_BYTES", 16 << 20, 1024, 1 << 30),
        bulk_items=number("MAX_BULK_ITEMS", 10_000, 1, 1_000_000),
        bulk_line_bytes=number("MAX_BULK_LINE_BYTES", 1 << 20, 64, 1 << 30),
        window=number("MAX_RESULT_WINDOW", 10_000, 1, 10_000),
        depth=number("MAX_DEPTH", 20, 1, 100),
        clauses=number("MAX_CLAUSES", 1024, 1, 65_536),
        terms=number("MAX_TERMS", 10_000, 1, 65_536),
        aggregations=number("MAX_AGGREGATIONS", 200, 1, 10_000),
        distinct=number("MAX_DISTINCT_VALUES", 10_000, 1, 1_000_000),
        searches=number("MAX_SEARCHES", 100, 1, 10_000),
        fields=number("MAX_FIELDS", 1000, 1, 10_000),
        indices=number("MAX_INDICES", 1000, 1, 100_000),
    )
    settings = Settings(
        host=host,
        port=port,
        valkey_host=valkey_host,
        valkey_port=valkey_port,
        valkey_user=text("VALKEY_USER", ""),
        valkey_password=text("VALKEY_PASSWORD", ""),
        qdrant_host=qdrant_host,
        qdrant_port=qdrant_port,
        qdrant_api_key=text("QDRANT_API_KEY", ""),
        namespace=namespace,
        instance=instance,
        serving=serving == "on",
        ttl_ms=int(seconds("TTL_S", "300") * 1000),
        grace_ms=int(seconds("TTL_GRACE_S", "300") * 1000),
        settle_s=seconds("SETTLE_S", "2"),
        durable=durability == "always",
        entry_bytes=number("MAX_ENTRY_BYTES", 256 << 10, 0, 64 << 20),
        valkey_timeout_s=seconds("VALKEY_TIMEOUT_S", "2"),
        qdrant_timeout_s=seconds("QDRANT_TIMEOUT_S", "10"),
        qdrant_admin_timeout_s=seconds("QDRANT_ADMIN_TIMEOUT_S", "60"),
        qdrant_connections=number("QDRANT_CONNECTIONS", 16, 1, 1024),
        request_timeout_s=seconds("REQUEST_TIMEOUT_S", "30"),
        build=_build(text("BUILD", ""), limits),
        log_requests=log_requests == "on",
        limits=limits,
    )
    unknown = sorted(n for n in environment if n.startswith(PREFIX) and n not in known)
    if unknown:
        raise SettingError(
            f"{', '.join(unknown)}: no such setting; there are {', '.join(sorted(known))}"
        )
    return settings


def _address(name: str, value: str, default_port: int) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon:
        host, port = value, str(default_port)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise SettingError(f"{PREFIX}{name}={value!r}: must be host:port")
    return host.strip("[]"), int(port)


def _build(name: str, limits: Limits) -> str:
    """Hash what an answer depends on, so that no other build's or configuration's is served.

    The code is read from where it runs, so a forgotten BUILD variable cannot make two builds equal.
    """
    digest = hashlib.sha256(f"{name}\n{limits}\n".encode())
    for path, content in sorted(_sources(resources.files("gateway"), "")):
        digest.update(f"{path}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _sources(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            found += _sources(entry, name)
        elif name.endswith((".py", ".lua")):
            found.append((name, entry.read_bytes()))
    return found

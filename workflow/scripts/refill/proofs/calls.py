"""Calls of the gateway's scripts, with the keys and arguments that the gateway gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from zipfile import ZipFile

from redis import Redis
from redis.exceptions import NoScriptError

FOLDER = "gateway/lua/"
NAMES = (
    "abort", "admit", "claim", "commit", "epoch", "extend", "lookup", "publish", "release",
    "sweep", "view",
)  # fmt: skip
NAMESPACE = "proof"
FILL_PREFIX = f"{NAMESPACE}:fill:"
EPOCH_KEY, INDICES_KEY = f"{NAMESPACE}:epoch", f"{NAMESPACE}:indices"
INSTANCE = "proof"
TTL_MS, GRACE_MS = 600_000, 600_000
MOST_INDICES = 1000

Argument = str | bytes | int


class ScriptsError(ValueError):
    """An image's archive does not hold the scripts; the text says which."""


def read_sources(archive: Path) -> dict[str, bytes]:
    """Read the scripts that an image runs, by name, out of its archive.

    Raises:
        ScriptsError: there are others than this proof knows how to call.
    """
    with ZipFile(archive) as file:
        found = {
            name.removeprefix(FOLDER).removesuffix(".lua"): file.read(name)
            for name in file.namelist()
            if name.startswith(FOLDER) and name.endswith(".lua")
        }
    return known_sources(archive.name, found)


def known_sources(image: str, found: dict[str, bytes]) -> dict[str, bytes]:
    """Give the scripts that an image has when they are those that this proof can call.

    Raises:
        ScriptsError: they are not.
    """
    if set(found) != set(NAMES):
        raise ScriptsError(
            f"{image}: has the scripts {', '.join(sorted(found))}; the proof knows "
            f"{', '.join(NAMES)}: tell refill/proofs/calls.py how the gateway calls the others"
        )
    return found


def for_redis(source: bytes) -> bytes:
    """Give a script that finds `server` in Redis 7, where the same object is named `redis`."""
    head, _, rest = source.partition(b"\n")
    return head + b"\nlocal server = redis\n" + rest


def with_a_write_behind(source: bytes, key: str) -> bytes:
    """Give a script that makes one durable write after its own work, in the same call.

    What is propagated is a flag of the whole call, so a script that does not restore it takes
    this write, too, out of the log.
    """
    head, _, rest = source.partition(b"\n")
    body = b"local function work()\n" + rest + b"\nend\nlocal reply = work()\n"
    return head + b"\n" + body + f"redis.call('INCR', '{key}')\nreturn reply\n".encode()


@dataclass(frozen=True)
class Call:
    """One call of a script."""

    name: str
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Index:
    """An index and the state that calls claim to know of it."""

    name: str = "i"
    epoch: str = "e1"
    incarnation: str = "c1"
    build: str = "b1"

    def but(self, **changes: str) -> Self:
        """The same index with another claimed state."""
        return replace(self, **changes)

    @property
    def key(self) -> str:
        """The key of the index itself."""
        return f"{NAMESPACE}:index:{self.name}"

    @property
    def claim_key(self) -> str:
        """The key of the claim on it."""
        return f"{NAMESPACE}:claim:{self.name}"

    @property
    def writers_key(self) -> str:
        """The key of its writers' tokens."""
        return f"{NAMESPACE}:writers:{self.name}"

    @property
    def _state_keys(self) -> tuple[str, str, str, str]:
        return EPOCH_KEY, self.key, self.claim_key, self.writers_key

    def fill(self, number: int | str = 0) -> str:
        """The key of one of its responses."""
        return f"{FILL_PREFIX}{self.name}:{number}"

    def set_epoch(self, how: str = "create") -> Call:
        """Read or set the epoch."""
        return Call("epoch", (EPOCH_KEY,), (self.epoch, how))

    def claim(self, kind: str, token: str, most: int = MOST_INDICES) -> Call:
        """Claim its name to create or delete it."""
        keys = (EPOCH_KEY, self.key, self.claim_key, INDICES_KEY)
        return Call(
            "claim", keys, (self.epoch, kind, token, self.incarnation, INSTANCE, most)
        )  # fmt: skip

    def commit(self, kind: str, token: str, mapping: str = "{}") -> Call:
        """Resolve a claim."""
        keys = (EPOCH_KEY, self.key, self.claim_key, INDICES_KEY, self.writers_key)
        return Call(
            "commit", keys, (self.epoch, token, kind, self.incarnation, self.name, mapping, "{}")
        )

    def abort(self, token: str) -> Call:
        """Give a claim back."""
        return Call("abort", (EPOCH_KEY, self.claim_key), (self.epoch, token))

    def admit(self, token: str, count: int = 1, version: int = 1) -> Call:
        """Admit a writer of `count` documents."""
        arguments = (self.epoch, self.incarnation, version, token, count, INSTANCE)
        return Call("admit", self._state_keys, arguments)

    def release(self, token: str) -> Call:
        """Release a writer."""
        keys = (EPOCH_KEY, self.key, self.writers_key)
        return Call("release", keys, (self.epoch, self.incarnation, token))

    def extend(self, token: str, mapping: str, version: int = 1) -> Call:
        """Put a larger mapping in place."""
        keys = (EPOCH_KEY, self.key, self.writers_key)
        return Call("extend", keys, (self.epoch, self.incarnation, token, version, mapping))

    def view(self) -> Call:
        """Look at its state."""
        return Call("view", self._state_keys, (self.epoch,))

    def lookup(self, fill: str) -> Call:
        """Look a response up."""
        return Call("lookup", (*self._state_keys, fill), (self.epoch, self.build))

    def publish(
        self,
        fill: str,
        body: str | bytes,
        generation: int = 0,
        ttl_ms: int = TTL_MS,
        grace_ms: int = GRACE_MS,
    ) -> Call:
        """Publish a response."""
        arguments = (
            self.epoch, self.incarnation, generation, self.build, ttl_ms, grace_ms, body,
            FILL_PREFIX,
        )  # fmt: skip
        return Call("publish", (*self._state_keys, fill), arguments)


def sweep(fills: Sequence[str]) -> Call:
    """Remove those of these fills that have expired."""
    return Call("sweep", tuple(fills), (FILL_PREFIX,))


class Scripts:
    """Runs calls as the gateway does: by hash, and with the source where the server has none."""

    def __init__(self, client: Redis, sources: Mapping[str, bytes]) -> None:
        self._client: Any = client
        self._sources = sources
        self._hashes: dict[str, str] = {}

    def with_source(self, name: str, source: bytes) -> Scripts:
        """The same scripts with another source for one of them."""
        return Scripts(self._client, {**self._sources, name: source})

    def load(self) -> None:
        """Load all scripts."""
        for name, source in self._sources.items():
            self._hashes[name] = self._client.script_load(source)

    def run(self, call: Call) -> Any:
        """Run a call; the reply with its byte strings as text.

        Raises:
            ResponseError: the script's or the server's error.
            ConnectionError: no answer.
        """
        source = self._sources[call.name]
        words = (len(call.keys), *call.keys, *call.arguments)
        if call.name not in self._hashes:
            return plain(self._client.eval(source, *words))
        try:
            return plain(self._client.evalsha(self._hashes[call.name], *words))
        except NoScriptError:
            return plain(self._client.eval(source, *words))


def plain(reply: Any) -> Any:
    """Give a reply with text in the place of byte strings."""
    if isinstance(reply, bytes):
        return reply.decode(errors="surrogateescape")
    if isinstance(reply, list | tuple):
        return [plain(part) for part in reply]
    if isinstance(reply, set | frozenset):
        return sorted(plain(part) for part in reply)
    if isinstance(reply, dict):
        return {plain(key): plain(value) for key, value in reply.items()}
    return reply

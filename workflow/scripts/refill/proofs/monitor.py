"""Everything that a server is asked to do, as its MONITOR tells it: which scripts, which commands.

The harness asks it only to look while it monitors, so what is told beside that is the gateway's.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from redis import Connection
from redis.exceptions import RedisError

from refill.engines.description import EngineError
from refill.proofs.calls import FILL_PREFIX
from refill.proofs.servers import Server

TIMEOUT_S = 30.0
END = "the end of what is monitored"
_LINE = re.compile(r"\d+\.\d+ \[\d+ (\S+)\] (.*)", re.DOTALL)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b"}
# What a script does, as MONITOR names the one who asks for it.
SCRIPT = "lua"
BY_HASH, BY_SOURCE = ("EVALSHA", "EVALSHA_RO"), ("EVAL", "EVAL_RO")
LOAD = "SCRIPT LOAD"
# Commands that change nothing and are not marked as reads, as they are about the connection or the
# server. Those that need an administrator's rights MONITOR does not tell of.
_HARMLESS = frozenset(
    ("AUTH", "CLIENT", "COMMAND", "CONFIG", "ECHO", "HELLO", "INFO", "PING", "ROLE", "TIME", LOAD)
)


@dataclass(frozen=True)
class Command:
    """One command: the words of it, and whether a script asked for it."""

    words: Sequence[str]
    of_script: bool

    @property
    def name(self) -> str:
        """Its name in capitals; with its second word where the first says little."""
        first = self.words[0].upper()
        if first == "SCRIPT" and len(self.words) > 1:
            return f"{first} {self.words[1].upper()}"
        return first

    @property
    def of_fill(self) -> bool:
        """Whether it names the key of a response; a pattern to look for keys is none."""
        if self.name == "SCAN":
            return False
        return any(word.startswith(FILL_PREFIX) for word in self.words[1:])


@dataclass
class Seen:
    """What a server was asked to do.

    Attributes:
        calls: how often each script of the image was called, by its name.
        unknown: calls and loads of scripts that are not the image's, by SHA-1.
        plain: commands beside scripts, by name.
        other: those of them that may change something, in words.
        on_responses: commands beside scripts that name a response's key, in words.
        by_scripts: commands that scripts made on responses' keys, by name.
    """

    calls: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    plain: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    on_responses: Counter[str] = field(default_factory=Counter)
    by_scripts: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Give it as evidence."""
        return {name: dict(sorted(counted.items())) for name, counted in vars(self).items()}


class Monitor:
    """Listens to a server from its beginning to `seen`. Used as a context.

    Args:
        server: what is listened to; its scripts are those that may be called.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._names = {sha1(source): name for name, source in server.sources.items()}
        # redis-py has no types for its connections.
        make: Any = Connection
        self._connection = make(
            host=server.engine.address.host,
            port=server.engine.address.port,
            password=server.password,
            socket_timeout=TIMEOUT_S,
        )

    def __enter__(self) -> Self:
        found: Mapping[str, Mapping[str, Any]] = self._server.client.command()
        self._reads = {
            name.upper() for name, known in found.items() if "readonly" in known["flags"]
        }
        self._connection.connect()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        with suppress(RedisError, OSError):
            self._connection.disconnect()

    def seen(self) -> Seen:
        """Give what was asked for since the last time, or since the beginning.

        Raises:
            EngineError: the server tells something that is not understood.
        """
        found = Seen()
        self._server.client.echo(END)
        while True:
            command = read_line(self._connection.read_response())
            if command.name == "ECHO" and command.words[1] == END:
                return found
            self._sort(command, found)

    def _sort(self, command: Command, found: Seen) -> None:
        name = command.name
        if command.of_script:
            if command.of_fill:
                found.by_scripts[name] += 1
        elif name in BY_HASH:
            self._called(command.words[1], found)
        elif name in BY_SOURCE:
            self._called(sha1(command.words[1].encode("latin-1")), found)
        else:
            found.plain[name] += 1
            if name == LOAD:
                sha = sha1(command.words[2].encode("latin-1"))
                if sha not in self._names:
                    found.unknown[f"loaded {sha}"] += 1
            if name not in self._reads and name not in _HARMLESS:
                found.other[_shown(command)] += 1
            if command.of_fill:
                found.on_responses[_shown(command)] += 1

    def _called(self, sha: str, found: Seen) -> None:
        if (name := self._names.get(sha.lower())) is not None:
            found.calls[name] += 1
        else:
            found.unknown[f"called {sha}"] += 1


def sha1(source: bytes) -> str:
    """Give a script's name on the server."""
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


def read_line(line: bytes) -> Command:
    """Read one line of MONITOR; a character stands for each byte.

    Raises:
        EngineError: it is none.
    """
    match = _LINE.fullmatch(line.decode("latin-1"))
    words = [_ESCAPE.sub(_unescaped, word) for word in _WORD.findall(match[2])] if match else []
    if match is None or not words:
        raise EngineError(f"MONITOR: not understood: {line[:200]!r}")
    return Command(words, match[1] == SCRIPT)


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    return _LETTERS.get(match[2], match[2])


def _shown(command: Command) -> str:
    """A command's name and the kind of its first key."""
    first = command.words[1] if len(command.words) > 1 else ""
    before, found, _ = first.partition(FILL_PREFIX)
    kind = f"{before}{found}*" if found else first[:60]
    return f"{command.name} {kind}".rstrip()

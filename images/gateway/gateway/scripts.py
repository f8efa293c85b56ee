"""The Lua scripts: read from the package, called by their hash, loaded where they are missing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from gateway.valkey import Callback, Valkey, ValkeyError, pack, settle

Argument = bytes | str | int
NAMES = (
    "epoch", "claim", "commit", "abort", "admit", "release",
    "extend", "view", "lookup", "publish", "sweep",
)  # fmt: skip


class Script:
    """One script of `gateway/lua`."""

    def __init__(self, name: str) -> None:
        self.name = name
        file = resources.files("gateway").joinpath("lua", f"{name}.lua")
        self.source = file.read_bytes()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()

    def command(self, keys: Sequence[Argument], arguments: Sequence[Argument]) -> bytes:
        """The call by hash."""
        return pack("EVALSHA", self.sha, len(keys), *keys, *arguments)

    def whole(self, keys: Sequence[Argument], arguments: Sequence[Argument]) -> bytes:
        """The call that carries the source, which also loads it."""
        return pack("EVAL", self.source, len(keys), *keys, *arguments)


class Scripts:
    """All scripts, and how they are run on a connection."""

    def __init__(self) -> None:
        self.by_name = {name: Script(name) for name in NAMES}

    async def load(self, valkey: Valkey) -> None:
        """Load all of them on a new connection; a restarted Valkey has none."""
        await asyncio.gather(
            *(valkey.ask("SCRIPT", "LOAD", s.source) for s in self.by_name.values())
        )

    def send(
        self,
        valkey: Valkey,
        name: str,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        callback: Callback,
        command: bytes | None = None,
    ) -> None:
        """Run a script; the callback gets its reply or an exception.

        Args:
            command: the encoded call by hash, where the caller has it at hand.
        """
        script = self.by_name[name]

        def replied(reply: Any) -> None:
            # Only then, as nothing has run yet: scripts were flushed behind our back.
            if isinstance(reply, ValkeyError) and str(reply).startswith("NOSCRIPT"):
                valkey.send(script.whole(keys, arguments), callback)
            else:
                callback(reply)

        valkey.send(command or script.command(keys, arguments), replied)

    async def run(
        self, valkey: Valkey, name: str, keys: Sequence[Argument], arguments: Sequence[Argument]
    ) -> Any:
        """Run a script and await its reply.

        Raises:
            ValkeyError: an error reply.
            ValkeyDownError: no reply.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(valkey, name, keys, arguments, settle(future))
        reply = await future
        if isinstance(reply, Exception):
            raise reply
        return reply

"""A small pipelining RESP client for one kept connection.

redis-py's asyncio client costs more than the whole warm hit (see `README.md`): it takes a lock, a
pool slot and several awaits a command. Here a command is one write and a callback.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

Reply = Any
Callback = Callable[[Reply], None]

log = logging.getLogger(__name__)

# While Valkey is away it is tried again after these pauses, the last one over and over.
_PAUSES = (0.02, 0.05, 0.1, 0.2)
_INCOMPLETE = object()


class ValkeyError(Exception):
    """An error reply of Valkey."""


class ValkeyDownError(Exception):
    """Valkey cannot be reached, or did not answer in time. What was sent may have been done."""


def settle(future: asyncio.Future[Reply]) -> Callback:
    """A callback that gives a reply to a future; nobody may wait for it any more."""

    def replied(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    return replied


def pack(*arguments: bytes | str | int) -> bytes:
    """Encode a command."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        if isinstance(argument, int):
            argument = b"%d" % argument
        elif isinstance(argument, str):
            argument = argument.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(argument), argument))
    return b"".join(parts)


def parse(data: bytes | bytearray, at: int) -> tuple[Reply, int]:
    """Read one reply at a position; `_INCOMPLETE` when more bytes are needed.

    Errors are given as ValkeyError objects, not raised: inside an array they are values.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        return _INCOMPLETE, at
    kind = data[at]
    if kind == 0x3A:  # ':'
        return int(data[at + 1 : end]), end + 2
    if kind == 0x24:  # '$'
        size = int(data[at + 1 : end])
        if size < 0:
            return None, end + 2
        start = end + 2
        if len(data) < start + size + 2:
            return _INCOMPLETE, at
        return bytes(data[start : start + size]), start + size + 2
    if kind == 0x2A:  # '*'
        items: list[Reply] = []
        position = end + 2
        for _ in range(int(data[at + 1 : end])):
            item, position = parse(data, position)
            if item is _INCOMPLETE:
                return _INCOMPLETE, at
            items.append(item)
        return items, position
    if kind == 0x2B:  # '+'
        return bytes(data[at + 1 : end]), end + 2
    if kind == 0x2D:  # '-'
        return ValkeyError(data[at + 1 : end].decode(errors="replace")), end + 2
    raise ValkeyDownError(f"not RESP: {bytes(data[at:end])[:40]!r}")


class _Connection(asyncio.Protocol):
    def __init__(self, lost: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[tuple[Callback, float]] = deque()
        self._lost = lost
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        at = 0
        try:
            while at < len(source):
                reply, after = parse(source, at)
                if reply is _INCOMPLETE:
                    break
                at = after
                if not self.waiting:
                    raise ValkeyDownError("a reply that nobody waits for")
                self.waiting.popleft()[0](reply)
        except ValkeyDownError as error:
            log.error("valkey: %s; the connection is closed", error)
            self.close()
            return
        if source is data:
            self._buffer = bytearray(data[at:]) if at < len(data) else self._buffer
        else:
            del self._buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self.fail("the connection was lost")
        self._lost()

    def fail(self, why: str) -> None:
        waiting, self.waiting = self.waiting, deque()
        for callback, _ in waiting:
            callback(ValkeyDownError(f"valkey: {why}"))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Valkey:
    """One connection that is made anew whenever it is lost.

    Args:
        host, port, user, password: where, and as whom; empty for none.
        timeout_s: a reply that takes longer closes the connection and fails what waits.
        prepare: is awaited on every new connection before anything else may be sent on it; it asks
            with `ask`, and may raise what `connect` raises.

    Attributes:
        run_id: names the server process that was last connected to; another one may hold an older
            data set.
    """

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        password: str,
        timeout_s: float,
        prepare: Callable[[Valkey], Awaitable[None]] | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._user = user
        self._password = password
        self._timeout = timeout_s
        self._prepare = prepare
        self._connection: _Connection | None = None
        self._ready = False
        self._closed = False
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._earlier: tuple[str, int] | None = None
        self.reason = "valkey: not connected yet"
        self.run_id = ""

    @property
    def ready(self) -> bool:
        """Whether commands can be sent now."""
        return self._ready

    def start(self) -> None:
        """Connect, and stay connected, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self._ready = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def connect(self) -> None:
        """Make the connection once.

        Raises:
            ValkeyDownError: it could not be made.
            ValkeyError: Valkey refused the password.
        """
        loop = asyncio.get_running_loop()
        self._lost.clear()
        connection = _Connection(self._on_lost)
        try:
            await asyncio.wait_for(
                loop.create_connection(lambda: connection, self._host, self._port), self._timeout
            )
        except (OSError, TimeoutError) as error:
            # The address stays out of what a client may see.
            raise ValkeyDownError("valkey: cannot connect") from error
        self._connection = connection
        try:
            if self._password:
                user = (self._user,) if self._user else ()
                await self._exchange(pack("AUTH", *user, self._password))
            # RefusedError while the data set is loaded: then this connection is not ready.
            await self.ask("GET", "refill-gateway-probe")
            await self._end_earlier()
            if self._prepare is not None:
                await self._prepare(self)
            if connection.transport is None:
                raise ValkeyDownError("valkey: the connection was lost")
            self._ready = True
        except BaseException:
            connection.close()
            raise

    async def _end_earlier(self) -> None:
        """End the connection before this one, on Valkey's side, too.

        What was sent on it and not answered may still lie unread in Valkey's buffers. Ended there,
        it is done already or will never be: nothing of it can come behind what is sent from now on.
        """
        info = await self.ask("INFO", "server")
        found = [line[7:] for line in info.decode().splitlines() if line.startswith("run_id:")]
        self.run_id = found[0] if found else ""
        try:
            number = int(await self.ask("CLIENT", "ID"))
            if self._earlier is not None and self._earlier[0] == self.run_id:
                await self.ask("CLIENT", "KILL", "ID", self._earlier[1])
        except ValkeyError as error:
            log.warning(
                "valkey: %s; a command of a connection that was cut off can come late: allow this "
                "user CLIENT ID and CLIENT KILL",
                error,
            )
            return
        self._earlier = (self.run_id, number)

    def send(self, command: bytes, callback: Callback) -> None:
        """Send an encoded command; the callback gets its reply or one of this module's errors."""
        if not self._ready:
            callback(ValkeyDownError(self.reason))
            return
        self._send(command, callback)

    def _send(self, command: bytes, callback: Callback) -> None:
        connection = self._connection
        if connection is None or connection.transport is None:
            callback(ValkeyDownError("valkey: not connected"))
            return
        deadline = asyncio.get_running_loop().time() + self._timeout
        connection.waiting.append((callback, deadline))
        connection.transport.write(command)

    async def call(self, *arguments: bytes | str | int) -> Reply:
        """Send a command and await its reply.

        Raises:
            ValkeyError: an error reply.
            ValkeyDownError: no reply.
        """
        if not self._ready:
            raise ValkeyDownError(self.reason)
        return await self.ask(*arguments)

    async def ask(self, *arguments: bytes | str | int) -> Reply:
        """As `call`, also while the connection is being made."""
        return await self._exchange(pack(*arguments))

    async def _exchange(self, command: bytes) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._send(command, settle(future))
        # Before the watch runs (while the connection is made) this is the only limit.
        try:
            reply = await asyncio.wait_for(future, self._timeout + 1.0)
        except TimeoutError as error:
            raise ValkeyDownError("valkey: no reply in time") from error
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _on_lost(self) -> None:
        if self._ready:
            self._ready = False
            self.reason = "valkey: the connection was lost"
        self._lost.set()

    async def _keep_connected(self) -> None:
        failures, said = 0, ""
        while not self._closed:
            try:
                await self.connect()
            except (ValkeyDownError, ValkeyError) as error:
                self.reason = (
                    f"{error}" if isinstance(error, ValkeyDownError) else f"valkey: {error}"
                )
                if self.reason != said:
                    said = self.reason
                    log.warning("%s; trying again", said)
                await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1
                continue
            if failures:
                log.warning("valkey: connected again")
            failures, said = 0, ""
            await self._watch()

    async def _watch(self) -> None:
        """Wait until the connection is lost; end it when its oldest reply is overdue."""
        loop = asyncio.get_running_loop()
        while not self._lost.is_set():
            try:
                await asyncio.wait_for(self._lost.wait(), min(self._timeout / 4, 0.25))
            except TimeoutError:
                connection = self._connection
                if connection and connection.waiting and connection.waiting[0][1] < loop.time():
                    self._ready = False
                    self.reason = "valkey: no reply in time"
                    connection.fail("no reply in time")
                    connection.close()

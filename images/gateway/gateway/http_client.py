"""A small HTTP/1.1 client on kept connections, for the calls to Qdrant.

A call is a write and a future: where a connection is free it takes no task of its own, so that a
page whose calls are under way at once costs little more than one whose calls follow each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httptools

Answer = tuple[int, bytes]


class NotSentError(Exception):
    """No connection could be made: the request has had no effect."""


class NoAnswerError(Exception):
    """The request was sent and has no answer: it may have had an effect, now or later."""


class _Call:
    """A request that is under way."""

    __slots__ = ("connection", "future", "repeat", "request", "timer")

    def __init__(self, request: bytes, repeat: bool, future: asyncio.Future[Answer]) -> None:
        self.request = request
        self.repeat = repeat
        self.future = future
        self.connection: _Connection | None = None
        self.timer: asyncio.TimerHandle | None = None

    def end(self, result: Answer | Exception) -> None:
        """Give the result to whoever waits, if anybody still does."""
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class _Connection(asyncio.Protocol):
    """One connection; it has one call at a time."""

    def __init__(self, client: HttpClient) -> None:
        self.transport: asyncio.Transport | None = None
        self.used = False
        self._client = client
        self._call: _Call | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(NoAnswerError(f"not HTTP: {error}"))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._fail(NoAnswerError("the connection was lost"))
        self._client.lost(self)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        parts, self._body = self._body, []
        call, self._call = self._call, None
        if call is None:
            # An answer that nobody asked for: what follows cannot be told apart.
            self.close()
            return
        if self._parser.should_keep_alive():
            self._client.free(self)
        else:
            self.close()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        call.end((int(self._parser.get_status_code()), body))

    def take(self, call: _Call) -> None:
        """Send a call's request."""
        assert self.transport is not None
        call.connection, self._call = self, call
        self.transport.write(call.request)

    def _fail(self, error: NoAnswerError) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        call.connection = None
        if self.used and call.repeat and not call.future.done():
            # It was kept and is dead; its server may be there all the same.
            self._client.begin(call)
        else:
            call.end(error)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class HttpClient:
    """Calls to one server.

    Args:
        host, port: where it listens.
        headers: further request heads, complete lines with their ends.
        connections: most at once; further calls wait their turn.
    """

    def __init__(self, host: str, port: int, headers: str, connections: int) -> None:
        self._host = host
        self._port = port
        shown = f"[{host}]" if ":" in host else host
        self._head = f" HTTP/1.1\r\nHost: {shown}:{port}\r\n{headers}"
        self._free: list[_Connection] = []
        self._waiting: deque[_Call] = deque()
        self._places = connections
        self._connecting: set[asyncio.Task[None]] = set()
        self._closed = False

    def call(
        self, method: str, path: str, body: bytes | None, repeat: bool, timeout_s: float
    ) -> asyncio.Future[Answer]:
        """Make one call; its request is on its way when this returns, if a connection is free.

        Args:
            timeout_s: limit for the call, waiting for a connection included.
            repeat: it is a read: when a kept connection turns out to be dead, try a new one.

        Returns:
            Its status and body, or one of the errors:
            NotSentError: there is no server.
            NoAnswerError: no answer, or not in time.
        """
        if body is None:
            request = f"{method} {path}{self._head}\r\n".encode()
        else:
            request = (
                f"{method} {path}{self._head}Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            ).encode() + body
        loop = asyncio.get_running_loop()
        call = _Call(request, repeat, loop.create_future())
        call.timer = loop.call_later(timeout_s, self._overdue, call)
        self.begin(call)
        return call.future

    def begin(self, call: _Call) -> None:
        """Send a call on a free connection, or on a new one, or let it wait."""
        while self._free:
            connection = self._free.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.take(call)
                return
        if self._places:
            self._places -= 1
            task = asyncio.get_running_loop().create_task(self._connect(call))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        else:
            self._waiting.append(call)

    def free(self, connection: _Connection) -> None:
        """Take a connection back whose call was answered."""
        connection.used = True
        while self._waiting:
            call = self._waiting.popleft()
            if not call.future.done():
                connection.take(call)
                return
        self._free.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that was closed; somebody may be waiting for its place."""
        if connection in self._free:
            self._free.remove(connection)
        self._give_place()

    def close(self) -> None:
        """Close all kept connections."""
        self._closed = True
        for task in self._connecting:
            task.cancel()
        for connection in list(self._free):
            connection.close()

    async def _connect(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self._host, self._port
            )
        except OSError as error:
            failure = NotSentError("cannot connect")
            failure.__cause__ = error
            call.end(failure)
            self._give_place()
            return
        if self._closed:
            connection.close()
        elif call.future.done():
            # It was given up meanwhile.
            self.free(connection)
        else:
            connection.take(call)

    def _give_place(self) -> None:
        self._places += 1
        while self._waiting:
            call = self._waiting.popleft()
            if not call.future.done():
                self.begin(call)
                return

    def _overdue(self, call: _Call) -> None:
        if call.connection is None:
            call.end(NotSentError("no connection in time"))
            return
        call.end(NoAnswerError("no answer in time"))
        # The next call must not wait for an answer that may never come.
        call.connection.close()

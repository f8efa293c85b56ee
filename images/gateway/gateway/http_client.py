"""A small HTTP/1.1 client on kept connections, for the calls to Qdrant."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import httptools


class NotSentError(Exception):
    """No connection could be made: the request has had no effect."""


class NoAnswerError(Exception):
    """The request was sent and has no answer: it may have had an effect, now or later."""


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.keep = True
        self.used = False
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._fail("the connection was lost")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body = []
        self.keep = bool(self._parser.should_keep_alive())
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result((int(self._parser.get_status_code()), body))

    def exchange(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self.transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        self.used = True
        return self._waiting

    def _fail(self, why: str) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(NoAnswerError(why))

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
        self._free: deque[_Connection] = deque()
        self._places = asyncio.Semaphore(connections)

    async def call(
        self, method: str, path: str, body: bytes | None, repeat: bool, timeout_s: float
    ) -> tuple[int, bytes]:
        """Make one call.

        Args:
            timeout_s: limit for the call, waiting for a connection included.
            repeat: it is a read: when a kept connection turns out to be dead, try a new one.

        Raises:
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
        connection: _Connection | None = None
        done = False
        try:
            async with asyncio.timeout(timeout_s), self._places:
                while True:
                    connection = await self._connect()
                    kept = connection.used
                    try:
                        answer = await connection.exchange(request)
                    except NoAnswerError:
                        if kept and repeat:
                            continue
                        raise
                    done = True
                    return answer
        except TimeoutError as error:
            if connection is None:
                raise NotSentError("no connection in time") from error
            raise NoAnswerError("no answer in time") from error
        finally:
            if connection is not None:
                if done and connection.keep and connection.transport is not None:
                    self._free.append(connection)
                else:
                    connection.close()

    async def _connect(self) -> _Connection:
        while self._free:
            connection = self._free.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        connection = _Connection()
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, self._host, self._port
            )
        except OSError as error:
            raise NotSentError("cannot connect") from error
        return connection

    def close(self) -> None:
        """Close all kept connections."""
        while self._free:
            self._free.pop().close()

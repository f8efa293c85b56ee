"""HTTP/1.1 on asyncio: kept connections, pipelined requests in order, bodies up to a limit."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from time import perf_counter
from types import MappingProxyType
from typing import cast
from urllib.parse import parse_qsl, unquote

import httptools
import orjson

from .errors import ApiError

log = logging.getLogger(__name__)

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
# Pipelined requests read ahead of the one being answered.
_READ_AHEAD = 32
# Targets up to this length are remembered.
_SHORT_URL = 512
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class Request:
    """A complete request. `query` holds the URL's parameters, `headers` the few that count."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: dict[str, str]
    body: bytes
    keep_alive: bool
    started: float = field(default_factory=perf_counter)


@dataclass(slots=True)
class Response:
    """An answer: `content` is the complete body."""

    status: int
    content: bytes
    content_type: str = JSON


Handler = Callable[[Request], "Response | Awaitable[Response]"]
_KEPT_HEADERS = frozenset((b"api-key", b"authorization", b"content-length", b"expect"))


def success(result: object, started: float) -> Response:
    """Qdrant's envelope around a result."""
    return Response(
        200,
        orjson.dumps(
            {"result": result, "status": "ok", "time": perf_counter() - started}, default=str
        ),
    )


def failure(error: ApiError, started: float) -> Response:
    """Qdrant's envelope around an error."""
    return Response(
        error.status,
        orjson.dumps({"status": {"error": error.message}, "time": perf_counter() - started}),
    )


class HttpProtocol(asyncio.Protocol):
    """One connection. Answers go out in the order of the requests."""

    def __init__(self, handler: Handler, body_limit: int, connections: set[HttpProtocol]) -> None:
        self._handler = handler
        self._body_limit = body_limit
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False
        self._paused = False
        self._refused: ApiError | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a write that it asked for goes on."""
        self._connections.discard(self)
        self._closing = True
        self._waiting.clear()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Parse, and answer what is complete."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(ApiError(400, "Bad request: protocol upgrades are not supported"))
        except httptools.HttpParserError as error:
            if self._refused is None:
                self._refuse(ApiError(400, f"Bad request: {error}"))

    def pause_writing(self) -> None:
        """The client reads slowly: answer no more for now."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on answering."""
        self._writable.set()

    # httptools

    def on_message_begin(self) -> None:
        """A new request starts."""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        """Collect the URL, which may come in parts."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that count."""
        lowered = name.lower()
        if lowered in _KEPT_HEADERS:
            self._headers[lowered.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Refuse a body that is announced as too large; let a waiting client send."""
        length = self._headers.get("content-length")
        if length is not None and int(length) > self._body_limit:
            self._refuse_body()
        elif self._headers.get("expect", "").lower() == "100-continue" and not self._busy():
            self._write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        """Collect the body (chunked or not), up to the limit."""
        self._size += len(body)
        if self._size > self._body_limit:
            self._refuse_body()
        elif self._refused is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer the request now, or in its turn."""
        if self._refused is not None or self._closing:
            return
        try:
            request = self._request()
        except (UnicodeDecodeError, httptools.HttpParserError) as error:
            self._refuse(ApiError(400, f"Bad request: {error}"))
            return
        if self._busy() or not self._writable.is_set():
            self._waiting.append(request)
            if len(self._waiting) >= _READ_AHEAD and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
            if self._answering is None:
                self._answering = asyncio.ensure_future(self._answer_waiting())
            return
        answer = self._call(request)
        if isinstance(answer, Response):
            self._send(request, answer)
        else:
            self._answering = asyncio.ensure_future(self._answer_later(request, answer))

    # This server

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return not self._busy()

    def close(self) -> None:
        """Close the connection after the answer that is under way."""
        self._closing = True
        self._waiting.clear()
        if self._transport is not None and not self._busy():
            self._transport.close()

    def _busy(self) -> bool:
        return self._answering is not None

    def _request(self) -> Request:
        read = _target if len(self._url) <= _SHORT_URL else _target.__wrapped__
        path, query = read(self._url)
        return Request(
            method=self._parser.get_method().decode("ascii"),
            path=path,
            query=query,
            headers=self._headers,
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
            keep_alive=self._parser.should_keep_alive(),
        )

    def _call(self, request: Request) -> Response | Awaitable[Response]:
        try:
            return self._handler(request)
        except ApiError as error:
            return failure(error, request.started)
        except Exception as error:  # noqa: BLE001 - logged, and answered with 500
            return _fault(error, request)

    async def _answer_later(self, request: Request, answer: Awaitable[Response]) -> None:
        self._send(request, await _awaited(request, answer))
        await self._answer_waiting()

    async def _answer_waiting(self) -> None:
        while self._waiting and not self._closing:
            await self._writable.wait()
            if not self._waiting:
                break
            request = self._waiting.popleft()
            if self._paused and len(self._waiting) < _READ_AHEAD // 2:
                self._paused = False
                if self._transport is not None:
                    self._transport.resume_reading()
            answer = self._call(request)
            if not isinstance(answer, Response):
                answer = await _awaited(request, answer)
            self._send(request, answer)
        self._answering = None
        if self._refused is not None:
            self._refuse(self._refused)
        elif self._closing and self._transport is not None:
            self._transport.close()

    def _send(self, request: Request, response: Response) -> None:
        keep = request.keep_alive and not self._closing
        self._write(_head(response, keep) + response.content)
        if not keep:
            self._closing = True
            if self._transport is not None:
                self._transport.close()

    def _refuse_body(self) -> None:
        if self._refused is None:
            self._refuse(ApiError(413, f"Payload too large: the limit is {self._body_limit} bytes"))

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, once the requests before are answered, and close: what follows
        on the connection cannot be read."""
        self._refused = error
        if self._busy() or self._closing or self._transport is None:
            return
        response = failure(error, perf_counter())
        self._write(_head(response, False) + response.content)
        self._closing = True
        self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


async def _awaited(request: Request, answer: Awaitable[Response]) -> Response:
    try:
        return await answer
    except ApiError as error:
        return failure(error, request.started)
    except Exception as error:  # noqa: BLE001 - logged, and answered with 500
        return _fault(error, request)


def _fault(error: Exception, request: Request) -> Response:
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return failure(
        ApiError(500, f"Service internal error: {type(error).__name__}: {error}"), request.started
    )


def _head(response: Response, keep_alive: bool) -> bytes:
    start = _start(response.status, response.content_type, keep_alive)
    return b"%b%d\r\n\r\n" % (start, len(response.content))


@lru_cache(maxsize=64)
def _start(status: int, content_type: str, keep_alive: bool) -> bytes:
    """An answer's head up to the length."""
    connection = "" if keep_alive else "connection: close\r\n"
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n"
        f"{connection}content-length: "
    ).encode("ascii")


# Clients ask for a few targets over and over.
@lru_cache(maxsize=1024)
def _target(url: bytes) -> tuple[str, Mapping[str, str]]:
    """The path and the parameters of a request's target.

    Raises UnicodeDecodeError or httptools.HttpParserError.
    """
    parsed = httptools.parse_url(url)
    query = (parsed.query or b"").decode("ascii")
    parameters = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
    return parsed.path.decode("ascii"), MappingProxyType(parameters)


@lru_cache(maxsize=1024)
def path_parts(path: str) -> tuple[str, ...]:
    """The decoded parts of a URL's path, without the leading slash."""
    return tuple(unquote(part) for part in path.strip("/").split("/"))

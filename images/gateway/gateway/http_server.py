"""The HTTP/1.1 server: a bare asyncio protocol with httptools' parser.

Requests on one connection are answered in their order, one at a time; what comes meanwhile waits
(pipelining). A handler is called synchronously and answers through a callback, now or later, so a
warm hit needs no task and no future.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import httptools

from gateway.errors import ApiError

_HEAD_BYTES = 64 << 10
# Requests that wait behind one that is being answered, on one connection.
_MOST_WAITING = 128
# Of one compressed body.
_MOST_MEMBERS = 256
_REASONS = {
    200: "OK", 201: "Created", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    406: "Not Acceptable", 408: "Request Timeout", 409: "Conflict", 413: "Payload Too Large",
    415: "Unsupported Media Type", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip
_JSON = b"application/json"


class Request:
    """One request.

    Attributes:
        path, query: as sent, percent-encoded.
        opaque_id: the X-Opaque-Id that comes back in the answer and the log.
    """

    __slots__ = (
        "accept", "body", "content_type", "encoding", "error", "head_bytes", "keep_alive",
        "method", "opaque_id", "parts", "path", "query", "size", "url",
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = b""
        self.url = b""
        self.path = b""
        self.query = b""
        self.body = b""
        self.parts: list[bytes] = []
        self.size = 0
        self.head_bytes = 0
        self.accept = b""
        self.content_type = b""
        self.encoding = b""
        self.opaque_id = b""
        self.keep_alive = True
        self.error: ApiError | None = None


Respond = Callable[[int, bytes], None]
Handler = Callable[[Request, Respond], None]


class HttpProtocol(asyncio.Protocol):
    """One client's connection.

    Args:
        handle: answers a request through the callback that it gets, exactly once.
        most_bytes: of a body, also after decompression.
        connections: the set of open connections, of which this one will be a member.
        request_limit_s: how long a request may take to come; then 408, and the connection closes.
    """

    def __init__(
        self,
        handle: Handler,
        most_bytes: int,
        connections: set[HttpProtocol],
        request_limit_s: float,
    ) -> None:
        self._handle = handle
        self._most_bytes = most_bytes
        self._request_limit_s = request_limit_s
        self._connections = connections
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request = Request()
        self._waiting: deque[Request] = deque()
        self._busy = False
        self._beginning = False
        self._closing = False
        self._reading = True
        # A request began and has not ended. Requests that come whole never set the timer.
        self._incomplete = False
        self._too_slow: asyncio.TimerHandle | None = None
        self._writable = True
        # Bytes that came while a head was incomplete: a line without an end reaches no callback.
        self._in_head = True
        self._head_received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection; what is under way goes on without an answer."""
        self._transport = None
        self._connections.discard(self)
        self._waiting.clear()
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(ApiError(400, "illegal_argument_exception", "upgrades are not supported"))
        except httptools.HttpParserError as error:
            self._refuse(
                ApiError(400, "illegal_argument_exception", f"not an HTTP/1.1 request: {error}")
            )
        if self._in_head:
            self._head_received += len(data)
            if self._head_received > 2 * _HEAD_BYTES:
                self._head_too_large()
        if self._incomplete and self._too_slow is None and not self._closing:
            self._too_slow = asyncio.get_running_loop().call_later(
                self._request_limit_s, self._refuse_slow
            )

    def pause_writing(self) -> None:
        """Answer no further requests to a client that does not read."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on."""
        self._writable = True
        if not self._busy:
            self._next()

    def close(self) -> None:
        """Close after the answer that is under way."""
        self._closing = True
        if not self._busy and self._transport is not None:
            self._transport.close()

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._request = Request()
        self._incomplete = True
        self._in_head = True
        self._head_received = 0

    def on_headers_complete(self) -> None:
        """End the head."""
        self._in_head = False

    def on_url(self, url: bytes) -> None:
        """Take the target, or a part of it."""
        request = self._request
        request.url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a head line."""
        self._count_head(len(name) + len(value) + 4)
        name = name.lower()
        request = self._request
        if name == b"accept":
            request.accept = value
        elif name == b"content-type":
            request.content_type = value
        elif name == b"content-encoding":
            request.encoding = value.lower()
        elif name == b"x-opaque-id":
            request.opaque_id = value
        elif name == b"content-length":
            if value.isdigit() and int(value) > self._most_bytes:
                self._too_large()
        elif name == b"expect" and value.lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        request = self._request
        request.size += len(body)
        if request.size > self._most_bytes:
            self._too_large()
            return
        request.parts.append(body)

    def on_message_complete(self) -> None:
        """Answer the request, or let it wait its turn."""
        self._incomplete = False
        if self._too_slow is not None:
            self._stop_timer()
        if self._closing and not self._busy:
            return
        request = self._request
        request.method = self._parser.get_method()
        request.keep_alive = self._parser.should_keep_alive()
        url = request.url
        if not url.startswith(b"/"):
            # The absolute form (RFC 9112, 3.2.2): the host is this one, whatever it says.
            url = b"/" + url.partition(b"://")[2].partition(b"/")[2]
        request.path, _, request.query = url.partition(b"?")
        parts = request.parts
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        if request.encoding:
            self._decode(request)
        if self._busy or not self._writable:
            self._waiting.append(request)
            if len(self._waiting) >= _MOST_WAITING and self._transport is not None:
                self._transport.pause_reading()
                self._reading = False
        else:
            self._begin(request)

    def _begin(self, request: Request) -> None:
        self._busy = True
        answered = False

        def respond(status: int, body: bytes) -> None:
            nonlocal answered
            if answered:
                raise RuntimeError("a request was answered twice")
            answered = True
            self._respond(request, status, body)

        if request.error is not None:
            respond(request.error.status, request.error.body())
        else:
            self._handle(request, respond)

    def _respond(self, request: Request, status: int, body: bytes) -> None:
        self._busy = False
        transport = self._transport
        if transport is None:
            return
        keep = request.keep_alive and not self._closing
        transport.write(
            _head(request, status, len(body), keep) + (b"" if request.method == b"HEAD" else body)
        )
        if not keep:
            self._closing = True
            transport.close()
        else:
            self._next()

    def _next(self) -> None:
        """Begin the next request that waits, or read on."""
        if self._beginning:
            # Answered at once by the loop below, which goes on: no call within a call for each.
            return
        self._beginning = True
        try:
            while self._waiting and self._writable and not self._busy and not self._closing:
                self._begin(self._waiting.popleft())
        finally:
            self._beginning = False
        if not (self._waiting or self._reading or self._transport is None):
            self._reading = True
            self._transport.resume_reading()

    def _stop_timer(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None

    def _refuse_slow(self) -> None:
        self._too_slow = None
        self._refuse(
            ApiError(
                408,
                "timeout_exception",
                f"the request did not come whole within {self._request_limit_s:g} s",
            )
        )

    def _count_head(self, size: int) -> None:
        self._request.head_bytes += size
        if self._request.head_bytes > _HEAD_BYTES:
            self._head_too_large()

    def _head_too_large(self) -> None:
        self._refuse(
            ApiError(431, "illegal_argument_exception", f"request head beyond {_HEAD_BYTES} bytes")
        )

    def _too_large(self) -> None:
        self._refuse(
            ApiError(
                413,
                "content_too_long_exception",
                f"request body beyond {self._most_bytes} bytes; send less at a time",
            )
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer an error and close: what follows on the connection cannot be read."""
        if self._closing:
            return
        self._closing = True
        if self._transport is None:
            return
        if self._busy:
            # The answer that is under way goes first, and closes.
            return
        body = error.body()
        self._transport.write(_head(self._request, error.status, len(body), False) + body)
        self._transport.close()

    def _decode(self, request: Request) -> None:
        if request.encoding == b"identity":
            return
        if request.encoding not in (b"gzip", b"deflate"):
            request.error = ApiError(
                415,
                "media_type_header_exception",
                f"Content-Encoding {request.encoding.decode('latin-1')[:40]} is not supported; "
                "send gzip, or none",
            )
            return
        try:
            body, whole = _inflated(request.body, self._most_bytes)
        except zlib.error as error:
            request.error = ApiError(
                400, "illegal_argument_exception", f"the body is not {request.encoding!r}: {error}"
            )
            return
        if len(body) > self._most_bytes:
            request.error = ApiError(
                413,
                "content_too_long_exception",
                f"request body beyond {self._most_bytes} bytes; send less at a time",
            )
        elif not whole:
            request.error = ApiError(
                400, "illegal_argument_exception", "the compressed body is cut off"
            )
        request.body = body


def _inflated(packed: bytes, most: int) -> tuple[bytes, bool]:
    """Return the body and whether it ended; more than `most` bytes are cut after `most` + 1.

    A gzip body may hold several members (RFC 1952, 2.2), which are one text. Raises zlib.error
    for anything else, also behind the last member, and for more than `_MOST_MEMBERS`: each costs a
    copy of all that follows it.
    """
    body = b""
    for _ in range(_MOST_MEMBERS):
        inflater = zlib.decompressobj(47)
        body += inflater.decompress(packed, most + 1 - len(body))
        packed = inflater.unused_data
        if not inflater.eof or not packed or len(body) > most:
            return body, inflater.eof
    raise zlib.error(f"more than {_MOST_MEMBERS} members")


def _head(request: Request, status: int, size: int, keep: bool) -> bytes:
    head = _HEADS.get((status, request.accept))
    if head is None:
        head = _make_head(status, request.accept)
        if len(_HEADS) < 256:
            _HEADS[status, request.accept] = head
    opaque = request.opaque_id
    return b"%b%d\r\n%b%b\r\n" % (
        head,
        size,
        b"x-opaque-id: %b\r\n" % opaque if opaque else b"",
        b"" if keep else b"connection: close\r\n",
    )


_HEADS: dict[tuple[int, bytes], bytes] = {}


def _make_head(status: int, accept: bytes) -> bytes:
    # Elasticsearch 8's clients ask for a compatible media type and want to see it.
    kind = _JSON
    if b"application/vnd.elasticsearch+json" in accept:
        kind = b"application/vnd.elasticsearch+json;compatible-with=8"
    return (
        b"HTTP/1.1 %d %b\r\nx-elastic-product: Elasticsearch\r\ncontent-type: %b\r\n"
        b"content-length: " % (status, _REASONS.get(status, "Status").encode(), kind)
    )

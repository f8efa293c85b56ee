"""HTTP/1.1 messages as the proxy reads and writes them: a head and a whole body."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

MAX_HEAD_BYTES = 1 << 16


class MessageError(Exception):
    """What came is not an HTTP/1.1 message with a length or chunks."""


@dataclass(frozen=True)
class Message:
    """A request or an answer.

    Attributes:
        start: its first line, without the line break.
        fields: the lines of its head, without those that say where the body ends.
        body: whole, chunks put together.
        closes: whether the sender closes the connection after it.
    """

    start: bytes
    fields: tuple[bytes, ...]
    body: bytes
    closes: bool = False

    @property
    def method(self) -> str:
        """Method of a request."""
        return self.start.split(b" ")[0].decode("latin-1")

    @property
    def path(self) -> str:
        """Path of a request, without the query string."""
        return self.start.split(b" ")[1].decode("latin-1").partition("?")[0]

    def data(self, claimed: int | None = None) -> bytes:
        """Give its bytes; `claimed` is the length that the head states instead of the body's."""
        length = len(self.body) if claimed is None else claimed
        lines = [self.start, *self.fields, b"Content-Length: %d" % length]
        return b"\r\n".join([*lines, b"", b""]) + self.body


def answer(status: int, reason: str, kind: str, body: bytes) -> Message:
    """Make an answer."""
    start = f"HTTP/1.1 {status} {reason}".encode()
    return Message(start, (f"Content-Type: {kind}".encode(),), body)


async def read(reader: asyncio.StreamReader) -> Message | None:
    """Read one message; None when the connection ends before its first byte.

    Raises:
        MessageError: what came is not HTTP/1.1, or ends in the middle.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise MessageError("the connection ended within a head") from error
    except asyncio.LimitOverrunError as error:
        raise MessageError("a head longer than 64 KiB") from error
    start, *lines = head[:-4].split(b"\r\n")
    length, chunked, closes, kept = 0, False, False, []
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.strip().lower(), value.strip()
        if name == b"content-length":
            if not value.isdigit():
                raise MessageError(f"not a content length: {value!r}")
            length = int(value)
        elif name == b"transfer-encoding":
            chunked = value.lower() == b"chunked"
        elif name == b"connection":
            closes = value.lower() == b"close"
        else:
            kept.append(line)
    try:
        body = await (_chunks(reader) if chunked else reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise MessageError("the connection ended within a body") from error
    return Message(start, tuple(kept), body, closes)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        line = await reader.readline()
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise MessageError(f"not a chunk size: {line!r}") from error
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return body
        body += chunk[:-2]

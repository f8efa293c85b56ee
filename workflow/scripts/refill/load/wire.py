"""One kept HTTP/1.1 connection on a blocking socket: the wire that every timed request uses.

A client library costs more than the search that it carries (an HNSW search on a warm collection
takes about 0.2 ms, `qdrant-client` adds more), so timed requests are bytes that were prepared
before, and the answer is handed on as bytes and read after the timed section.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

RECEIVE_BYTES = 1 << 18
MAX_HEAD_BYTES = 1 << 16


class WireError(Exception):
    """The connection or the answer broke; the request is an `error`, never a latency."""


class WireTimeoutError(WireError):
    """No complete answer within the limit; the request is censored at the limit."""


@dataclass(frozen=True)
class Address:
    """Where an engine listens: host, port, TLS or not, and the path that its API starts at."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Read `http[s]://host[:port][/prefix]`; raise ValueError with the reason otherwise."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address of the form http://host:port")
        if parts.username or parts.password:
            raise ValueError("the address holds a user or password; use the API key's variable")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """The address as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{self.prefix}"


def prepare(
    address: Address,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Give the bytes of one request, head and body, ready to be sent."""
    lines = [f"{method} {address.prefix}{path} HTTP/1.1", f"Host: {address.host}:{address.port}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


class Connection:
    """A kept connection. It is opened at the first request and after every failure.

    Nothing is retried here: what failed is raised, and the next request opens a new connection.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._rest = b""

    def open(self) -> None:
        """Connect if not connected, so that connecting stays out of the next request's time."""
        if self._socket is not None:
            return
        try:
            plain = socket.create_connection(
                (self.address.host, self.address.port), timeout=self.timeout_s
            )
        except OSError as error:
            raise WireError(f"connect: {error}") from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        if not self.address.tls:
            self._socket = plain
            return
        try:
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(plain, server_hostname=self.address.host)
        except OSError as error:
            plain.close()
            raise WireError(f"TLS: {error}") from error

    def close(self) -> None:
        """Close; the next request opens a new connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._rest = b""

    def request(self, data: bytes) -> tuple[int, bytes]:
        """Send prepared bytes and give the answer's status and whole body.

        Raises:
            WireTimeoutError: no complete answer within `timeout_s` of the call.
            WireError: the connection broke, or the answer is not HTTP/1.1.
        """
        deadline = time.monotonic() + self.timeout_s
        try:
            self.open()
            assert self._socket is not None
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(data)
            return self._response(deadline)
        except TimeoutError as error:
            self.close()
            raise WireTimeoutError(f"no answer within {self.timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise WireError(f"{type(error).__name__}: {error}") from error
        except WireError:
            self.close()
            raise

    def _receive(self, deadline: float) -> bytes:
        """Read once; the first read of an answer keeps the limit that was set when it was sent."""
        assert self._socket is not None
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise WireError("the server closed the connection")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return data

    def _response(self, deadline: float) -> tuple[int, bytes]:
        buffer = self._rest
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > MAX_HEAD_BYTES:
                raise WireError("the answer's head is longer than 64 KiB")
            buffer += self._receive(deadline)
        head = buffer[:end].lower()
        if not head.startswith(b"http/1.") or not head[9:12].isdigit():
            raise WireError(f"not an HTTP answer: {buffer[:40]!r}")
        status = int(head[9:12])
        rest = buffer[end + 4 :]
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            body, rest = self._exactly(_number(head, at + 17), rest, deadline)
        elif b"\r\ntransfer-encoding: chunked" in head:
            body, rest = self._chunked(rest, deadline)
        elif status in (204, 304) or status < 200:
            body = b""
        else:
            raise WireError("the answer has neither a length nor chunks")
        self._rest = rest
        if b"\r\nconnection: close" in head:
            self.close()
        return status, body

    def _exactly(self, length: int, rest: bytes, deadline: float) -> tuple[bytes, bytes]:
        if len(rest) < length:
            parts, have = [rest], len(rest)
            while have < length:
                parts.append(self._receive(deadline))
                have += len(parts[-1])
            rest = b"".join(parts)
        return rest[:length], rest[length:]

    def _chunked(self, rest: bytes, deadline: float) -> tuple[bytes, bytes]:
        body = b""
        while True:
            while (end := rest.find(b"\r\n")) < 0:
                rest += self._receive(deadline)
            try:
                size = int(rest[:end].split(b";")[0], 16)
            except ValueError as error:
                raise WireError(f"not a chunk size: {rest[:end]!r}") from error
            chunk, rest = self._exactly(size + 2, rest[end + 2 :], deadline)
            if size == 0:
                return body, rest
            body += chunk[:-2]


def _number(head: bytes, start: int) -> int:
    end = head.find(b"\r\n", start)
    text = head[start : end if end >= 0 else len(head)].strip()
    if not text.isdigit():
        raise WireError(f"not a content length: {text!r}")
    return int(text)

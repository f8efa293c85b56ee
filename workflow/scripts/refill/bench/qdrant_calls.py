"""The calls to Qdrant that a gateway makes for a request: seen on the wire, and made directly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httptools

from refill.load.wire import Address, WireError, prepare

RECEIVE_BYTES = 1 << 18
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Call:
    """One call to Qdrant's REST API."""

    method: str
    path: str
    body: bytes

    @property
    def kind(self) -> str:
        """The last part of its path: `scroll`, `count`, ..."""
        return self.path.partition("?")[0].rpartition("/")[2]


class Recorder:
    """A relay in front of Qdrant that keeps every call that passes. Used as a context.

    It is for looking, never for timing: each direction of a connection is a thread here.

    Args:
        target: where Qdrant listens.

    Attributes:
        address: where the relay listens, on loopback.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True, name="recorder").start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        # A shut listener ends the thread that waits on it; closing it alone does not.
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):  # the other side may be gone already
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def take(self) -> list[Call]:
        """Give the calls since the last time, in the order in which they were complete."""
        with self._lock:
            calls, self._calls = self._calls, []
        return calls

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was shut
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._target.host, self._target.port))
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                for source, sink, reader in (
                    (client, server, _Reader(self._keep)),
                    (server, client, None),
                ):
                    threading.Thread(
                        target=_relay, args=(source, sink, reader), daemon=True, name="relay"
                    ).start()

    def _keep(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)


class _Reader:
    """Reads the requests of one connection."""

    def __init__(self, keep: Any) -> None:
        self._keep = keep
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        self._keep(Call(method, self._url.decode("ascii"), self._body))


def _relay(source: socket.socket, sink: socket.socket, reader: _Reader | None) -> None:
    with suppress(OSError):  # a side was closed
        while data := source.recv(RECEIVE_BYTES):
            if reader is not None:
                reader.feed(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Direct:
    """Makes a page's calls directly, on two kept connections, as the gateway orders them.

    The gateway sends the count, which needs nothing, beside the first scroll, and each further
    scroll when the one before is answered; the page is there when all are answered. So the time
    of `page` is what a gateway that cost nothing would take. Used as a context.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._main = _Kept(address)
        self._beside = _Kept(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._main.close()
        self._beside.close()

    def prepared(self, calls: Sequence[Call]) -> tuple[list[bytes], bytes]:
        """Give the bytes of a page's calls: those one after the other, and the one beside them.

        Raises:
            ValueError: the calls are not one count and at least one other.
        """
        data = [(c, prepare(self._address, c.method, c.path, c.body or None)) for c in calls]
        chain = [bytes_ for call, bytes_ in data if call.kind != "count"]
        beside = [bytes_ for call, bytes_ in data if call.kind == "count"]
        if len(beside) != 1 or not chain:
            kinds = ", ".join(call.kind for call in calls) or "none"
            raise ValueError(f"a page is one count and at least one scroll, these were: {kinds}")
        return chain, beside[0]

    def page(self, chain: Sequence[bytes], beside: bytes) -> float:
        """Make the calls of one page; give the seconds from the first byte to the last."""
        start = time.perf_counter()
        self._main.send(chain[0])
        self._beside.send(beside)
        self._main.receive()
        for data in chain[1:]:
            self._main.send(data)
            self._main.receive()
        self._beside.receive()
        return time.perf_counter() - start

    def in_turn(self, chain: Sequence[bytes], beside: bytes) -> float:
        """Make the calls one after the other on one connection; give the seconds of all."""
        start = time.perf_counter()
        for data in (*chain, beside):
            self._main.send(data)
            self._main.receive()
        return time.perf_counter() - start


class _Kept:
    """A kept connection whose requests are sent and answered in two steps."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> None:
        """Read one answer to its end. Raises WireError when it is not a 200 with a length."""
        buffer = self._read()
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            buffer += self._read()
        head = buffer[:end].lower()
        at = head.find(b"content-length:")
        if not head.startswith(b"http/1.1 200 ") or at < 0:
            raise WireError(f"qdrant: not a 200 with a length: {buffer[:200]!r}")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        missing = end + 4 + length - len(buffer)
        while missing > 0:
            missing -= len(self._read())

    def _read(self) -> bytes:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise WireError("qdrant closed the connection")
        return data

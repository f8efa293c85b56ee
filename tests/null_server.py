"""A real HTTP server for the driver's tests, whose behaviour a test chooses request by request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from refill.load.wire import Address

Reply = Callable[[int, bytes], bytes | None]


def ok(body: bytes = b"{}") -> bytes:
    """Give a whole HTTP answer."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class NullServer:
    """Answers every request with what `reply(number, request)` gives; None closes.

    Requests are numbered in the order of their arrival over all connections.
    """

    def __init__(self, reply: Reply | None = None) -> None:
        self._reply = reply or (lambda _, __: ok())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the port and all connections, as a killed server does."""
        # Shut down first: a close alone does not end an accept that waits in its thread.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # closed by the other side already
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 20):
                with self._lock:
                    number = len(self.requests)
                    self.requests.append(data)
                if (reply := self._reply(number, data)) is None:
                    connection.close()
                    return
                connection.sendall(reply)
        except OSError:
            return

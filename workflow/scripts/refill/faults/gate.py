"""A relay to an engine that can hold a request or an answer back, for as long as its owner wants.

The proxy beside this puts a fault into an exchange; a gate keeps what it is given and chooses the
moment: between two steps of a client of the engine, it can be looked at, killed, or overtaken.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from refill.load.wire import Address

REQUEST, ANSWER = "request", "answer"
# Whatever is forgotten in a gate goes on its way then, in s.
LONGEST_S = 60.0
CHUNK_BYTES = 1 << 20


class Gate:
    """A relay in this process, on a port of its own. Closing it drops what it holds.

    What comes in one piece is held in one piece: a request or an answer of up to a mebibyte that
    its sender writes at once, over a connection of this machine.

    Args:
        to: the engine.
        host: the address of this machine to listen on.

    Attributes:
        address: where it listens.
        held: set while it holds something.

    Raises:
        OSError: this machine has no such address.
    """

    def __init__(self, to: Address, host: str = "127.0.0.1") -> None:
        self._to = to
        self._listener = socket.create_server((host, 0))
        self.address = Address(host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._what = ""
        self._naming = b""
        self._countdown = 0
        self._drop = False
        self._open = threading.Event()
        self._delay_s = 0.0
        self._delayed = b""
        self.held = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, what: str, number: int = 1, naming: bytes = b"") -> None:
        """Hold back the n-th "request" or "answer" from now on, and all behind it.

        Args:
            naming: bytes that those which count hold; empty: all count.
        """
        with self._lock:
            self._what, self._countdown, self._drop = what, number, False
            self._naming = naming
            self._open.clear()
            self.held.clear()

    def stand_aside(self) -> None:
        """Hold on to what is held, and let everything else pass."""
        with self._lock:
            self._what = ""

    def release(self, drop: bool = False) -> None:
        """Let what was held go on its way, or drop it; nothing is held any more."""
        with self._lock:
            self._what, self._drop = "", drop
            self._open.set()

    def delay(self, naming: bytes, seconds: float) -> None:
        """Let requests that hold these bytes take longer from now on."""
        with self._lock:
            self._delayed, self._delay_s = naming, seconds

    def close(self) -> None:
        """Drop what is held, and take no more connections."""
        self.release(drop=True)
        # Closed alone it would go on listening for as long as the thread waits in `accept`.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection((self._to.host, self._to.port))
            except OSError:
                # As without a gate: nobody is there.
                client.close()
                continue
            for source, sink, what in ((client, server, REQUEST), (server, client, ANSWER)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._relay, args=(source, sink, what), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, what: str) -> None:
        # A side that has gone ends the connection on the other side, too.
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if self._holds(what, data):
                    self._open.wait(LONGEST_S)
                    if self._drop:
                        break
                elif what == REQUEST:
                    self._dawdle(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _dawdle(self, data: bytes) -> None:
        with self._lock:
            seconds = self._delay_s if self._delayed in data else 0.0
        if seconds:
            time.sleep(seconds)

    def _holds(self, what: str, data: bytes) -> bool:
        with self._lock:
            if self._what != what or self._naming not in data:
                return False
            self._countdown -= 1
            if self._countdown > 0:
                return False
            self.held.set()
            return True

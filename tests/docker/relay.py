"""A way to a daemon's socket that a test can cut, as if the daemon had been killed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self


class Relay:
    """Passes on what comes to a socket of its own. Used as a context.

    Args:
        folder: where its socket goes; the path must be short.
        host: the daemon's address, a socket's file.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._path, self._target = folder / "relay.sock", host.removeprefix("unix://")
        self.host = f"unix://{self._path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Refuse what comes and break what is open."""
        self._path.unlink(missing_ok=True)
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

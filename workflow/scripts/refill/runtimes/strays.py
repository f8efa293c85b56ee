"""Processes that have left the process group of their engine, and the end of them.

A program that makes a session of its own, such as a daemon or what `setsid` starts, is not reached
by a kill of the group. While an engine runs, the kernel gives this process all descendants that
lose their parent: strays are among those, and the folder or the port tells which engine's they are.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from refill.processes import adopt_orphans

_lock = threading.Lock()
_engines: set[object] = set()


def engine_begins(engine: object) -> None:
    """Adopt what loses its parent from now on; called before an engine's process is started."""
    with _lock:
        _engines.add(engine)
        adopt_orphans(True)


def engine_is_gone(engine: object) -> None:
    """Adopt no more, unless another engine runs; called when all of an engine has ended."""
    with _lock:
        _engines.discard(engine)
        adopt_orphans(bool(_engines))


def end_strays(group: int, folder: Path, port: int) -> None:
    """Kill what has left an engine's group (SIGKILL), and wait for its end and that of the group.

    A stray that neither works in the folder nor listens at the port any more stays behind.

    Args:
        group: the engine's, which was killed, and whose leader was waited for.
        folder: the engine's own, in which it was started.
        port: the engine's.
    """
    # Children of this process, as what had started them is dead.
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)
    # What a stray had started is found when that one is dead.
    while strays := _strays(folder, port):
        for stray in strays:
            with suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(stray, 0)


def _strays(folder: Path, port: int) -> list[int]:
    # In this order, as there is a kill for each crash of a proof: a look at a link costs little, at
    # a process's sockets much.
    found = [process for process in psutil.pids() if _works_in(process, str(folder))]
    if _is_taken(port):
        found += [child.pid for child in psutil.Process().children() if _listens(child, port)]
    return [process for process in found if _is_adopted(process)]


def _works_in(process: int, folder: str) -> bool:
    try:
        # Not a Path, which costs more than all else here.
        place = os.readlink(f"/proc/{process}/cwd").removesuffix(" (deleted)")  # noqa: PTH115
    except OSError:
        return False  # it has ended, is the kernel's, or another user's
    return place == folder or place.startswith(f"{folder}/")


def _is_taken(port: int) -> bool:
    """Say whether something listens at a port of loopback; no client can take this for it."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for each in process.net_connections("tcp")
        )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False  # as above


def _is_adopted(process: int) -> bool:
    try:
        # What is in this process's session was started by it, beside the engine.
        return os.getsid(process) != os.getsid(0) and psutil.Process(process).ppid() == os.getpid()
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False

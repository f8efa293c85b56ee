"""Processes that have left the process group of their engine, and the end of them.

A program that makes a session of its own, such as a daemon or what `setsid` starts, is not reached
by a kill of the group. While an engine runs, the kernel gives this process all descendants that
lose their parent: strays are among those, and the folder or the port tells which engine's they are.
"""

from __future__ import annotations

import os
import signal
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
    found = []
    for child in psutil.Process().children():
        try:
            # What is in this process's session was started by it, beside the engine.
            if os.getsid(child.pid) == os.getsid(0) or child.status() == psutil.STATUS_ZOMBIE:
                continue
            if Path(child.cwd()).is_relative_to(folder) or _listens(child, port):
                found.append(child.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue  # it has ended in between
        except psutil.AccessDenied:
            continue  # another user's, which only root gives an engine, and root may look
    return found


def _listens(process: psutil.Process, port: int) -> bool:
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr.port == port
        for each in process.net_connections("tcp")
    )

"""Child processes that never outlive their parent, and a parent that notices when it is alone."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PACKAGE_PARENT = Path(__file__).resolve().parent.parent
_libc = ctypes.CDLL(None, use_errno=True)


class StoppedError(BaseException):
    """The run was asked to stop (Ctrl+C, TERM) or lost its parent. Not an `Exception`, so that
    no handler for failures takes it for one."""


INVOCATION = "REFILL_INVOCATION"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux).

    Called between fork and exec; see prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans(adopts: bool) -> None:
    """Become the parent of each descendant that loses its own, or leave that to init again (Linux).

    What was adopted is a zombie after its end until somebody waits for it by its number; see
    prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    if sys.platform == "linux":
        _libc.prctl(PR_SET_CHILD_SUBREAPER, int(adopts))


def run_whole(
    command: Sequence[str],
    timeout_s: float,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> tuple[int | None, str]:
    """Run a program to its end, and leave nothing of it: what it started ends with it.

    It is the leader of a process group of its own, which is killed when the program has ended, has
    taken too long, or this process is stopped. A Ctrl+C does not reach it but through that.

    Args:
        command: the program and its arguments.
        timeout_s: how long it may take.
        cwd: folder that it runs in.
        environment: all its variables; None: those of this process.

    Returns:
        Its exit status, negative: the signal that ended it, None: it took too long; and all that it
        wrote, read as UTF-8.

    Raises:
        OSError: it cannot be started.
    """
    # A file and no pipe: a stray child that holds a pipe would be waited for.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read().decode("utf-8", errors="replace")


def module_command(module: str, *arguments: str) -> list[str]:
    """Give the command that runs a module of this package in a process of its own."""
    return [sys.executable, "-m", module, *arguments]


def module_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give an environment in which this package is found."""
    environment = dict(os.environ)
    known = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE_PARENT), known]))
    environment.update(extra or {})
    return environment


def snakemake_ancestors() -> list[psutil.Process]:
    """Give this process's ancestors up to the topmost Snakemake; only the parent if there is none.

    A killed Snakemake leaves its jobs alive under a shell, so the parent alone tells nothing.
    """
    ancestors = psutil.Process().parents()
    last = 0
    for place, ancestor in enumerate(ancestors):
        try:
            if any("snakemake" in Path(word).name for word in ancestor.cmdline()[:3]):
                last = place
        except psutil.Error:
            break
    return ancestors[: last + 1]


def snakemake_command() -> list[str]:
    """Give the command line of the topmost Snakemake above this process; empty if there is none."""
    top = snakemake_ancestors()[-1]
    try:
        words = top.cmdline()
    except psutil.Error:
        return []
    if not any("snakemake" in Path(word).name for word in words[:3]):
        return []
    first = next(n for n, word in enumerate(words) if "snakemake" in Path(word).name)
    return ["snakemake", *words[first + 1 :]]


def name_invocation() -> None:
    """Name this call of Snakemake for its jobs, in the environment, unless it is a job itself.

    A job of a cluster has no ancestor in common with the call that submitted it; the environment
    goes with it.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    os.environ.setdefault(INVOCATION, f"{os.getpid()} {now}")


def named_invocation() -> dict[str, Any] | None:
    """Give the call of Snakemake that this process belongs to, as it named itself; None: none."""
    pid, _, named_at = os.environ.get(INVOCATION, "").partition(" ")
    return {"pid": int(pid), "started_at": named_at} if pid.isdecimal() and named_at else None


def snakemake_invocation() -> dict[str, Any] | None:
    """Give what tells one call of Snakemake from another: its `pid` and `started_at` (UTC).

    As the call named itself, else those of the topmost Snakemake above this process, whose start
    is known to about a second only, as the kernel counts from its boot. None outside of Snakemake.
    """
    if not snakemake_command():
        return None
    if (named := named_invocation()) is not None:
        return named
    top = snakemake_ancestors()[-1]
    started = datetime.fromtimestamp(top.create_time(), UTC)
    return {"pid": top.pid, "started_at": started.strftime("%Y-%m-%dT%H:%M:%SZ")}


class Watch:
    """Turns SIGINT, SIGTERM, SIGHUP and an ancestor's death into `StoppedError` in the main thread.

    Used as a context: further signals are ignored while the run cleans up. Python drops what a
    handler raises while a destructor or a hook of a fork runs; such a stop comes again.
    """

    def __init__(self, ancestors: Sequence[psutil.Process] | None = None) -> None:
        self._ancestors = list(snakemake_ancestors() if ancestors is None else ancestors)
        self._ended = threading.Event()
        self._why: str | None = None
        self._previous: dict[int, object] = {}
        self._cleaning = False
        self._dropped = False
        self._unraisable = sys.unraisablehook

    def __enter__(self) -> Watch:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[number] = signal.signal(number, self._on_signal)
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        threading.Thread(target=self._look, daemon=True, name="ancestors").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        sys.unraisablehook = self._unraisable
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._cleaning:
            return
        self._cleaning = True
        self._why = self._why or f"stopped by {signal.Signals(number).name}"
        raise StoppedError(self._why)

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, StoppedError):
            self._dropped = True
        else:
            self._unraisable(unraisable)

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            gone = [a.pid for a in self._ancestors if not a.is_running()]
            if gone:
                self._ancestors = []
                self._why = self._why or "the process that started this run is gone"
            if self._dropped:
                self._dropped = self._cleaning = False
            elif not gone:
                continue
            os.kill(os.getpid(), signal.SIGTERM)


def wait_for(condition: Callable[[], bool], seconds: float, every: float = 0.02) -> bool:
    """Wait until a condition holds; False when it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True

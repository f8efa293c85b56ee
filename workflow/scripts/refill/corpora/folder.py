"""A corpus's folder appears under its name when it is whole, and not before."""

from __future__ import annotations

import glob
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def whole_folder(out: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Give an empty folder beside `out` that takes its place when the block ends without an error.

    What runs that were killed on this machine left beside `out` is removed; after an error nothing
    is left. `check` is called at the end, and raises when the folder is not to take its place.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(out)
    folder = _sibling(out, "partial")
    folder.mkdir()
    try:
        yield folder
        check()
        _publish(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sibling(out: Path, what: str) -> Path:
    # The number of a process means nothing on another machine, which may share this folder.
    return out.with_name(f".{out.name}.{what}-{platform.node()}-{psutil.Process().pid}")


def _remove_leftovers(out: Path) -> None:
    for what in ("partial", "old"):
        for left in out.parent.glob(f".{glob.escape(f'{out.name}.{what}-{platform.node()}')}-*"):
            pid = left.name.rpartition("-")[2]
            mine = left == _sibling(out, what)
            if pid.isdigit() and (mine or not psutil.pid_exists(int(pid))):
                shutil.rmtree(left)


def _publish(folder: Path, out: Path) -> None:
    # A folder cannot replace a full one in one step: the old one steps aside first, so that a
    # kill in between leaves no corpus rather than half of one.
    old = _sibling(out, "old")
    if out.exists():
        out.rename(old)
    folder.rename(out)
    shutil.rmtree(old, ignore_errors=True)

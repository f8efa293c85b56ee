"""Temporary folders beside what is made in them, and those that killed processes left."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Give a hidden folder beside a target, on its disk, so that a rename puts a file there whole.

    It is removed at the end. One that a killed process of this machine left for the same target is
    removed before: it would fill the disk, and stand among results as a file that nobody knows.

    Args:
        target: what is made; the folder that holds it is made, too.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A process of another node that makes the same on a shared disk has numbers of its own.
    mark = _start_of_machine()
    for left in target.parent.glob(f".{target.name}.*"):
        owner = re.fullmatch(rf"\.{re.escape(target.name)}\.{mark}-(\d+)\.\w+", left.name)
        if owner and int(owner[1]) != os.getpid() and not psutil.pid_exists(int(owner[1])):
            shutil.rmtree(left, ignore_errors=True)
    prefix = f".{target.name}.{mark}-{os.getpid()}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as folder:
        yield Path(folder)


def _start_of_machine() -> str:
    """Give what tells this machine since its start from others; see random(4)."""
    return _BOOT.read_text()[:8] if _BOOT.exists() else "0"

"""Data that a killed run's engines left on the disk of this machine: whose they are, their removal.

Engines that are processes keep their data in folders of their run, which are removed at its end.
A run that is killed cannot do that. So each folder has a mark of the process that made it, and the
next run removes the folders of dead ones; what a living process has is never touched.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from refill.runtimes.owner import Owner

MARK = ".refill-owner"
# Below the folder for the data of engines: a folder of each target, perhaps one of each engine.
DEPTHS = ("*", "*/*", "*/*/*")
# Below the folder for temporary files: `refill.runtimes.users.place_for`.
MOVED = "refill-" + "[0-9a-f]" * 16
PROC = Path("/proc/self/stat")


def mark(folder: Path) -> None:
    """Mark a folder as this process's; where processes cannot be told apart there is no mark."""
    if PROC.exists():
        content = {"owner": Owner.this_process().label, "host": platform.node()}
        (folder / MARK).write_text(json.dumps(content))


def sweep(scratch: Path) -> list[str]:
    """Remove the folders of dead processes.

    Args:
        scratch: the folder for the data of engines.

    Returns:
        In words, what was removed, and what could not be.
    """
    said = []
    for folder in list(_dead(scratch)):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue  # it went with one above it
        except OSError as error:
            said.append(f"{folder}, which a killed run left, cannot be removed: {error.strerror}")
            continue
        said.append(f"removed {folder.name}, data of an engine that a killed run left")
        _remove_empty(folder.parent, scratch)
    return said


def _dead(scratch: Path) -> Iterator[Path]:
    """Give the folders whose process is known to be dead, the outer ones first."""
    if not PROC.exists():
        return
    places = [path for depth in DEPTHS for path in sorted(scratch.glob(f"{depth}/{MARK}"))]
    places += sorted(Path(tempfile.gettempdir()).glob(f"{MOVED}/{MARK}"))
    for place in places:
        try:
            # Somebody else's mark says nothing: anyone may write to a folder for temporary files.
            if place.stat().st_uid != os.geteuid():
                continue
            content = json.loads(place.read_text())
            owner, host = Owner.from_label(str(content["owner"])), content["host"]
        except (OSError, ValueError, LookupError, TypeError):
            continue  # it is being written or removed by the run that it is of, or is none
        if owner is not None and _is_dead(owner, host):
            yield place.parent


def _is_dead(owner: Owner, host: str) -> bool:
    lives = owner.lives()
    if lives is None:
        # Of this machine before it was started anew; of another one nothing is known.
        return host == platform.node() and owner.boot != Owner.this_process().boot
    return not lives


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and folder.is_relative_to(top) and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent

"""The folder of one measurement for its engines' data: whose it is, and what dead ones left there.

It lies in `refill.batch_job.scratch` under the target's name (a proof's also under its owner's, see
`folder_name`), and beside it `<name>.owner`, which names the process that measures. A run that was
killed leaves both; the next run of this project on the same machine removes them, whatever its own
target is.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from refill.batch_job import ScratchError, scratch, scratch_note
from refill.evidence.records import write_json
from refill.runtimes.owner import Owner
from refill.runtimes.users import elsewhere

OWNER = ".owner"
# Engines that may have their data in a place that another user reaches.
_OTHER_USERS = ("opensearch", "elasticsearch")


@contextmanager
def own_scratch(root: Path, target: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the target's scratch folder; remove first what dead runs of this project left beside it.

    Args:
        root: the working folder of the workflow.
        target: such as `optimizers/A1/1`.
        say: told what was removed, what could not be, and where the data lie when nobody said it.

    Raises:
        ScratchError: there is no such folder, or it takes no file.
    """
    folder = scratch(root)
    if note := scratch_note():
        say(f"note: {note}")
    mark = folder / f"{target.replace('/', '-')}{OWNER}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_left(folder, say)
        if (owner := _this_process()) is not None:
            write_json(mark, {"owner": owner.label, "host": platform.node()})
    except OSError as error:
        raise ScratchError(
            f"the folder for the engines' data takes no file ({error.strerror}): let TMPDIR or "
            "REFILL_SCRATCH name one of this machine with space in it"
        ) from error
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()  # unless it holds what others left, or have


def folder_name(name: str, owner: Owner) -> str:
    """Give the name of a scratch folder that says whose it is, where one target may have several.

    A replay of a proof's checks runs beside a proof.
    """
    return f"{name}_{owner.label.replace('/', '_')}"


def owner_of(folder_: str, name: str) -> Owner | None:
    """Give the owner that a name of `folder_name` says; None when it says none."""
    return Owner.from_label(folder_.removeprefix(f"{name}_").replace("_", "/"))


def remove_left(folder: Path, say: Callable[[str], None]) -> None:
    """Remove what measurements left in a scratch folder whose process is dead.

    What has a living owner, or one that cannot be seen from here, is not touched.
    """
    for mark in sorted(folder.glob(f"*{OWNER}")):
        left = _Left.read(mark)
        if left is None or left.lives() is not False:
            continue
        data = folder / mark.name.removesuffix(OWNER)
        named = folder / folder_name(data.name, left.owner)
        if mounted := [*_mounted_in(data), *_mounted_in(named)]:
            say(
                f"note: {data.name} of a run that died stays in the folder for engines' data: "
                f"{len(mounted)} file systems are mounted in it; as root: umount them, or run the "
                "proof on this machine, which does so"
            )
            continue
        places = [data, named, *(elsewhere(data / engine) for engine in _OTHER_USERS)]
        held = [place for place in places if place.exists()]
        for place in held:
            shutil.rmtree(place, ignore_errors=True)
        if any(place.exists() for place in held):
            say(
                f"note: the data of {data.name}, which died here, cannot be removed: another user's"
            )
            continue
        mark.unlink(missing_ok=True)
        if held:
            say(f"removed the data of {data.name}, which died here")


@dataclass(frozen=True)
class _Left:
    """Who made a scratch folder, and on which host."""

    owner: Owner
    host: str

    @classmethod
    def read(cls, mark: Path) -> _Left | None:
        """Read a mark; None when it is none, or was removed just now."""
        try:
            told = json.loads(mark.read_text(encoding="utf-8"))
            owner, host = Owner.from_label(str(told["owner"])), str(told["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(owner, host) if owner else None

    def lives(self) -> bool | None:
        """Say whether it lives; None when that cannot be known from here."""
        here = _this_process()
        if here is None:
            return None
        if self.host == platform.node() and self.owner.boot != here.boot:
            return False  # this machine was started again since
        return self.owner.lives() if self.host == platform.node() else None


def _this_process() -> Owner | None:
    """Give this process; None where the system shows no processes as files."""
    return Owner.this_process() if Path("/proc/self/ns/pid").exists() else None


def _mounted_in(folder: Path) -> list[str]:
    """Give the mount points in a folder, as proc(5) writes them."""
    with suppress(FileNotFoundError):
        inside = str(folder.resolve()) + os.sep
        # The fifth field, with a space, tab, newline and backslash in octal.
        escaped = inside.translate({ord(c): f"\\{ord(c):03o}" for c in " \t\n\\"})
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [point for line in lines if (point := line.split(" ")[4]).startswith(escaped)]
    return []

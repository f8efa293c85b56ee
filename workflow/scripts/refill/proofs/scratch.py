"""A scratch folder of a proof's own, and the end of what killed proofs left in theirs.

The name of a folder says whose it is, so a replay beside a proof leaves the proof's alone, and what
a killed one left is removed by the next.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from refill.batch_job import scratch as folder_of
from refill.contexts import OpensParts
from refill.phases.own_scratch import folder_name, owner_of
from refill.proofs.disk import DiskError, left_below, remove_leftovers
from refill.runtimes.owner import Owner

PREFIX = "proofs-aof"
# A folder whose owner cannot be seen from here is nobody's after this time. One of a proof on this
# machine before its last start goes earlier: its mark beside it names the machine (`own_scratch`).
FOREIGN_S = 24 * 3600.0


class Scratch(OpensParts):
    """A folder that only this process uses. Used as a context: leaving it removes what is there.

    Args:
        root: the working folder of the workflow.
        say: told what cannot be removed, of a killed proof or of this one: it is in nobody's way,
            and the next proof tries again.

    Attributes:
        path: of the folder, which is not there yet.
    """

    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        super().__init__()
        self._folder = folder_of(root).resolve()
        self._say = say
        self.path = self._folder / folder_name(PREFIX, Owner.this_process())

    def _start(self) -> None:
        # A folder can be gone, and the disk in it attached still.
        parts = {disk.relative_to(self._folder).parts[0] for disk in left_below(self._folder)}
        names = {*parts, *(path.name for path in self._folder.glob(f"{PREFIX}*") if path.is_dir())}
        for name in sorted(name for name in names if name.startswith(PREFIX)):
            if _is_dead(self._folder / name):
                self._clean(self._folder / name)
        self._clean(self.path)
        self._open.callback(self._clean, self.path)

    def _clean(self, scratch: Path) -> None:
        """Remove a scratch folder with its disks, each of which is tried."""
        left = False
        for disk in left_below(scratch):
            try:
                remove_leftovers(disk)
            except DiskError as error:
                self._say(str(error))
                left = True
        if not left:
            shutil.rmtree(scratch, ignore_errors=True)


def _is_dead(scratch: Path) -> bool:
    owner = owner_of(scratch.name, PREFIX)
    alive = owner.lives() if owner else False
    if alive is not None:
        return not alive
    try:
        return time.time() - scratch.stat().st_mtime > FOREIGN_S
    except OSError:
        return True

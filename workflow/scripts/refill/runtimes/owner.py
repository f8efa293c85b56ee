"""Whose a thing is that a run leaves behind: a process, told from a later one with its number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process, so that it is told from a later one with its number.

    Attributes:
        pid: its number.
        began: when it started, in clock ticks since the machine's start.
        boot: which start of the machine.
        namespace: in whose view of processes the number holds.
    """

    pid: int
    began: int
    boot: str
    namespace: int

    @classmethod
    def this_process(cls, proc: Path = Path("/proc")) -> Owner:
        """Give this process."""
        began = _began(proc, os.getpid())
        assert began is not None
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return cls(os.getpid(), began, boot, (proc / "self/ns/pid").stat().st_ino)

    @classmethod
    def from_label(cls, text: str) -> Owner | None:
        """Read a label; None when it is not one of an owner."""
        try:
            pid, began, boot, namespace = text.split("/")
            return cls(int(pid), int(began), boot, int(namespace))
        except ValueError:
            return None

    @property
    def label(self) -> str:
        """What stands in the label."""
        return f"{self.pid}/{self.began}/{self.boot}/{self.namespace}"

    def lives(self, proc: Path = Path("/proc")) -> bool | None:
        """Say whether it lives; None when that cannot be known from here.

        Another machine may use the same daemon over the network, and another container of this
        machine has numbers of its own.
        """
        here = Owner.this_process(proc)
        if self.boot != here.boot or self.namespace != here.namespace:
            return None
        return _began(proc, self.pid) == self.began


def _began(proc: Path, pid: int) -> int | None:
    """Give a process's start in ticks; None when there is none, or only its exit status is left.

    Field 22 of /proc/<pid>/stat, counted behind the name, which may hold spaces; see proc(5).
    """
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])

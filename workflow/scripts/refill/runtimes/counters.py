"""What a container has used, from the kernel's files: its control group and its processes."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

from refill.runtimes.cgroups import ControlGroups
from refill.runtimes.process import Resources

UNKNOWN = float("nan")


def container_resources(groups: ControlGroups, folders: Mapping[str, Path]) -> Resources:
    """Give the counters of a container now; not known when it has ended or is out of sight.

    Memory is that of its processes, as it is of an engine without a container; the peak is the
    control group's, caches of files included. Disk traffic is the processes', because a group of
    version 1 does not count what is written back later.

    Args:
        groups: this machine's control groups.
        folders: the container's group, by controller.
    """
    rss = read = written = 0.0
    for pid in groups.processes(folders):
        rss += _resident(groups.proc, pid)
        moved = _moved(groups.proc, pid)
        read, written = read + moved[0], written + moved[1]
    if rss == 0:
        return Resources()
    counted = groups.counters(folders)
    return Resources(
        rss, counted.cpu_s, read, written, counted.throttled_s, counted.memory_peak_bytes
    )


def _resident(proc: Path, pid: int) -> float:
    """Give a process's resident memory in bytes; 0 when it has ended."""
    try:
        pages = int((proc / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0.0
    return float(pages * resource.getpagesize())


def _moved(proc: Path, pid: int) -> tuple[float, float]:
    """Give the bytes that a process and its ended children read from and wrote to disks."""
    try:
        lines = (proc / str(pid) / "io").read_text().splitlines()
    except PermissionError:
        return UNKNOWN, UNKNOWN
    except OSError:
        return 0.0, 0.0  # it has ended, and what it did is its parent's
    told = dict(line.split(": ") for line in lines)
    return float(told["read_bytes"]), float(told["write_bytes"])

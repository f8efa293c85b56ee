"""Control groups of this machine: limits that several containers share, and counters.

A container's own limits are the daemon's business. What it cannot do is limit the group that
containers share (`cgroup_parent`): that group is made and limited here, by the kernel's files or,
where systemd owns the tree, by `systemctl`. Both versions of control groups are known.
Source: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2, sched-bwc.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 100_000
# What limits and counters need; the others are the daemon's.
LIMITED = ("cpu", "cpuset", "memory")
# Version 1 writes "no limit" as a number near 2**63.
NO_LIMIT = 1 << 60
UNKNOWN = float("nan")
REMOVE_S = 5.0
# Below the group of its containers.
MONITORS = "conmon"


@dataclass(frozen=True)
class Limits:
    """What a group of processes may use; None: no limit, or one that is not known.

    Attributes:
        cpus: CPUs' worth of time.
        memory_bytes: memory, caches of files included.
        cpuset: the CPUs that it may run on, as the kernel writes them (`0-1,4`).
        swap_bytes: swap beside the memory; 0 where the machine has none. It is read only: what is
            limited in memory is to have none.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    cpuset: str | None = None
    swap_bytes: int | None = None


@dataclass(frozen=True)
class Counters:
    """What a group of processes has used since it was made; NaN where it is not told.

    Attributes:
        cpu_s: time on CPUs.
        throttled_s: time that runnable threads were held back by the limit, summed over CPUs.
        memory_peak_bytes: the most memory at once, caches of files included.
    """

    cpu_s: float = UNKNOWN
    throttled_s: float = UNKNOWN
    memory_peak_bytes: float = UNKNOWN


@dataclass(frozen=True)
class Mount:
    """A tree of groups: where it is mounted, and which group stands there."""

    folder: Path
    group: str = "/"

    def at(self, group: str) -> Path:
        """Give the folder of a group that /proc names; it need not exist or be in sight."""
        inside = group.removeprefix(self.group) if self.group != "/" else group
        return self.folder / inside.lstrip("/")


class ControlGroups:
    """The groups that this process can see.

    Args:
        mounts: the trees, by controller; version 2 has one, under the empty name.
        proc: where processes are looked up.
    """

    def __init__(self, mounts: Mapping[str, Mount], proc: Path = Path("/proc")) -> None:
        self.mounts = dict(mounts)
        self.proc = proc
        self.version = 1 if "memory" in mounts else 2 if "" in mounts else None

    @classmethod
    def here(cls, proc: Path = Path("/proc")) -> ControlGroups:
        """Find the trees that are mounted on this machine; none where there are no such files."""
        try:
            return cls(mounted((proc / "self/mountinfo").read_text()), proc)
        except OSError:
            return cls({}, proc)

    def folders(self, group: str) -> dict[str, Path]:
        """Give a group's folder for each controller that limits or counts."""
        if self.version == 2:
            return {name: self.mounts[""].at(group) for name in (*LIMITED, "cpuacct")}
        wanted = (*LIMITED, "cpuacct")
        return {name: self.mounts[name].at(group) for name in wanted if name in self.mounts}

    def of_process(self, pid: int) -> dict[str, Path]:
        """Give the folders of a process's group, by controller; only those that are in sight."""
        try:
            lines = (self.proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return {}
        found: dict[str, Path] = {}
        for line in lines:
            _, controllers, group = line.split(":", 2)
            # A group outside of this process's own view of the tree.
            if group.startswith("/.."):
                continue
            if self.version == 2 and controllers == "":
                found = self.folders(group)
            elif self.version == 1:
                for name in controllers.split(","):
                    if name in (*LIMITED, "cpuacct") and name in self.mounts:
                        found[name] = self.mounts[name].at(group)
        return {name: folder for name, folder in found.items() if folder.is_dir()}

    # ---- what stands in the files

    def limits(self, folders: Mapping[str, Path]) -> Limits:
        """Read the limits of a group."""
        memory = folders.get("memory")
        if self.version == 2:
            return Limits(
                _share(_words(folders.get("cpu"), "cpu.max")),
                _limit(_text(memory, "memory.max")),
                _text(folders.get("cpuset"), "cpuset.cpus.effective") or None,
                0 if self._has_no_swap() else _limit(_text(memory, "memory.swap.max")),
            )
        quota = _text(folders.get("cpu"), "cpu.cfs_quota_us")
        period = _text(folders.get("cpu"), "cpu.cfs_period_us")
        cpuset = folders.get("cpuset")
        allowed = _text(cpuset, "cpuset.effective_cpus") or _text(cpuset, "cpuset.cpus")
        most = _limit(_text(memory, "memory.limit_in_bytes"))
        with_swap = _limit(_text(memory, "memory.memsw.limit_in_bytes"))
        swap = None if most is None or with_swap is None else with_swap - most
        return Limits(
            _share([quota, period]), most, allowed or None, 0 if self._has_no_swap() else swap
        )

    def _has_no_swap(self) -> bool:
        """Say whether this machine is sure to have no swap. See proc_meminfo(5)."""
        told = dict(line.split(":") for line in (_text(self.proc, "meminfo") or "").splitlines())
        return told.get("SwapTotal", "").split()[:1] == ["0"]

    def counters(self, folders: Mapping[str, Path]) -> Counters:
        """Read the counters of a group, groups below it included."""
        told = dict(_pairs(_text(folders.get("cpu"), "cpu.stat")))
        if self.version == 2:
            return Counters(
                told.get("usage_usec", UNKNOWN) / 1e6,
                told.get("throttled_usec", UNKNOWN) / 1e6,
                _number(_text(folders.get("memory"), "memory.peak")),
            )
        return Counters(
            _number(_text(folders.get("cpuacct"), "cpuacct.usage")) / 1e9,
            told.get("throttled_time", UNKNOWN) / 1e9,
            _number(_text(folders.get("memory"), "memory.max_usage_in_bytes")),
        )

    def processes(self, folders: Mapping[str, Path]) -> list[int]:
        """Give the processes of a group; those of groups below it are not among them."""
        listed = _text(folders.get("memory"), "cgroup.procs") or ""
        return [int(line) for line in listed.splitlines()]

    # ---- making and removing a group

    def make(self, group: str, limits: Limits) -> None:
        """Make a group at the top of the tree and limit it; what is None is not limited.

        Raises:
            OSError: the files refuse it: not root's process, or a tree that another one owns.
        """
        if self.version is None:
            raise OSError("this machine shows no control groups")
        (self._make_v2 if self.version == 2 else self._make_v1)(group, limits)

    def _make_v1(self, group: str, limits: Limits) -> None:
        folders = self.folders(group)
        if missing := sorted({"cpu", "memory"} - folders.keys()):
            raise OSError(f"no control group tree for {' and '.join(missing)} is mounted")
        for name in LIMITED:
            if name in folders:
                folders[name].mkdir()
        if "cpuset" in folders:
            # Both are empty in a new group, and an empty one can hold no process.
            above = folders["cpuset"].parent
            cpus = limits.cpuset or (_text(above, "cpuset.cpus") or "")
            _write(folders["cpuset"], "cpuset.cpus", cpus)
            _write(folders["cpuset"], "cpuset.mems", _text(above, "cpuset.mems") or "0")
        if limits.cpus is not None:
            _write(folders["cpu"], "cpu.cfs_period_us", str(PERIOD_US))
            _write(folders["cpu"], "cpu.cfs_quota_us", str(round(limits.cpus * PERIOD_US)))
        if limits.memory_bytes is not None:
            memory = folders["memory"]
            if _text(memory, "memory.use_hierarchy") == "0":
                _write(memory, "memory.use_hierarchy", "1")
            _write(memory, "memory.limit_in_bytes", str(limits.memory_bytes))
            if (memory / "memory.memsw.limit_in_bytes").exists():
                _write(memory, "memory.memsw.limit_in_bytes", str(limits.memory_bytes))

    def _make_v2(self, group: str, limits: Limits) -> None:
        folder = self.folders(group)["memory"]
        enabled = " ".join(f"+{name}" for name in LIMITED)
        _write(folder.parent, "cgroup.subtree_control", enabled)
        folder.mkdir()
        if limits.cpuset is not None:
            _write(folder, "cpuset.cpus", limits.cpuset)
        if limits.cpus is not None:
            _write(folder, "cpu.max", f"{round(limits.cpus * PERIOD_US)} {PERIOD_US}")
        if limits.memory_bytes is not None:
            _write(folder, "memory.max", str(limits.memory_bytes))
            if (folder / "memory.swap.max").exists():
                _write(folder, "memory.swap.max", "0")
        _write(folder, "cgroup.subtree_control", enabled)

    def remove(self, group: str) -> None:
        """Remove a group and the empty ones below it from every tree.

        The kernel lets go of a group a moment after its last process; it is waited for that. A
        monitor of Podman's may stay for minutes, to tell how a program in a container ended: it is
        moved to the top of the tree, as the containers are gone.

        Raises:
            OSError: a process is still in it.
        """
        for mount in self.mounts.values():
            deadline = time.monotonic() + REMOVE_S
            while True:
                try:
                    _move(mount.at(group) / MONITORS, mount.folder)
                    _remove_tree(mount.at(group))
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(0.05)

    def has(self, group: str) -> bool:
        """Say whether a group is in one of the trees."""
        return any(mount.at(group).is_dir() for mount in self.mounts.values())

    def named(self, pattern: str) -> set[str]:
        """Give the groups at the top of the trees whose whole name matches a pattern."""
        found: set[str] = set()
        for mount in self.mounts.values():
            with suppress(OSError):
                names = [entry.name for entry in mount.folder.iterdir() if entry.is_dir()]
                found |= {f"/{name}" for name in names if re.fullmatch(pattern, name)}
        return found


def mounted(mountinfo: str) -> dict[str, Mount]:
    """Read the trees of control groups from /proc/<pid>/mountinfo, by controller.

    Named trees of version 1 (`name=systemd`) are among them, as they hold folders of the groups
    too. Beside controllers of version 1 the tree of version 2 is one more of those.
    """
    found: dict[str, Mount] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        mount = Mount(Path(fields[4]), fields[3])
        if kind[0] == "cgroup2":
            found[""] = mount
            continue
        for name in kind[2].split(","):
            if name not in ("rw", "ro"):
                found[name] = mount
    return found


def cpu_list(cpus: list[int] | tuple[int, ...]) -> str:
    """Write CPUs as the kernel does: `0-1,4`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def read_cpu_list(text: str) -> list[int]:
    """Read CPUs as the kernel writes them."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _remove_tree(folder: Path) -> None:
    """Remove a folder of groups, the innermost first; its files go with each folder."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            _remove_tree(entry)
    with suppress(FileNotFoundError):
        folder.rmdir()


def _move(source: Path, target: Path) -> None:
    """Move the processes of a group to another one; those that end meanwhile are gone anyway."""
    for pid in (_text(source, "cgroup.procs") or "").split():
        with suppress(ProcessLookupError):
            (target / "cgroup.procs").write_text(pid)


def _write(folder: Path, name: str, value: str) -> None:
    try:
        (folder / name).write_text(value)
    except OSError as error:
        raise OSError(error.errno, f"{value!r} into {name}: {error.strerror}") from error


def _text(folder: Path | None, name: str) -> str | None:
    if folder is None:
        return None
    try:
        return (folder / name).read_text().strip()
    except OSError:
        # This kernel or this tree has no such file: not known.
        return None


def _words(folder: Path | None, name: str) -> list[str | None]:
    found: list[str | None] = []
    found += (_text(folder, name) or "").split()
    return found if len(found) == 2 else [None, None]


def _share(quota_and_period: list[str | None]) -> float | None:
    quota, period = quota_and_period
    if quota in (None, "max", "-1") or period is None:
        return None
    return int(str(quota)) / int(period)


def _limit(text: str | None) -> int | None:
    if text is None or text == "max" or int(text) >= NO_LIMIT:
        return None
    return int(text)


def _number(text: str | None) -> float:
    return UNKNOWN if text is None else float(text)


def _pairs(text: str | None) -> list[tuple[str, float]]:
    words = [line.split() for line in (text or "").splitlines()]
    return [(w[0], float(w[1])) for w in words if len(w) == 2]

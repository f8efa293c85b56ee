"""Facts about the machine that measured: what explains a figure, nothing that names a person.

No user name, host name or absolute path is among them, but on a cluster the node's name in its
scheduler (`node`; null elsewhere). What a container or another kernel does not show is null.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil

from refill.batch_job import batch_job, scratch_note

_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_HYPERVISORS = {
    "kvm": ("kvm",),
    "qemu": ("qemu", "bochs"),
    "amazon": ("amazon ec2",),
    "google": ("google compute",),
    "microsoft": ("microsoft corporation",),
    "vmware": ("vmware",),
    "virtualbox": ("virtualbox", "innotek"),
    "xen": ("xen",),
    "firecracker": ("firecracker",),
}


def host_facts(results: Path, root: Path = Path("/")) -> dict[str, Any]:
    """Return facts about this machine, as JSON; `results` is on the disk that is described.

    `root` is where /proc, /sys and /etc are looked up, for tests. Units are in the names. The
    last entry, `warnings`, says in sentences what makes figures unsteady (a busy machine, a
    governor that saves power, a virtual machine, data in a folder that nobody chose).
    """
    job = batch_job()
    facts: dict[str, Any] = {
        "node": job.node if job else None,
        "cpu": _cpu(root),
        "memory": {
            "total_bytes": psutil.virtual_memory().total,
            "available_bytes": psutil.virtual_memory().available,
            "limit_bytes": _memory_limit(root),
            "swap_total_bytes": _meminfo(root, "SwapTotal"),
            "transparent_hugepages": _chosen(
                _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
            ),
        },
        "disk": _disk(results, root),
        "kernel": platform.release(),
        # What a latency is read from, and how much a reading costs.
        "clocksource": _text(
            root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        "system": platform.system(),
        "distribution": _distribution(root),
        "virtualisation": _virtualisation(root),
        "load": _load(root),
        "python": platform.python_version(),
    }
    facts["warnings"] = [*_warnings(facts), *filter(None, [scratch_note()])]
    return facts


def _text(path: Path) -> str | None:
    """Return a small text file without its last line feed; None where the system has none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        # Missing, or forbidden in a container: then the fact is unknown, and null says so.
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _chosen(text: str | None) -> str | None:
    found = re.search(r"\[([\w-]+)\]", text or "")
    return found[1] if found else None


def _cpu(root: Path) -> dict[str, Any]:
    info = _text(root / "proc/cpuinfo") or ""
    model = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", info, re.MULTILINE)
    frequency = root / "sys/devices/system/cpu/cpu0/cpufreq"
    maximum = _number(_text(frequency / "cpuinfo_max_freq"))
    no_turbo = _text(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    boost = _text(root / "sys/devices/system/cpu/cpufreq/boost")
    turbo = {"0": True, "1": False}.get(no_turbo or "", {"0": False, "1": True}.get(boost or ""))
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    return {
        "model": model[1].strip() if model else None,
        "architecture": platform.machine(),
        "cores_logical": psutil.cpu_count(logical=True),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_usable": _usable_cores(),
        "cores_limit": _cpu_limit(root),
        "governor": _text(frequency / "scaling_governor"),
        "max_mhz": maximum // 1000 if maximum is not None else None,
        "turbo": turbo,
        "smt": {"0": False, "1": True}.get(_text(root / "sys/devices/system/cpu/smt/active") or ""),
        "simd": sorted(known & {"avx", "avx2", "avx512f", "fma", "neon", "asimd", "sve"}),
    }


def _usable_cores() -> int | None:
    # Only Linux tells which cores a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu_limit(root: Path) -> float | None:
    """Return the CPUs that a control group allows (version 2, then 1); None without a limit."""
    v2 = (_text(root / "sys/fs/cgroup/cpu.max") or "").split()
    if len(v2) == 2 and v2[0] != "max":
        return int(v2[0]) / int(v2[1])
    quota = _number(_text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
    period = _number(_text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us"))
    if quota is not None and quota > 0 and period:
        return quota / period
    return None


def _memory_limit(root: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _number(_text(root / "sys/fs/cgroup" / name))
        # Version 1 writes "no limit" as a number near 2**63.
        if limit is not None and limit < 2**60:
            return limit
    return None


def _meminfo(root: Path, key: str) -> int | None:
    found = re.search(rf"^{key}:\s*(\d+) kB", _text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _disk(results: Path, root: Path) -> dict[str, Any]:
    """Return the file system that holds `results` (type and device class, no path)."""
    place = results.resolve()
    while not place.exists():
        place = place.parent
    kind, device = _mount(place, root)
    usage = psutil.disk_usage(str(place))
    return {
        "filesystem": kind,
        "rotational": {"0": False, "1": True}.get(_queue(device, root, "rotational") or ""),
        "scheduler": _chosen(_queue(device, root, "scheduler")),
        # "write through" or "write back": whether an fsync waits for the medium or its cache.
        "write_cache": _queue(device, root, "write_cache"),
        "total_bytes": usage.total,
        "free_bytes": usage.free,
    }


def _mount(place: Path, root: Path) -> tuple[str | None, str | None]:
    """Return type and device number ("8:1") of the mount with the longest path above `place`."""
    best: tuple[int, str | None, str | None] = (-1, None, None)
    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        # mountinfo writes spaces and such as octal.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        # A later mount on the same point hides the earlier one.
        if place.is_relative_to(point) and len(point) >= best[0]:
            best = (len(point), after.split()[0], fields[2])
    return best[1], best[2]


def _queue(device: str | None, root: Path, name: str) -> str | None:
    """Return a setting of the block device; a partition has those of its disk."""
    if device is None:
        return None
    block = root / "sys/dev/block" / device
    for folder in (block, block.resolve().parent):
        if (text := _text(folder / "queue" / name)) is not None:
            return text
    return None


def _distribution(root: Path) -> str | None:
    text = _text(root / "etc/os-release") or _text(root / "usr/lib/os-release") or ""
    found = re.search(r"^PRETTY_NAME=\"?([^\"\n]+)\"?$", text, re.MULTILINE)
    return found[1] if found else None


def _virtualisation(root: Path) -> dict[str, Any]:
    info = _text(root / "proc/cpuinfo") or ""
    names = [_text(root / "sys/class/dmi/id" / key) for key in ("sys_vendor", "product_name")]
    names.append(_text(root / "sys/hypervisor/type"))
    told = " ".join(name for name in names if name).lower()
    kinds = [kind for kind, marks in _HYPERVISORS.items() if any(mark in told for mark in marks)]
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", info, re.MULTILINE) is not None
    cgroup = _text(root / "proc/1/cgroup") or ""
    marked = any((root / mark).exists() for mark in _CONTAINER_MARKS)
    return {
        "virtual_machine": True if flagged or kinds else (False if info else None),
        "hypervisor": kinds[0] if kinds else None,
        "container": marked or re.search(r"docker|kubepods|containerd|lxc", cgroup) is not None,
    }


def _load(root: Path) -> dict[str, float | None]:
    parts = (_text(root / "proc/loadavg") or "").split()
    keys = ("1min", "5min", "15min")
    if len(parts) < 3:
        return dict.fromkeys(keys)
    return {key: float(part) for key, part in zip(keys, parts, strict=False)}


def _warnings(facts: dict[str, Any]) -> list[str]:
    found = []
    load, cores = facts["load"]["1min"], facts["cpu"]["cores_usable"]
    if load is not None and cores is not None and load > 0.5 * cores:
        found.append(f"load {load:.2f} on {cores} usable cores: something else was running")
    governor = facts["cpu"]["governor"]
    if governor not in (None, "performance"):
        found.append(f"CPU governor is {governor}: the clock changes with the load")
    if facts["virtualisation"]["virtual_machine"]:
        found.append("virtual machine: neighbours can take CPU time")
    if facts["disk"]["filesystem"] in ("nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "overlay"):
        found.append(f"results are on {facts['disk']['filesystem']}: disk figures mean little")
    return found

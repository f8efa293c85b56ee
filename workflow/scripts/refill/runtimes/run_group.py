"""The control group that the containers of a run share: named, made, limited, removed.

Where systemd owns the tree it is a slice, which systemd makes; elsewhere it is a group at the top.
"""

from __future__ import annotations

import shutil
import subprocess

from refill.engines.description import EngineError
from refill.runtimes.cgroups import ControlGroups, Limits

SYSTEMD = "systemd"
SLICE = ".slice"
SYSTEMCTL_S = 20.0


def group_of(run: str, pid: int, driver: str) -> str:
    """Give the name of a run's group: a path at the top, or a slice where systemd owns the tree."""
    name = f"refill_{run}_{pid}"
    return f"{name}{SLICE}" if driver == SYSTEMD else f"/{name}"


def make_group(group: str, limits: Limits, groups: ControlGroups) -> None:
    """Make a run's group and limit it.

    Raises:
        OSError: the kernel's files refuse it.
        EngineError: systemd does.
    """
    if group.endswith(SLICE):
        _make_slice(group, limits, groups.version)
    else:
        groups.make(group, limits)


def group_path(group: str) -> str:
    """Give the path of a run's group in the kernel's tree."""
    return group if group.startswith("/") else f"/{group}"


def remove_group(group: str, groups: ControlGroups) -> None:
    """Remove a run's group, however it was made; none there is no error.

    Raises:
        EngineError: it is still in use, or may not be removed.
    """
    if group.endswith(SLICE) and groups.has(group_path(group)):
        _systemctl("stop", group)
        _systemctl("revert", group)
    try:
        groups.remove(group_path(group))
    except OSError as error:
        raise EngineError(f"the control group {group} cannot be removed: {error}") from error


def _systemctl(*arguments: str) -> None:
    """Tell systemd something.

    Raises:
        EngineError: there is none, or it refused.
    """
    program = shutil.which("systemctl")
    if program is None:
        raise EngineError(
            "docker: the daemon leaves control groups to systemd, and there is no systemctl here"
        )
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=SYSTEMCTL_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise EngineError(f"systemctl {' '.join(arguments)}: {done.stderr.strip()}")


def _make_slice(name: str, limits: Limits, version: int | None) -> None:
    """Let systemd make and limit a slice.

    Source: systemd.resource-control(5); version 1 knows the older name of the memory's limit.
    """
    properties = []
    if limits.cpus is not None:
        properties.append(f"CPUQuota={limits.cpus * 100:g}%")
    if limits.memory_bytes is not None and version == 2:
        properties += [f"MemoryMax={limits.memory_bytes}", "MemorySwapMax=0"]
    elif limits.memory_bytes is not None:
        properties.append(f"MemoryLimit={limits.memory_bytes}")
    if limits.cpuset is not None and version == 2:
        properties.append(f"AllowedCPUs={limits.cpuset}")
    if properties:
        _systemctl("set-property", "--runtime", name, *properties)
    _systemctl("start", name)

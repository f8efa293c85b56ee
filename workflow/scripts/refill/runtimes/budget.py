"""Budgets of containers: how many CPUs and how much memory, on which CPUs, and whether they fit.

Every engine that is compared has a budget of the same size; the gateway, Qdrant and Valkey share
one. The driver keeps CPUs of its own where the machine has them.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

from refill.engines.description import EngineError
from refill.runtimes.cgroups import Limits, cpu_list, read_cpu_list

RELAX = "or set docker.budget.small_machine to relaxed, and every record will say so"
PAGE = resource.getpagesize()
TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Budget:
    """What one engine may use, as `docker.budget` in the config says.

    Attributes:
        cpus: CPUs' worth of time.
        memory_bytes: memory.
        small_machine: what is done on a machine where it does not fit: `refuse` or `relaxed`.
    """

    cpus: float
    memory_bytes: int
    small_machine: Literal["refuse", "relaxed"] = "refuse"

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> Budget:
        """Read the section `docker.budget`."""
        return cls(section["cpus"], section["memory_bytes"], section["small_machine"])

    def over(self, why: str) -> None:
        """Refuse what does not fit; nothing when the budget may be relaxed.

        Raises:
            EngineError: it may not.
        """
        if self.small_machine == "refuse":
            raise EngineError(f"docker.budget: {why}: {RELAX}")


@dataclass(frozen=True)
class Machine:
    """What a machine has for containers and the driver: its CPUs, cores together, and memory."""

    cpus: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True)
class Allotment:
    """How a machine is divided between the driver and the budgets that run at the same time.

    Attributes:
        kind: `exact`, `relaxed` when something of the budget could not be had, or `none`.
        why: what could not be had.
        limits: of each budget; the CPUs are the same for all where there are too few for each.
        driver: CPUs of the driver alone; None: it shares them with the engines.
        note: how the CPUs are divided, in words.
    """

    kind: Literal["exact", "relaxed", "none"]
    why: tuple[str, ...]
    limits: tuple[Limits, ...]
    driver: tuple[int, ...] | None
    note: str


def allot(budget: Budget | None, machine: Machine, count: int) -> Allotment:
    """Divide a machine between the driver and `count` budgets.

    Raises:
        EngineError: the machine is too small, and the budget may not be relaxed.
    """
    if budget is None:
        free = (Limits(),) * count
        return Allotment("none", (), free, None, "no budget: all share all CPUs")
    why: list[str] = []
    cpus, memory = float(budget.cpus), budget.memory_bytes if budget.memory_bytes else None
    if (have := len(machine.cpus)) < budget.cpus:
        why.append(f"an engine is to have {budget.cpus:g} CPUs, this machine offers {have}")
        cpus = float(have)
    if memory and machine.memory_bytes < memory * count:
        why.append(
            f"{count} budgets of {memory / 2**30:.3g} GiB do not fit into the "
            f"{machine.memory_bytes / 2**30:.3g} GiB of this machine"
        )
        memory = None
    if why:
        budget.over("; ".join(why))
    sets, driver, note = _divide(machine.cpus, ceil(budget.cpus), count)
    limits = tuple(Limits(cpus, memory, cpu_list(s) if s else None) for s in sets)
    return Allotment("relaxed" if why else "exact", tuple(why), limits, driver, note)


def _divide(
    cpus: Sequence[int], each: int, count: int
) -> tuple[list[tuple[int, ...] | None], tuple[int, ...] | None, str]:
    """Give the CPUs of each budget, those of the driver, and how they are divided."""
    if len(cpus) > each * count:
        sets = [tuple(cpus[n * each : (n + 1) * each]) for n in range(count)]
        return list(sets), tuple(cpus[each * count :]), "CPUs of its own for every budget"
    if len(cpus) > each:
        # The same for all: none of those compared has more quiet than another.
        kept = tuple(cpus[:each])
        return [kept] * count, tuple(cpus[each:]), "all budgets on the same CPUs, driver elsewhere"
    return [None] * count, None, "too few CPUs: engines and driver share them"


def departures(wanted: Limits, found: Limits | None) -> list[str]:
    """Say where the limits that are read back differ from those that were asked for.

    Args:
        wanted: what was asked for; what is None was not.
        found: what the kernel has; None: its files are out of sight.
    """
    if wanted == Limits():
        return []
    if found is None:
        return ["the kernel's files with its limits are out of sight"]
    lines = []
    if wanted.cpus is not None and found.cpus != wanted.cpus:
        lines.append(f"it has {found.cpus} CPUs, {wanted.cpus:g} were asked for")
    # The kernel counts in pages.
    if wanted.memory_bytes is not None and found.memory_bytes != wanted.memory_bytes // PAGE * PAGE:
        lines.append(f"it has {found.memory_bytes} bytes, {wanted.memory_bytes} were asked for")
    if wanted.memory_bytes is not None and found.swap_bytes != 0:
        most = "any amount" if found.swap_bytes is None else f"{found.swap_bytes} bytes"
        lines.append(
            f"it may use {most} of swap beside its memory: switch swap off, or the kernel's "
            "account of it on (swapaccount=1)"
        )
    if wanted.cpuset and read_cpu_list(found.cpuset or "") != read_cpu_list(wanted.cpuset):
        lines.append(f"it runs on the CPUs {found.cpuset}, {wanted.cpuset} were asked for")
    return lines


def this_machine(daemon: Mapping[str, Any], topology: Path = TOPOLOGY) -> Machine:
    """Give what this machine has: CPUs that this process may use, memory that the daemon tells.

    Args:
        daemon: the daemon's own account (`docker info`).
        topology: the kernel's account of CPUs; threads of one core are put side by side.
    """
    usable = sorted(os.sched_getaffinity(0))
    usable.sort(key=lambda cpu: (_core(topology, cpu), cpu))
    return Machine(tuple(usable), int(daemon["MemTotal"]))


def _core(topology: Path, cpu: int) -> int:
    """Give a number that the threads of one core have in common: the first of them."""
    try:
        text = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return cpu
    return min(read_cpu_list(text), default=cpu)


def pin_threads(cpus: Sequence[int] | set[int]) -> None:
    """Let every thread of this process, and what it starts from now on, run on these CPUs."""
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cpus)
        except ProcessLookupError:
            continue  # a thread that has just ended

"""Run engines in containers: a network, volumes and a shared budget of each run's own.

A run is a context. Leaving it removes everything that it made, and a process beside the driver does
that when the driver is killed (`refill.runtimes.watcher`). What is left all the same, because both
were killed, is removed by the next run or by `make clean-docker`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from refill.contexts import OpensParts
from refill.engines.description import Description, EngineError
from refill.runtimes.budget import Allotment, Budget, allot, pin_threads, this_machine
from refill.runtimes.cgroups import ControlGroups, Counters, Limits, cpu_list
from refill.runtimes.container import Surroundings
from refill.runtimes.container_engine import ContainerEngine
from refill.runtimes.docker_daemon import DockerError, told
from refill.runtimes.leftovers import labels, remove_run, sweep
from refill.runtimes.owner import Owner
from refill.runtimes.run_group import group_of, group_path, make_group, remove_group
from refill.runtimes.watcher import Watcher

__all__ = ["Budget", "ContainerEngine", "ContainerRun"]

# How long a run waits for an earlier one's things that cannot be removed.
SWEEP_S = 5.0


class ContainerRun(OpensParts):
    """The containers of one run. Used as a context: leaving it removes all that it made.

    Args:
        client: the daemon.
        budget: what each engine may use; None: no limits.
        host: the daemon's address as the config gives it, for the process that cleans up.
        budgets: how many budgets are in use at the same time: the shared one, and one for every
            engine that has its own.
        logs: folder for what the cleaning process has to say; None: it is not kept.
        say: told what an earlier run had left, when it is removed.

    Attributes:
        id: what the run's things are labelled with.
        labels: all labels of them.
        allotment: how the machine is divided.
        disturbances: what somebody else did to its containers, as far as it was noticed.
    """

    def __init__(
        self,
        client: Any,
        budget: Budget | None,
        *,
        host: str | None = None,
        budgets: int = 1,
        logs: Path | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.id = secrets.token_hex(6)
        self._client = client
        self._budget = budget
        self._budgets = budgets
        self._host = host
        self._logs = logs
        self._say = say
        self._owner = Owner.this_process()
        self._groups = ControlGroups.here()
        self._network = f"refill-{self.id}"
        self._group: str | None = None
        self._shared: Limits | None = None
        self._given = 0
        self._names: set[str] = set()
        self.labels = labels(self.id, self._owner)
        self.allotment: Allotment
        self.daemon: dict[str, Any] = {}
        self.disturbances: list[str] = []

    def _start(self) -> None:
        with told("docker: the daemon's account of itself"):
            self.daemon = self._client.info()
        # What does not fit is refused before anything is made.
        self.allotment = allot(self._budget, this_machine(self.daemon), self._budgets)
        self._sweep()
        group = group_of(self.id, self._owner.pid, str(self.daemon.get("CgroupDriver")))
        log = self._logs / "containers.log" if self._logs else None
        # First, so that nothing is made that nobody would remove.
        watcher = Watcher(self.id, group, self._host, log)
        self._open.callback(watcher.close)
        self._open.callback(self._remove, watcher)
        if self.allotment.driver is not None:
            self._open.callback(pin_threads, os.sched_getaffinity(0))
            pin_threads(self.allotment.driver)
        with told("docker: making a network"):
            self._client.api.create_network(self._network, driver="bridge", labels=self.labels)

    def _sweep(self) -> None:
        """Remove what killed runs left; what cannot be removed is told and is in nobody's way."""
        removed, kept = sweep(self._client, self._groups, SWEEP_S)
        if self._say is None:
            return
        for line in removed:
            self._say(f"removed what a killed run had left: {line}")
        for line in kept:
            self._say(f"left alone: {line}")

    def _remove(self, watcher: Watcher) -> None:
        try:
            remove_run(self._client, self.id)
        except EngineError as error:
            raise DockerError(
                f"{error}: what the run has made may be there still; when the daemon answers, "
                "`make clean-docker` removes it"
            ) from error
        if self._group is not None:
            remove_group(self._group, self._groups)
        # Not reached when something could not be removed: then the watcher tries, too.
        watcher.dismiss()

    def engine(
        self,
        description: Description,
        image: str,
        log: Path,
        shared: bool,
        data: Path | None = None,
    ) -> ContainerEngine:
        """Give an engine of this run, which is not started yet.

        Args:
            description: what to run.
            image: id of the image.
            log: file that takes its output.
            shared: whether it has a part in the shared budget, or a budget of its own.
            data: a folder of the caller's for its data; None: a volume.

        Raises:
            EngineError: the shared budget cannot be made and may not be relaxed.
        """
        alias = self._alias(description.name)
        limits, group, whole = self._share() if shared else (self._next_limits(), None, None)
        return ContainerEngine(
            description,
            image,
            log,
            Surroundings(
                self._client,
                self.daemon,
                self._groups,
                self._network,
                self.labels,
                limits,
                group,
                whole,
                f"{self._network}-{alias}",
                alias,
                self.divided,
                self._relax,
                self.disturbances.append,
            ),
            data,
        )

    def _alias(self, name: str) -> str:
        """Give a name on the network that no other engine of this run has."""
        plain = "".join(c if c.isalnum() or c == "-" else "-" for c in name.lower())
        number, alias = 1, plain
        while alias in self._names:
            number += 1
            alias = f"{plain}-{number}"
        self._names.add(alias)
        return alias

    def host_address(self) -> str:
        """Give the address at which this run's containers reach the machine of the daemon.

        Raises:
            EngineError: the daemon does not tell.
        """
        with told("docker: the address of the machine on the network"):
            found = self._client.api.inspect_network(self._network)
        for part in found["IPAM"]["Config"] or []:
            if part.get("Gateway"):
                # Some daemons give it with the length of the network's prefix.
                return str(part["Gateway"]).partition("/")[0]
        raise EngineError(f"docker: the network {self._network} has no gateway: make it a bridge")

    # ---- budgets

    def _next_limits(self) -> Limits:
        if self._budget is None:
            return Limits()
        if self._given >= len(self.allotment.limits):
            raise EngineError(
                f"docker: {self._given + 1} budgets are asked for, and the machine was divided "
                f"into {len(self.allotment.limits)}"
            )
        self._given += 1
        return self.allotment.limits[self._given - 1]

    def _share(self) -> tuple[Limits, str | None, Limits | None]:
        """Give the limits of a container in the shared budget, its group, and the group's limits.

        The group is made for the first one. Where it cannot be made and the budget is relaxed, each
        container has the whole budget alone.
        """
        if self._shared is None:
            self._shared = self._next_limits()
            if self._budget is not None:
                self._group = self._make_group(self._shared)
        if self._group is None:
            return self._shared, None, None
        # The CPUs once more for each: then the daemon's own account shows them too.
        return Limits(cpuset=self._shared.cpuset), self._group, self._shared

    def _make_group(self, limits: Limits) -> str | None:
        group = group_of(self.id, self._owner.pid, str(self.daemon.get("CgroupDriver")))
        try:
            make_group(group, limits, self._groups)
        except (OSError, EngineError) as error:
            with suppress(EngineError):
                remove_group(group, self._groups)
            self._relax(
                "the gateway, Qdrant and Valkey cannot share one budget, as no control group can "
                f"be made for it ({_without_name(error, group)}): run as root"
            )
            return None
        return group

    def _relax(self, why: str) -> None:
        assert self._budget is not None
        self._budget.over(why)
        self.allotment = replace(
            self.allotment, kind="relaxed", why=(*self.allotment.why, why.partition(": run as")[0])
        )

    def shared_counters(self) -> Counters | None:
        """Give what the containers of the shared budget used together; None without one.

        Only here is the time that they were held back as a whole.
        """
        if self._group is None:
            return None
        return self._groups.counters(self._groups.folders(group_path(self._group)))

    def divided(self) -> dict[str, Any]:
        """Give how the machine is divided, for a record.

        Returns:
            `budget`: exact, relaxed or none; `why` not exact; `cpus`: how they are divided, in
            words; `driver`: the CPUs of the driver alone, None: it shares them.
        """
        found = self.allotment
        driver = None if found.driver is None else cpu_list(found.driver)
        return {"budget": found.kind, "why": list(found.why), "cpus": found.note, "driver": driver}


def _without_name(error: OSError | EngineError, group: str) -> str:
    """Give an error's words without the group's name, which is another one in every record."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return words.replace(group.lstrip("/"), "the group")

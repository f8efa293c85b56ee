"""What a run leaves with the Docker daemon, whose it is, and how it is removed.

Everything that a run makes carries two labels: the run, and its owner, a process of one machine.
What has a living owner is never touched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from docker.errors import APIError, NotFound

from refill.engines.description import EngineError
from refill.runtimes.cgroups import ControlGroups
from refill.runtimes.docker_daemon import told
from refill.runtimes.owner import Owner
from refill.runtimes.run_group import SLICE, remove_group

PROJECT = "org.refill.project"
RUN = "org.refill.run"
OWNER = "org.refill.owner"
ENGINE = "org.refill.engine"
REMOVE_S = 60.0
# The daemon refuses a second removal of what is being removed, and of a network or volume whose
# container is.
CONFLICT = 409
_GOING = ("in progress", "in use", "active endpoints")


def labels(run: str, owner: Owner, **more: str) -> dict[str, str]:
    """Give the labels of everything that a run makes."""
    return {PROJECT: "refill", RUN: run, OWNER: owner.label, **more}


# ---- removal


@dataclass(frozen=True)
class Left:
    """What one run has with the daemon: the ids of its containers, networks and volumes."""

    run: str
    owner: Owner | None
    containers: tuple[str, ...]
    networks: tuple[str, ...]
    volumes: tuple[str, ...]

    def __str__(self) -> str:
        counts = {
            "container": len(self.containers),
            "network": len(self.networks),
            "volume": len(self.volumes),
        }
        parts = [f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items() if n]
        return f"run {self.run}: {', '.join(parts)}"


def find(client: Any, run: str | None = None) -> list[Left]:
    """Give what runs of this project have with the daemon: of one run, or of all.

    Raises:
        EngineError: the daemon does not answer.
    """
    label = f"{RUN}={run}" if run else f"{PROJECT}=refill"
    filters = {"label": [label]}
    with told("docker: listing what runs have left"):
        containers = client.api.containers(all=True, filters=filters)
        networks = client.api.networks(filters=filters)
        volumes = client.api.volumes(filters=filters)["Volumes"] or []
    found: dict[str, dict[str, list[str]]] = {}
    owners: dict[str, str] = {}
    for kind, things, key in (
        ("containers", containers, "Id"),
        ("networks", networks, "Id"),
        ("volumes", volumes, "Name"),
    ):
        for thing in things:
            marked = thing.get("Labels") or {}
            # An image of this project passes its own labels on to containers of others.
            if RUN not in marked:
                continue
            kinds = found.setdefault(marked[RUN], {})
            kinds.setdefault(kind, []).append(thing[key])
            owners.setdefault(marked[RUN], marked.get(OWNER, ""))
    return [
        Left(
            name,
            Owner.from_label(owners[name]),
            *(tuple(kinds.get(kind, ())) for kind in ("containers", "networks", "volumes")),
        )
        for name, kinds in sorted(found.items())
    ]


def remove_run(client: Any, run: str, quiet_s: float = 0.0, seconds: float = REMOVE_S) -> None:
    """Remove all that a run has with the daemon; nothing there is no error.

    Args:
        client: the daemon.
        run: the run.
        quiet_s: how long nothing may be found before it counts as gone: the daemon may still be
            at a request that the run made before it was killed.
        seconds: how long it is tried.

    Raises:
        EngineError: something cannot be removed, or the daemon does not answer.
    """
    deadline = time.monotonic() + seconds
    empty_since: float | None = None
    while True:
        left = find(client, run)
        for entry in left:
            with told(f"docker: removing {entry}"):
                _remove(client, entry)
        now = time.monotonic()
        if left:
            empty_since = None
        elif empty_since is None:
            empty_since = now
        if empty_since is not None and now - empty_since >= quiet_s:
            return
        if now >= deadline:
            raise EngineError(
                f"docker: {left[0] if left else run} cannot be removed within {seconds:g} s: is "
                "something of another project in that network, or uses that volume?"
            )
        time.sleep(0.05 if left else min(0.2, quiet_s))


def _remove(client: Any, left: Left) -> None:
    for name in left.containers:
        with gone_or_going():
            client.api.remove_container(name, v=True, force=True)
    for name in left.networks:
        with gone_or_going():
            client.api.remove_network(name)
    for name in left.volumes:
        with gone_or_going():
            client.api.remove_volume(name, force=True)


@contextmanager
def gone_or_going() -> Iterator[None]:
    """Let pass that a thing is gone or being removed; what stays is found in the next look."""
    try:
        yield
    except NotFound:
        return
    except APIError as error:
        why = str(error.explanation)
        if error.status_code != CONFLICT and not any(words in why for words in _GOING):
            raise


def sweep(
    client: Any, groups: ControlGroups, seconds: float = REMOVE_S
) -> tuple[list[str], list[str]]:
    """Remove what runs left whose owner is dead.

    Args:
        client: the daemon.
        groups: this machine's control groups.
        seconds: how long is waited for what cannot be removed.

    Returns:
        In words: what was removed, and what was left because its owner lives or is out of sight, or
        because it cannot be removed.

    Raises:
        EngineError: the daemon does not answer.
    """
    removed: list[str] = []
    kept: list[str] = []
    local = is_local(client)
    for left in find(client):
        lives = left.owner.lives() if left.owner else None
        if lives is None and left.owner and local and left.owner.boot != _boot():
            # The daemon runs on this machine's kernel, so its owner ended with an earlier start.
            lives = False
        if lives:
            kept.append(f"{left}: its process lives")
        elif lives is None:
            kept.append(f"{left}: whether its process lives cannot be seen from here")
        else:
            try:
                remove_run(client, left.run, seconds=seconds)
            except EngineError as error:
                # What one run left is in no other's way.
                kept.append(str(error))
            else:
                removed.append(str(left))
    removed += sweep_groups(groups)
    return removed, kept


def sweep_groups(groups: ControlGroups) -> list[str]:
    """Remove the groups of dead runs; one that still holds processes is left alone."""
    removed: list[str] = []
    for group in sorted(groups.named(rf"refill_[0-9a-f]+_\d+({re.escape(SLICE)})?")):
        pid = int(group.removesuffix(SLICE).rpartition("_")[2])
        if psutil.pid_exists(pid) or _holds_processes(groups, group):
            continue
        with suppress(EngineError):
            remove_group(group.lstrip("/") if group.endswith(SLICE) else group, groups)
            removed.append(f"control group {group}")
    return removed


def _holds_processes(groups: ControlGroups, group: str) -> bool:
    for mount in groups.mounts.values():
        top = mount.at(group)
        files = [top / "cgroup.procs", *top.rglob("cgroup.procs")] if top.is_dir() else []
        if any(file.read_text().strip() for file in files if file.exists()):
            return True
    return False


def is_local(client: Any) -> bool:
    """Say whether the daemon is reached by a socket of this machine."""
    return str(client.api.base_url).startswith("http+docker://localhost")


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

"""What a runtime must know to run an engine, and nothing of where it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from refill.load.wire import Address


class EngineError(Exception):
    """An engine could not be started, asked, or understood. The text says what to do."""


class RunnerError(EngineError):
    """What runs an engine failed, or somebody took the engine away: that says nothing of it."""


class NotInstalledError(EngineError):
    """What an engine needs is not on this machine.

    The plan of the engine's rule holds what is, so that what comes later is noticed without
    another try.
    """


@dataclass(frozen=True)
class Place:
    """Where a runtime puts an engine: its port, its folder for data, and the address to listen on.

    In a container all three are the container's own; the port is published to loopback only.
    """

    port: int
    storage: Path
    host: str = "127.0.0.1"


def archive_program(archive: Path) -> list[str]:
    """Give the words that run an image's Python archive as a process of this machine."""
    # It starts in a folder of its own, where a relative path would mean another file.
    return [sys.executable, str(archive.resolve())]


@dataclass(frozen=True)
class Description:
    """How an engine is run.

    Attributes:
        name: the engine's name in records and messages.
        command: gives the command line for a place; in a container, what stands behind the
            image's entry point.
        environment: variables that are set for it, beside the runtime's own.
        variables: gives those that depend on the place; None: there are none.
        data: folder in which an image keeps its data; None: the runtime's choice.
        ready: asks the engine at an address whether it can serve; False or an OSError: not yet.
        start_timeout_s: how long it may take until it is ready.
        user: user that it is run as when this process is root's, for engines that refuse root.
        cpus: how many of this process's CPUs it may run on; None: all.
        standard_input: what it reads there; the pipe then stays open until its end.
        input_ends: whether the pipe is closed behind that instead: the engine reads to its end.
        plain_path: whether its folder must have a path without signs that mean something to it.
    """

    name: str
    command: Callable[[Place], Sequence[str]]
    ready: Callable[[Address], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 30.0
    user: str | None = None
    cpus: int | None = None
    standard_input: Callable[[Place], bytes] | None = None
    input_ends: bool = False
    variables: Callable[[Place], Mapping[str, str]] | None = None
    data: str | None = None
    plain_path: bool = False

    def variables_at(self, place: Place) -> dict[str, str]:
        """Give all variables that are set for a place."""
        return {**self.environment, **(self.variables(place) if self.variables else {})}

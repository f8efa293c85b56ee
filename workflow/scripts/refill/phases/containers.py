"""The containers of one measurement: opened when its plan says so, and what its record says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from refill.engines.description import Description
from refill.load.wire import Address
from refill.runtimes.engine import Engine

if TYPE_CHECKING:
    from refill.runtimes.docker import ContainerEngine, ContainerRun

# Stands for the port in a record.
PORT = "PORT"
# The engine that does not speak HTTP.
VALKEY = "valkey"


class Containers:
    """Starts the engines of one measurement in containers of their images.

    Args:
        client: the daemon.
        run: network, volumes and budgets of this measurement.
        daemon: who the daemon is.
        logs: folder that takes the engines' logs.
        say: told what is pulled.
    """

    def __init__(
        self,
        client: Any,
        run: ContainerRun,
        daemon: Mapping[str, Any],
        logs: Path,
        say: Callable[[str], object],
    ) -> None:
        self._client = client
        self._run = run
        self._daemon = dict(daemon)
        self._logs = logs
        self._say = say
        self._engines: list[ContainerEngine] = []

    def engine(
        self, description: Description, image: Mapping[str, Any], shared: bool
    ) -> ContainerEngine:
        """Give an engine that is not started yet.

        Args:
            description: what to run.
            image: record of its image.
            shared: whether it has a part in the shared budget, or a budget of its own.

        Raises:
            DockerError: the daemon does not have that image, and it cannot be pulled.
        """
        # Imported here: a run without containers needs nothing of it.
        from refill.runtimes.docker_pulls import present

        found = present(self._client, image, self._say)
        log = self._logs / f"{description.name}.log"
        engine = self._run.engine(description, found, log, shared)
        self._engines.append(engine)
        return engine

    def shared(self) -> dict[str, float] | None:
        """Give what the containers of the shared budget have used together; None: there is none.

        How long they were held back by it is counted here only.
        """
        counted = self._run.shared_counters()
        return None if counted is None else asdict(counted)

    @property
    def disturbances(self) -> list[str]:
        """What somebody else did to the containers; all of it is known when they have ended."""
        return self._run.disturbances

    def record(self) -> dict[str, Any]:
        """Give what the record says of the containers: daemon, division of CPUs, network."""
        network = {e.description.name: e.network for e in self._engines if e.network is not None}
        return {"daemon": self._daemon, **self._run.divided(), "network": network}


@contextmanager
def opened(
    plan: Mapping[str, Any],
    logs: Path,
    budgets: int,
    say: Callable[[str], None],
    images: Sequence[Path],
) -> Iterator[Containers | None]:
    """Open the containers of a measurement; None when its engines are no containers.

    Args:
        plan: of the measurement; with `runtime` docker also `docker`: `host` and perhaps `budget`.
        logs: folder that takes the engines' logs.
        budgets: how many budgets are in use at once.
        say: told what is removed that an earlier run left, and what is pulled again.
        images: records of the images that will be used; those of native engines may be among them.

    Raises:
        DockerError: there is no daemon, or it has not one of the images and cannot pull it.
        EngineError: the machine is too small for the budgets.
    """
    if plan.get("runtime") != "docker":
        yield None
        return
    # Imported here: a run without containers needs nothing of it.
    from refill.runtimes.docker import Budget, ContainerRun
    from refill.runtimes.docker_daemon import connect, daemon_record
    from refill.runtimes.docker_pulls import all_present

    host, budget = plan["docker"]["host"], plan["docker"].get("budget")
    client = connect(host)
    try:
        # Before anything is started: one that is gone in the middle would spoil a measurement.
        all_present(client, images, say)
        given = Budget.from_config(budget) if budget else None
        with ContainerRun(client, given, host=host, budgets=budgets, logs=logs, say=say) as run:
            yield Containers(client, run, daemon_record(client), logs, say)
    finally:
        client.close()


def departures(record: Mapping[str, Any] | None) -> list[str]:
    """Give the warnings of a measurement whose budget could not be had; `record` is of `record`."""
    if record is None or record["budget"] != "relaxed":
        return []
    return [f"budget: relaxed: {why}" for why in record["why"]]


def identity(engine: Engine) -> dict[str, Any]:
    """Give what the record says of an engine in a container, beside its image: settings, limits.

    What its published port costs a client is measured here, before anything is timed.
    """
    # Imported here: a run without containers needs nothing of it.
    from refill.runtimes import network

    inside = _contained(engine)
    inside.measure_network(network.resp if engine.description.name == VALKEY else network.http)
    settings = inside.identity()["container"]
    # A free port is another one every time, and says nothing.
    port = str(engine.address.port)
    words = [PORT if word == port else word for word in settings["arguments"]]
    return {"container": {**settings, "arguments": words}, "applied": inside.applied()}


def inner(engine: Engine) -> Address:
    """Give where other containers of the measurement reach one."""
    return _contained(engine).inner


def _contained(engine: Engine) -> ContainerEngine:
    assert engine.runtime == "docker"
    return cast("ContainerEngine", engine)

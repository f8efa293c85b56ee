"""An engine in a container: published on loopback, its data in a volume or a folder of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address
from refill.runtimes.budget import departures
from refill.runtimes.cgroups import Limits
from refill.runtimes.container import END_TIMEOUT_S, LOOPBACK, Container, Program, Surroundings
from refill.runtimes.counters import container_resources
from refill.runtimes.docker_daemon import DockerError
from refill.runtimes.network import Opener, published_cost
from refill.runtimes.ports import free_port
from refill.runtimes.process import Resources
from refill.runtimes.started_engine import StartedEngine

# Where an image has no place of its own for data.
STORAGE = "/data"
EVERYWHERE = "0.0.0.0"


class ContainerEngine(StartedEngine):
    """An engine that runs in a container. Leaving its context removes the container.

    Args:
        description: what to run; its command is what stands behind the image's entry point.
        image: id of the image.
        log: file that takes the container's output when it stops, fails or is removed.
        around: what the run gives it.
        data: a folder of the caller's for the data, in place of a volume of the container's own:
            neither emptied nor removed, and the engine runs as the caller's user.

    Attributes:
        address: where it is reached: the port that is published on loopback.
        inner: its name and port on the run's network, for other containers.
        network: what its published port costs a client, once it was measured.
    """

    runtime = "docker"

    def __init__(
        self,
        description: Description,
        image: str,
        log: Path,
        around: Surroundings,
        data: Path | None = None,
    ) -> None:
        super().__init__(description, log)
        self._around = around
        self._data = data.resolve() if data else None
        # The port has one number outside and inside.
        self._place = Place(free_port(), Path(description.data or STORAGE), EVERYWHERE)
        self.address = Address(LOOPBACK, self._place.port)
        self.inner = Address(around.alias, self._place.port)
        program = Program(
            description.name,
            image,
            list(description.command(self._place)),
            description.variables_at(self._place),
            self._place.port,
            str(self._place.storage),
            description.standard_input is not None,
        )
        self._program = program
        self._container = Container(around, program, self._data)
        self._logged = 0
        self._log_lost = False
        # Where its limits are not those that were asked for; None: not looked at yet.
        self._departed: list[str] | None = None
        self.network: dict[str, Any] | None = None

    # ---- start

    def start(self) -> None:
        """Start the engine and wait until it is ready; its data are what it left.

        `start_s` then holds how long that took.

        Raises:
            EngineError: it ended, or was not ready in time, with the last lines of its log; or
                its limits are not those of the budget, and that may not be relaxed.
        """
        super().start()
        self._verify()

    def spawn(self) -> None:
        """Start the engine and do not wait until it is ready.

        Raises:
            EngineError: it cannot be started.
        """
        given = self.description.standard_input
        self._container.start(given(self._place) if given else None, self.description.input_ends)

    def _verify(self) -> None:
        """Look once whether the limits are those that were asked for."""
        if self._departed is not None:
            return
        self._departed = self._departures()
        for line in self._departed:
            self._around.depart(f"{self.description.name}: {line}")

    def _verify_again(self) -> None:
        """Tell of limits that somebody has changed since the start, as `docker update` does."""
        if self._departed is None or self.ended() is not None:
            return
        for line in self._departures():
            if line not in self._departed:
                self._around.disturbed(
                    f"{self.description.name}: somebody changed its limits while it was in use: "
                    f"{line}"
                )

    def _departures(self) -> list[str]:
        return departures(self._around.shared or self._around.limits, self._read_back())

    # ---- how it is

    @property
    def pid(self) -> int:
        """Process id of the container's main process on this machine.

        Raises:
            EngineError: it does not run, or its processes are out of sight.
        """
        if self._container.pid is None:
            raise EngineError(
                f"{self.description.name}: no process of its container is in sight: it does not "
                "run, or the daemon does not run on this machine"
            )
        return self._container.pid

    def ended(self) -> int | None:
        """Its exit status, negative: the signal that ended it; None while it runs."""
        return self._container.ended()

    def check(self) -> None:
        """Raise EngineError when the engine has ended.

        Raises:
            DockerError: somebody removed its container, or started it anew.
        """
        if self.ended() is not None and (what := self._container.disturbance):
            raise DockerError(f"{self.description.name}: {what}.{self._told()}")
        super().check()

    def trouble(self) -> str:
        """Say what is wrong with the place that the engine runs in; empty when nothing is."""
        return self._trouble_of_network() + super().trouble()

    def _trouble_of_network(self) -> str:
        container = self._container
        try:
            if not container.made or container.ended() is not None or container.on_network():
                return ""
        except DockerError as error:
            return f" {error}."
        return f" Somebody took the container of {self.description.name} off the run's network."

    def _why_ended(self) -> str:
        killed = self._container.inspect()["State"].get("OOMKilled")
        return ", out of the memory of its budget" if killed else ""

    def _disk(self) -> Path:
        return self._data or Path(str(self._around.daemon.get("DockerRootDir", "")))

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run the image's program with other arguments inside the running container.

        Returns:
            Its exit status, and what it wrote to both outputs.
        """
        return self._container.run(arguments)

    # ---- end

    def kill(self) -> None:
        """Kill the engine's container (SIGKILL); its data stay."""
        if self._container.made:
            self._container.kill()
            self.wait_end(END_TIMEOUT_S)

    def save_log(self) -> None:
        """Append to the log file what the container has written since the last time.

        That of a container which somebody removed is gone; the file says so.
        """
        if not self._container.made or self._log_lost:
            return
        try:
            written = self._container.written()
        except DockerError:
            if not self._container.removed:
                raise
            self._log_lost = True
            with self.log.open("ab") as log:
                log.write(f"({self._container.disturbance}: what it wrote is gone)\n".encode())
            return
        with self.log.open("ab") as log:
            log.write(written[self._logged :])
        self._logged = len(written)

    def tail(self) -> str:
        """The last lines of its log, each on a line of its own."""
        self.save_log()
        return super().tail()

    def _end(self) -> None:
        """Keep the log, look at the limits again, remove the container and its volume."""
        try:
            self.save_log()
            self._verify_again()
        finally:
            self._container.remove()

    # ---- what is recorded

    def resources(self) -> Resources:
        """Give the counters of the container now, from the kernel's files."""
        return container_resources(self._around.groups, self._container.folders)

    def applied(self) -> dict[str, Any]:
        """Read back what limits the container: the kernel's files, and what the daemon says.

        Returns:
            How the run divides the machine (`budget`: exact, relaxed or none, and `why`);
            `read_back`: CPUs, memory and swap of the group that has the limits, and the container's
            `cpuset`, None where the kernel's files are out of sight; `daemon`: the container's own
            as the daemon tells them; `shared`: whether it shares its limits with other containers.
        """
        host, found = self._container.inspect()["HostConfig"], self._read_back()
        return {
            **self._around.divided(),
            "shared": self._around.shared is not None,
            "cgroup": {
                "version": self._around.groups.version,
                "driver": self._around.daemon.get("CgroupDriver"),
            },
            "read_back": None if found is None else asdict(found),
            "daemon": {
                "cpus": host["NanoCpus"] / 1e9 or None,
                "memory_bytes": host["Memory"] or None,
                "memory_swap_bytes": host["MemorySwap"] or None,
                "cpuset": host["CpusetCpus"] or None,
            },
        }

    def _read_back(self) -> Limits | None:
        """Give the limits as the kernel has them; None where its files are out of sight."""
        groups, folders = self._around.groups, self._container.folders
        if not folders:
            return None
        own = groups.limits(folders)
        if self._around.shared is None:
            return own
        above = groups.limits({name: path.parent for name, path in folders.items()})
        # Of its own it has none, unless somebody gave it some.
        return replace(
            above,
            cpus=_less(own.cpus, above.cpus),
            memory_bytes=_less(own.memory_bytes, above.memory_bytes),
            cpuset=own.cpuset,
        )

    def identity(self) -> dict[str, Any]:
        """Give what runs: the image, and the container's settings without what is secret in them.

        Variables are named; their values are left out, as some are passwords.
        """
        image, config = self._container.image(), self._container.inspect()["Config"]
        return {
            "runtime": self.runtime,
            "image": {
                "id": image["Id"],
                "tags": sorted(image["RepoTags"] or []),
                "repo_digests": sorted(image["RepoDigests"] or []),
            },
            "container": {
                "entry_point": config["Entrypoint"] or [],
                "arguments": config["Cmd"] or [],
                "variables": sorted(self._program.variables),
                "user": config["User"] or None,
                "storage": "folder" if self._data else "volume",
                "network": "published port",
            },
        }

    def measure_network(self, opener: Opener) -> None:
        """Measure what its published port costs a client; `network` then holds it."""
        self.network = published_cost(self.address, self.container_address(), opener)

    def container_address(self) -> Address | None:
        """Give its own address on the run's network; None when it has none."""
        networks = self._container.inspect()["NetworkSettings"]["Networks"]
        host = networks.get(self._around.network, {}).get("IPAddress")
        return Address(host, self._place.port) if host else None


def _less(one: Any, other: Any) -> Any:
    """Give the limit that binds of two, each of which may be none."""
    return min((limit for limit in (one, other) if limit is not None), default=None)

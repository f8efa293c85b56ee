"""An engine in a container: published on loopback, its data in a volume, its end by the daemon.

Nothing here is asked of the daemon while something is timed: whether a container runs is seen at
its process, and its counters are read from the kernel's files. Where those are out of sight (a
daemon in a virtual machine) the daemon is asked, and the counters are not known.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount

from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address
from refill.processes import wait_for
from refill.runtimes.budget import departures
from refill.runtimes.cgroups import ControlGroups, Limits
from refill.runtimes.counters import container_resources
from refill.runtimes.docker_daemon import told
from refill.runtimes.leftovers import ENGINE
from refill.runtimes.process import (
    FULL_BELOW_BYTES,
    LOG_LINES,
    STOP_TIMEOUT_S,
    Resources,
    free_port,
)

# Where an image has no place of its own for data.
STORAGE = "/data"
LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 60.0
UNKNOWN = float("nan")


@dataclass(frozen=True)
class Surroundings:
    """What a run gives to each of its containers.

    Attributes:
        client: the daemon.
        daemon: the daemon's account of itself (`docker info`).
        groups: this machine's control groups.
        network: name of the run's network.
        labels: what marks everything of the run.
        limits: the container's own; of a shared budget only its CPUs.
        group: the control group that shares a budget; None: the container has one alone.
        shared: the limits of that group.
        name: the container's name.
        alias: its name on the network.
        divided: gives how the run divides the machine, for the record.
        depart: told where the limits differ from those asked for; raises when they may not.
    """

    client: Any
    daemon: Mapping[str, Any]
    groups: ControlGroups
    network: str
    labels: Mapping[str, str]
    limits: Limits
    group: str | None
    shared: Limits | None
    name: str
    alias: str
    divided: Callable[[], dict[str, Any]]
    depart: Callable[[str], None]


class ContainerEngine:
    """An engine that runs in a container. Used as a context: leaving it removes the container.

    Args:
        description: what to run; its command is what stands behind the image's entry point.
        image: id of the image.
        log: file that takes the container's output when it ends, stops or fails.
        surroundings: what the run gives it.
        data: a folder of the caller's for the data, in place of a volume of the container's own:
            neither emptied nor removed, and the engine runs as the caller's user.
    """

    runtime = "docker"

    def __init__(
        self,
        description: Description,
        image: str,
        log: Path,
        surroundings: Surroundings,
        data: Path | None = None,
    ) -> None:
        self.description = description
        self.log = log
        self.image = image
        self._in = surroundings
        self._data = data.resolve() if data else None
        self._place = Place(free_port(), Path(description.data or STORAGE), "0.0.0.0")
        self.address = Address(LOOPBACK, self._place.port)
        self.inner = Address(surroundings.alias, self._place.port)
        self.start_s = UNKNOWN
        self._api: Any = surroundings.client.api
        self._id: str | None = None
        self._volume: str | None = None
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._status: int | None = None
        self._folders: dict[str, Path] = {}
        self._input: socket.socket | None = None
        self._logged = 0
        self._verified = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._end()

    # ---- start

    def start(self) -> None:
        """Start the engine and wait until it is ready; its data are what it left.

        `start_s` then holds how long that took.

        Raises:
            EngineError: it ended, or was not ready in time; with the last lines of its log.
        """
        began = time.monotonic()
        self.spawn()
        self._wait_until_ready()
        self.start_s = time.monotonic() - began
        self._verify()

    def spawn(self) -> None:
        """Start the engine and do not wait until it is ready.

        Raises:
            EngineError: it cannot be started.
        """
        with told(f"docker: {self.description.name} cannot be started"):
            if self._id is None:
                self._create()
            self._let_go()
            given = self.description.standard_input
            if given:
                self._input = self._attach()
            self._api.start(self._id)
            self._find_process()
        if given:
            self._send(given(self._place))

    def _create(self) -> None:
        around, place = self._in, self._place
        labels = {**around.labels, ENGINE: self.description.name}
        if self._data is None:
            self._volume = around.name
            self._api.create_volume(self._volume, labels=labels)
            mount = Mount(str(place.storage), self._volume, type="volume")
            user = None
        else:
            self._data.mkdir(parents=True, exist_ok=True)
            mount = Mount(str(place.storage), str(self._data), type="bind")
            user = f"{os.getuid()}:{os.getgid()}"
        limits = around.limits
        host = self._api.create_host_config(
            network_mode=around.network,
            port_bindings={place.port: (LOOPBACK, place.port)},
            mounts=[mount],
            cgroup_parent=around.group,
            nano_cpus=None if limits.cpus is None else round(limits.cpus * 1e9),
            mem_limit=limits.memory_bytes,
            # No swap beside the memory.
            memswap_limit=limits.memory_bytes,
            cpuset_cpus=limits.cpuset,
            # One that can be read back, whatever the daemon's default is.
            log_config=LogConfig(type=LogConfig.types.JSON, config={}),
        )
        endpoint = self._api.create_endpoint_config(aliases=[around.alias])
        made = self._api.create_container(
            self.image,
            # Without arguments an image's own stand.
            [*self.description.command(place)] or None,
            name=around.name,
            environment=self.description.variables_at(place),
            ports=[place.port],
            user=user,
            stdin_open=self.description.standard_input is not None,
            labels=labels,
            host_config=host,
            networking_config=self._api.create_networking_config({around.network: endpoint}),
            # A proxy of the user's would stand between the engines.
            use_config_proxy=False,
        )
        self._id = made["Id"]

    def _attach(self) -> socket.socket:
        """Connect to the container's standard input, before it starts so that nothing is lost."""
        found = self._api.attach_socket(self._id, {"stdin": 1, "stream": 1})
        # Over a socket file docker-py gives a reader around the socket, with TLS the socket.
        stream: socket.socket = getattr(found, "_sock", found)
        return stream

    def _send(self, data: bytes) -> None:
        assert self._input is not None
        # It can have ended already; `check` says so.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._input.sendall(data)
            if self.description.input_ends:
                self._input.shutdown(socket.SHUT_WR)

    def _find_process(self) -> None:
        """Find the container's main process, when it is in sight of this one."""
        state = self._inspect()["State"]
        pid = int(state["Pid"])
        if pid == 0:
            return  # it has ended already
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return
        # A daemon elsewhere numbers its processes in its own way.
        lines = Path(f"/proc/{pid}/cgroup")
        try:
            its_own = str(self._id) in lines.read_text()
        except OSError:
            its_own = False
        if not its_own:
            os.close(pidfd)
            return
        self._pid, self._pidfd = pid, pidfd
        self._folders = self._in.groups.of_process(pid)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.description.start_timeout_s
        while time.monotonic() < deadline:
            self.check()
            try:
                if self.description.ready(self.address):
                    return
            except OSError:
                pass  # not listening yet
            time.sleep(0.02)
        raise EngineError(
            f"{self.description.name} was not ready within "
            f"{self.description.start_timeout_s:g} s.{self.tail()}"
        )

    # ---- how it is

    @property
    def pid(self) -> int:
        """Process id of the container's main process on this machine.

        Raises:
            EngineError: it does not run, or its processes are out of sight.
        """
        if self._pid is None:
            raise EngineError(
                f"{self.description.name}: no process of its container is in sight: it does not "
                "run, or the daemon does not run on this machine"
            )
        return self._pid

    def ended(self) -> int | None:
        """Its exit status, negative: the signal that ended it; None while it runs."""
        if self._id is None or self._status is not None:
            return self._status
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(0):
                return None
            with told(f"docker: how {self.description.name} ended"):
                code = int(self._api.wait(self._id, timeout=END_TIMEOUT_S)["StatusCode"])
        else:
            state = self._inspect()["State"]
            if state["Running"]:
                return None
            code = int(state["ExitCode"])
        self._status = _signal_or_code(code)
        return self._status

    def wait_end(self, seconds: float) -> int:
        """Wait for its end; its exit status as `ended` gives it.

        Raises:
            EngineError: it runs on.
        """
        if not wait_for(lambda: self.ended() is not None, seconds, 0.005):
            raise EngineError(f"{self.description.name} runs on after {seconds:g} s")
        status = self.ended()
        assert status is not None
        return status

    def check(self) -> None:
        """Raise EngineError when the engine has ended."""
        if (status := self.ended()) is None:
            return
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
        if self._inspect()["State"].get("OOMKilled"):
            how += ", out of the memory of its budget"
        raise EngineError(
            f"{self.description.name} has ended ({how}).{self.trouble()}{self.tail()}"
        )

    def trouble(self) -> str:
        """Say what is wrong with the place that the engine runs in; empty when nothing is."""
        place = self._data or Path(str(self._in.daemon.get("DockerRootDir", "")))
        try:
            free = shutil.disk_usage(place).free
        except OSError:
            return ""  # the daemon's disk is out of sight
        if free >= FULL_BELOW_BYTES:
            return ""
        return f" The disk that holds its data is full ({free / 1e6:.0f} MB are free)."

    def _inspect(self) -> Any:
        with told(f"docker: the state of {self.description.name}"):
            return self._api.inspect_container(self._id)

    # ---- end

    def stop(self) -> None:
        """Ask the engine to end (TERM), then wait; kill it when it does not.

        Raises:
            EngineError: it had to be killed.
        """
        if self._id is None or self.ended() is not None:
            return
        self._signal("TERM")
        try:
            self.wait_end(STOP_TIMEOUT_S)
        except EngineError:
            self.kill()
            raise EngineError(
                f"{self.description.name} did not end within {STOP_TIMEOUT_S:g} s and was killed"
            ) from None
        self.save_log()

    def kill(self) -> None:
        """Kill the engine's container (SIGKILL); its data stay."""
        if self._id is None or self.ended() is not None:
            return
        self._signal("KILL")
        self.wait_end(END_TIMEOUT_S)

    def _signal(self, name: str) -> None:
        with told(f"docker: {name} to {self.description.name}"):
            try:
                self._api.kill(self._id, name)
            except APIError as error:
                # It has ended by itself in between.
                if error.status_code != 409:
                    raise

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run the image's program with other arguments inside the running container.

        Returns:
            Its exit status, and what it wrote to both outputs.
        """
        with told(f"docker: {self.description.name} {' '.join(arguments)}"):
            entry = self._api.inspect_image(self.image)["Config"]["Entrypoint"] or []
            made = self._api.exec_create(self._id, [*entry, *arguments])
            output = self._api.exec_start(made["Id"])
            status = int(self._api.exec_inspect(made["Id"])["ExitCode"])
        return status, output.decode(errors="replace")

    def save_log(self) -> None:
        """Append to the log file what the container has written since the last time."""
        if self._id is None:
            return
        with told(f"docker: the log of {self.description.name}"):
            written: bytes = self._api.logs(self._id, stdout=True, stderr=True)
        with self.log.open("ab") as log:
            log.write(written[self._logged :])
        self._logged = len(written)

    def tail(self) -> str:
        """The last lines of its log, each on a line of its own."""
        self.save_log()
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        except FileNotFoundError:
            lines = []
        return "".join(f"\n    {line}" for line in lines) if lines else " Its log is empty."

    def _let_go(self) -> None:
        """Forget the process that has ended."""
        if self._pidfd is not None:
            os.close(self._pidfd)
        if self._input is not None:
            self._input.close()
        self._pid = self._pidfd = self._status = self._input = None
        self._folders = {}

    def _end(self) -> None:
        """Remove the container and its volume; its log is kept."""
        name = self.description.name
        if self._id is not None:
            self.save_log()
            with (
                told(f"docker: removing the container of {self.description.name}"),
                suppress(NotFound),
            ):
                self._api.remove_container(self._id, v=True, force=True)
            self._id = None
        if self._volume is not None:
            with (
                told(f"docker: removing the volume of {self.description.name}"),
                suppress(NotFound),
            ):
                self._api.remove_volume(self._volume, force=True)
            self._volume = None
        self._let_go()

    # ---- what is recorded

    def resources(self) -> Resources:
        """Give the counters of the container now, from the kernel's files."""
        return container_resources(self._in.groups, self._folders)

    def applied(self) -> dict[str, Any]:
        """Read back what limits the container: the kernel's files, and what the daemon says.

        Returns:
            How the run divides the machine (`budget`: exact, relaxed or none, and `why`);
            `read_back`: CPUs and memory of the group that has the limits, and the container's
            `cpuset`, None where the kernel's files are out of sight; `daemon`: the container's own
            as the daemon tells them; `shared`: whether it shares its limits with other containers.
        """
        host, found = self._inspect()["HostConfig"], self._read_back()
        return {
            **self._in.divided(),
            "shared": self._in.shared is not None,
            "cgroup": {
                "version": self._in.groups.version,
                "driver": self._in.daemon.get("CgroupDriver"),
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
        groups = self._in.groups
        if not self._folders:
            return None
        own = groups.limits(self._folders)
        if self._in.shared is None:
            return own
        above = groups.limits({name: path.parent for name, path in self._folders.items()})
        return replace(above, cpuset=own.cpuset)

    def _verify(self) -> None:
        """Look once whether the limits are those that were asked for."""
        if self._verified:
            return
        self._verified = True
        for line in departures(self._in.shared or self._in.limits, self._read_back()):
            self._in.depart(f"{self.description.name}: {line}")

    def identity(self) -> dict[str, Any]:
        """Give what runs: the image, and the container's settings without what is secret in them.

        Variables are named; their values are left out, as some are passwords.
        """
        with told(f"docker: the image of {self.description.name}"):
            image = self._api.inspect_image(self.image)
        config = self._inspect()["Config"]
        return {
            "runtime": self.runtime,
            "image": {
                "id": image["Id"],
                "tags": sorted(image["RepoTags"] or []),
                "repo_digests": sorted(image["RepoDigests"] or []),
            },
            "container": {
                "entry_point": config["Entrypoint"] or [],
                "arguments": list(self.description.command(self._place)),
                "variables": sorted(self.description.variables_at(self._place)),
                "user": config["User"] or None,
                "storage": "folder" if self._data else "volume",
                "network": "published port",
            },
        }

    def container_address(self) -> Address | None:
        """Give its own address on the run's network; None when it has none."""
        networks = self._inspect()["NetworkSettings"]["Networks"]
        host = networks.get(self._in.network, {}).get("IPAddress")
        return Address(host, self._place.port) if host else None


def _signal_or_code(code: int) -> int:
    """Give a signal as a negative number: the daemon tells one as 128 more than its number."""
    try:
        return -signal.Signals(code - 128).value
    except ValueError:
        return code

"""One container: made once, started and killed as often as wanted, removed.

Nothing here is asked of the daemon while something is timed: whether a container runs is seen at
its process. Where that is out of sight (a daemon in a virtual machine) the daemon is asked.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount

from refill.runtimes.cgroups import ControlGroups, Limits
from refill.runtimes.docker_daemon import DockerError, told
from refill.runtimes.leftovers import ENGINE, gone_or_going

LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 60.0
# The daemon's answer to a signal for a container that does not run.
NOT_RUNNING = 409


@dataclass(frozen=True)
class Surroundings:
    """What a run gives to each of its containers.

    Attributes:
        client: the daemon.
        daemon: the daemon's account of itself (`docker info`).
        groups: this machine's control groups.
        network: name of the run's network.
        labels: what marks everything of the run.
        limits: the container's own; in a shared budget only its CPUs.
        group: the control group that shares a budget; None: the container has one alone.
        shared: the limits of that group.
        name: the container's name.
        alias: its name on the network.
        divided: gives how the run divides the machine, for the record.
        depart: told where the limits differ from those asked for; raises when they may not.
        disturbed: told what somebody else did to the container.
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
    disturbed: Callable[[str], None]


@dataclass(frozen=True)
class Program:
    """What runs in a container.

    Attributes:
        name: the engine's name, for messages.
        image: id of the image.
        arguments: what stands behind the image's entry point; none: the image's own.
        variables: of its environment.
        port: the one that it listens on, and that is published on loopback.
        storage: its folder for data.
        takes_input: whether it reads its standard input.
    """

    name: str
    image: str
    arguments: Sequence[str]
    variables: Mapping[str, str]
    port: int
    storage: str
    takes_input: bool


class Container:
    """A container of a run.

    Args:
        around: what the run gives it.
        program: what runs in it.
        data: a folder of the caller's for the data, in place of a volume of the container's own;
            the program then runs as the caller's user.

    Attributes:
        folders: its control group's folders, by controller; none while it does not run, or when
            its processes are out of sight.
        disturbance: what somebody else did to it while it was in use, in words; empty: nothing
            that was noticed.
        removed: whether that was to remove it; its log is gone with it.
    """

    def __init__(self, around: Surroundings, program: Program, data: Path | None) -> None:
        self._around = around
        self._program = program
        self._data = data
        self._api: Any = around.client.api
        self._id: str | None = None
        self._volume: str | None = None
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._status: int | None = None
        self._input: socket.socket | None = None
        self.folders: dict[str, Path] = {}
        self.disturbance = ""
        self.removed = False

    @property
    def made(self) -> bool:
        """Whether the daemon has it."""
        return self._id is not None

    # ---- start

    def start(self, given: bytes | None, ends: bool) -> None:
        """Start it, and make it before when it is not there.

        Args:
            given: what it reads from its standard input; the pipe stays open behind that.
            ends: whether the pipe is closed behind that instead.

        Raises:
            DockerError: it cannot be made or started.
        """
        with told(f"docker: {self._program.name} cannot be started"):
            if self._id is None:
                self._make()
        with self._asked("cannot be started"):
            self._let_go()
            if given is not None:
                self._input = self._attach()
            self._api.start(self._id)
        self._find_process()
        if given is not None:
            self._send(given, ends)

    def _make(self) -> None:
        around, program = self._around, self._program
        labels = {**around.labels, ENGINE: program.name}
        if self._data is None:
            self._volume = around.name
            self._api.create_volume(self._volume, labels=labels)
            mount, user = Mount(program.storage, self._volume, type="volume"), None
        else:
            self._data.mkdir(parents=True, exist_ok=True)
            mount = Mount(program.storage, str(self._data), type="bind")
            user = f"{os.getuid()}:{os.getgid()}"
        limits = around.limits
        host = self._api.create_host_config(
            network_mode=around.network,
            port_bindings={program.port: (LOOPBACK, program.port)},
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
            program.image,
            list(program.arguments) or None,
            name=around.name,
            environment=dict(program.variables),
            ports=[program.port],
            user=user,
            stdin_open=program.takes_input,
            labels=labels,
            host_config=host,
            networking_config=self._api.create_networking_config({around.network: endpoint}),
            # A proxy of the user's would stand between the engines.
            use_config_proxy=False,
        )
        self._id = made["Id"]

    def _attach(self) -> socket.socket:
        """Connect to its standard input, before it starts so that nothing is lost."""
        found = self._api.attach_socket(self._id, {"stdin": 1, "stream": 1})
        # Over a socket file docker-py gives a reader around the socket, with TLS the socket.
        stream: socket.socket = getattr(found, "_sock", found)
        return stream

    def _send(self, given: bytes, ends: bool) -> None:
        assert self._input is not None
        # It can have ended already; `ended` says so.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._input.sendall(given)
            if ends:
                self._input.shutdown(socket.SHUT_WR)

    def _find_process(self) -> None:
        """Find its main process, when it is in sight of this one."""
        pid = int(self.inspect()["State"]["Pid"])
        if pid == 0:
            return  # it has ended already
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return
        try:
            # A daemon elsewhere numbers its processes in its own way.
            its_own = str(self._id) in Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            its_own = False
        if not its_own:
            os.close(pidfd)
            return
        self._pid, self._pidfd = pid, pidfd
        self.folders = self._around.groups.of_process(pid)

    # ---- how it is

    @property
    def pid(self) -> int | None:
        """Process id of its main process on this machine; None when that is not in sight."""
        return self._pid

    def inspect(self) -> Any:
        """Give what the daemon tells of it."""
        with self._asked("the state of its container"):
            return self._api.inspect_container(self._id)

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Tell an error of the daemon about it; that it has it no more is a disturbance.

        Not found can be its network or an image, too, so the daemon is asked once more.
        """
        with told(f"docker: {self._program.name}: {what}"):
            try:
                yield
            except NotFound as error:
                if self._is_there():
                    raise
                self.removed = True
                self._disturbed("somebody removed its container while it was in use")
                raise DockerError(f"docker: {self._program.name}: {self.disturbance}") from error

    def _is_there(self) -> bool:
        try:
            self._api.inspect_container(self._id)
        except NotFound:
            return False
        return True

    def _disturbed(self, what: str) -> None:
        if not self.disturbance:
            self.disturbance = what
            self._around.disturbed(f"{self._program.name}: {what}")

    def ended(self) -> int | None:
        """Its exit status, negative: the signal that ended it; None while it runs.

        The daemon tells none of a container that somebody removed or started anew: that of a
        SIGKILL, as the process that was started here is gone; see `disturbance`.
        """
        if self._id is None or self._status is not None:
            return self._status
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if not poll.poll(0):
                return None
        try:
            code = self._how_it_ended()
        except DockerError:
            if not self.disturbance:
                raise
            code = -signal.SIGKILL
        self._status = None if code is None else _signal_or_code(code)
        return self._status

    def _how_it_ended(self) -> int | None:
        """Ask the daemon how it ended; None: it runs, which it cannot where its end was seen."""
        state = self.inspect()["State"]
        if not state["Running"]:
            return int(state["ExitCode"])
        if self._pidfd is None:
            return None
        if state["Pid"] != self._pid:
            self._disturbed("somebody started its container anew while it was in use")
            return -signal.SIGKILL
        with self._asked("how it ended"):
            return int(self._api.wait(self._id, timeout=END_TIMEOUT_S)["StatusCode"])

    def kill(self) -> None:
        """Kill its processes (SIGKILL); nothing when it has ended."""
        if self._id is None or (self.ended() is not None and not self.disturbance):
            return
        with told(f"docker: killing {self._program.name}"):
            try:
                self._api.kill(self._id, "KILL")
            except NotFound:
                if self._is_there():
                    raise
            except APIError as error:
                # It has ended by itself in between.
                if error.status_code != NOT_RUNNING:
                    raise

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run the image's program with other arguments inside the running container.

        Returns:
            Its exit status, and what it wrote to both outputs.
        """
        entry = self.image()["Config"]["Entrypoint"] or []
        with self._asked(" ".join(arguments)):
            made = self._api.exec_create(self._id, [*entry, *arguments])
            output: bytes = self._api.exec_start(made["Id"])
            status = int(self._api.exec_inspect(made["Id"])["ExitCode"])
        return status, output.decode(errors="replace")

    def image(self) -> Any:
        """Give what the daemon tells of its image."""
        with told(f"docker: the image of {self._program.name}"):
            return self._api.inspect_image(self._program.image)

    def on_network(self) -> bool:
        """Say whether it is on the run's network still."""
        return self._around.network in self.inspect()["NetworkSettings"]["Networks"]

    def written(self) -> bytes:
        """Give all that it has written to both outputs since it was made."""
        with self._asked("its log"):
            output: bytes = self._api.logs(self._id, stdout=True, stderr=True)
        return output

    # ---- end

    def _let_go(self) -> None:
        """Forget the process that has ended."""
        if self._pidfd is not None:
            os.close(self._pidfd)
        if self._input is not None:
            self._input.close()
        self._pid = self._pidfd = self._status = self._input = None
        self.folders = {}

    def remove(self) -> None:
        """Remove it and its volume, running or not.

        Raises:
            DockerError: the daemon cannot; its main process, where it is in sight, is ended at
                least, as a container lives on when its daemon is killed.
        """
        try:
            with told(f"docker: {self._program.name}: removing its container"):
                if self._id is not None:
                    with gone_or_going():
                        self._api.remove_container(self._id, v=True, force=True)
                    self._id = None
                if self._volume is not None:
                    with gone_or_going():
                        self._api.remove_volume(self._volume, force=True)
                    self._volume = None
        finally:
            if self._id is not None and self._pidfd is not None:
                # It has ended, or is another user's.
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._let_go()


def _signal_or_code(code: int) -> int:
    """Give a signal as a negative number: the daemon tells one as 128 more than its number."""
    try:
        return -signal.Signals(code - 128).value
    except ValueError:
        return code

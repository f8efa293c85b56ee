"""The same containers on Podman's socket, which speaks Docker's API."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from container_programs import description, fetch
from daemon_fixture import cannot, daemon_answers
from refill.runtimes.budget import Budget
from refill.runtimes.docker import ContainerRun
from refill.runtimes.docker_daemon import connect, daemon_record
from refill.runtimes.leftovers import find
from service_process import PATH, ServiceProcess

MIB = 1 << 20
PROGRAMS = ("podman", "runc")

pytestmark = pytest.mark.docker


class Podman:
    """Podman's service with folders of its own. Used as a context: leaving it removes all."""

    def __init__(self) -> None:
        # Short, wherever temporary files are: Podman takes paths of 50 characters here.
        self.folder = Path(tempfile.mkdtemp(prefix="refill-podman-", dir="/tmp"))
        self.host = f"unix://{self.folder}/podman.sock"
        self.command = [
            "podman", "--root", str(self.folder / "root"), "--runroot", str(self.folder / "run"),
        ]  # fmt: skip
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # Its own default is a limit of files that only a whole machine's root may set.
        settings = (
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
            f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{self.folder}/net"\n'
            f'[containers]\ndefault_ulimits = ["nofile={most}:{most}", "nproc=4096:4096"]\n'
        )
        (self.folder / "containers.conf").write_text(settings)
        self.environment = os.environ | {
            "PATH": PATH, "CONTAINERS_CONF": str(self.folder / "containers.conf"),
        }  # fmt: skip
        command = [*self.command, "system", "service", "--time", "0", self.host]
        self._service = ServiceProcess(
            command, self.folder / "log", lambda: daemon_answers(self.host), self.environment
        )

    def __enter__(self) -> Podman:
        try:
            self._service.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._service.end()
        # A monitor of a program that ran in a container stays for five minutes, to tell its end.
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or []
            if process.info["name"] == "conmon" and any(str(self.folder) in w for w in words):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        # Images are mounted below the folder until they are removed.
        subprocess.run(
            [*self.command, "system", "reset", "--force"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def podman() -> Iterator[Any]:
    if os.geteuid() != 0:
        cannot("only root can start a Podman of its own")
    if absent := [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]:
        cannot(f"no {', '.join(absent)}: apt-get install podman netavark aardvark-dns docker.io")
    with Podman() as service:
        client = connect(service.host)
        yield client
        client.close()


@pytest.fixture(scope="module")
def image(podman: Any, docker_client: Any, base_image: str) -> str:
    """The base image, carried over from Docker."""
    with tempfile.TemporaryFile() as archive:
        for part in docker_client.api.get_image(base_image):
            archive.write(part)
        archive.seek(0)
        (loaded,) = podman.images.load(archive)
    return str(loaded.id)


def test_engines_in_podmans_containers_share_a_budget_and_survive_a_kill(
    podman: Any, image: str, tmp_path: Path
) -> None:
    assert daemon_record(podman)["name"] == "Podman"
    given = b"a-password"
    with ContainerRun(podman, Budget(0.5, 192 * MIB)) as run:
        first = run.engine(description(standard_input=given), image, tmp_path / "1.log", True)
        second = run.engine(description(), image, tmp_path / "2.log", True)
        with first, second:
            for engine in (first, second):
                applied = engine.applied()
                assert (applied["budget"], applied["shared"]) == ("exact", True)
                assert applied["read_back"]["cpus"] == 0.5
                assert applied["read_back"]["memory_bytes"] == 192 * MIB
                assert engine.resources().cpu_s > 0
            asked = (
                f"from urllib.request import *; print(urlopen('{first.inner.url}/starts').read())"
            )
            assert second.run(["python3", "-c", asked]) == (0, "b'started\\n'\n")
            first.kill()
            assert first.ended() == -9
            first.start()
            assert fetch(first.address, "starts") == "started\nstarted\n"
            os.kill(second.pid, signal.SIGTERM)
            assert second.wait_end(30) == 0
    assert find(podman, run.id) == []
    assert (tmp_path / "1.log").read_text() == "serving\nserving\n"

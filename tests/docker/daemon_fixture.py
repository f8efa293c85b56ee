"""A Docker daemon for tests: the one that is there, or one of Debian's package for the moment."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

import psutil
import pytest
from docker.errors import ImageNotFound
from refill.runtimes.docker_daemon import DEFAULT_HOST, DockerError, connect
from service_process import PATH, ServiceProcess

BASE = "refill-test-base:bookworm"
SUITE = "bookworm"
PYTHON = "3.11"
# Of no use to a test, and copied with every image that is saved.
LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "var/log")


def missing(*programs: str) -> str:
    """Say why no daemon can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "no Docker daemon answers, and only root can start one"
    if absent := [name for name in programs if shutil.which(name, path=PATH) is None]:
        return f"no {', '.join(absent)}: apt-get install docker.io debootstrap docker-registry"
    if any(process.info["name"] == "dockerd" for process in psutil.process_iter(["name"])):
        return "a Docker daemon runs here and does not answer; a second one would take its bridge"
    return ""


def cannot(why: str) -> NoReturn:
    """Skip a test for a reason, which in CI is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def running_host() -> str | None:
    """Give the address of the daemon that answers already; None: there is none."""
    host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    return host if daemon_answers(host) else None


def daemon_answers(host: str) -> bool:
    """Ask a daemon once whether it is there."""
    try:
        connect(host).close()
    except DockerError:
        return False
    return True


class Daemon:
    """dockerd with folders of its own. Used as a context: leaving it ends it and removes them."""

    def __init__(self) -> None:
        # Short: the path of a socket has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="refill-docker-"))
        self.host = f"unix://{self.folder}/docker.sock"
        command = [
            "dockerd", "--host", self.host,
            "--data-root", str(self.folder / "data"),
            "--exec-root", str(self.folder / "exec"),
            "--pidfile", str(self.folder / "dockerd.pid"),
        ]  # fmt: skip
        log = self.folder / "dockerd.log"
        self._service = ServiceProcess(command, log, lambda: daemon_answers(self.host))

    def __enter__(self) -> Self:
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
        shutil.rmtree(self.folder, ignore_errors=True)


def base_image(client: Any) -> str:
    """Make the base of all that tests build, once for a daemon, from Debian's packages alone."""
    # Two sessions that share a daemon make it once.
    with _alone():
        try:
            client.api.inspect_image(BASE)
        except ImageNotFound:
            with tempfile.TemporaryDirectory(prefix="refill-base-") as folder:
                _install(Path(folder) / "root")
                _load(client, Path(folder) / "root")
    return BASE


@contextmanager
def _alone() -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / f"refill-base-{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(root: Path) -> None:
    command = ["debootstrap", "--variant=minbase", "--include=python3", SUITE, str(root)]
    done = subprocess.run(
        [*command, *_mirror()],
        env=os.environ | {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for name in (*LEFT_OUT, *EMPTIED):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in EMPTIED:
        (root / name).mkdir()


def _mirror() -> list[str]:
    """Give the mirror that this machine's packages come from, if it has this release."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Component: main"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return [line[1] for line in lines if line[0] == SUITE and "security" not in line[1]][:1]


def _load(client: Any, root: Path) -> None:
    repository, tag = BASE.split(":")
    with subprocess.Popen(
        ["tar", "--numeric-owner", "-C", str(root), "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        said = client.api.import_image_from_stream(
            tar.stdout,
            repository=repository,
            tag=tag,
            changes=['CMD ["python3"]', "ENV LANG=C.UTF-8", "LABEL org.refill.test=base"],
        )
    assert tar.returncode == 0, said

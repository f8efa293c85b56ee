"""What is left of a run with the daemon, however the run ends: nothing, and nothing of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from container_programs import description
from docker.errors import NotFound
from refill.engines.description import EngineError
from refill.processes import module_environment, wait_for
from refill.runtimes import clean, leftovers
from refill.runtimes import docker as docker_runtime
from refill.runtimes.cgroups import ControlGroups
from refill.runtimes.docker import ContainerRun
from refill.runtimes.docker_daemon import connect
from refill.runtimes.leftovers import OWNER, PROJECT, RUN, find, labels, sweep, sweep_groups
from refill.runtimes.owner import Owner
from refill.told import with_notes
from relay import Relay

pytestmark = pytest.mark.docker

# A driver: opens a run with one engine in a shared budget, says so, and waits.
DRIVER = """
import sys, time
from pathlib import Path
from container_programs import description
from refill.processes import Watch
from refill.runtimes.budget import Budget
from refill.runtimes.docker import ContainerRun
from refill.runtimes.docker_daemon import connect

host, image, logs = sys.argv[1], sys.argv[2], Path(sys.argv[3])
client, budget = connect(host), Budget(1, 128 << 20, "relaxed")
with Watch([]), ContainerRun(client, budget, host=host, logs=logs) as run:
    with run.engine(description(), image, logs / "engine.log", True) as engine:
        print(run.id, flush=True)
        time.sleep(600)
"""
GONE_S = 60.0


@pytest.fixture
def image(docker_client: Any, base_image: str) -> str:
    return str(docker_client.images.get(base_image).id)


@contextmanager
def driver(host: str, image: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a driver; give it, and its run, once its engine is ready."""
    environment = module_environment({"PYTHONDONTWRITEBYTECODE": "1"})
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, host, image, str(tmp_path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        run = process.stdout.readline().strip()
        assert run, "the driver did not come up"
        yield process, run
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def watcher_of(process: subprocess.Popen[str]) -> int:
    """Give the process that watches a driver."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = [pid for pid in map(int, listed) if b"runtimes.watcher" in command_of(pid)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_ended_leaves_nothing(
    number: int, docker_client: Any, docker_host: str, image: str, tmp_path: Path
) -> None:
    with driver(docker_host, image, tmp_path) as (process, run):
        left = find(docker_client, run)[0]
        assert (len(left.containers), len(left.networks), len(left.volumes)) == (1, 1, 1)
        watcher = watcher_of(process)
        process.send_signal(number)
        process.wait(GONE_S)
        assert wait_for(lambda: find(docker_client, run) == [], GONE_S, 0.1)
        assert wait_for(lambda: not ControlGroups.here().named(f"refill_{run}.*"), GONE_S, 0.1)
        assert wait_for(lambda: not Path(f"/proc/{watcher}").exists(), GONE_S, 0.1)


def test_what_is_left_when_the_watcher_was_killed_too_is_removed_later(
    docker_client: Any,
    docker_host: str,
    image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with driver(docker_host, image, tmp_path) as (process, run):
        os.kill(watcher_of(process), signal.SIGKILL)
        # As long as the driver lives, what it has is left alone.
        _, kept = sweep(docker_client, ControlGroups.here())
        assert any(run in line and "its process lives" in line for line in kept)
        assert len(find(docker_client, run)[0].containers) == 1
        process.kill()
        process.wait(GONE_S)
        assert len(find(docker_client, run)[0].containers) == 1
        assert clean.main(["--host", docker_host]) == 0
        assert f"removed: run {run}: 1 container, 1 network, 1 volume" in capsys.readouterr().out
        assert find(docker_client, run) == []
        assert not ControlGroups.here().named(f"refill_{run}.*")


def test_a_daemon_that_comes_back_is_waited_for(
    docker_client: Any, docker_host: str, image: str, tmp_path: Path
) -> None:
    """Driver and watcher reach it by a name of its socket that is taken away for a while."""
    with tempfile.TemporaryDirectory(prefix="refill-alias-", dir="/tmp") as folder:
        alias = Path(folder) / "docker.sock"
        alias.symlink_to(docker_host.removeprefix("unix://"))
        log = tmp_path / "containers.log"
        with driver(f"unix://{alias}", image, tmp_path) as (process, run):
            alias.unlink()
            process.kill()
            process.wait(GONE_S)
            assert wait_for(lambda: "is not running" in log.read_text(), GONE_S, 0.05)
            alias.symlink_to(docker_host.removeprefix("unix://"))
            assert wait_for(lambda: find(docker_client, run) == [], GONE_S, 0.1), log.read_text()
    # By the watcher itself, and not by a run of somebody else's.
    assert "make clean-docker" not in log.read_text()
    assert "Traceback" not in log.read_text()


def test_engines_do_not_outlive_a_daemon_that_is_killed(
    docker_client: Any, docker_host: str, image: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Its containers live on then, and would be beside the next measurement."""
    monkeypatch.setattr(leftovers, "REMOVE_S", 0.5)
    with (
        tempfile.TemporaryDirectory(prefix="refill-relay-", dir="/tmp") as folder,
        Relay(Path(folder), docker_host) as relay,
        closing(connect(relay.host)) as client,
    ):
        run, ended = ContainerRun(client, None, host=docker_host), False

        def measure() -> None:
            nonlocal ended
            with run:
                try:
                    with run.engine(description(), image, tmp_path / "log", False) as engine:
                        pid = engine.pid
                        relay.cut()
                finally:
                    # Before the watcher, who reaches the daemon by another way, does anything.
                    ended = wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), GONE_S)

        with pytest.raises(EngineError) as caught:
            measure()
        assert ended
        assert "the daemon is gone" in str(caught.value)
        # What could not be removed comes behind it.
        assert "`make clean-docker`" in with_notes(caught.value)
        assert find(docker_client, run.id) == []


def test_what_cannot_be_removed_is_in_no_other_runs_way(
    docker_client: Any, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network of a dead run, which somebody has put a container of their own into."""
    monkeypatch.setattr(docker_runtime, "SWEEP_S", 0.5)
    mine = Owner.this_process()
    dead = labels("9" * 12, Owner(mine.pid, mine.began - 1, mine.boot, mine.namespace))
    network = docker_client.networks.create(f"refill-test-{os.getpid()}-used", labels=dead)
    told: list[str] = []
    try:
        theirs = docker_client.containers.run(
            image, ["sleep", "600"], detach=True, network=network.name
        )
        try:
            with ContainerRun(docker_client, None, say=told.append) as run:
                assert find(docker_client, run.id)
            (line,) = [line for line in told if "9" * 12 in line]
            assert "cannot be removed within 0.5 s" in line
            theirs.reload()
            assert theirs.status == "running"
        finally:
            theirs.remove(force=True)
        removed, _ = sweep(docker_client, ControlGroups.here())
        assert f"run {'9' * 12}: 1 network" in removed
    finally:
        with suppress(NotFound):
            network.remove()


def test_the_next_run_removes_what_killed_ones_left_and_nothing_else(docker_client: Any) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    mine = Owner.this_process()
    dead = Owner(ended.pid, 1, mine.boot, mine.namespace)
    ended.wait()
    elsewhere = Owner(ended.pid, 1, mine.boot, mine.namespace + 1)
    made = {
        "dead": labels("d" * 12, dead),
        "reused": labels("c" * 12, Owner(mine.pid, mine.began - 1, mine.boot, mine.namespace)),
        "earlier-boot": labels("b" * 12, Owner(mine.pid, mine.began, "x-y", mine.namespace)),
        "alive": labels("a" * 12, mine),
        "out-of-sight": labels("e" * 12, elsewhere),
        "no-owner": {PROJECT: "refill", RUN: "f" * 12, OWNER: "what is this"},
        "of-others": {"org.other.project": "other"},
    }
    names = {what: f"refill-test-{os.getpid()}-{what}" for what in made}
    told: list[str] = []
    try:
        for what, marked in made.items():
            docker_client.api.create_volume(names[what], labels=marked)
        with ContainerRun(docker_client, None, say=told.append):
            pass
        volumes = docker_client.api.volumes()["Volumes"]
        left = {volume["Name"] for volume in volumes}
        assert {what for what, name in names.items() if name in left} == {
            "alive", "out-of-sight", "no-owner", "of-others",
        }  # fmt: skip
        assert len([line for line in told if "run dddddddddddd: 1 volume" in line]) == 1
    finally:
        for volume in docker_client.volumes.list():
            if volume.name in names.values():
                volume.remove()


def test_groups_of_dead_runs_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    groups = ControlGroups.here()
    if groups.version is None or os.geteuid() != 0:
        pytest.skip("control groups are made by root")
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    memory = groups.mounts["memory" if groups.version == 1 else ""].folder
    dead, alive = memory / f"refill_aa_{ended.pid}", memory / f"refill_bb_{os.getpid()}"
    used = memory / f"refill_cc_{ended.pid}"
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        for folder in (dead, alive, used):
            folder.mkdir()
        (used / "cgroup.procs").write_text(str(sleeper.pid))

        removed = sweep_groups(groups)
        assert f"control group /{dead.name}" in removed
        assert not dead.exists()
        assert alive.exists()
        assert used.exists()
    finally:
        sleeper.kill()
        sleeper.wait()
        deadline = time.monotonic() + 10
        for folder in (dead, alive, used):
            while folder.exists() and time.monotonic() < deadline:
                try:
                    folder.rmdir()
                except OSError:
                    time.sleep(0.05)


def test_a_daemon_that_is_absent_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clean.main(["--host", f"unix://{tmp_path}/none.sock"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is not running" in told
    assert "runtime: process" in told

"""Engines in containers of a real daemon: start, end, data, log, counters, identity."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from container_programs import BUSY, FAILING, READER, description, fetch
from refill.engines.description import EngineError
from refill.processes import wait_for
from refill.runtimes import network
from refill.runtimes.docker import ContainerRun
from refill.runtimes.leftovers import find

pytestmark = pytest.mark.docker

PASSWORD = "a-password-of-this-test"


@pytest.fixture(scope="module")
def run(docker_client: Any) -> Any:
    with ContainerRun(docker_client, None) as opened:
        yield opened


@pytest.fixture
def image(docker_client: Any, base_image: str) -> str:
    return str(docker_client.images.get(base_image).id)


def test_an_engine_is_reached_on_loopback_and_by_its_name(
    run: ContainerRun, docker_client: Any, image: str, tmp_path: Path
) -> None:
    first = run.engine(description(), image, tmp_path / "1.log", shared=False)
    second = run.engine(description(), image, tmp_path / "2.log", shared=False)
    with first, second:
        assert first.start_s > 0
        assert first.inner.host != second.inner.host
        assert fetch(first.address, "starts") == "started\n"
        # Another container finds it by its name on the run's network.
        asked = f"from urllib.request import *; print(urlopen('{first.inner.url}/starts').read())"
        assert second.run(["python3", "-c", asked]) == (0, "b'started\\n'\n")
        left = find(docker_client, run.id)[0]
        assert (len(left.containers), len(left.volumes), len(left.networks)) == (2, 2, 1)
        for container in left.containers:
            ports = docker_client.api.inspect_container(container)["NetworkSettings"]["Ports"]
            assert [p["HostIp"] for entry in ports.values() for p in entry] == ["127.0.0.1"]
        inside = first.container_address()
        assert inside is not None
        assert fetch(inside, "starts") == "started\n"
    left = find(docker_client, run.id)[0]
    assert (left.containers, left.volumes) == ((), ())
    assert (tmp_path / "1.log").read_text() == "serving\n"


def test_killed_and_started_again_it_has_its_data(
    run: ContainerRun, image: str, tmp_path: Path
) -> None:
    with run.engine(description(), image, tmp_path / "log", shared=False) as engine:
        address, pid = engine.address, engine.pid
        assert engine.ended() is None
        engine.kill()
        assert engine.ended() == -9
        engine.kill()  # one that has ended is no error
        with pytest.raises(EngineError, match="signal SIGKILL"):
            engine.check()
        engine.start()
        assert engine.address == address
        assert engine.pid != pid
        assert fetch(address, "starts") == "started\nstarted\n"
        os.kill(engine.pid, signal.SIGTERM)
        assert engine.wait_end(30) == 0
    assert (tmp_path / "log").read_text() == "serving\nserving\n"


def test_an_end_that_nobody_asked_for_is_noticed(
    run: ContainerRun, image: str, tmp_path: Path
) -> None:
    with run.engine(description(), image, tmp_path / "log", shared=False) as engine:
        os.kill(engine.pid, 9)
        assert engine.wait_end(30) == -9
        with pytest.raises(EngineError, match=r"engine has ended \(signal SIGKILL\)(.|\n)*serving"):
            engine.check()


def test_data_can_be_a_folder_of_the_callers(run: ContainerRun, image: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    engine = run.engine(description(), image, tmp_path / "log", shared=False, data=folder)
    with engine:
        assert (folder / "starts").read_text() == "started\n"
        assert (folder / "starts").stat().st_uid == os.getuid()
    # It is the caller's: neither emptied nor removed.
    with run.engine(description(), image, tmp_path / "log", shared=False, data=folder):
        assert (folder / "starts").read_text() == "started\nstarted\n"


def test_what_is_read_from_standard_input_is_seen_nowhere(
    run: ContainerRun, docker_client: Any, image: str, tmp_path: Path
) -> None:
    given = PASSWORD.encode() * 10_000
    described = description(READER, standard_input=given, environment={"VARIABLE": "a secret"})
    with run.engine(described, image, tmp_path / "log", shared=False) as engine:
        assert fetch(engine.address, "read") == str(len(given))
        (container,) = find(docker_client, run.id)[0].containers
        told = json.dumps(docker_client.api.inspect_container(container))
        assert PASSWORD not in told
        identity = engine.identity()
        assert identity["image"]["id"] == image
        assert "VARIABLE" in identity["container"]["variables"]
        assert "a secret" not in json.dumps(identity)
        # Every start is told again.
        engine.kill()
        engine.start()
        assert fetch(engine.address, "read") == str(len(given))


def test_an_engine_that_fails_leaves_its_log_and_nothing_else(
    run: ContainerRun, docker_client: Any, image: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    engine = run.engine(description(FAILING), image, log, shared=False)
    with pytest.raises(EngineError, match=r"exit code 3(.|\n)*the disk is on fire"), engine:
        pass
    assert log.read_text() == "the disk is on fire\n"
    never = description(is_ready=lambda _: False, start_timeout_s=0.5)
    with (
        pytest.raises(EngineError, match=r"not ready within 0\.5 s(.|\n)*serving"),
        run.engine(never, image, tmp_path / "log2", shared=False),
    ):
        pass
    with (
        pytest.raises(EngineError, match=r"engine cannot be started.*[Nn]o such image"),
        run.engine(description(), "sha256:" + "0" * 64, tmp_path / "log3", shared=False),
    ):
        pass
    assert find(docker_client, run.id)[0].containers == ()


def test_a_port_that_is_taken_is_told(run: ContainerRun, image: str, tmp_path: Path) -> None:
    engine = run.engine(description(), image, tmp_path / "log", shared=False)
    with (
        socket.create_server(("127.0.0.1", engine.address.port)),
        pytest.raises(EngineError, match=r"cannot be started.*(in use|already allocated)"),
        engine,
    ):
        pass


def test_counters_are_the_containers(run: ContainerRun, image: str, tmp_path: Path) -> None:
    with run.engine(description(BUSY), image, tmp_path / "log", shared=False) as engine:
        before = engine.resources()
        assert before.rss_bytes > 1 << 20
        assert before.memory_peak_bytes > 1 << 20
        assert before.write_bytes >= 4096
        assert wait_for(lambda: engine.resources().cpu_s > before.cpu_s + 0.5, 60)
        engine.kill()
        gone = engine.resources()
        assert gone.cpu_s != gone.cpu_s


def test_engines_without_a_budget_say_so(run: ContainerRun, image: str, tmp_path: Path) -> None:
    with run.engine(description(), image, tmp_path / "log", shared=True) as engine:
        applied = engine.applied()
        assert (applied["budget"], applied["shared"]) == ("none", False)
        assert applied["read_back"]["cpus"] is None
        assert applied["daemon"]["memory_bytes"] is None


def test_what_the_published_port_costs_is_measured_both_ways(
    run: ContainerRun, image: str, tmp_path: Path
) -> None:
    with run.engine(description(), image, tmp_path / "log", shared=False) as engine:
        assert engine.network is None
        engine.measure_network(network.http)
        found = engine.network
        assert found is not None
        assert (found["way"], found["round_trips"]) == ("published port", network.ROUND_TRIPS)
        ways = (found["published_port"], found["container_address"])
        assert all(0 < way["p50_us"] <= way["p95_us"] for way in ways)
        assert found["cost_us"] == round(ways[0]["p50_us"] - ways[1]["p50_us"], 1)
        engine.kill()
        engine.measure_network(network.http)
        assert engine.network is not None
        assert "no address" in engine.network["not_measured"]

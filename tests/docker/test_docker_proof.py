"""The crash proof in containers: the images' own scripts, real kills, damage, and what it refuses.

The whole proof in containers, with its record, is run by test_docker_workflow.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT, load_images
from refill.engines.description import EngineError
from refill.image_sources import read_source
from refill.proofs import crash_server, power, suite
from refill.proofs.calls import Index
from refill.proofs.containers import ContainerProgram, Image
from refill.proofs.findings import (
    BEYOND,
    FAIL,
    IMAGES,
    NOT_RUN,
    PASS,
    Check,
    Findings,
    run_check,
)
from refill.proofs.servers import DEFAULT, Server
from refill.proofs.setup import Setup, opened
from refill.proofs.stack import Stack
from refill.proofs.subject import Scale, Subject, change, create
from refill.runtimes.container import Container
from refill.runtimes.container_engine import ContainerEngine
from refill.runtimes.docker_images import BuildFiles, build
from refill.runtimes.leftovers import ENGINE, find

pytestmark = pytest.mark.docker

NAMES = {"old": "gateway-old", "new": "gateway-new", "qdrant": "qdrant-edge", "valkey": "valkey"}
# Enough kills for some to meet a write or a read: a check that none met is void.
SMALL = Scale("test", 20, 12, 16, other_kills=2, cut_s=0.3)
BY_ID = {check.id: check for check in suite.CHECKS}

# What tells containers from processes: kills by the daemon, files seen from outside, parts that
# reach one another by name, a gate that they reach, what a server tells of them, syncs seen from
# outside, power under a folder that a container has.
TELLING = (
    "publication-hit",
    "rewrite-restores",
    "promoted-replica",
    "zeroed-tail",
    "failed-sync",
    "sync-counts",
    "gateway-without-data",
    "gateway-scripts",
    "gateway-held-write",
    "crash-server",
    "crash-gateway",
    "power-cut-ext4-always",
    "power-cut-ext4-no",
    "power-cut-xfs-always",
)


@pytest.fixture(scope="module")
def built(
    docker_client: Any, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The records of the four images, by their part in the proof."""
    folder = tmp_path_factory.mktemp("images")
    entries: dict[str, Any] = {name: dict(entry) for name, entry in load_images().items()}
    for entry in entries.values():
        entry["pinned"] = read_source(PROJECT, entry).state()
    for name in NAMES.values():
        files = BuildFiles(folder / f"{name}.json", folder / f"{name}.log", folder / "wheels")
        settings = {"base": base_image, "python": "3.11"}
        build(docker_client, PROJECT, name, entries, settings, files, "0")
    return {part: folder / f"{name}.json" for part, name in NAMES.items()}


@pytest.fixture(scope="module")
def setup(
    docker_host: str, built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    plan = {"runtime": "docker", "docker": {"host": docker_host}}
    with opened(plan, built, tmp_path_factory.mktemp("a first"), print) as made:
        yield made


def subject(setup: Setup, image: str, folder: Path) -> Subject:
    return Subject(
        image,
        setup.sources[image],
        setup.programs[0],
        folder / "a scratch",
        SMALL,
        parts=setup.parts[image],
    )


def test_scripts_are_those_in_the_images(setup: Setup) -> None:
    for image in IMAGES:
        entry = load_images()[NAMES[image]]
        files = read_source(PROJECT, entry).files
        built_from = {
            f"gateway/lua/{name}.lua": text for name, text in setup.sources[image].items()
        }
        assert built_from == {name: files[name] for name in built_from}
    differing = {n for n, text in setup.sources["old"].items() if text != setup.sources["new"][n]}
    assert differing == {"publish"}


def test_the_server_is_what_its_container_says(setup: Setup, built: dict[str, Path]) -> None:
    server, *others = [program.as_json() for program in setup.programs]
    assert (server["name"], server["product"], server["counts"]) == (DEFAULT, "Valkey", True)
    assert server["version"].startswith("8.1.")
    engine = setup.programs[0].engine_json()
    assert engine["runtime"] == "docker"
    assert engine["image"]["id"] == setup.images["valkey"]["id"]
    assert engine["container"]["storage"] == "folder"
    assert all("runtime: process" in other["status"] for other in others)
    assert setup.containers is not None
    assert setup.containers["daemon"]["version"]
    assert setup.containers["budget"] == "none"


@pytest.mark.parametrize("id_", TELLING)
def test_a_check_holds_in_containers(id_: str, setup: Setup, tmp_path: Path) -> None:
    made = run_check(BY_ID[id_], subject(setup, "new", tmp_path))
    if made["outcome"] == NOT_RUN and not os.environ.get("CI"):
        pytest.skip(made["why"])
    assert made["outcome"] == PASS, made["why"]


def test_in_the_old_image_publications_are_durable(setup: Setup, tmp_path: Path) -> None:
    made = run_check(BY_ID["publication-hit"], subject(setup, "old", tmp_path))
    assert made["outcome"] == PASS, made["why"]
    assert not made["evidence"]["property_holds"]


def test_a_kill_by_the_daemon_shows_a_fault_in_the_scripts(setup: Setup, tmp_path: Path) -> None:
    made = subject(setup, "new", tmp_path)
    release = made.sources["release"]
    right = b"server.call('HINCRBY', KEYS[2], 'generation', 1)"
    wrong = b"tonumber(server.call('HGET', KEYS[2], 'generation'))"
    assert release.count(right) == 1
    faulty = {**made.sources, "release": release.replace(right, wrong)}
    for number in range(5):
        if crash_server.episode(replace(made, sources=faulty), number, 4).failures:
            return
    pytest.fail("20 kills saw nothing")


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="needs root")
def test_a_server_that_does_not_sync_fails_when_the_power_goes(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = subject(setup, "new", tmp_path)

    def without_syncs(data: Path | None = None, **settings: str) -> Server:
        return Subject.server(made, data, **{**settings, "appendfsync": "no"})

    monkeypatch.setattr(made, "server", without_syncs)
    check = replace(BY_ID["power-cut-ext4-always"], run=power.power_cut("ext4", "always"))
    assert run_check(check, made)["outcome"] == FAIL


# ---- what cannot be tried is refused, or not run


@pytest.mark.parametrize("then", ["asked", "killed and started"])
def test_a_server_that_somebody_removed_says_nothing_of_the_scripts(
    then: str, setup: Setup, docker_client: Any, tmp_path: Path
) -> None:
    def check(made: Subject, _: Findings) -> None:
        with made.server() as server:
            create(server)
            program = made.program
            assert isinstance(program, ContainerProgram)
            assert program.image is not None
            (left,) = find(docker_client, program.image.run.id)
            for container in left.containers:
                docker_client.api.remove_container(container, force=True)
            if then == "asked":
                change(server, Index())
            else:
                server.crash()

    made = run_check(Check("x", "x", BEYOND, check), subject(setup, "new", tmp_path))
    assert made["outcome"] == NOT_RUN
    assert made["why"].startswith("harness: ")
    assert "somebody removed its container" in made["why"]


def test_an_episode_whose_gateway_somebody_removed_says_nothing_of_it(
    setup: Setup, docker_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Stack.kill_gateway

    def remove(stack: Stack) -> None:
        real(stack)
        for container in docker_client.api.containers(
            all=True, filters={"status": "exited", "label": f"{ENGINE}=gateway"}
        ):
            docker_client.api.remove_container(container["Id"])

    monkeypatch.setattr(Stack, "kill_gateway", remove)
    made = run_check(BY_ID["crash-gateway"], subject(setup, "new", tmp_path))
    assert made["outcome"] == NOT_RUN
    assert "somebody removed its container" in made["why"]


def test_a_process_that_is_out_of_sight_is_not_run(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a daemon in a virtual machine."""
    monkeypatch.setattr(Container, "_find_process", lambda _: None)
    made = run_check(BY_ID["sync-counts"], subject(setup, "new", tmp_path))
    assert made["outcome"] == NOT_RUN
    assert "no process of its container is in sight" in made["why"]


def test_a_daemon_that_does_not_see_this_folder_is_refused(
    docker_host: str, built: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Image.engine

    def elsewhere(self: Image, *given: Any) -> ContainerEngine:
        *rest, _ = given
        return real(self, *rest, tmp_path / "of another machine")

    monkeypatch.setattr(Image, "engine", elsewhere)
    plan = {"runtime": "docker", "docker": {"host": docker_host}}
    with (
        pytest.raises(EngineError, match="does not see the folders of this machine"),
        opened(plan, built, tmp_path / "first", print),
    ):
        pass


def test_an_image_for_another_runtime_is_refused(built: dict[str, Path], tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"gateway-old\.json: is an image of Docker"),
        opened({"runtime": "process", "servers": {}}, built, tmp_path, print),
    ):
        pass


def test_an_episode_is_replayed_in_containers(
    docker_host: str, built: dict[str, Path], tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "refill.proofs", "--images", str(built["new"].parent),
            "--docker", docker_host, "--replay", "crash-server:new:0",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "workflow/scripts")},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "crash-server:new:0: holds" in done.stdout


def test_nothing_of_a_proof_is_left_in_the_daemon(
    docker_client: Any, docker_host: str, built: dict[str, Path], tmp_path: Path
) -> None:
    plan = {"runtime": "docker", "docker": {"host": docker_host}}
    with opened(plan, built, tmp_path / "first", print) as setup:
        program = setup.programs[0]
        assert isinstance(program, ContainerProgram)
        assert program.image is not None
        mine = {"label": f"org.refill.run={program.image.run.id}"}
        with subject(setup, "new", tmp_path).server() as server:
            create(server)
            assert len(docker_client.api.containers(all=True, filters=mine)) == 1
        assert docker_client.api.containers(all=True, filters=mine) == []
    assert docker_client.api.networks(filters=mine) == []
    assert not docker_client.api.volumes(filters=mine)["Volumes"]

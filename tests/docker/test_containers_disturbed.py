"""What somebody else does to a run's things in the daemon: told in words, and nothing stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_programs import description
from refill.engines.description import EngineError
from refill.processes import wait_for
from refill.runtimes.budget import Budget
from refill.runtimes.cgroups import ControlGroups
from refill.runtimes.container_engine import ContainerEngine
from refill.runtimes.docker import ContainerRun
from refill.runtimes.docker_daemon import DockerError
from refill.runtimes.engine import explained
from refill.runtimes.leftovers import find

pytestmark = pytest.mark.docker

REMOVED = "somebody removed its container while it was in use"


@pytest.fixture
def run(docker_client: Any) -> Iterator[ContainerRun]:
    with ContainerRun(docker_client, None) as opened:
        yield opened
    assert find(docker_client, opened.id) == []


@pytest.fixture
def engine(
    run: ContainerRun, docker_client: Any, base_image: str, tmp_path: Path
) -> ContainerEngine:
    image = docker_client.images.get(base_image).id
    return run.engine(description(), image, tmp_path / "log", shared=False)


def container_of(client: Any, run: ContainerRun) -> str:
    (left,) = find(client, run.id)
    (container,) = left.containers
    return container


def test_a_container_that_was_removed_is_told_in_words(
    run: ContainerRun, engine: ContainerEngine, docker_client: Any, tmp_path: Path
) -> None:
    with engine:
        engine.check()
        # With its volume, as whoever tidies up does.
        docker_client.api.remove_container(container_of(docker_client, run), force=True)
        for volume in find(docker_client, run.id)[0].volumes:
            docker_client.api.remove_volume(volume)
        with pytest.raises(DockerError) as caught:
            engine.check()
        assert str(caught.value).startswith(f"engine: {REMOVED}.")
        # Behind what was noticed first, such as a broken connection.
        assert REMOVED in explained(ConnectionError("reset"), [engine])
        assert engine.ended() == -9
        engine.kill()
    # Leaving is no second error that would hide the first.
    assert (tmp_path / "log").read_text() == f"({REMOVED}: what it wrote is gone)\n"
    assert run.disturbances == [f"engine: {REMOVED}"]


def test_a_killed_container_that_was_removed_is_not_started_again(
    run: ContainerRun, engine: ContainerEngine, docker_client: Any
) -> None:
    with engine:
        engine.kill()
        assert run.disturbances == []
        docker_client.api.remove_container(container_of(docker_client, run))
        with pytest.raises(DockerError, match=REMOVED):
            engine.start()
    assert run.disturbances == [f"engine: {REMOVED}"]


def test_a_container_that_was_started_anew_is_not_taken_for_the_measured_one(
    run: ContainerRun, engine: ContainerEngine, docker_client: Any
) -> None:
    with engine:
        container = container_of(docker_client, run)
        docker_client.api.restart(container, timeout=5)

        def runs() -> bool:
            return bool(docker_client.api.inspect_container(container)["State"]["Running"])

        assert runs()
        with pytest.raises(DockerError, match="somebody started its container anew"):
            engine.check()
        engine.kill()
        assert wait_for(lambda: not runs(), 30)


def test_a_container_that_was_taken_off_the_network_is_told(
    run: ContainerRun, engine: ContainerEngine, docker_client: Any
) -> None:
    with engine:
        error = EngineError("no answer")
        assert explained(error, [engine]) == "no answer"
        network = find(docker_client, run.id)[0].networks[0]
        docker_client.api.disconnect_container_from_network(
            container_of(docker_client, run), network, force=True
        )
        docker_client.api.remove_network(network)
        words = "Somebody took the container of engine off the run's network."
        assert explained(error, [engine]) == f"no answer {words}"


def test_a_network_that_was_removed_before_its_first_container_is_told(
    run: ContainerRun, engine: ContainerEngine, docker_client: Any
) -> None:
    """As `docker network prune` does, which takes networks that are not in use yet."""
    docker_client.api.remove_network(find(docker_client, run.id)[0].networks[0])
    with (
        pytest.raises(DockerError, match=r"engine.* cannot be started.*network .*not found"),
        engine,
    ):
        pass
    assert run.disturbances == []


def test_limits_that_are_changed_in_the_middle_are_told(
    docker_client: Any, base_image: str, tmp_path: Path
) -> None:
    image = docker_client.images.get(base_image).id
    with ContainerRun(docker_client, Budget(1, 128 << 20, "refuse")) as run:
        with run.engine(description(), image, tmp_path / "log", shared=False) as engine:
            engine.check()
            docker_client.api.update_container(
                container_of(docker_client, run), mem_limit=96 << 20, memswap_limit=96 << 20
            )
        assert run.disturbances == [
            "engine: somebody changed its limits while it was in use: it has 100663296 bytes, "
            "134217728 were asked for"
        ]


def test_a_budgets_group_that_was_removed_is_no_budget(
    docker_client: Any, base_image: str, tmp_path: Path
) -> None:
    """The daemon makes the group anew, and without limits."""
    groups = ControlGroups.here()
    if groups.version is None or os.geteuid() != 0:
        pytest.skip("control groups are made by root")
    image = docker_client.images.get(base_image).id
    with ContainerRun(docker_client, Budget(1, 128 << 20, "refuse")) as run:
        engine = run.engine(description(), image, tmp_path / "log", shared=True)
        (group,) = groups.named(f"refill_{run.id}.*")
        groups.remove(group)
        with pytest.raises(EngineError, match=r"engine: .*(CPU|memory)"), engine:
            pass
    assert find(docker_client, run.id) == []
    assert not groups.named(f"refill_{run.id}.*")

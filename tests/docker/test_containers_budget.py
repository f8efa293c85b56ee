"""Budgets of containers on a real daemon: what was asked for is what the kernel enforces."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from container_programs import BUSY, GREEDY, description
from refill.engines.description import EngineError
from refill.processes import wait_for
from refill.runtimes import cgroups
from refill.runtimes.budget import Budget
from refill.runtimes.cgroups import ControlGroups, read_cpu_list
from refill.runtimes.docker import ContainerRun
from refill.runtimes.docker_daemon import daemon_record
from refill.runtimes.leftovers import find

pytestmark = pytest.mark.docker

MIB = 1 << 20
# Less than a CPU: then the limit binds wherever the set of CPUs leaves room.
SMALL = Budget(0.5, 192 * MIB)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")


@pytest.fixture
def image(docker_client: Any, base_image: str) -> str:
    return str(docker_client.images.get(base_image).id)


@needs_root
def test_three_engines_share_one_budget_and_another_has_its_own(
    docker_client: Any, image: str, tmp_path: Path
) -> None:
    with ContainerRun(docker_client, SMALL, budgets=2) as run:
        shared = [run.engine(description(BUSY), image, tmp_path / "a", True) for _ in range(3)]
        own = run.engine(description(), image, tmp_path / "b", False)
        with shared[0], shared[1], shared[2], own:
            for engine in (*shared, own):
                applied = engine.applied()
                assert applied["budget"] == "exact", applied
                assert applied["read_back"]["cpus"] == 0.5
                assert applied["read_back"]["memory_bytes"] == 192 * MIB
                assert applied["read_back"]["swap_bytes"] == 0
                if len(run.allotment.driver or ()) > 0:
                    # The kernel keeps engines off the driver's CPUs.
                    cpus = read_cpu_list(applied["read_back"]["cpuset"])
                    assert len(cpus) == 1
                    assert set(cpus).isdisjoint(read_cpu_list(applied["driver"]))
            assert [engine.applied()["shared"] for engine in (*shared, own)] == [True] * 3 + [False]
            # In the shared budget only the group is limited; alone the container is.
            assert shared[0].applied()["daemon"]["cpus"] is None
            assert own.applied()["daemon"]["cpus"] == 0.5
            assert own.applied()["daemon"]["memory_swap_bytes"] == 192 * MIB
            # Three that never rest want more than that, and are held back together.
            before = run.shared_counters()
            assert before is not None

            def held_back() -> bool:
                now = run.shared_counters()
                return now is not None and now.throttled_s > before.throttled_s + 0.2

            assert wait_for(held_back, 60)
            after = run.shared_counters()
            assert after is not None
            assert after.cpu_s > before.cpu_s
            assert after.memory_peak_bytes <= 192 * MIB
        assert ControlGroups.here().named(f"refill_{run.id}.*")
    assert not ControlGroups.here().named(f"refill_{run.id}.*")


@needs_root
def test_memory_beyond_the_budget_ends_the_engine_shared_or_not(
    docker_client: Any, image: str, tmp_path: Path
) -> None:
    # Podman does not tell why a container of version 1's groups was killed.
    tells = daemon_record(docker_client)["name"] == "Docker"
    why = ", out of the memory of its budget" if tells else ""
    with ContainerRun(docker_client, SMALL, budgets=2) as run:
        for shared in (False, True):
            greedy = run.engine(description(GREEDY), image, tmp_path / "log", shared)
            ended = rf"engine has ended \(signal SIGKILL{why}"
            with pytest.raises(EngineError, match=ended), greedy:
                pass


def test_a_machine_that_is_too_small_is_refused_before_anything_is_made(
    docker_client: Any, image: str, tmp_path: Path
) -> None:
    many = len(os.sched_getaffinity(0)) + 1
    refused = ContainerRun(docker_client, Budget(many, 64 * MIB))
    with pytest.raises(EngineError, match=rf"docker.budget: an engine is to have {many} CPUs"):
        refused.__enter__()
    assert find(docker_client, refused.id) == []
    with (
        ContainerRun(docker_client, Budget(many, 64 * MIB, "relaxed")) as run,
        run.engine(description(), image, tmp_path / "log", False) as engine,
    ):
        applied = engine.applied()
        assert applied["budget"] == "relaxed"
        why = f"an engine is to have {many} CPUs, this machine offers {many - 1}"
        assert applied["why"] == [why]
        assert applied["read_back"]["cpus"] == many - 1
        assert applied["read_back"]["memory_bytes"] == 64 * MIB


def test_without_the_right_to_make_groups_a_shared_budget_is_refused_or_relaxed(
    docker_client: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, group: str, __: object) -> None:
        # As the kernel does, who names the folder.
        raise OSError(errno.EACCES, "Permission denied", f"/sys/fs/cgroup/cpu{group}")

    monkeypatch.setattr(ControlGroups, "make", refuse)
    why = r"cannot share one budget.*Permission denied.*as root"
    with (
        ContainerRun(docker_client, SMALL) as run,
        pytest.raises(EngineError, match=why),
    ):
        run.engine(description(), image, tmp_path / "log", True)
    with (
        ContainerRun(docker_client, Budget(1, 192 * MIB, "relaxed")) as run,
        run.engine(description(), image, tmp_path / "log", True) as engine,
    ):
        applied = engine.applied()
        assert applied["budget"] == "relaxed"
        # Word for word the same in every record, or no two rounds could be compared.
        assert applied["why"] == [
            "the gateway, Qdrant and Valkey cannot share one budget, as no control group can be "
            "made for it (Permission denied)"
        ]
        assert not applied["shared"]
        # The whole budget for each is what can be had then.
        assert applied["read_back"]["memory_bytes"] == 192 * MIB


@needs_root
def test_swap_beside_the_budget_is_refused(
    docker_client: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if this machine had some: what the kernel then allows is in its own files.
    monkeypatch.setattr(ControlGroups, "_has_no_swap", lambda _: False)
    with ContainerRun(docker_client, SMALL) as run:
        engine = run.engine(description(), image, tmp_path / "log", True)
        with engine:
            assert engine.applied()["read_back"]["swap_bytes"] == 0
    write = cgroups._write

    def without_swap(folder: Path, name: str, value: str) -> None:
        if "swap" not in name and "memsw" not in name:
            write(folder, name, value)

    monkeypatch.setattr(cgroups, "_write", without_swap)
    with (
        ContainerRun(docker_client, SMALL) as run,
        pytest.raises(EngineError, match="engine: it may use any amount of swap beside its memory"),
        run.engine(description(), image, tmp_path / "log", True),
    ):
        pass


@needs_root
def test_a_limit_that_the_kernel_does_not_have_is_noticed(
    docker_client: Any, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ControlGroups.make

    def make_more(groups: ControlGroups, group: str, limits: Any) -> None:
        make(groups, group, type(limits)(limits.cpus, 2 * limits.memory_bytes, limits.cpuset))

    monkeypatch.setattr(ControlGroups, "make", make_more)
    with (
        ContainerRun(docker_client, SMALL) as run,
        pytest.raises(EngineError, match=f"engine: it has {384 * MIB} bytes, {192 * MIB} were"),
        run.engine(description(), image, tmp_path / "log", True),
    ):
        pass


def test_the_driver_keeps_to_its_own_cpus_and_gets_the_others_back(docker_client: Any) -> None:
    before = os.sched_getaffinity(0)
    with ContainerRun(docker_client, Budget(1, 64 * MIB)) as run:
        divided = run.divided()
        if len(before) > 1:
            assert divided["driver"] is not None
            assert len(os.sched_getaffinity(0)) == len(before) - 1
            assert run.allotment.driver is not None
            assert os.sched_getaffinity(0) == set(run.allotment.driver)
        else:
            assert divided["driver"] is None
    assert os.sched_getaffinity(0) == before

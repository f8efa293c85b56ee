"""How a machine is divided between the driver and the budgets of containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from refill.engines.description import EngineError
from refill.runtimes.budget import Budget, Machine, allot, departures, this_machine
from refill.runtimes.cgroups import Limits

GIB = 1 << 30
PUBLISHED = Budget(2, 4 * GIB)
RELAXED = Budget(2, 4 * GIB, "relaxed")


def machine(cpus: int, gib: float = 64) -> Machine:
    return Machine(tuple(range(cpus)), round(gib * GIB))


def test_every_budget_has_cpus_of_its_own_where_there_are_enough() -> None:
    found = allot(PUBLISHED, machine(8), 3)
    assert [limits.cpuset for limits in found.limits] == ["0-1", "2-3", "4-5"]
    assert found.driver == (6, 7)
    assert found.kind == "exact"
    assert {(limits.cpus, limits.memory_bytes) for limits in found.limits} == {(2.0, 4 * GIB)}


@pytest.mark.parametrize(
    ("cpus", "count", "sets", "driver"),
    [
        (7, 3, ["0-1", "2-3", "4-5"], (6,)),
        # Too few for each: the same for all, so that none has more quiet than another.
        (6, 3, ["0-1", "0-1", "0-1"], (2, 3, 4, 5)),
        (3, 3, ["0-1", "0-1", "0-1"], (2,)),
        (3, 1, ["0-1"], (2,)),
        # The driver would have none.
        (2, 1, [None], None),
        (2, 3, [None, None, None], None),
    ],
)
def test_cpus_are_divided_by_their_number(
    cpus: int, count: int, sets: list[str | None], driver: tuple[int, ...] | None
) -> None:
    found = allot(PUBLISHED, machine(cpus), count)
    assert [limits.cpuset for limits in found.limits] == sets
    assert found.driver == driver
    assert found.kind == "exact"


def test_threads_of_one_core_stay_in_one_budget(tmp_path: Path) -> None:
    """CPUs 0 and 4 are one core here, as 1 and 5 are."""
    usable = sorted(os.sched_getaffinity(0))
    for cpu in usable:
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        # All even ones are one core, all odd ones another.
        alike = [str(c) for c in usable if c % 2 == cpu % 2]
        (folder / "thread_siblings_list").write_text(",".join(alike) + "\n")
    found = this_machine({"MemTotal": 5 * GIB}, tmp_path)
    assert list(found.cpus) == sorted(usable, key=lambda c: (c % 2 != usable[0] % 2, c))
    assert found.memory_bytes == 5 * GIB


@pytest.mark.parametrize(
    ("small", "count", "why"),
    [
        (machine(1), 1, "an engine is to have 2 CPUs, this machine offers 1"),
        (machine(8, 7.5), 2, "2 budgets of 4 GiB do not fit into the 7.5 GiB of this machine"),
    ],
)
def test_a_machine_that_is_too_small_is_refused_or_the_budget_relaxed(
    small: Machine, count: int, why: str
) -> None:
    with pytest.raises(EngineError, match=why) as refused:
        allot(PUBLISHED, small, count)
    assert "docker.budget.small_machine to relaxed" in str(refused.value)
    found = allot(RELAXED, small, count)
    assert found.kind == "relaxed"
    assert found.why == (why,)
    # What can be had is had; what cannot is no limit rather than another one.
    cpus = min(2.0, len(small.cpus))
    assert {limits.cpus for limits in found.limits} == {cpus}
    assert {limits.memory_bytes for limits in found.limits} == {4 * GIB if count == 1 else None}


def test_without_a_budget_nothing_is_limited() -> None:
    found = allot(None, machine(1), 2)
    assert found.kind == "none"
    assert found.limits == (Limits(), Limits())
    assert found.driver is None


def test_a_limit_that_is_not_as_wanted_is_told() -> None:
    wanted = Limits(2.0, 4 * GIB + 1, "0-1")
    # The kernel rounds down to whole pages.
    assert departures(wanted, Limits(2.0, 4 * GIB, "0,1", 0)) == []
    assert departures(wanted, Limits(None, 8 * GIB, "0-3", 0)) == [
        "it has None CPUs, 2 were asked for",
        f"it has {8 * GIB} bytes, {4 * GIB + 1} were asked for",
        "it runs on the CPUs 0-3, 0-1 were asked for",
    ]
    assert departures(wanted, None) == ["the kernel's files with its limits are out of sight"]
    for swap, amount in ((None, "any amount"), (GIB, f"{GIB} bytes")):
        (line,) = departures(wanted, Limits(2.0, 4 * GIB, "0-1", swap))
        assert line.startswith(f"it may use {amount} of swap beside its memory")
    # What was not asked for may be anything.
    assert departures(Limits(), None) == []
    assert departures(Limits(cpus=2.0), Limits(2.0, 4 * GIB, "3")) == []

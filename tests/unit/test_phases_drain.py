"""A drain ends on evidence: quiet polls in a row, or a limit that is an outcome of its own."""

from __future__ import annotations

from typing import Any

import pytest
from refill.engines.qdrant import read_state
from refill.phases.drain import Drain
from refill.phases.polls import Poll

NAN = float("nan")


def poll(t: float, busy: str = "", indexed: float = 100.0) -> Poll:
    return Poll(
        t, "draining", 100.0, indexed, 0.0, 100.0, 1.0, "green", "ok", "", NAN, NAN, 0.0, 0.0,
        NAN, NAN, NAN, NAN, 1.0, "", busy,
    )  # fmt: skip


def test_idle_needs_several_quiet_polls_and_counts_from_the_first() -> None:
    drain = Drain(10.0, idle_polls=3, limit_s=100.0)
    assert [drain.see(poll(10 + t, busy)) for t, busy in enumerate(["x", "x", "", ""])] == [
        None
    ] * 4
    assert drain.see(poll(14.0)) == "idle"
    assert drain.end == 12.0
    assert drain.evidence()["reason"] == "idle"


def test_a_busy_poll_between_starts_anew() -> None:
    drain = Drain(0.0, idle_polls=3, limit_s=100.0)
    for t, busy in enumerate(["", "", "optimizations wait", "", ""]):
        assert drain.see(poll(float(t), busy)) is None
    assert drain.see(poll(5.0)) == "idle"
    assert drain.end == 3.0


def test_a_count_that_moves_is_not_quiet() -> None:
    drain = Drain(0.0, idle_polls=3, limit_s=100.0)
    for t in range(5):
        assert drain.see(poll(float(t), indexed=100.0 + t)) is None


def test_the_limit_is_an_outcome_of_its_own() -> None:
    drain = Drain(0.0, idle_polls=3, limit_s=5.0)
    assert drain.see(poll(4.9, "running: indexing")) is None
    assert drain.see(poll(5.1, "running: indexing")) == "drain_limit"
    assert drain.end == 5.1
    assert drain.evidence()["busy"] == "running: indexing"


QUIET_INFO: dict[str, Any] = {
    "status": "green",
    "optimizer_status": "ok",
    "points_count": 10,
    "indexed_vectors_count": 10,
    "segments_count": 2,
    "update_queue": {"length": 0, "deferred_points": 3},
}
QUIET_WORK: dict[str, Any] = {"summary": {"queued_optimizations": 0}, "running": []}


def test_a_quiet_collection_is_idle_and_deferred_points_are_not_visible() -> None:
    state = read_state(QUIET_INFO, QUIET_WORK)
    assert state.busy is None
    assert state.visible == 7


@pytest.mark.parametrize(
    ("info", "work", "words"),
    [
        ({"status": "grey"}, {}, "grey"),
        ({"status": "yellow"}, {}, "yellow"),
        ({"optimizer_status": {"error": "disk full"}}, {}, "disk full"),
        ({"update_queue": {"length": 4}}, {}, "4 updates wait"),
        ({}, {"summary": {"queued_optimizations": 2}}, "2 optimizations wait"),
        ({}, {"running": [{"optimizer": "merge", "status": "optimizing"}]}, "running: merge"),
    ],
)
def test_what_is_not_idle(info: dict[str, Any], work: dict[str, Any], words: str) -> None:
    state = read_state(QUIET_INFO | info, QUIET_WORK | work)
    assert state.busy is not None
    assert words in state.busy

"""From phases, ledger and polls to figures, and what makes a run invalid."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from refill.load.worker import Done
from refill.phases.optimizer_record import _upload, judged
from refill.phases.optimizer_run import Settings
from refill.phases.pauses import stood_still

KEPT = {"violations": []}


def settings(pace: float) -> Settings:
    upload = {"batch": 500, "points_per_s": pace}
    return Settings({}, {}, None, upload, {"limit": 10, "timeout_s": 10}, {}, {}, 1)


def upload_rows(firsts: list[int], interval: float) -> pd.DataFrame:
    planned = [n * interval for n in range(len(firsts))]
    return pd.DataFrame(
        {
            "first": firsts,
            "planned": planned,
            "sent": planned,
            "done": [t + 0.001 for t in planned],
            "status": "ok",
            "loop": "upload",
        }
    )


def test_a_paced_upload_is_never_faster_than_its_pace() -> None:
    block = _upload(upload_rows([0, 500, 1000], 0.05), 1200, settings(10_000))
    assert block["points"] == 1200  # the last batch holds 200 points, not 500
    assert block["points_per_s"] == pytest.approx(10_000)


def test_an_unpaced_upload_is_points_by_time() -> None:
    block = _upload(upload_rows([0, 500], 0.1), 1000, settings(0))
    assert block["points_per_s"] == pytest.approx(1000 / 0.101)


def steady(**changes: Any) -> dict[str, Any]:
    stats = {"n": 10, "wrong": 0, "error": 0, "timeout": 0}
    phase = {
        "name": "steady",
        "open": stats,
        "closed": stats,
        "recall": {"mean": 0.9},
        "visible_share": {"min": 1.0},
        "stationary": {"ok": True},
    }
    return phase | changes


def outcome(*phases: dict[str, Any], stalls: tuple[str, ...] = ()) -> tuple[str, Any, Any]:
    return judged(phases, ["steady"], KEPT, stalls, None)


def test_a_good_run_is_completed() -> None:
    assert outcome(steady()) == ("completed", [], [])


def test_answers_without_a_hit_are_no_result() -> None:
    _, invalid, _ = outcome(steady(recall={"mean": 0.0}))
    assert "no search found one right point" in invalid[0]
    # Hidden points cannot be found: that is what prevent_unoptimized does.
    assert outcome(steady(recall={"mean": 0.0}, visible_share={"min": 0.0}))[1] == []


def test_wrong_and_failed_answers_make_a_run_invalid_and_timeouts_a_warning() -> None:
    bad = {"n": 10, "wrong": 1, "error": 2, "timeout": 3}
    end, invalid, warnings = outcome(steady(open=bad))
    assert end == "failed"
    assert [text.split(":")[1].split()[0] for text in invalid] == ["1", "2"]
    assert "3 of 10 requests reached the limit" in warnings[0]


def test_a_missing_phase_is_said() -> None:
    assert judged([], ["steady"], KEPT, [], None)[1] == ["not measured: steady"]


def test_a_drain_without_a_search_is_said() -> None:
    drain = {"name": "draining", "outcome": "idle", "drain_s": 3.0, "open": None, "closed": None}
    assert "without a single search" in outcome(drain, steady())[2][0]


def polls(*moments: float) -> pd.DataFrame:
    return pd.DataFrame({"t": moments, "poll_ms": 10.0})


def test_a_driver_that_stood_still_makes_the_run_invalid() -> None:
    good = Done(0, 1, 0.0, 1.0, 10, 0.0, 0.02, None)
    bad = Done(0, 2, 0.0, 20.0, 10, 0.0, 14.9, None)
    assert stood_still([good], polls(0.0, 0.5, 1.0), 0.5) == (0.02, [])
    longest, found = stood_still([good, bad], polls(0.0, 0.5, 15.5), 0.5)
    assert longest == 14.9
    assert "client 0 stood still for 14.9 s in window 2" in found[0]
    assert "no poll for 15.0 s" in found[1]
    assert outcome(steady(), stalls=tuple(found))[0] == "failed"


def test_a_slow_poll_is_the_engines_not_a_gap() -> None:
    slow = pd.DataFrame({"t": [0.0, 20.0], "poll_ms": [19_900.0, 5.0]})
    assert stood_still([], slow, 0.5) == (0.0, [])

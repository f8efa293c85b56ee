"""In which order measurements ran, and which were made apart from the others."""

from __future__ import annotations

from typing import Any

from refill.evidence.order import run_order

PLAN = [
    "results/rounds/p/old-1.json",
    "results/rounds/p/new-1.json",
    "results/optimizers/A1/1.json",
]
FIRST = {"pid": 10, "started_at": "2026-01-01T09:59:00Z"}
# The same process: the kernel gives its start to a second or so.
FIRST_AGAIN = {"pid": 10, "started_at": "2026-01-01T09:59:01Z"}
SECOND = {"pid": 10, "started_at": "2026-01-01T12:00:00Z"}


def made(
    *minutes: int, invocations: list[dict[str, Any] | None]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Runs of the plan that began at these minutes, and their attempts."""
    runs, attempts = [], []
    for path, minute, invocation in zip(PLAN, minutes, invocations, strict=True):
        target = path.removeprefix("results/").removesuffix(".json")
        started = f"2026-01-01T10:{minute:02d}:00.000Z"
        runs.append({"record": path, "attempt": f"{target}-x", "started_at": started})
        facts = {"code": "c"} if invocation is None else {"invocation": invocation}
        attempts.append({"attempt": f"{target}-x", "target": target, "facts": facts})
    return runs, attempts


def test_all_in_one_call_in_the_order_of_the_plan() -> None:
    runs, attempts = made(1, 2, 3, invocations=[FIRST, FIRST_AGAIN, FIRST])
    found = run_order(runs[::-1], PLAN, attempts)
    assert found["ran"] == found["planned"] == PLAN
    assert found["as_planned"] is True
    assert found["invocations"] == [{"invocation": FIRST, "records": PLAN}]
    assert found["apart"] == []


def test_one_that_was_measured_again_alone() -> None:
    runs, attempts = made(1, 9, 3, invocations=[FIRST, SECOND, FIRST])
    attempts.insert(0, {"attempt": "died", "target": "rounds/p/new-1", "facts": {}})
    found = run_order(runs, PLAN, attempts)
    assert found["ran"] == [PLAN[0], PLAN[2], PLAN[1]]
    assert found["as_planned"] is False
    assert found["apart"] == [
        {
            "record": PLAN[1],
            "why": [
                f"began after {PLAN[2]}, which comes later in the plan",
                "made in another call of Snakemake than 2 others",
            ],
            "attempts": 2,
        }
    ]


def test_the_last_of_the_plan_again_is_told_by_its_call_alone() -> None:
    runs, attempts = made(1, 2, 9, invocations=[FIRST, FIRST, SECOND])
    found = run_order(runs, PLAN, attempts)
    assert found["as_planned"] is True
    assert [(e["record"], e["why"]) for e in found["apart"]] == [
        (PLAN[2], ["made in another call of Snakemake than 2 others"])
    ]


def test_attempts_that_do_not_tell_their_call_are_judged_by_time() -> None:
    runs, attempts = made(5, 2, 3, invocations=[None, None, None])
    found = run_order(runs, PLAN, attempts)
    assert found["invocations"] == [{"invocation": None, "records": [PLAN[1], PLAN[2], PLAN[0]]}]
    assert [e["record"] for e in found["apart"]] == [PLAN[0]]


def test_records_that_are_not_there_or_not_asked_for_do_not_disturb_the_order() -> None:
    runs, attempts = made(1, 2, 3, invocations=[FIRST, FIRST, FIRST])
    found = run_order([runs[2], runs[0]], ["results/never.json", *PLAN[:1]], attempts)
    assert found["ran"] == [PLAN[0], PLAN[2]]
    assert found["as_planned"] is True
    assert found["apart"] == []
    assert run_order([], PLAN, [])["invocations"] == []


def test_nodes_of_a_cluster_measure_side_by_side_each_in_the_order_of_the_plan() -> None:
    runs, attempts = made(1, 9, 3, invocations=[FIRST, FIRST, FIRST])
    nodes = {PLAN[0]: "n1", PLAN[1]: "n1", PLAN[2]: "n2"}
    found = run_order(runs, PLAN, attempts, nodes)
    assert found["as_planned"] is True
    assert found["apart"] == []
    assert run_order(runs, PLAN, attempts, {**nodes, PLAN[2]: "n1"})["as_planned"] is False

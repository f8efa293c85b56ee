"""The order in which measurements really ran, and which of them were made apart from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Run = Mapping[str, Any]

# The kernel tells when a process started only to about a second.
_SAME_START_S = 5.0


def run_order(
    runs: Sequence[Run],
    planned: Sequence[str],
    attempts: Sequence[Mapping[str, Any]],
    nodes: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Return in which order records were made, in which calls of Snakemake, and which alone.

    `runs` are the manifest's, `planned` the paths of the records that the configuration asks for,
    in its order, `attempts` those of `list_attempts`, `nodes` the nodes of a cluster by record:
    the plan orders what one node measures.

    Returns:
        `ran`: record paths by their time of beginning; `planned`; `as_planned`: whether those that
        are there ran in that order; `invocations`: each call of Snakemake (null where the attempt
        does not tell) with its records; `apart`: the records that were made apart from the others,
        with `why` (it began after one that comes later in the plan, or in another call than most),
        and `attempts`, how often its target was tried.
    """
    ran = [str(run["record"]) for run in sorted(runs, key=lambda r: (r["started_at"], r["record"]))]
    there = [path for path in planned if path in ran]
    invocations = _invocations(runs, {a["attempt"]: a for a in attempts})
    begun = {str(run["record"]): str(run["started_at"]) for run in runs}
    tries = {path: sum(a["target"] == _target(path) for a in attempts) for path in ran}
    reasons: dict[str, list[str]] = {path: [] for path in ran}
    node = nodes or {}
    in_order = True
    for place, path in enumerate(there):
        behind = [other for other in there[place + 1 :] if node.get(other) == node.get(path)]
        later = [other for other in behind if begun[other] < begun[path]]
        if later:
            reasons[path].append(f"began after {later[0]}, which comes later in the plan")
            in_order = False
    for path, why in _elsewhere(invocations):
        reasons[path].append(why)
    return {
        "ran": ran,
        "planned": list(planned),
        "as_planned": in_order,
        "invocations": invocations,
        "apart": [
            {"record": path, "why": why, "attempts": tries[path]}
            for path, why in reasons.items()
            if why
        ],
    }


def _invocations(
    runs: Sequence[Run], attempts: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for run in sorted(runs, key=lambda r: (r["started_at"], r["record"])):
        facts = attempts.get(run["attempt"], {}).get("facts", {})
        invocation = facts.get("invocation")
        entry = next((e for e in found if _same(e["invocation"], invocation)), None)
        if entry is None:
            entry = {"invocation": invocation, "records": []}
            found.append(entry)
        entry["records"].append(run["record"])
    return found


def _same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    apart = datetime.fromisoformat(one["started_at"]) - datetime.fromisoformat(other["started_at"])
    return bool(one["pid"] == other["pid"]) and abs(apart.total_seconds()) < _SAME_START_S


def _elsewhere(invocations: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the records that were not made in the call that made most of them."""
    if not invocations:
        return []
    most = max(invocations, key=lambda e: len(e["records"]))
    why = f"made in another call of Snakemake than {len(most['records'])} others"
    return [(path, why) for e in invocations if e is not most for path in e["records"]]


def _target(record: str) -> str:
    return record.removeprefix("results/").removesuffix(".json")

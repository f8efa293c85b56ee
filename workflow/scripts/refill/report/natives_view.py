"""What the page shows of the native engines themselves: what ran, start to ready, memory, Java."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refill.report import text
from refill.report.views import Cell, Table

Record = Mapping[str, Any]


def natives_table(records: Sequence[Record]) -> Table | None:
    """Return one row for each native engine that was measured in a round; None without any.

    Seconds and bytes are the highest over the rounds. CPU while idle is what an engine used in the
    trials of the others, by their time: it shows how little they disturb each other.
    """
    names = sorted({name for r in records for name in r.get("natives", {}) if name in r["engines"]})
    if not names:
        return None
    return Table(
        "rounds-natives",
        "Native engines",
        "One node each, started anew for every round. Start to ready, load (with the merge to one "
        "segment) and memory are the highest of all rounds, collections of garbage their sum.",
        [("", 3), ("s", 2), ("in own trials", 2), ("idle", 1)],
        [
            "engine",
            "Java",
            "rounds",
            "start to ready",
            "load",
            "memory, MB",
            "collections, s",
            "CPU",
        ],
        [_row(name, [r for r in records if name in r["engines"]]) for name in names],
    )  # fmt: skip


def _row(name: str, records: Sequence[Record]) -> list[Cell]:
    identity = records[0]["engines"][name]
    blocks = [record["natives"][name] for record in records]
    own = [t for r in records for c in r["cells"] if c["engine"] == name for t in c["trials"]]
    others = [t for r in records for c in r["cells"] if c["engine"] != name for t in c["trials"]]
    jvm = identity["jvm"]
    return [
        Cell(f"{name} {identity['version']}", identity["runtime"]),
        Cell(
            "measured" if all(b["status"] == "measured" for b in blocks) else "failed in a round",
            kind="state ok" if all(b["status"] == "measured" for b in blocks) else "state bad",
        ),
        Cell(f"{jvm['version']}, {jvm['vendor']}", kind="text"),
        Cell(f"{len(records)}"),
        Cell(text.number(_highest(b.get("started_s") for b in blocks))),
        Cell(text.number(_highest((b.get("primed") or {}).get("load_s") for b in blocks))),
        Cell(text.number(_highest(_memory_mb(t, name) for t in own))),
        Cell(text.number(sum(t["natives"][name]["gc_s"] for t in own) if own else None)),
        Cell(text.share(_idle_share(others, name))),
    ]


def _memory_mb(trial: Mapping[str, Any], name: str) -> float | None:
    found = trial["resources"].get(name, {}).get("rss_bytes")
    return None if found is None else found / 1e6


def _idle_share(trials: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the CPU seconds of an engine by the seconds of the trials of the others."""
    used = [
        (t["resources"][name]["cpu_s"], t["end_s"] - t["start_s"])
        for t in trials
        if t["resources"].get(name, {}).get("cpu_s") is not None
    ]
    seconds = sum(span for _, span in used)
    return sum(cpu for cpu, _ in used) / seconds if seconds else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)

"""The driver's floor, and how it stands to the smallest latency that was reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refill.evidence.records import read_json
from refill.load.floor import measure

REPEATS = 5


def against_records(results: Path) -> dict[str, Any]:
    """Measure the floor several times; compare it with the smallest p50 of all valid records.

    Returns:
        The floors in ms, the smallest reported p50 with the run it is from, and the share.
    """
    floors = sorted(measure()["floor_p50_ms"] for _ in range(REPEATS))
    smallest: tuple[float, str] | None = None
    for path in sorted((results / "optimizers").glob("*/*.json")):
        record = read_json(path, "refill.optimizer-run/1")
        for phase in record["phases"]:
            for loop in ("open", "closed"):
                stats = phase.get(loop)
                if record["valid"] and stats and stats["p50_ms"] is not None:
                    found = (stats["p50_ms"], f"{record['id']}, {phase['name']}, {loop} loop")
                    smallest = min(smallest or found, found)
    return {
        "floor_p50_ms": floors,
        "wanted": "p50 of at most 0.05 ms, and at most 5 % of the smallest reported p50",
        "smallest_reported": smallest and {"p50_ms": smallest[0], "where": smallest[1]},
        "share_of_smallest": smallest and round(floors[len(floors) // 2] / smallest[0], 4),
    }

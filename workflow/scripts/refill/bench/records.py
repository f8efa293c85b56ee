"""How much of a workflow's time was measurement."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from refill.evidence.records import read_json


def measured_share(results: Path) -> dict[str, Any]:
    """Give the share of the wall time that was spent in upload, draining, steady and follow-up.

    The wall time is from the first run's start to the last run's end, so everything between two
    runs counts: Snakemake, starting an engine, working out figures, waiting.

    Raises:
        RuntimeError: fewer than two records, or records with a rerun between them.
    """
    paths = sorted((results / "optimizers").glob("*/*.json"))
    records = [read_json(path, "refill.optimizer-run/1") for path in paths]
    if len(records) < 2:
        raise RuntimeError("no finished workflow in results/optimizers: run `make all` first")
    starts = [datetime.fromisoformat(record["started_at"]) for record in records]
    ends = [datetime.fromisoformat(record["ended_at"]) for record in records]
    wall = (max(ends) - min(starts)).total_seconds()
    measured = sum(record["wall"]["measured_s"] for record in records)
    if measured < 0.5 * wall:
        raise RuntimeError(
            f"the runs took {measured:.0f} s of {wall:.0f} s: they were not made in one go, so "
            "their share says nothing"
        )
    return {
        "runs": len(records),
        "wall_s": round(wall, 1),
        "measured_s": round(measured, 1),
        "share": round(measured / wall, 4),
        "wanted": ">= 0.8",
    }

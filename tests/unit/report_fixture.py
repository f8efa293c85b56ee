"""Synthetic runs in the shape of real ones, for the tests of the report only.

The figures are drawn from distributions, so they are shown nowhere but in tests; every record built
here carries the corpus name `synthetic`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from refill.evidence.hashes import sha256_file
from refill.stats.quantiles import recall_summary, search_stats
from refill.stats.stationary import stationary

TIMEOUT_S = 10.0
LIMIT = 10

# seconds of draining, p50 in ms while draining and steady, recall while draining and steady,
# lowest visible share: roughly what a small embedded engine shows.
SHAPES: dict[str, tuple[float, float, float, float, float, float]] = {
    "A1": (11.7, 1.03, 0.26, 0.99, 0.976, 1.0),
    "A2": (1.6, 1.34, 1.34, 1.0, 1.0, 1.0),
    "A3": (10.8, 0.21, 0.25, 0.75, 0.975, 0.6),
    "B1": (11.9, 1.0, 0.26, 0.99, 0.976, 1.0),
    "B2": (6.0, 0.9, 0.46, 0.99, 0.98, 1.0),
    "B3": (3.1, 0.9, 0.74, 0.99, 0.99, 1.0),
    "B4": (1.9, 1.0, 0.95, 0.995, 0.99, 1.0),
    "C1": (23.5, 1.1, 0.26, 0.99, 0.976, 1.0),
    "C2": (13.2, 1.05, 0.27, 0.99, 0.976, 1.0),
    "D1": (11.5, 1.0, 0.26, 0.99, 0.976, 1.0),
    "D2": (11.9, 1.02, 0.26, 0.99, 0.976, 1.0),
    "E1": (1.6, 1.34, 1.33, 1.0, 1.0, 1.0),
    "E2": (1.6, 1.32, 1.34, 1.0, 1.0, 1.0),
}
FOLLOWUPS: dict[str, tuple[float, float, str]] = {
    "D1": (14.0, 0.9, "vacuum"),
    "D2": (1.5, 0.28, ""),
    "E1": (24.9, 2.7, "indexing"),
    "E2": (23.0, 0.2, "indexing"),
}


@dataclass
class Run:
    """One synthetic run: its record, ledger and polls."""

    record: dict[str, Any]
    ledger: pd.DataFrame
    polls: pd.DataFrame


@dataclass
class _Clock:
    rng: np.random.Generator
    now: float = 0.0
    seq: int = 0
    rows: list[pd.DataFrame] = field(default_factory=list)
    polls: list[dict[str, Any]] = field(default_factory=list)


def make_run(
    id_: str, repeat: int = 1, points: int = 20_000, scale: float = 1.0, **over: Any
) -> Run:
    """Return a valid, completed run; `scale` shortens its phases, `over` replaces record keys."""
    rng = np.random.default_rng(abs(hash_of(id_)) + repeat)
    clock = _Clock(rng)
    drain, slow, fast, recall_drain, recall_steady, visible = SHAPES[id_]
    drain *= scale * float(rng.uniform(0.97, 1.03))
    indexing = "indexing" if id_ not in ("A2", "E1", "E2") else ""
    phases = [
        _upload(clock, points, 10.0 * scale, indexing),
        _phase(clock, "draining", drain, slow, recall_drain, points, visible, indexing),
        _phase(clock, "steady", 25 * scale, fast, recall_steady, points, 1.0, ""),
    ]
    if id_ in FOLLOWUPS:
        length, latency, optimizer = FOLLOWUPS[id_]
        left = points - points // 4 if id_.startswith("D") else points
        share = 0.1 if id_ == "E2" else 1.0
        follow = _phase(
            clock, "followup-draining", length * scale, latency, 0.98, left, share, optimizer
        )
        follow["event"] = (
            {"kind": "delete", "deleted": points - left}
            if id_.startswith("D")
            else {"kind": "reconfigure", "applied": {"indexing_threshold": 1953}}
        )
        phases += [follow, _phase(clock, "followup-steady", 25 * scale, 0.25, 0.975, left, 1.0, "")]
    ledger = pd.concat(clock.rows, ignore_index=True)
    polls = pd.DataFrame(clock.polls)
    record = _record(id_, repeat, points, phases, ledger, polls, drain)
    record.update(over)
    return Run(record, ledger, polls)


def hash_of(text: str) -> int:
    """Return a small number that is the same in every process."""
    return sum(ord(c) * 31**i for i, c in enumerate(text)) % 10_000


def write_run(run: Run, project: Path) -> Path:
    """Write record, ledger and polls below `project`; return the record's path.

    The record is given the hashes of what is written.
    """
    folder = project / "results/optimizers" / run.record["id"]
    folder.mkdir(parents=True, exist_ok=True)
    run.ledger.to_parquet(project / run.record["ledger"]["path"])
    run.polls.to_parquet(project / run.record["polls"]["path"])
    for part in ("ledger", "polls"):
        run.record[part]["sha256"] = sha256_file(project / run.record[part]["path"])
    path = folder / f"{run.record['repeat']}.json"
    path.write_text(json.dumps(run.record, sort_keys=True), encoding="utf-8")
    return path


def _requests(
    clock: _Clock, phase: str, loop: str, planned: np.ndarray, latency: np.ndarray, recall: float
) -> pd.DataFrame:
    n = planned.size
    frame = pd.DataFrame(
        {
            "seq": np.arange(clock.seq, clock.seq + n),
            "phase": phase,
            "loop": loop,
            "window": np.int32(0),
            "client": np.int16(0),
            "query": np.arange(n, dtype=np.int32) % 1000,
            "first": np.int64(-1),
            "planned": planned,
            "sent": planned,
            "done": planned + latency,
            "status": "ok",
            "http": np.int16(200),
            "hits": np.int16(LIMIT),
            "recall": clock.rng.choice([recall - 0.1, recall, min(1.0, recall + 0.1)], n)
            if recall < 1
            else np.full(n, 1.0),
            "bytes": np.int32(500),
            "detail": "",
        }
    )
    clock.seq += n
    clock.rows.append(frame)
    return frame


def _latency(clock: _Clock, n: int, p50_ms: float) -> np.ndarray:
    values = p50_ms / 1e3 * clock.rng.lognormal(0, 0.15, n)
    values[clock.rng.random(n) < 0.01] *= 12
    return values


def _poll(clock: _Clock, phase: str, start: float, end: float, points: Any, **known: Any) -> int:
    times = np.arange(start, end, 0.25)
    for t in times:
        share = (t - start) / (end - start)
        values = {key: value(share) if callable(value) else value for key, value in known.items()}
        here = int(points(share) if callable(points) else points)
        clock.polls.append(
            {
                "t": t, "phase": phase, "points": here, "deferred": 0, "visible": here,
                "indexed": here, "segments": 4, "color": "green", "optimizer_status": "ok",
                "running": "", "running_done": np.nan, "running_total": np.nan, "queued": 0,
                "queued_points": 0, "rss_bytes": 210_000_000, "cpu_s": float(t),
                "read_bytes": 0, "write_bytes": 0, "poll_ms": 0.8, "error": "", **values,
            }
        )  # fmt: skip
    return len(times)


def _upload(clock: _Clock, points: int, seconds: float, indexing: str) -> dict[str, Any]:
    start, n = clock.now, points // 500
    planned = start + np.arange(n) * seconds / n
    rows = _requests(clock, "upload", "upload", planned, _latency(clock, n, 18.0), 1.0)
    rows.loc[:, ["recall", "hits"]] = [np.nan, 0]
    clock.now = start + seconds
    _poll(
        clock, "upload", start, clock.now, lambda s: s * points,
        indexed=lambda s: int(0.5 * s * points) if indexing else 0,
        running=lambda s: indexing if s > 0.2 else "",
    )  # fmt: skip
    stats = search_stats(rows["done"] - rows["sent"], rows["status"], None, None, LIMIT, TIMEOUT_S)
    return {
        "name": "upload", "start_s": start, "end_s": clock.now, "seconds": seconds,
        "ended_by": {"reason": "counts verified", "points": points},
        "upload": {"points": points, "requests": n, "points_per_s": points / seconds,
                   "paced_at": 10_000, "latency": stats},
    }  # fmt: skip


def _phase(
    clock: _Clock, name: str, seconds: float, p50_ms: float, recall: float, points: int,
    visible: float, optimizer: str,
) -> dict[str, Any]:  # fmt: skip
    start, end = clock.now, clock.now + seconds
    loops: dict[str, Any] = {}
    for loop, first, last, rate in (("open", 0.0, 0.6, 20.0), ("closed", 0.6, 1.0, 80.0)):
        planned = np.arange(start + first * seconds, start + last * seconds, 1 / rate)
        rows = _requests(clock, name, loop, planned, _latency(clock, planned.size, p50_ms), recall)
        loops[loop] = (
            search_stats(
                rows["done"] - rows["planned"], rows["status"], rows["recall"], rows["hits"],
                LIMIT, TIMEOUT_S, (last - first) * seconds,
            )
            if len(rows)
            else None
        )  # fmt: skip
    draining = name.endswith("draining")
    polls = _poll(
        clock, name, start, end, points,
        visible=(lambda s: int(points * (visible + (1 - visible) * s))),
        indexed=(lambda s: int(points * (0.5 + 0.5 * s))) if optimizer else points,
        running=lambda s: optimizer if s < 0.9 else "",
    )  # fmt: skip
    mine = pd.concat([rows for rows in clock.rows if rows["phase"].iloc[0] == name])
    seen = [row["visible"] for row in clock.polls if row["phase"] == name]
    counts = {
        "first": seen[0], "min": min(seen), "median": float(np.median(seen)), "last": seen[-1],
    }  # fmt: skip
    clock.now = end
    block: dict[str, Any] = {
        "name": name, "start_s": start, "end_s": end, "seconds": seconds,
        "ended_by": {"reason": "idle" if draining else "passes done", "idle_polls": 6,
                     "indexed": points, "queued": 0},
        "outcome": "idle", **loops,
        "recall": recall_summary(mine["recall"]),
        "visible": counts,
        "visible_share": {key: value / points for key, value in counts.items()},
        "optimizers_seen": [optimizer] if optimizer else [],
        "polls": polls, "memory": {"rss_peak_bytes": 212_000_000}, "cpu_s": seconds * 1.2,
    }  # fmt: skip
    if not draining:
        closed = mine[mine["loop"] == "closed"]
        block["stationary"] = stationary(closed["sent"], closed["done"] - closed["sent"], 0)
    return block


def _record(
    id_: str, repeat: int, points: int, phases: list[dict[str, Any]], ledger: pd.DataFrame,
    polls: pd.DataFrame, drain_s: float,
) -> dict[str, Any]:  # fmt: skip
    path = f"results/optimizers/{id_}/{repeat}"
    applied = {"indexing_threshold": 1953, "default_segment_number": 4 if id_ == "B2" else 0}
    if id_ not in ("A1", "B2", "C2"):
        applied["changed_by"] = id_
    return {
        "schema": "refill.optimizer-run/1", "id": id_, "repeat": repeat, "group": id_[0],
        "label": f"label of {id_}", "description": f"What {id_} sets.", "scale": "smoke",
        "attempt": "20260101T000000-abcdef", "started_at": "2026-01-01T00:00:00.000Z",
        "ended_at": "2026-01-01T01:00:00.000Z", "valid": True, "invalid": [],
        "outcome": "completed",
        "corpus": {"name": "synthetic", "points": points, "dimension": 50, "distance": "Cosine",
                   "queries": 1000, "sha256": "c" * 64},
        "engine": {"name": "qdrant", "runtime": "process", "embedded": True,
                   "title": "qdrant-edge (embedded Qdrant)", "version": "0.9.0", "commit": None,
                   "image": {"id": "sha256:" + "a" * 64, "tree": "b" * 64}, "cpus": 2},
        "configuration": {"requested": {}, "applied": applied, "readback": {}, "notes": []},
        "host": {"cpu": {"model": "Some CPU"}, "cores": 2, "memory_bytes": 8_000_000_000,
                 "kernel": "6.1"},
        "code": "d" * 64,
        "driver": {"floor_p50_ms": 0.05, "floor_p95_ms": 0.08, "floor_n": 1000,
                   "null_server": "asyncio"},
        "sampler": {"draining": {"open_per_s": 20, "poll_s": 0.25, "open_window_s": 4,
                                 "closed_window_s": 1, "idle_polls": 6},
                    "steady": {"open_per_s": 100}, "limit": LIMIT, "timeout_s": TIMEOUT_S},
        "phases": phases, "drain_s": drain_s,
        "ledger": {"path": f"{path}.parquet", "sha256": "e" * 64, "rows": len(ledger),
                   "counts": {"issued": len(ledger), "ok": len(ledger), "wrong": 0, "error": 0,
                              "timeout": 0},
                   "conservation": {"ok": True, "checks": []}},
        "polls": {"path": f"{path}.polls.parquet", "sha256": "f" * 64, "rows": len(polls)},
        "wall": {"total_s": 60.0, "measured_s": 55.0, "share": 0.92},
    }  # fmt: skip

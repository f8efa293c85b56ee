"""The tables of the optimizer experiment: one row a run, one row a phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from refill.report.claims import claims_table
from refill.report.files import write_csv
from refill.report.lookup import NOT_MEASURED, phase_of, status_of, timeout_s, usable
from refill.report.optimizer_verdicts import optimizer_verdicts
from refill.report.rounds import NO_ROUNDS, Expected
from refill.stats.quantiles import is_lower_bound

Record = Mapping[str, Any]

QUANTILES = ("p50_ms", "p95_ms", "p99_ms")
PUBLISHED = ("n", "p50_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms")


def expected_ids(records: Sequence[Record], claims: Mapping[str, Any]) -> list[str]:
    """Return the ids of all configurations, published or measured, in their order."""
    return sorted({*claims["experiments"]["optimizers"]["runs"], *(r["id"] for r in records)})


def optimizer_table(records: Sequence[Record], claims: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a run and repeat, and one of status `not measured` for each missing run.

    Latencies in ms, times in s. `lower_bounds` names the columns of a row whose value is only a
    lower bound; a drain below `drain_resolution_s` (the time between two polls) is only known to be
    at most that. The figures of a failed or invalid run are left empty, its status says why.
    `published_*` are the figures of the source beside them.
    """
    published = claims["experiments"]["optimizers"]["runs"]
    rows = []
    for id_ in expected_ids(records, claims):
        mine = sorted((r for r in records if r["id"] == id_), key=lambda r: int(r["repeat"]))
        rows += [_run_row(r) | _published_run(published.get(id_)) for r in mine]
        if not mine:
            label = published[id_]["label"]
            missing = {"run": id_, "label": label, "status": NOT_MEASURED}
            rows.append(missing | _published_run(published[id_]))
    return pd.DataFrame(rows).reindex(columns=_run_columns())


def phase_table(records: Sequence[Record], claims: Mapping[str, Any]) -> pd.DataFrame:
    """Return one row a phase of each run; units and empty cells as in `optimizer_table`."""
    published = claims["experiments"]["optimizers"]["runs"]
    rows = []
    for record in sorted(records, key=lambda r: (r["id"], int(r["repeat"]))):
        for phase in record["phases"]:
            row = _identity(record) | {"phase": phase["name"]}
            if usable(record):
                row |= _phase_row(record, phase)
            rows.append(row | _published_phase(published.get(record["id"]), phase["name"]))
    return pd.DataFrame(rows).reindex(columns=_phase_columns())


def write_tables(
    records: Sequence[Record],
    claims: Mapping[str, Any],
    folder: Path,
    rounds: Sequence[Record] = (),
    expected: Expected = NO_ROUNDS,
    proof: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """Write the tables of optimizer runs and of all claims to `folder`; return paths by name.

    `rounds`, `expected` and `proof` are what claims on the gateway are decided on; see
    `refill.report.claims.claims_table`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identical = claims["experiments"]["optimizers"]["identical"]
    tables = {
        "optimizers": optimizer_table(records, claims),
        "optimizer_phases": phase_table(records, claims),
        "optimizer_verdicts": optimizer_verdicts(records, identical),
        "claims": claims_table(records, claims, rounds, expected, proof),
    }
    paths = {name: folder / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        write_csv(table, paths[name])
    return paths


def _identity(record: Record) -> dict[str, Any]:
    engine, corpus = record["engine"], record["corpus"]
    return {
        "run": record["id"],
        "repeat": record["repeat"],
        "label": record["label"],
        "status": status_of(record),
        "scale": record["scale"],
        "corpus": corpus["name"],
        "points": corpus["points"],
        "dimension": corpus["dimension"],
        "engine": engine.get("title") or engine["name"],
        "engine_version": engine.get("version"),
        "embedded": engine["embedded"],
        "warnings": "; ".join(record.get("warnings", [])),
    }


def _run_row(record: Record) -> dict[str, Any]:
    row = _identity(record)
    if not usable(record):
        return row
    upload, draining = phase_of(record, "upload"), phase_of(record, "draining")
    if upload:
        row["upload_points_per_s"] = upload["upload"]["points_per_s"]
        row["upload_paced_at"] = upload["upload"].get("paced_at")
    bounds: list[str] = []
    if draining:
        row["drain_s"] = record.get("drain_s")
        row["drain_resolution_s"] = record["sampler"]["draining"]["poll_s"]
        row["drain_outcome"] = draining.get("outcome")
        if draining.get("outcome") == "drain_limit":
            bounds.append("drain_s")
    for phase in ("draining", "steady"):
        block = phase_of(record, phase)
        if block:
            row |= _searched(record, block, f"{phase}_", bounds)
    peaks = [(phase.get("memory") or {}).get("rss_peak_bytes") for phase in record["phases"]]
    row["rss_peak_bytes"] = max((peak for peak in peaks if peak is not None), default=None)
    row["lower_bounds"] = " ".join(bounds)
    return row


def _phase_row(record: Record, phase: Mapping[str, Any]) -> dict[str, Any]:
    bounds: list[str] = []
    upload = phase.get("upload")
    row: dict[str, Any] = {
        "start_s": phase["start_s"],
        "seconds": phase["seconds"],
        "ended_by": phase["ended_by"]["reason"],
        "outcome": phase.get("outcome"),
        "drain_s": phase.get("drain_s"),
        "optimizers_seen": " ".join(phase.get("optimizers_seen", [])),
        "polls": phase.get("polls"),
        "rss_peak_bytes": (phase.get("memory") or {}).get("rss_peak_bytes"),
        "cpu_s": phase.get("cpu_s"),
        "event": (phase.get("event") or {}).get("kind"),
    }
    if phase.get("outcome") == "drain_limit":
        bounds.append("drain_s")
    if upload:
        row["upload_points_per_s"] = upload["points_per_s"]
        row["upload_paced_at"] = upload.get("paced_at")
        row |= _stats(record, upload["latency"], "upload_", bounds)
    row |= _searched(record, phase, "", bounds)
    row["lower_bounds"] = " ".join(bounds)
    return row


def _searched(
    record: Record, phase: Mapping[str, Any], prefix: str, bounds: list[str]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for loop in ("open", "closed"):
        if phase.get(loop):
            row |= _stats(record, phase[loop], f"{prefix}{loop}_", bounds)
    for key, value in (phase.get("recall") or {}).items():
        row[f"{prefix}recall_{key}"] = value
    for key, value in (phase.get("visible_share") or {}).items():
        row[f"{prefix}visible_share_{key}"] = value
    if "stationary" in phase:
        row[f"{prefix}stationary"] = phase["stationary"]["ok"]
    return row


def _stats(
    record: Record, stats: Mapping[str, Any], prefix: str, bounds: list[str]
) -> dict[str, Any]:
    bounds += [
        f"{prefix}{key}"
        for key in (*QUANTILES, "max_ms", "mean_ms")
        if is_lower_bound(stats, key, timeout_s(record))
    ]
    return {f"{prefix}{key}": stats.get(key) for key in _STATS}


def _published_run(run: Mapping[str, Any] | None) -> dict[str, Any]:
    if run is None:
        return {}
    row: dict[str, Any] = {"published_drain_s": run["draining_s"]}
    for phase in ("draining", "steady"):
        row |= {f"published_{phase}_{key}": run["phases"][phase][key] for key in PUBLISHED}
    return row


def _published_phase(run: Mapping[str, Any] | None, phase: str) -> dict[str, Any]:
    # The source searched once after the event, while optimizers ran or not: the later phase has
    # no published figure.
    name = {"followup-draining": "followup"}.get(phase, phase)
    block = run["phases"].get(name) if run else None
    return {f"published_{key}": block[key] for key in PUBLISHED} if block else {}


_IDENTITY = [
    "run", "repeat", "label", "status", "scale", "corpus", "points", "dimension", "engine",
    "engine_version", "embedded",
]  # fmt: skip
_STATS = [
    "n", "ok", "wrong", "error", "timeout", *QUANTILES, "max_ms", "mean_ms", "per_s",
    "p99_resolved", "recall_mean", "hits_short",
]  # fmt: skip
_SEARCHED = [
    *(f"{loop}_{key}" for loop in ("open", "closed") for key in _STATS),
    *(f"recall_{key}" for key in ("mean", "min", "p05")),
    *(f"visible_share_{key}" for key in ("first", "min", "median", "last")),
    "stationary",
]


def _run_columns() -> list[str]:
    published = [f"published_{p}_{key}" for p in ("draining", "steady") for key in PUBLISHED]
    return [
        *_IDENTITY, "upload_points_per_s", "upload_paced_at", "drain_s", "drain_resolution_s",
        "drain_outcome",
        *(f"draining_{name}" for name in _SEARCHED if name != "stationary"),
        *(f"steady_{name}" for name in _SEARCHED),
        "rss_peak_bytes", "lower_bounds", "warnings", "published_drain_s", *published,
    ]  # fmt: skip


def _phase_columns() -> list[str]:
    return [
        *_IDENTITY, "phase", "start_s", "seconds", "ended_by", "outcome", "drain_s", "event",
        "upload_points_per_s", "upload_paced_at", *(f"upload_{key}" for key in _STATS),
        *_SEARCHED, "optimizers_seen", "polls", "rss_peak_bytes", "cpu_s", "lower_bounds",
        "warnings", *(f"published_{key}" for key in PUBLISHED),
    ]  # fmt: skip

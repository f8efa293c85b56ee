"""From what a run left (ledger, polls, phases) to the figures of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from refill.load.ledger import latency_s
from refill.phases.optimizer_run import Phase, Settings
from refill.stats.quantiles import recall_summary, search_stats
from refill.stats.stationary import stationary


def phase_figures(
    phases: Sequence[Phase],
    rows: pd.DataFrame,
    polls: pd.DataFrame,
    points: int,
    settings: Settings,
) -> list[dict[str, Any]]:
    """Give the `phases` part of a record.

    Args:
        phases: the phases that happened, in their order.
        rows: the whole ledger.
        polls: all polls.
        points: points that were uploaded; after a deletion, the share is of those that are left.
        settings: what the run was asked to do.

    Returns:
        One dict a phase; see `workflow/schemas/optimizer_record.schema.yaml`.
    """
    figures = []
    for phase in phases:
        if phase.event and phase.event["kind"] == "delete":
            points -= phase.event["deleted"]
        of_phase = rows[rows["phase"] == phase.name]
        polled = polls[(polls["phase"] == phase.name) & (polls["error"] == "")]
        block: dict[str, Any] = {
            "name": phase.name,
            "start_s": phase.start,
            "end_s": phase.end,
            "seconds": phase.end - phase.start,
            "ended_by": phase.ended_by,
            **_watched(polled, points, phase.completed),
        }
        if phase.event:
            block["event"] = phase.event
        if phase.name == "upload":
            block["upload"] = _upload(of_phase, points, settings)
        else:
            block |= _searched(phase, of_phase, polled, settings)
        figures.append(block)
    return figures


def _upload(rows: pd.DataFrame, points: int, settings: Settings) -> dict[str, Any]:
    """Throughput of the upload, from the first planned send to the last answer.

    A paced upload of n batches takes n intervals, the last one too, though nothing is sent at its
    end; without it a short upload would look faster than its own pace.
    """
    batch, pace = settings.upload["batch"], settings.upload["points_per_s"]
    answered = rows[rows["status"] == "ok"]
    arrived = int((points - answered["first"]).clip(upper=batch).sum())
    span = float(rows["done"].max() - rows["planned"].min()) if len(rows) else 0.0
    if pace:
        span = max(span, points / pace)
    return {
        "requests": len(rows),
        "points": arrived,
        "points_per_s": arrived / span if span else None,
        "paced_at": pace or None,
        "latency": _stats(rows, settings, span),
    }


def _searched(
    phase: Phase, rows: pd.DataFrame, polled: pd.DataFrame, settings: Settings
) -> dict[str, Any]:
    """Figures of a phase with searches.

    Of a drain only what was planned before the optimizers were idle counts: the polls that
    confirm it are fast, and would be most of the samples of a short drain.
    """
    figures: dict[str, Any] = {}
    end = phase.end
    if phase.drained_at is not None:
        end = phase.drained_at
        rows = rows[rows["planned"] < end]
        figures |= {"outcome": phase.outcome, "drained_at_s": end, "drain_s": end - phase.start}
    for loop in ("open", "closed"):
        of_loop = rows[rows["loop"] == loop]
        figures[loop] = _stats(of_loop, settings, _busy_s(of_loop)) if len(of_loop) else None
    answered = rows["status"].isin(["ok", "wrong"])
    figures["recall"] = recall_summary(rows.loc[answered, "recall"].to_numpy())
    if phase.drained_at is None:
        closed = rows[(rows["loop"] == "closed") & (rows["status"] != "error")]
        busy = int((polled["busy"] != "").sum())
        figures["stationary"] = stationary(closed["sent"].to_numpy(), latency_s(closed), busy)
    return figures


def _stats(rows: pd.DataFrame, settings: Settings, seconds: float) -> dict[str, Any]:
    search = settings.search
    upload = bool(len(rows)) and str(rows["loop"].iloc[0]) == "upload"
    return search_stats(
        latency_s(rows),
        rows["status"].astype(str).to_numpy(),
        None if upload else rows["recall"].to_numpy(),
        None if upload else rows["hits"].to_numpy(),
        search["limit"],
        search["timeout_s"],
        seconds,
    )


def _busy_s(rows: pd.DataFrame) -> float:
    """Seconds in which a loop issued requests: its windows' spans, without those of the other."""
    windows = rows.groupby("window")
    return float((windows["done"].max() - windows["planned"].min()).sum())


def _watched(polled: pd.DataFrame, points: int, completed: Mapping[str, int]) -> dict[str, Any]:
    visible = polled["visible"].to_numpy(dtype=np.float64)
    visible = visible[~np.isnan(visible)]
    running = {name for text in polled["running"] for name in str(text).split(",") if name}
    spread: dict[str, float] | None = None
    if len(visible):
        spread = {
            "first": float(visible[0]),
            "min": float(visible.min()),
            "median": float(np.quantile(visible, 0.5, method="inverted_cdf")),
            "last": float(visible[-1]),
        }
    return {
        "visible": spread,
        "visible_share": {k: v / points for k, v in spread.items()} if spread else None,
        "optimizers_seen": sorted(running | completed.keys()),
        "optimizers_completed": dict(completed),
        "polls": len(polled),
        "memory": {"rss_peak_bytes": _or_none(polled["rss_bytes"].max())},
        "cpu_s": _or_none(polled["cpu_s"].max() - polled["cpu_s"].min()),
        "read_bytes": _or_none(polled["read_bytes"].max() - polled["read_bytes"].min()),
        "written_bytes": _or_none(polled["write_bytes"].max() - polled["write_bytes"].min()),
        "segments": _or_none(polled["segments"].iloc[-1]) if len(polled) else None,
        "indexed": _or_none(polled["indexed"].iloc[-1]) if len(polled) else None,
    }


def _or_none(value: float) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def judged(
    phases: Sequence[Mapping[str, Any]],
    expected: Sequence[str],
    conservation: Mapping[str, Any],
    stalls: Sequence[str],
    failure: str | None,
) -> tuple[str, list[str], list[str]]:
    """Say how a run ended, why it is invalid, and what must be known beside its figures.

    Returns:
        The outcome (`completed`, `drain_limit`, `failed`), the reasons why the run is invalid
        (none: it is valid), and the warnings.
    """
    invalid = [failure] if failure else []
    invalid += [*conservation["violations"], *stalls]
    warnings = []
    for phase in phases:
        for part in ("upload", "open", "closed"):
            stats = phase.get(part)
            stats = stats["latency"] if part == "upload" and stats else stats
            if not stats:
                continue
            where = f"{phase['name']}, {part} loop" if part != "upload" else "upload"
            if stats["wrong"]:
                invalid.append(f"{where}: {stats['wrong']} of {stats['n']} answers are wrong")
            if stats["error"]:
                invalid.append(f"{where}: {stats['error']} of {stats['n']} requests failed")
            if stats["timeout"]:
                warnings.append(
                    f"{where}: {stats['timeout']} of {stats['n']} requests reached the limit; "
                    "they are in the quantiles as values of at least the limit"
                )
        if (reason := _sees_nothing(phase)) is not None:
            invalid.append(f"{phase['name']}: {reason}")
        if "drain_s" in phase and phase["drain_s"] > 1.0 and not (phase["open"] or phase["closed"]):
            warnings.append(
                f"{phase['name']}: {phase['drain_s']:.1f} s without a single search: raise "
                "optimizers.draining.open_per_s"
            )
        steadiness = phase.get("stationary")
        if steadiness and not steadiness["ok"]:
            warnings.append(f"{phase['name']} was not steady: {steadiness['reason']}")
    limited = [phase["name"] for phase in phases if phase.get("outcome") == "drain_limit"]
    if failure:
        return "failed", invalid, warnings
    if limited:
        warnings.append(
            f"{limited[0]} reached its limit with work left: what follows was not measured"
        )
        return "drain_limit", invalid, warnings
    if missing := [name for name in expected if name not in {p["name"] for p in phases}]:
        invalid.append(f"not measured: {', '.join(missing)}")
    return ("failed" if invalid else "completed"), invalid, warnings


def _sees_nothing(phase: Mapping[str, Any]) -> str | None:
    """Say so when searches find nothing although the engine says that points are visible."""
    share = phase.get("visible_share")
    recall = (phase.get("recall") or {}).get("mean")
    if share and share["min"] > 0 and recall == 0.0:
        return "no search found one right point, though the engine says that points are visible"
    return None

"""From what a run left (ledger, polls, phases) to the figures of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from refill.load.ledger import latency_s
from refill.phases.optimizer_run import Phase, Settings
from refill.stats.quantiles import recall_summary, search_stats
from refill.stats.silence import is_long, longest_silence
from refill.stats.stationary import stationary

# What a search without an index must find at least; float32 may swap neighbours of equal score.
EXACT_RECALL = 0.99


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
            limit = settings.search["limit"]
            block["short_though_visible"] = _short_though_visible(of_phase, polls, limit)
        if phase.exact:
            block["exact"] = phase.exact
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
    figures["silence"] = _silence(rows)
    answered = rows["status"].isin(["ok", "wrong"])
    figures["recall"] = recall_summary(rows.loc[answered, "recall"].to_numpy())
    if phase.drained_at is None:
        closed = rows[(rows["loop"] == "closed") & (rows["status"] != "error")]
        busy = int((polled["busy"] != "").sum())
        figures["stationary"] = stationary(closed["sent"].to_numpy(), latency_s(closed), busy)
    return figures


def _silence(rows: pd.DataFrame) -> dict[str, Any] | None:
    """Give the longest time without an answer, and how many requests of each loop waited it out.

    A closed loop has one request that waited, an open one all that were planned meanwhile.
    """
    done = rows["done"].to_numpy(dtype=np.float64)
    asked = done - latency_s(rows)
    found = longest_silence(asked, done)
    if found is None:
        return None
    waited = rows[(asked < found.at + found.seconds) & (done >= found.at + found.seconds)]
    counts = {loop: int((waited["loop"] == loop).sum()) for loop in ("open", "closed")}
    return {**found.plain(), "waited": counts}


def _short_though_visible(rows: pd.DataFrame, polls: pd.DataFrame, limit: int) -> int:
    """Count answers with fewer hits than were asked for while enough points were visible.

    Only what the last poll before a search and the first one after it both say counts.
    """
    known = polls[(polls["error"] == "") & polls["visible"].notna()]
    short = rows[rows["status"].isin(["ok", "wrong"]) & rows["hits"].between(0, limit - 1)]
    if not len(known) or not len(short):
        return 0
    began = known["t"].to_numpy(dtype=np.float64)
    ended = began + known["poll_ms"].to_numpy(dtype=np.float64) / 1e3
    enough = np.append(known["visible"].to_numpy(dtype=np.float64) >= limit, False)
    before = np.searchsorted(ended, short["sent"].to_numpy(), side="right") - 1
    after = np.searchsorted(began, short["done"].to_numpy(), side="left")
    # Place -1 and the place behind the last poll are the False at the end.
    return int((enough[before] & enough[after]).sum())


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
        invalid += [f"{phase['name']}: {reason}" for reason in _not_true(phase)]
        if (silence := _stood_still(phase)) is not None:
            warnings.append(f"{phase['name']}: {silence}")
        if "drain_s" in phase and phase["drain_s"] > 1.0 and not (phase["open"] or phase["closed"]):
            warnings.append(
                f"{phase['name']}: {phase['drain_s']:.1f} s without a single search: raise "
                "optimizers.draining.open_per_s"
            )
        steadiness = phase.get("stationary")
        if steadiness and not steadiness["ok"]:
            warnings.append(f"{phase['name']} was not steady: {steadiness['reason']}")
    invalid += _outside_of_figures(phases, conservation.get("counts", {}))
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


def _outside_of_figures(
    phases: Sequence[Mapping[str, Any]], counts: Mapping[str, int]
) -> list[str]:
    """Say which bad answers no figure has: they came while the end of a drain was confirmed."""
    found = []
    for status, words in (("wrong", "answers are wrong"), ("error", "requests failed")):
        inside = sum(
            stats[status]
            for phase in phases
            for part in ("upload", "open", "closed")
            if (stats := phase.get(part))
            and (stats := stats["latency"] if part == "upload" else stats)
        )
        if (rest := counts.get(status, 0) - inside) > 0:
            found.append(f"while the end of a drain was confirmed: {rest} {words}")
    return found


def _not_true(phase: Mapping[str, Any]) -> list[str]:
    """Say what the searches of a phase show that cannot be true of an engine that holds all."""
    found = []
    share = phase.get("visible_share")
    recall = (phase.get("recall") or {}).get("mean")
    if share and share["min"] > 0 and recall == 0.0:
        found.append(
            "no search found one right point, though the engine says that points are visible"
        )
    if short := phase.get("short_though_visible"):
        found.append(
            f"{short} answers hold fewer hits than were asked for, though the engine says that "
            "enough points are visible"
        )
    exact = phase.get("exact")
    if not exact:
        return found
    for status, words in (("wrong", "are wrong"), ("error", "failed")):
        if exact[status]:
            found.append(
                f"{exact[status]} of {exact['queries']} searches without an index {words}: "
                f"{exact['detail']}"
            )
    found_share = exact["recall_mean"]
    if share and share["last"] >= 1 and found_share is not None and found_share < EXACT_RECALL:
        found.append(
            f"searches without an index find {found_share:.3f} of the nearest points, though the "
            "engine says that all points are visible: it does not hold them all"
        )
    return found


def _stood_still(phase: Mapping[str, Any]) -> str | None:
    """Say so when the engine of a steady phase answered nothing for long."""
    silence, closed, opened = phase.get("silence"), phase.get("closed"), phase.get("open")
    p50_ms = (closed or opened or {}).get("p50_ms")
    if "stationary" not in phase or not silence:
        return None
    if not is_long(silence["longest_s"], None if p50_ms is None else p50_ms / 1e3):
        return None
    waited = silence["waited"]
    return (
        f"no search was answered for {silence['longest_s']:.2f} s from {silence['at_s']:.2f} s on; "
        f"{waited['open']} of the open loop and {waited['closed']} of the closed one waited, so "
        "the closed loop's figures hide it"
    )

"""From what a round left (ledger, trials, moments) to the figures of its record."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from refill.engines import native
from refill.engines.gateway import counted
from refill.engines.valkey import growth
from refill.load.ledger import STATUSES, conservation, latency_s
from refill.load.worker import Done
from refill.phases.round_plan import Cell, Settings
from refill.phases.round_run import Trial
from refill.phases.round_stack import Moment
from refill.phases.round_system import GATEWAY
from refill.stats.quantiles import search_stats
from refill.stats.silence import is_long, longest_silence

PROFILES = ("warm", "cold")
# Of a process's counters, what stands for now and is no sum.
LEVELS = ("rss_bytes", "memory_peak_bytes")
# What a profile does not need of the common figures of a closed loop.
_NOT_HERE = ("recall_mean", "hits_short")


def cell_figures(
    settings: Settings,
    trials: Sequence[Trial],
    rows: pd.DataFrame,
    shown_wrong: Mapping[int, Sequence[Mapping[str, Any]]],
    serving: bool,
    request_cache: bool = False,
    lost: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Give the cells of a round that were begun, each with its trials.

    Args:
        settings: what was to be done.
        trials: the trials that were run to their end.
        rows: the whole ledger.
        shown_wrong: by window, responses that are not right.
        serving: whether the gateway's cache served.
        request_cache: whether a native engine may serve a repeated request from its cache.
        lost: by native engine that was not measured to the end, why.
    """
    figures = []
    for cell in settings.cells:
        mine = [trial for trial in trials if trial.cell == cell]
        if not mine:
            continue
        blocks = [
            _trial(t, rows, shown_wrong.get(t.window, ()), settings, serving, request_cache)
            for t in mine
        ]
        invalid = [f"trial {b['trial']}: {why}" for b in blocks for why in b["invalid"]]
        if len(blocks) != settings.trials:
            why = (lost or {}).get(cell.engine, "").partition("\n")[0]
            invalid.append(
                f"{len(blocks)} of {settings.trials} trials were run{f': {why}' if why else ''}"
            )
        figures.append(
            {
                "engine": cell.engine,
                "profile": cell.profile,
                "operation": cell.operation,
                "title": cell.title,
                "clients": cell.clients,
                "requests": cell.requests,
                "valid": not invalid,
                "invalid": invalid,
                "trials": blocks,
            }
        )
    return figures


def _trial(
    trial: Trial,
    rows: pd.DataFrame,
    shown_wrong: Sequence[Mapping[str, Any]],
    settings: Settings,
    serving: bool,
    request_cache: bool,
) -> dict[str, Any]:
    mine = rows[rows["window"] == trial.window]
    span = max(d.end for d in trial.done) - min(d.start for d in trial.done)
    stats = search_stats(
        latency_s(mine), mine["status"].astype(str).to_numpy(), None, None, 0,
        settings.timeout_s, span,
    )  # fmt: skip
    cache = counted(trial.before.cache, trial.after.cache)
    kept = conservation(mine.assign(seq=np.arange(len(mine))), trial.done)
    engine = trial.cell.engine
    seen = natives_counted(trial.before, trial.after)
    if engine == GATEWAY:
        proof = unproven(trial.cell.profile, serving, stats["n"], cache)
    elif engine not in seen:
        proof = [f"{engine} was lost before its counters could show what it did"]
    else:
        proof = unproven_native(engine, cache, seen[engine], request_cache)
    invalid = [*_unanswered(stats, trial.cell), *kept["violations"], *proof]
    return {
        "trial": trial.number,
        "window": trial.window,
        "start_s": trial.start,
        "end_s": trial.end,
        "valid": not invalid,
        "invalid": invalid,
        "stats": {key: value for key, value in stats.items() if key not in _NOT_HERE},
        "cache": cache,
        "hit_ratio": hit_ratio(cache),
        "natives": seen,
        "lost": sorted(trial.before.natives.keys() - trial.after.natives.keys()),
        "aof": growth(trial.before.aof, trial.after.aof),
        "resources": spent(trial.before, trial.after),
        "conservation": kept["checks"],
        "silence": _silence(mine),
        "wrong": list(shown_wrong),
    }


def _silence(rows: pd.DataFrame) -> dict[str, float] | None:
    done = rows["done"].to_numpy(dtype=np.float64)
    found = longest_silence(done - latency_s(rows), done)
    return found.plain() if found else None


def warned(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in which trials nothing was answered for long, or an engine beside them was lost.

    A closed loop's p95 hides a stall. And what the end of an idle engine took of the machine is in
    the figures: they stay, for every response was right.
    """
    found = []
    for cell in cells:
        for trial in cell["trials"]:
            found += [
                f"{_where(cell)}, trial {trial['trial']}: {engine}, idle beside it, was lost "
                "meanwhile"
                for engine in trial["lost"]
                if engine != cell["engine"]
            ]
            silence, p50_ms = trial["silence"], trial["stats"]["p50_ms"]
            p50_s = None if p50_ms is None else p50_ms / 1e3
            if silence and is_long(silence["longest_s"], p50_s):
                found.append(
                    f"{_where(cell)}, trial {trial['trial']}: no response came for "
                    f"{silence['longest_s']:.2f} s from {silence['at_s']:.2f} s on; of a closed "
                    f"loop only the {cell['clients']} requests that waited show it"
                )
    return found


def _where(cell: Mapping[str, Any]) -> str:
    clients = "client" if cell["clients"] == 1 else "clients"
    place = f"{cell['profile']}, {cell['operation']}, {cell['engine']}"
    return f"{place}, {cell['clients']} {clients}"


def _unanswered(stats: Mapping[str, Any], cell: Cell) -> list[str]:
    """Say which responses were not there or not right: every one counts."""
    found = []
    if stats["n"] != cell.requests:
        found.append(f"{stats['n']} of {cell.requests} requests were issued within the limit")
    for status, words in (("wrong", "are wrong"), ("error", "failed"), ("timeout", "timed out")):
        if stats[status]:
            found.append(f"{stats[status]} of {stats['n']} responses {words}")
    return found


def unproven(profile: str, serving: bool, requests: int, cache: Mapping[str, Any]) -> list[str]:
    """Say where the cache's own counters do not show the profile that was meant.

    Warm: every request was a hit. Cold with serving on: none was, and each response was published.
    Cold with serving off: the cache took part in nothing.
    """
    if profile == "warm":
        wanted = {"hits": requests, "misses": 0, "fills": 0, "bypassed": 0}
    elif serving:
        wanted = {"hits": 0, "misses": requests, "fills": requests, "bypassed": 0}
    else:
        wanted = {"hits": 0, "misses": 0, "fills": 0, "bypassed": requests}
    return [
        f"not {profile}: the cache counts {cache[name]} {name}, {count} were expected"
        for name, count in wanted.items()
        if cache[name] != count
    ]


def unproven_native(
    engine: str,
    cache: Mapping[str, Any],
    counters: Mapping[str, float],
    request_cache: bool,
) -> list[str]:
    """Say where counters show that a native engine did other work than was meant.

    The gateway must have done nothing meanwhile, and with its request cache off the engine must
    have served nothing from it.
    """
    names = ("hits", "misses", "fills", "bypassed")
    found = [f"the gateway counts {cache[n]} {n} meanwhile" for n in names if cache[n]]
    served = counters["request_cache_hits"] + counters["request_cache_misses"]
    if served and not request_cache:
        found.append(f"{engine} looked {served:g} times into its request cache, which is off")
    return found


def natives_counted(before: Moment, after: Moment) -> dict[str, dict[str, float]]:
    """Give what the counters of each native engine show between two moments."""
    both = before.natives.keys() & after.natives.keys()
    return {
        name: native.counted(before.natives[name], after.natives[name]) for name in sorted(both)
    }


def hit_ratio(cache: Mapping[str, Any]) -> float | None:
    """Give the share of reads that the cache served; None when there was no read."""
    reads = cache["hits"] + cache["misses"] + cache["bypassed"]
    return cache["hits"] / reads if reads else None


def spent(before: Moment, after: Moment) -> dict[str, dict[str, float | None]]:
    """Give what each process used between two moments, and its memory at the second.

    Times and bytes of disk are differences, memory is not; None where it is not known.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name, now in after.resources.items():
        if (earlier := before.resources.get(name)) is None:
            continue
        found[name] = {
            key: value if key in LEVELS else _difference(earlier[key], value)
            for key, value in now.items()
        }
    return found


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def profile_figures(
    cells: Sequence[Mapping[str, Any]], trials: Sequence[Trial], settings: Settings
) -> list[dict[str, Any]]:
    """Give each profile of a round as a whole: span, requests, cache, growth of the log.

    `requests` are those of the gateway, to which cache and log belong. It is valid when the
    gateway's cells are: a native engine's are beside it and say for themselves.
    """
    figures = []
    for name in PROFILES:
        mine = [trial for trial in trials if trial.cell.profile == name]
        if not mine:
            continue
        first, last = mine[0], mine[-1]
        of_profile = [cell for cell in cells if cell["profile"] == name]
        ours = [cell for cell in of_profile if cell["engine"] == GATEWAY]
        wanted = [c for c in settings.cells if c.profile == name and c.engine == GATEWAY]
        cache = counted(first.before.cache, last.after.cache)
        figures.append(
            {
                "name": name,
                "start_s": first.start,
                "end_s": last.end,
                "seconds": last.end - first.start,
                "requests": _issued(of_profile, GATEWAY),
                "native_requests": {
                    engine: _issued(of_profile, engine)
                    for engine in dict.fromkeys(c["engine"] for c in of_profile)
                    if engine != GATEWAY
                },
                "valid": len(ours) == len(wanted) and all(cell["valid"] for cell in ours),
                "cache": cache,
                "hit_ratio": hit_ratio(cache),
                "aof": growth(first.before.aof, last.after.aof),
                "resources": spent(first.before, last.after),
            }
        )
    return figures


def _issued(cells: Sequence[Mapping[str, Any]], engine: str) -> int:
    return sum(t["stats"]["n"] for c in cells if c["engine"] == engine for t in c["trials"])


def raw_profile(
    identity: Mapping[str, Any],
    profile: Mapping[str, Any],
    cells: Sequence[Mapping[str, Any]],
    rows: pd.DataFrame,
) -> dict[str, Any]:
    """Give one raw profile: each trial of it with every latency, in the order of sending."""
    blocks = []
    for cell in (cell for cell in cells if cell["profile"] == profile["name"]):
        trials = []
        for trial in cell["trials"]:
            mine = rows[rows["window"] == trial["window"]].sort_values("sent")
            latencies = [round(float(value) * 1e3, 4) for value in latency_s(mine)]
            trials.append({**trial, "latencies_ms": latencies})
        blocks.append({**cell, "trials": trials})
    return {**identity, "profile": profile, "cells": blocks}


def resource_phases(moments: Sequence[tuple[str, float, Moment]]) -> list[dict[str, Any]]:
    """Give what each process used in each phase of the round, from one moment to the next."""
    return [
        {
            "phase": name,
            "start_s": start,
            "end_s": end,
            "processes": spent(before, after),
            "natives": natives_counted(before, after),
        }
        for (_, start, before), (name, end, after) in itertools.pairwise(moments)
    ]


def accounted(
    rows: pd.DataFrame, windows: Sequence[Done], broken: Collection[int], failure: str | None
) -> dict[str, Any]:
    """Give `conservation` of a whole round.

    Args:
        rows: the whole ledger.
        windows: the clients' own accounts of the windows that they ended.
        broken: windows in which a native engine was lost, of which there is no such account.
        failure: what broke the round off.
    """
    whole = rows
    if broken:
        ended = rows[~rows["window"].isin(broken)]
        whole = ended.assign(seq=np.arange(len(ended)))
    kept = conservation(whole, windows)
    if failure:
        kept["violations"] = ["the round broke off, so not all requests can be accounted for"]
    if failure or broken:
        statuses = rows["status"].astype(str)
        found = {status: int((statuses == status).sum()) for status in STATUSES}
        kept["counts"] = {"issued": len(rows), **found}
    return kept


def judged(
    cells: Sequence[Mapping[str, Any]],
    warm_up: Mapping[str, int],
    conserved: Mapping[str, Any],
    failure: str | None,
) -> tuple[str, list[str]]:
    """Say how a round ended and why it is invalid.

    Args:
        cells: of `cell_figures`.
        warm_up: requests of the warm-up by status.
        conserved: of `conservation`, over the whole ledger.
        failure: what broke the round off.

    Returns:
        The outcome (`completed`, `failed`) and the reasons; none: it is valid.
    """
    invalid = [failure] if failure else []
    bad = {status: n for status, n in warm_up.items() if status != "ok" and n}
    if bad:
        listed = ", ".join(f"{n} {status}" for status, n in bad.items())
        invalid.append(f"warm-up: {listed}")
    for cell in cells:
        invalid += [f"{_where(cell)}, {why}" for why in cell["invalid"]]
    known = {why for cell in cells for t in cell["trials"] for why in t["invalid"]}
    invalid += [why for why in conserved["violations"] if why not in known]
    return ("failed" if failure else "completed"), invalid

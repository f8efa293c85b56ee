"""What a published log says once nothing is left out: figures of each phase, and what is wrong.

The logs hold successful searches of one client in a closed loop, so what is missing shows in the
time between them: a search ends at `t` and took `latency_ms`, and what lies between its beginning
and the end of the one before belongs to no search that the log knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refill.published.events import FOLLOWUP, Change, Log, Search
from refill.stats.quantiles import search_stats
from refill.stats.silence import longest_silence
from refill.stats.stationary import stationary

LOST, GAPS, MISLABELLED = "lost samples", "gaps", "mislabelled phase"
IMPOSSIBLE, DUPLICATED = "impossible times", "duplicated lines"
OMISSION, EARLY, UNSTEADY = "coordinated omission", "stopped early", "not steady"
# Between two searches of a closed loop lie microseconds; a gap of this many seconds is a request.
LEAST_GAP_S = 0.25
# A gap within this share of the client's limit, or of a whole multiple, is called a time-out.
NEAR = 0.15
# From this factor between the two medians on the closed loop's is called misleading.
FACTOR = 2.0
# A drain this near to its limit has reached it; the poller looks every few seconds.
NEAR_LIMIT_S = 10.0
# A look at the optimizers this long before the steady phase says nothing on its beginning.
LAST_LOOK_S = 10.0
# Times of one client may disagree by their rounding; by more than this they are impossible.
ROUNDING_S = 1e-3


@dataclass(frozen=True)
class Expected:
    """What the benchmark was to do.

    Attributes:
        queries, passes: of a steady phase, and of a follow-up.
        timeout_s: what a lost search took: the client's limit, with its hidden retries.
        drain_limit_s: when a drain is given up.
    """

    queries: int = 1000
    passes: int = 5
    timeout_s: float = 10.0
    drain_limit_s: float = 3600.0


@dataclass(frozen=True)
class Flag:
    """Something wrong: which check saw it, in which phase, and in words."""

    check: str
    phase: str
    words: str


def examine(log: Log, expected: Expected) -> dict[str, Any]:
    """Give the figures of a log's phases and its flags, as plain values of a record.

    Args:
        log: of `refill.published.events.read`.
        expected: what the benchmark was to do.
    """
    phases, flags = [], []
    for phase in log.phases:
        searches = [search for search in log.searches if search.phase == phase]
        start = next((change.t for change in log.changes if change.phase == phase), None)
        end = _end(log, phase)
        gaps = _gaps(searches, start, end)
        figures = _figures(phase, searches, gaps, expected)
        phases.append(figures)
        if not searches:
            words = f"no search succeeded in {float(gaps.sum()):,.1f} s"
            flags.append(Flag(LOST, phase, words))
        if phase != "draining":
            flags += _missing(phase, searches, gaps, expected, log.summed_up)
            if not figures["stationary"]["ok"] and phase == "steady":
                flags.append(Flag(UNSTEADY, phase, figures["stationary"]["reason"]))
        flags += _gap_flags(phase, gaps, expected)
        flags += _omission(figures)
        flags += _impossible(phase, searches, gaps)
    flags += _out_of_order(log)
    flags += _mislabelled(log, expected)
    if "draining" in log.phases and "steady" not in log.phases:
        flags.append(Flag(EARLY, "steady", "the log ends before the steady phase begins"))
    return {
        "file": log.name,
        "lines": log.lines,
        "optimizer_polls": len(log.optimizers),
        "memory_polls": log.memory,
        "expected": asdict(expected),
        "phases": phases,
        "flags": [asdict(flag) for flag in flags],
    }


def time_weighted(latency_s: ArrayLike, q: float) -> float:
    """Give the latency that the search under way at a random moment has, at quantile `q`.

    Each latency weighs as much as it lasted: what an open loop's arrivals would meet, where a
    closed loop counts a slow moment once.

    Raises:
        ValueError: no latency, or `q` outside (0, 1].
    """
    values = np.sort(np.asarray(latency_s, dtype=np.float64))
    if not values.size or not 0 < q <= 1:
        raise ValueError(f"{values.size} latencies, quantile {q}: need one at least, q in (0, 1]")
    share = np.cumsum(values)
    at = int(np.searchsorted(share, q * share[-1], side="left"))
    return float(values[min(at, values.size - 1)])


def _end(log: Log, phase: str) -> float | None:
    """Give when a phase is over: when the next one begins; None of the last one."""
    begun = next((change.line for change in log.changes if change.phase == phase), None)
    if begun is None:
        return None
    return next((change.t for change in log.changes if change.line > begun), None)


def _gaps(
    searches: Sequence[Search], start: float | None, end: float | None
) -> NDArray[np.float64]:
    """Give the seconds that belong to no search: before each, and from the last to the end.

    Empty where no times are stated.
    """
    ends = np.array([search.t for search in searches])
    if np.isnan(ends).any():
        return np.empty(0)
    if not ends.size:
        return np.array([] if start is None or end is None else [end - start])
    begins = ends - np.array([search.latency_s for search in searches])
    before = np.concatenate([[begins[0] if start is None else start], ends[:-1]])
    after = [] if end is None else [end - ends[-1]]
    return np.concatenate([begins - before, after])


def _impossible(phase: str, searches: Sequence[Search], gaps: NDArray[np.float64]) -> list[Flag]:
    """Find what one client in a closed loop cannot have measured."""
    flags = []
    early = gaps[gaps < -ROUNDING_S]
    if early.size:
        words = f"{early.size} times a search would have begun before the last one was over, by "
        flags.append(Flag(IMPOSSIBLE, phase, f"{words}up to {-early.min():.3f} s"))
    if none := sum(search.latency_s == 0 for search in searches):
        flags.append(Flag(IMPOSSIBLE, phase, f"{none} searches took 0 ms"))
    timed = [(s.t, s.latency_s) for s in searches if s.t == s.t]
    if again := len(timed) - len(set(timed)):
        flags.append(Flag(DUPLICATED, phase, f"{again} searches stand there more than once"))
    return flags


def _out_of_order(log: Log) -> list[Flag]:
    """Find times that go back: of the searching client, and of the one that looks."""
    flags = []
    client: list[Search | Change] = sorted([*log.searches, *log.changes], key=lambda e: e.line)
    for what, events in (("searches and phases", client), ("looks", log.optimizers)):
        back = [b for a, b in pairwise(events) if b.t < a.t - ROUNDING_S]
        if back:
            words = f"{len(back)} times the time of {what} goes back, first in line {back[0].line}"
            flags.append(Flag(IMPOSSIBLE, back[0].phase, words))
    return flags


def _figures(
    phase: str, searches: Sequence[Search], gaps: NDArray[np.float64], expected: Expected
) -> dict[str, Any]:
    latency = np.array([search.latency_s for search in searches])
    ends = np.array([search.t for search in searches])
    timed = bool(len(searches)) and not np.isnan(ends).any()
    # All time belongs to a search or to a gap.
    seconds = float(latency.sum() + gaps.sum())
    statuses = np.full(len(searches), "ok")
    stats = search_stats(latency, statuses, None, None, 0, expected.timeout_s, seconds)
    lost = gaps[gaps >= LEAST_GAP_S]
    # A lost search took at least its gap: it was under way all that time.
    whole = np.concatenate([latency, lost])
    # In a closed loop each search begins when the last one is over.
    sent = ends - latency if timed else np.cumsum(latency) - latency
    silence = longest_silence(ends - latency, ends) if timed else None
    wanted = expected.queries * expected.passes
    return {
        "phase": phase,
        "expected": None if phase == "draining" else wanted,
        "seconds": seconds,
        **{key: stats[key] for key in ("n", "p50_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms")},
        "time_weighted_p50_ms": time_weighted(whole, 0.5) * 1e3 if whole.size else None,
        "time_weighted_p95_ms": time_weighted(whole, 0.95) * 1e3 if whole.size else None,
        "gaps": len(lost),
        "gaps_s": float(lost.sum()),
        "unaccounted_share": float(np.maximum(gaps, 0).sum() / seconds) if seconds else None,
        "longest_silence_s": silence.seconds if silence else None,
        "stationary": stationary(sent, latency, 0),
    }


def _missing(
    phase: str,
    searches: Sequence[Search],
    gaps: NDArray[np.float64],
    expected: Expected,
    summed_up: bool,
) -> list[Flag]:
    """Tell searches that are missing inside a phase from a phase that ends before its time."""
    wanted = expected.queries * expected.passes
    missing = wanted - len(searches)
    if missing < 0:
        words = f"{len(searches):,} searches, {wanted:,} were to be made"
        return [Flag(MISLABELLED, phase, words)]
    if missing == 0:
        return []
    counted = f"{len(searches):,} of {wanted:,} searches"
    places = [search.place for search in searches if search.place is not None]
    if places:
        known = {q for _, q in places}
        last = places[-1][0] * expected.queries + places[-1][1]
        inside = last + 1 - len(places)
        flags = []
        if inside:
            flags.append(Flag(LOST, phase, f"{counted}: {inside} are missing before the last one"))
        if last + 1 < wanted or not summed_up or max(known) >= expected.queries:
            end = "" if summed_up else ", without the summary"
            flags.append(
                Flag(EARLY, phase, f"{counted}: it ends at round {places[-1][0]}, query "
                     f"{places[-1][1]}{end}")
            )  # fmt: skip
        return flags
    lost = gaps[gaps >= LEAST_GAP_S]
    # A search may be lost after several tries, and several may be lost in one gap.
    explained = max(len(lost), round(float(lost.sum()) / expected.timeout_s))
    if explained >= missing:
        words = f"{counted}: {missing} failed and left no line, only {len(lost)} gaps"
        return [Flag(LOST, phase, f"{words} of {lost.sum():.1f} s together")]
    flags = []
    if explained:
        flags.append(Flag(LOST, phase, f"{counted}: about {explained} are lost in gaps"))
    words = f"{counted}: no gap accounts for {missing - explained} of those that are missing"
    return [*flags, Flag(EARLY, phase, f"{words}: it ended, or they failed at once")]


def _gap_flags(phase: str, gaps: NDArray[np.float64], expected: Expected) -> list[Flag]:
    found = gaps[gaps >= LEAST_GAP_S]
    if not found.size:
        return []
    limit = expected.timeout_s
    times = np.maximum(np.round(found / limit), 1)
    near = int((np.abs(found - times * limit) <= NEAR * limit).sum())
    return [
        Flag(
            GAPS,
            phase,
            f"{found.size} times no search was under way, for {found.min():.1f} to "
            f"{found.max():.1f} s; {near} of them are about the client's limit of {limit:g} s",
        )
    ]


def _omission(figures: dict[str, Any]) -> list[Flag]:
    p50, weighted = figures["p50_ms"], figures["time_weighted_p50_ms"]
    if p50 is None or not weighted or weighted < FACTOR * p50:
        return []
    return [
        Flag(
            OMISSION,
            figures["phase"],
            f"half of the samples took at most {p50:.1f} ms, but half of the time went to "
            f"searches of {weighted:.1f} ms and more",
        )
    ]


def _mislabelled(log: Log, expected: Expected) -> list[Flag]:
    """Find a phase that is called steady while the optimizers work, and misplaced samples."""
    flags = []
    steady = next((change for change in log.changes if change.phase == "steady"), None)
    draining = next((change for change in log.changes if change.phase == "draining"), None)
    if steady is not None:
        before = [poll for poll in log.optimizers if poll.line < steady.line]
        if not before:
            flags.append(
                Flag(MISLABELLED, "steady", "no look at the optimizers says that they were idle")
            )
        elif (busy := before[-1].busy) is not None:
            flags.append(
                Flag(MISLABELLED, "steady", f"the last look at the optimizers says: {busy}")
            )
        elif (ago := steady.t - before[-1].t) > LAST_LOOK_S:
            words = f"the last look at the optimizers was {ago:,.1f} s before it began"
            flags.append(Flag(MISLABELLED, "steady", words))
        working = [p for p in log.optimizers if p.line > steady.line and p.busy]
        if working:
            words = f"an optimizer worked in {len(working)} looks: {working[0].busy}"
            flags.append(Flag(MISLABELLED, "steady", words))
        if draining is not None:
            took = steady.t - draining.t
            if took >= expected.drain_limit_s - NEAR_LIMIT_S:
                words = (
                    f"the drain took {took:,.1f} s, its limit is {expected.drain_limit_s:,.0f} s"
                )
                flags.append(Flag(MISLABELLED, "steady", words + ": it was given up"))
    flags += _wrong_phase(log)
    return flags


def _wrong_phase(log: Log) -> list[Flag]:
    """Find searches whose phase is not the one that was last said to begin."""
    wrong: dict[str, int] = {}
    changes = iter(sorted(log.changes, key=lambda change: change.line))
    following, current = next(changes, None), None
    for search in log.searches:
        if search.phase == FOLLOWUP:
            return []
        while following is not None and following.line < search.line:
            current, following = following.phase, next(changes, None)
        if search.phase != current:
            wrong[search.phase] = wrong.get(search.phase, 0) + 1
    return [
        Flag(MISLABELLED, phase, f"{count} searches carry its name outside of it")
        for phase, count in wrong.items()
    ]

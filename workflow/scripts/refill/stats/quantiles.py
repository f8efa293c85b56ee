"""Nearest-rank quantiles of latencies, some of them censored by a timeout, and the STATS block.

Source of the quantile: definition 1 of R. J. Hyndman and Y. Fan, "Sample Quantiles in Statistical
Packages", The American Statistician 50(4), 1996, pp. 361-365: the inverse of the empirical
distribution function. The q-quantile of n sorted values is the one of rank ceil(q n), so every
printed quantile is a latency that really was measured. Quantiles are never averaged: a figure over
several parts is the quantile of the merged samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

STATUSES = ("ok", "wrong", "error", "timeout")
QUANTILES: Mapping[str, float] = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
RESOLVED_BEYOND = 10
"""A p99 with fewer samples above its rank than this rests on a handful of requests."""


def rank(q: float, n: int) -> int:
    """Return the nearest rank ceil(q n) in 1..n, exact for decimal `q` (0.07 of 100 is 7).

    Raises ValueError when `q` is outside (0, 1] or `n` is below 1.
    """
    if not 0.0 < q <= 1.0:
        raise ValueError(f"a quantile must be in (0, 1], not {q}")
    if n < 1:
        raise ValueError("a quantile of no values does not exist")
    return math.ceil(Fraction(q).limit_denominator(1_000_000) * n)


def nearest_rank(values: ArrayLike, q: float) -> float:
    """Return the nearest-rank q-quantile of `values` (one dimension, no NaN, any unit).

    Raises ValueError on an empty array, on a NaN and on a `q` outside (0, 1].
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"values must have one dimension, not shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError("values hold NaN: a request without a latency has no place in a quantile")
    return float(np.sort(array)[rank(q, array.size) - 1])


def censor(
    latency_s: ArrayLike, status: Sequence[str] | NDArray[Any], timeout_s: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the latencies that count, in seconds, and which of them are censored.

    An error answers nothing and so has no latency: its row is left out. A wrong answer took the
    time it took and stays in. A timeout took at least the limit: its value is the larger of
    `timeout_s` and the time waited since the reference (at the open loop the wait begins at the
    planned send, before the client's own clock), and is a lower bound.
    """
    latency = np.asarray(latency_s, dtype=np.float64)
    names = np.asarray(status, dtype=np.str_)
    if latency.shape != names.shape or latency.ndim != 1:
        raise ValueError(
            f"latency and status must be one-dimensional and of equal length, "
            f"not {latency.shape} and {names.shape}"
        )
    unknown = sorted(set(names.tolist()) - set(STATUSES))
    if unknown:
        raise ValueError(f"unknown status {', '.join(unknown)}: expected one of {STATUSES}")
    kept = names != "error"
    censored = (names == "timeout")[kept]
    counted = latency[kept]
    counted = np.where(censored, np.fmax(counted, timeout_s), counted)
    if np.isnan(counted).any():
        raise ValueError(
            f"{int(np.isnan(counted).sum())} answered requests have no latency: "
            "an ok or wrong row needs its time of sending and of answer"
        )
    if (counted < 0).any():
        raise ValueError(
            f"{int((counted < 0).sum())} latencies are negative: answered before they were sent"
        )
    return counted, censored


def search_stats(
    latency_s: ArrayLike,
    status: Sequence[str] | NDArray[Any],
    recall: ArrayLike | None,
    hits: ArrayLike | None,
    limit: int,
    timeout_s: float,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return the STATS block of one loop of one phase.

    Arguments are arrays of one row a request: latency in seconds, status (ok, wrong, error,
    timeout), recall in 0..1 (NaN where unknown) and number of hits; `recall` and `hits` are None
    for requests that return none (uploads). `limit` is the number of hits asked for, `timeout_s`
    the limit at which a request is given up, `seconds` the time in which requests were issued.

    - `n` counts every request: n = ok + wrong + error + timeout.
    - Quantiles, mean and max are over ok, wrong and timeout rows (see `censor`), in milliseconds.
    - `censored`: a printed quantile (or the max) is at or above a timeout's value. Such a figure
      is a lower bound, to be printed ">= value"; `is_lower_bound` tells which ones are. The mean
      is a lower bound as soon as `timeout` is above 0.
    - `p99_resolved`: at least 10 of these samples rank above the p99.
    - `recall_mean` is over the requests that were answered and have a known recall, `hits_short`
      counts the answered ones with fewer than `limit` hits.
    - What cannot be known (no latency at all, no duration, no hits) is None, never 0.

    Raises ValueError on arrays of unequal length, an unknown status, an answered request without
    a latency, and a negative latency.
    """
    names = np.asarray(status, dtype=np.str_)
    values, is_censored = censor(latency_s, names, timeout_s)
    counts = {name: int((names == name).sum()) for name in STATUSES}
    answered = (names == "ok") | (names == "wrong")
    figures: dict[str, float | None] = dict.fromkeys(QUANTILES)
    mean: float | None = None
    resolved = censored = False
    if values.size:
        figures = {key: nearest_rank(values, q) * 1e3 for key, q in QUANTILES.items()}
        mean = float(values.mean()) * 1e3
        resolved = values.size - rank(0.99, values.size) >= RESOLVED_BEYOND
        # The max is at or above every censored value, so one timeout is enough.
        censored = bool(is_censored.any())
    return {
        "n": int(names.size),
        **counts,
        **figures,
        "mean_ms": mean,
        "per_s": float(names.size / seconds) if seconds else None,
        "p99_resolved": bool(resolved),
        "censored": censored,
        "recall_mean": _mean_known(recall, answered),
        "hits_short": _short(hits, answered, limit),
    }


def is_lower_bound(stats: Mapping[str, Any], key: str, timeout_s: float) -> bool:
    """Return whether the figure `key` of a STATS block is only a lower bound (print ">= value").

    A quantile below every censored value is exact whatever those requests would have taken; one at
    or above the limit is not, since a censored request may belong above it.
    """
    value = stats.get(key)
    if not stats.get("timeout") or value is None:
        return False
    return key == "mean_ms" or bool(value >= timeout_s * 1e3)


def recall_summary(recall: ArrayLike) -> dict[str, float | None]:
    """Return mean, min and p05 (nearest rank) of the known values of `recall`; None if none is."""
    known = np.asarray(recall, dtype=np.float64)
    known = known[~np.isnan(known)]
    if not known.size:
        return {"mean": None, "min": None, "p05": None}
    return {
        "mean": float(known.mean()),
        "min": float(known.min()),
        "p05": nearest_rank(known, 0.05),
    }


def _mean_known(recall: ArrayLike | None, answered: NDArray[np.bool_]) -> float | None:
    if recall is None:
        return None
    return recall_summary(_aligned(recall, answered, "recall")[answered])["mean"]


def _short(hits: ArrayLike | None, answered: NDArray[np.bool_], limit: int) -> int | None:
    if hits is None:
        return None
    return int((_aligned(hits, answered, "hits")[answered] < limit).sum())


def _aligned(values: ArrayLike, answered: NDArray[np.bool_], name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != answered.shape:
        raise ValueError(f"{name} has shape {array.shape}, the requests {answered.shape}")
    return array

"""Is a steady phase steady? First half against second half, a trend test, optimizer activity.

Trend: H. B. Mann, "Nonparametric tests against trend", Econometrica 13(3), 1945, pp. 245-259, on
the medians of 20 consecutive bins of equal count, since neighbouring requests are correlated and
the test assumes independent values. Its size: P. K. Sen, "Estimates of the regression coefficient
based on Kendall's tau", JASA 63(324), 1968, pp. 1379-1389 (median of pairwise slopes).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refill.stats.quantiles import nearest_rank

BINS = 20
MIN_SAMPLES = 5 * BINS
Z_TREND = 2.576
"""Two-sided 1 % point of the normal distribution."""


def stationary(
    sent_s: ArrayLike,
    latency_s: ArrayLike,
    optimizer_polls: int,
    tolerance: float = 0.2,
    floor_ms: float = 0.05,
) -> dict[str, Any]:
    """Return {"ok", "first_half_p50_ms", "second_half_p50_ms", "ratio", "reason"}.

    `sent_s` and `latency_s` (seconds, equal length) are the samples of *one* loop: open and closed
    loop load the engine differently and must not be mixed here. `optimizer_polls` is the number of
    polls during the phase that saw an optimizer running or waiting. `tolerance` is the share by
    which the halves may differ, or the trend may carry the median from start to end, before it
    matters; a change below `floor_ms` never does (it is below what the driver resolves).
    Halves are of equal count, in order of sending; `ratio` is second over first.

    With fewer than 100 samples nothing can be said, and that is not `ok`.
    Raises ValueError on unequal lengths and on NaN.
    """
    sent = np.asarray(sent_s, dtype=np.float64)
    latency = np.asarray(latency_s, dtype=np.float64)
    if sent.shape != latency.shape or sent.ndim != 1:
        raise ValueError(
            f"sent and latency must be one-dimensional and of equal length, "
            f"not {sent.shape} and {latency.shape}"
        )
    if np.isnan(sent).any() or np.isnan(latency).any():
        raise ValueError("sent or latency holds NaN: pass answered and timed-out requests only")
    if latency.size < MIN_SAMPLES:
        return _block(
            False, None, None, f"{latency.size} samples, at least {MIN_SAMPLES} are needed"
        )
    ordered = latency[np.argsort(sent, kind="stable")] * 1e3
    half = ordered.size // 2
    first, second = nearest_rank(ordered[:half], 0.5), nearest_rank(ordered[half:], 0.5)
    reasons = []
    if optimizer_polls:
        reasons.append(f"an optimizer ran or waited in {optimizer_polls} polls")
    allowed = max(tolerance * min(first, second), floor_ms)
    if abs(second - first) > allowed:
        reasons.append(
            f"p50 of the halves differs by {abs(second - first):.3f} ms, more than {allowed:.3f} ms"
        )
    z, change = mann_kendall(_bin_medians(ordered))
    if abs(z) > Z_TREND and abs(change) > max(tolerance * nearest_rank(ordered, 0.5), floor_ms):
        reasons.append(f"a trend carries the median by {change:+.3f} ms (z = {z:.1f})")
    return _block(not reasons, first, second, "; ".join(reasons))


def mann_kendall(values: ArrayLike) -> tuple[float, float]:
    """Return (z, change): the Mann-Kendall z of a series and its Sen slope times its length.

    `values` are equally spaced; z is corrected for continuity and for ties and is 0 for a constant
    series; `change` is in the unit of `values`. Raises ValueError on fewer than 3 values.
    """
    series = np.asarray(values, dtype=np.float64)
    n = series.size
    if n < 3:
        raise ValueError(f"a trend needs at least 3 values, not {n}")
    i, j = np.triu_indices(n, k=1)
    differences = series[j] - series[i]
    s = float(np.sign(differences).sum())
    ties = np.unique(series, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    z = 0.0 if variance <= 0 or s == 0 else (s - math.copysign(1.0, s)) / math.sqrt(variance)
    return z, float(np.median(differences / (j - i))) * (n - 1)


def _bin_medians(ordered: NDArray[np.float64]) -> list[float]:
    return [nearest_rank(part, 0.5) for part in np.array_split(ordered, BINS)]


def _block(ok: bool, first: float | None, second: float | None, reason: str) -> dict[str, Any]:
    ratio = second / first if first and second is not None else None
    return {
        "ok": ok,
        "first_half_p50_ms": first,
        "second_half_p50_ms": second,
        "ratio": ratio,
        "reason": reason,
    }

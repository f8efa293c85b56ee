"""Quantiles of Student's t for whole degrees of freedom, without a statistics package.

Source: M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 1964, 26.7.3 (odd) and
26.7.4 (even): the probability A(t | df) that |T| <= t, as a finite sum; inverted by bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache


def inside(t: float, df: int) -> float:
    """Return the probability that |T| <= `t` (`t` >= 0) with `df` degrees of freedom.

    Raises ValueError when `df` is below 1 or `t` below 0.
    """
    if df < 1 or t < 0:
        raise ValueError(f"needs df >= 1 and t >= 0, not {df} and {t}")
    theta = math.atan(t / math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    if df % 2:
        term, total = math.cos(theta), 0.0
        for j in range(1, (df - 1) // 2 + 1):
            total += term
            term *= cos2 * 2 * j / (2 * j + 1)
        return 2 / math.pi * (theta + math.sin(theta) * total)
    term, total = 1.0, 0.0
    for j in range(1, df // 2 + 1):
        total += term
        term *= cos2 * (2 * j - 1) / (2 * j)
    return math.sin(theta) * total


@lru_cache(maxsize=4096)
def two_sided(level: float, df: int) -> float:
    """Return the t for which |T| <= t has probability `level` (0.95 with 2: 4.303).

    Raises ValueError when `level` is outside (0, 1) or `df` below 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"a level must be in (0, 1), not {level}")
    low, high = 0.0, 1.0
    while inside(high, df) < level:
        high *= 2
    # Until no number lies between the two.
    while low < (middle := (low + high) / 2) < high:
        if inside(middle, df) < level:
            low = middle
        else:
            high = middle
    return high

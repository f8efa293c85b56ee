"""Noise of whole runs: the spread of identical ones, and what it allows to be called.

One run of a configuration has no spread of its own. Runs that are the same configuration under
several names have one, and so have repeats. Both are pooled, and Student's t turns the pooled
spread into the half width of an interval on left / right (or left - right for shares): with two
identical runs and one run a side its factor is large, since two values say little about a spread.
To call every effect that exceeds the bare spread of two identical runs would be wrong half of the
time.

Identical runs can be equal by chance, or because a share cannot exceed 1: that is no proof of no
noise. So the noise is never below what a figure's resolution alone makes of it: a step of width h
has the standard deviation h / sqrt(12) (a uniform error; W. F. Sheppard, Proc. London Math. Soc.
29, 1898), and no effect within one step is called. Where the resolution is not known either, the
noise is not known.

Source: the pooled variance of a one-way layout, as in every textbook; for benchmarks T. Kalibera
and R. Jones, ISMM 2013 (cited in `refill.stats.resampling`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refill.stats.ratios import FASTER, LEVEL, MARGIN, SLOWER, Comparison, Interval, ratio_verdict
from refill.stats.resampling import ratio_interval
from refill.stats.student import two_sided
from refill.stats.verdict import (
    CONTRADICTED,
    NO_SPREAD,
    REPRODUCED,
    UNDECIDABLE,
    Floor,
    Value,
    judge,
)


@dataclass(frozen=True)
class Noise:
    """Pooled standard deviation of runs that are the same, of logarithms if `relative`.

    `df` are its degrees of freedom, `runs` the number of runs it rests on. `size` is None where it
    cannot be formed, and `why` says why. `step` is the resolution of the figures on the same scale,
    the least half width; `what` names in sentences what the size comes from.
    """

    size: float | None
    df: int
    runs: int
    relative: bool
    why: str = ""
    step: float = 0.0
    what: str = "the noise"

    def half_width(self, left: int, right: int, level: float = LEVEL) -> float | None:
        """Return the half width of the interval on an effect of `left` against `right` runs."""
        if self.size is None:
            return None
        half = two_sided(level, self.df) * self.size * math.sqrt(1 / left + 1 / right)
        return max(half, self.step)

    def floor(self, left: int, right: int) -> Floor:
        """Return the smallest effect that this noise allows to be called."""
        half = self.half_width(left, right)
        if half is None:
            return Floor(None, self.runs, self.relative, self.why)
        size = math.exp(half) if self.relative else half
        return Floor(size, self.runs, self.relative, what=self.what)


def noise(same: Sequence[Value], repeats: Sequence[Sequence[Value]], relative: bool) -> Noise:
    """Return the noise over runs that are the same configuration.

    `same` are identical runs, perhaps under several names; each of `repeats` are the repeats of one
    more configuration. Of these, what is only a bound (or 0, where a factor is formed) says nothing
    on noise and is left out; among identical runs it leaves the noise unknown.
    """
    plain = [[v for v in group if not (v.bound or v.at_most)] for group in repeats]
    groups = [same, *([v for v in group if v.value > 0 or not relative] for group in plain)]
    kept = [group for group in groups if len(group) > 1]
    runs = sum(len(group) for group in kept)
    if not kept:
        why = f"{len(same)} identical runs, at least 2 are needed"
        return Noise(None, 0, len(same), relative, why)
    values = [value for group in kept for value in group]
    if any(value.bound for value in values):
        why = "one of the identical runs is known as a lower bound only"
    elif any(value.at_most for value in values):
        why = "one of the identical runs is too short to be resolved"
    elif relative and any(value.value <= 0 for value in values):
        why = "an identical run measured 0: no factor can be formed"
    else:
        scale = np.log if relative else np.asarray
        parts = [scale(np.array([v.value for v in group])) for group in kept]
        squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
        df = runs - len(kept)
        step = _step([*same, *(value for group in plain for value in group)], relative)
        measured, least = math.sqrt(squares / df), step / math.sqrt(12)
        if not max(measured, least):
            return Noise(None, 0, runs, relative, NO_SPREAD)
        if measured < least:
            return Noise(least, df, runs, relative, step=step, what="the resolution's noise")
        return Noise(measured, df, runs, relative, step=step)
    return Noise(None, 0, runs, relative, why)


def _step(values: Sequence[Value], relative: bool) -> float:
    """Return the coarsest resolution of `values`: of their logarithms if `relative`."""
    if not relative:
        return max(value.resolution for value in values)
    return max(math.log1p(v.resolution / v.value) for v in values if v.value > 0)


@dataclass(frozen=True)
class Effect:
    """Left / right of the medians over repeats (left - right of shares), with its interval."""

    effect: float
    low: float
    high: float
    relative: bool
    method: str


def effect(left: Sequence[Value], right: Sequence[Value], noises: Sequence[Noise]) -> Effect | None:
    """Return the effect with its interval, or None where a bound, a 0 or no noise forbids one.

    The interval is that of the largest of `noises`; with two repeats of both sides or more, it is
    at each end the wider of that and the bootstrap over repeats.
    """
    halves = [noise.half_width(len(left), len(right)) for noise in noises]
    widest = max((half for half in halves if half is not None), default=None)
    relative = noises[0].relative
    values = [*left, *right]
    if widest is None or None in halves or any(v.bound or v.at_most for v in values):
        return None
    lefts, rights = [v.value for v in left], [v.value for v in right]
    if not relative:
        middle = float(np.median(lefts)) - float(np.median(rights))
        return Effect(middle, middle - widest, middle + widest, relative, "noise")
    if min(v.value for v in values) <= 0:
        return None
    ratio = float(np.median(lefts)) / float(np.median(rights))
    low, high, method = ratio * math.exp(-widest), ratio * math.exp(widest), "noise"
    if min(len(left), len(right)) > 1:
        a, b, _ = ratio_interval([[v] for v in rights], [[v] for v in lefts], LEVEL)
        low, high, method = min(low, a), max(high, b), "bootstrap and noise"
    return Effect(ratio, low, high, relative, method)


def compare_runs(
    left: Sequence[Value], right: Sequence[Value], found: Noise, margin: float = MARGIN
) -> Comparison:
    """Return the verdict on left / right, one value a repeat; smaller is faster.

    See `effect` for the interval. A value that is only a bound gives none; it decides where what it
    stands for is further apart still.
    """
    if not left or not right:
        raise ValueError("a verdict needs a value on both sides: say 'not measured' instead")
    if found.size is None:
        return Comparison(math.nan, None, UNDECIDABLE, f"no noise floor: {found.why}")
    span = effect(left, right, [found])
    if span:
        interval = Interval(span.low, span.high, LEVEL, span.method)
        return ratio_verdict(span.effect, interval, margin)
    judged = judge(left, right, "below", [found.floor(len(left), len(right))])
    says = {REPRODUCED: FASTER, CONTRADICTED: SLOWER}.get(judged.verdict, UNDECIDABLE)
    return Comparison(math.nan, None, says, f"a side is a bound or 0: {judged.why}")

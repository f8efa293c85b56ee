"""Verdicts on directional claims, against the noise floor of identical configurations.

The floor is the spread of one statistic over runs that differ in name only. An effect that is no
larger than that spread could be had by running the same thing twice, so it is undecidable, and so
is every effect while fewer than two identical runs are there to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

REPRODUCED = "reproduced"
CONTRADICTED = "contradicted"
UNDECIDABLE = "undecidable"
NOT_MEASURED = "not measured"

NO_SPREAD = "the identical runs measured exactly the same, which says nothing on their noise"


@dataclass(frozen=True)
class Value:
    """One measured value; `bound` marks a lower bound (a timeout, a drain that hit its limit).

    `at_most` marks an upper one: a time that is shorter than what the polls can resolve.
    `resolution` is the step between two values that could have been measured, in the same unit
    (one point of a share, the time between two polls); 0 where it is not known.
    Raises ValueError for what is no number, or a resolution below 0.
    """

    value: float
    bound: bool = False
    at_most: bool = False
    resolution: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a measured value is a number, not {self.value}")
        if not (math.isfinite(self.resolution) and self.resolution >= 0):
            raise ValueError(f"a resolution is 0 or more, not {self.resolution}")


@dataclass(frozen=True)
class Floor:
    """Noise floor of one statistic: `size` is a factor (1.0 = none) or, for shares, a difference.

    `runs` is the number of identical runs it rests on; `size` is None below two, when one of the
    values is only a lower bound, or when all are equal. `what` names the size in sentences.
    """

    size: float | None
    runs: int
    relative: bool
    why: str = ""
    what: str = "the spread"


@dataclass(frozen=True)
class Verdict:
    """Outcome of a claim, with the effect and floor it was decided on and the reason in words."""

    verdict: str
    why: str
    effect: float | None = None
    floor: float | None = None


def noise_floor(values: Sequence[Value], relative: bool) -> Floor:
    """Return the spread of `values` of identical runs: max / min if `relative`, else max - min."""
    n = len(values)
    if n < 2:
        return Floor(None, n, relative, f"{n} identical runs, at least 2 are needed")
    if any(v.bound for v in values):
        return Floor(None, n, relative, "one of the identical runs is known as a lower bound only")
    if any(v.at_most for v in values):
        return Floor(None, n, relative, "one of the identical runs is too short to be resolved")
    low, high = min(v.value for v in values), max(v.value for v in values)
    if low == high:
        return Floor(None, n, relative, NO_SPREAD)
    if not relative:
        return Floor(high - low, n, relative)
    if low <= 0:
        return Floor(None, n, relative, "an identical run measured 0: no factor can be formed")
    return Floor(high / low, n, relative)


def judge(
    left: Sequence[Value], right: Sequence[Value], direction: str, floors: Sequence[Floor]
) -> Verdict:
    """Return the verdict on "every left is `direction` (above, below) every right".

    `left` and `right` hold one value a repeat, not averaged. They overlap: undecidable. Else the
    effect is the gap between the closest pair (as a factor or a difference, like the floor), and
    must exceed the largest of `floors`. A lower bound may only sit on the larger side, an upper
    one on the smaller: what they stand for is further apart still.
    """
    if not left or not right:
        raise ValueError("a verdict needs a value on both sides: say 'not measured' instead")
    if direction not in ("above", "below"):
        raise ValueError(f"direction must be above or below, not {direction!r}")
    relative = floors[0].relative
    for claimed, higher, lower in (
        (direction == "above", left, right),
        (direction == "below", right, left),
    ):
        top, bottom = max(v.value for v in lower), min(v.value for v in higher)
        if bottom <= top:
            continue
        if any(v.bound for v in lower):
            return Verdict(UNDECIDABLE, "the smaller side is known as a lower bound only")
        if any(v.at_most for v in higher):
            return Verdict(UNDECIDABLE, "the larger side is too short to be resolved")
        effect = _effect(bottom, top, relative)
        if effect is None:
            return Verdict(UNDECIDABLE, "the smaller side measured 0: no factor can be formed")
        return _against_floor(effect, floors, claimed)
    return Verdict(UNDECIDABLE, "the repeats of both sides overlap or are equal")


def judge_seen(seen: Sequence[bool], expected: bool) -> Verdict:
    """Return the verdict on a yes-or-no observation: all repeats must agree to decide it."""
    if not seen:
        raise ValueError("a verdict needs at least one observation: say 'not measured' instead")
    if len(set(seen)) > 1:
        return Verdict(UNDECIDABLE, f"seen in {sum(seen)} of {len(seen)} repeats")
    times = f"seen in {sum(seen)} of {len(seen)} runs"
    return Verdict(REPRODUCED if seen[0] == expected else CONTRADICTED, times)


def _effect(high: float, low: float, relative: bool) -> float | None:
    if not relative:
        return high - low
    return high / low if low > 0 else None


def _against_floor(effect: float, floors: Sequence[Floor], claimed: bool) -> Verdict:
    missing = [floor for floor in floors if floor.size is None]
    if missing:
        return Verdict(UNDECIDABLE, f"no noise floor: {missing[0].why}", effect)
    floor, what = max((f.size, f.what) for f in floors if f.size is not None)
    show = f"{effect:.2f}x" if floors[0].relative else _share(effect)
    against = f"{floor:.2f}x" if floors[0].relative else _share(floor)
    spread = f"{what} {against} over {min(f.runs for f in floors)} identical runs"
    if effect <= floor:
        return Verdict(UNDECIDABLE, f"effect {show} is within {spread}", effect, floor)
    verdict = REPRODUCED if claimed else CONTRADICTED
    return Verdict(verdict, f"effect {show} against {spread}", effect, floor)


def _share(size: float) -> str:
    """Return a difference of shares; a tiny one is not shown as 0."""
    return f"{size:.3f}" if size >= 0.001 else f"{size:.1g}"

"""Verdicts on a ratio new / old: faster, slower, equivalent or undecidable, each with its reason.

The interval is the wider, at each end, of two:

- the percentile interval of the hierarchical bootstrap (`refill.stats.resampling`), and
- Student's t on the medians of the rounds, in logarithms, around the same estimate.

A bootstrap of two rounds draws each of them twice in a quarter of its resamples and knows no spread
beyond the two, so its interval alone is far too narrow (Davison and Hinkley 1997, section 2.4 on
small samples; A. Georges, D. Buytaert, L. Eeckhout, "Statistically Rigorous Java Performance
Evaluation", OOPSLA 2007, section 3.2, on t for few runs). Student's t pays for the few rounds: with
one block its factor is 4.30. Rounds of a block are neighbours in time, so what a whole block shares
is taken out before their spread is formed: blocks + 1 means are fitted to 4 x blocks rounds.

Equivalence is the interval-inclusion rule (D. J. Schuirmann, J. Pharmacokin. Biopharm. 15, 1987,
pp. 657-680): the whole interval within the margin. At a level of 95 % it is stricter than usual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refill.stats.resampling import Rounds, arm_median, log_medians, ratio_interval
from refill.stats.student import two_sided
from refill.stats.verdict import NOT_MEASURED, UNDECIDABLE

FASTER = "faster"
SLOWER = "slower"
EQUIVALENT = "equivalent"
INVALID = "invalid"
VERDICTS = (FASTER, SLOWER, EQUIVALENT, UNDECIDABLE, NOT_MEASURED, INVALID)

LEVEL = 0.95
MARGIN = 0.05
MIN_ROUNDS = 2
PER_BLOCK = 2


@dataclass(frozen=True)
class Interval:
    """Bounds of a ratio at `level`; `method` says how the resamples were formed."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True)
class Drift:
    """What moved beside the thing compared; each a factor around 1, None where not known.

    Attributes:
        block: last round of a block by its first, which are of one arm; the geometric mean over
            blocks.
        controls: engines that were not changed: new rounds by old rounds; {} without any.
    """

    block: float | None
    controls: dict[str, float]

    @property
    def factor(self) -> float:
        """The largest of all, as a factor of at least 1."""
        known = [*self.controls.values(), *([] if self.block is None else [self.block])]
        return max((max(value, 1 / value) for value in known), default=1.0)


NO_DRIFT = Drift(None, {})


@dataclass(frozen=True)
class Comparison:
    """The outcome for one cell and quantile.

    Attributes:
        ratio: new / old of the medians of all trials.
        interval: of the ratio; None with fewer than two rounds of an arm.
        verdict: one of `VERDICTS`.
        why: the reason in a sentence.
        mde_faster: largest ratio below 1 that would have been called faster with these rounds.
        mde_slower: smallest ratio above 1 that would have been called slower.
    """

    ratio: float
    interval: Interval | None
    verdict: str
    why: str
    mde_faster: float | None = None
    mde_slower: float | None = None


def compare(
    old: Rounds,
    new: Rounds,
    margin: float = MARGIN,
    drift: Drift = NO_DRIFT,
    in_blocks: bool = True,
    level: float = LEVEL,
) -> Comparison:
    """Return the verdict on new / old, smaller being faster.

    Args:
        old: trial quantiles by round, any unit; see `refill.stats.resampling.Rounds`.
        new: the same of the other arm.
        margin: share by which medians may differ and still be equivalent.
        drift: what moved meanwhile; an effect that is no larger is not called.
        in_blocks: rounds 2 k - 1 and 2 k of both arms are neighbours in time.
        level: of the interval.

    Raises ValueError as `ratio_interval` does.
    """
    ratio = arm_median(new) / arm_median(old)
    if min(len(old), len(new)) < MIN_ROUNDS:
        return Comparison(ratio, None, UNDECIDABLE, "one round of an arm gives no interval")
    low, high, method = ratio_interval(old, new, level)
    half = half_width(old, new, level, in_blocks)
    interval = Interval(
        min(low, ratio * math.exp(-half)), max(high, ratio * math.exp(half)), level, method
    )
    return ratio_verdict(ratio, interval, margin, drift)


def ratio_verdict(
    ratio: float, interval: Interval, margin: float = MARGIN, drift: Drift = NO_DRIFT
) -> Comparison:
    """Return the verdict on a ratio whose interval is known; smaller is faster."""
    faster, slower = smallest_effects(ratio, interval, margin, drift)
    verdict, why = _verdict(ratio, interval, margin, drift, faster, slower)
    return Comparison(ratio, interval, verdict, why, faster, slower)


def half_width(old: Rounds, new: Rounds, level: float, in_blocks: bool) -> float:
    """Return the half width of Student's interval of the logarithm of new / old."""
    variance, df = spread(old, new, in_blocks)
    return two_sided(level, df) * math.sqrt(variance * (1 / len(old) + 1 / len(new)))


def spread(old: Rounds, new: Rounds, in_blocks: bool) -> tuple[float, int]:
    """Return the variance of the logarithms of rounds of one arm, and its degrees of freedom."""
    a, b = log_medians(old), log_medians(new)
    if in_blocks and len(a) == len(b) and len(a) % PER_BLOCK == 0:
        blocks = len(a) // PER_BLOCK
        both = np.stack([a.reshape(blocks, PER_BLOCK), b.reshape(blocks, PER_BLOCK)])
        left = both - both.mean(axis=(0, 2), keepdims=True)
        left -= left.mean(axis=(1, 2), keepdims=True)
        squares, df = float((left**2).sum()), both.size - blocks - 1
    else:
        squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
        df = len(a) + len(b) - 2
    return squares / df, df


def smallest_effects(
    ratio: float, interval: Interval, margin: float, drift: Drift
) -> tuple[float, float]:
    """Return (largest ratio called faster, smallest called slower) for this interval's width.

    A true effect scales all trials of an arm, and with them estimate and interval alike; it is
    called once the interval leaves 1, is not wholly within the margin, and exceeds the drift.
    """
    below, above = ratio / interval.high, ratio / interval.low
    faster = min(below, above / (1 + margin), 1 / drift.factor)
    slower = max(above, below * (1 + margin), drift.factor)
    return faster, slower


def block_drift(old: Rounds, new: Rounds) -> float | None:
    """Return last by first round of a block, which are of one arm; geometric mean over blocks.

    Odd blocks begin and end with old, even ones with new. None when rounds are missing.
    """
    a, b = log_medians(old), log_medians(new)
    if len(a) != len(b) or not len(a) or len(a) % PER_BLOCK:
        return None
    steps = [
        float(arm[PER_BLOCK * block + 1] - arm[PER_BLOCK * block])
        for block in range(len(a) // PER_BLOCK)
        for arm in [b if block % 2 else a]
    ]
    return math.exp(float(np.mean(steps)))


def _verdict(
    ratio: float, interval: Interval, margin: float, drift: Drift, faster: float, slower: float
) -> tuple[str, str]:
    span = f"the {interval.level:.0%} interval {interval.low:.3f} to {interval.high:.3f}"
    if interval.low >= 1 / (1 + margin) and interval.high <= 1 + margin:
        return EQUIVALENT, f"{span} is within the margin of {margin:.0%}"
    called = FASTER if interval.high < 1 else SLOWER if interval.low > 1 else None
    if called is None:
        return UNDECIDABLE, f"{span} holds 1; {_detectable(faster, slower)}"
    if max(ratio, 1 / ratio) <= drift.factor:
        moved = f"{_moved(drift)} moved by {drift.factor:.2f}x meanwhile"
        return UNDECIDABLE, f"{moved}, no less than the effect; {_detectable(faster, slower)}"
    return called, f"{span} is {'below' if called == FASTER else 'above'} 1"


def _detectable(faster: float, slower: float) -> str:
    return f"a ratio below {faster:.2f} or above {slower:.2f} would have been called"


def _moved(drift: Drift) -> str:
    """Name what drifted most."""
    known = [
        *drift.controls.items(),
        *([] if drift.block is None else [("the block", drift.block)]),
    ]
    return max(known, key=lambda item: max(item[1], 1 / item[1]))[0]


def false_calls(verdicts: Sequence[str]) -> int:
    """Return how many verdicts call a difference; between two arms of one image all are false."""
    return sum(verdict in (FASTER, SLOWER) for verdict in verdicts)

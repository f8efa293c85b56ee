"""How many blocks of rounds would decide a ratio, from the spread of the rounds that are there.

The number is the smallest for which an effect of the wanted size would be called at the level of
the intervals with the power, were the rounds to vary as the measured ones do: Student's t at both,
the usual size of a sample for two means (G. W. Snedecor and W. G. Cochran, "Statistical Methods",
8th ed. 1989, section 6.14; NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.2.2). For
equivalence both ends of the interval must be within the margin, each with half of what the power
leaves (S. A. Julious, Statistics in Medicine 23, 2004, pp. 1921-1986, section 5).

A spread of four rounds is itself known to a factor of two or so: read the number as "about".
"""

from __future__ import annotations

import math
from bisect import bisect_left

from refill.stats.ratios import LEVEL, MARGIN, PER_BLOCK, spread
from refill.stats.resampling import Rounds
from refill.stats.student import two_sided

POWER = 0.8
MOST_BLOCKS = 200
"""No larger number is looked for: another machine is the better way then."""


def blocks_to_decide(
    old: Rounds,
    new: Rounds,
    wanted: float,
    margin: float = MARGIN,
    in_blocks: bool = True,
    level: float = LEVEL,
) -> int | None:
    """Return the blocks that would decide a ratio of `wanted`; None for more than `MOST_BLOCKS`.

    Args:
        old: trial quantiles by round, at least two rounds; see `refill.stats.resampling.Rounds`.
        new: the same of the other arm.
        wanted: the ratio to be told from 1, or, within the margin, from a difference.
        margin: share by which medians may differ and still be equivalent.
        in_blocks: as for `refill.stats.ratios.compare`.
        level: of the interval.

    Raises ValueError when `wanted` is not above 0.
    """
    if not wanted > 0:
        raise ValueError(f"a ratio is above 0, not {wanted}")
    variance, _ = spread(old, new, in_blocks)
    effect, edge = abs(math.log(wanted)), math.log1p(margin)
    alike = effect <= edge
    # One tail of what the power leaves, or one half of it on each side.
    tail = POWER if alike else 2 * POWER - 1
    size = edge if alike else effect

    def decides(blocks: int) -> bool:
        rounds = PER_BLOCK * blocks
        df = 2 * rounds - 1 - (blocks if in_blocks else 1)
        error = math.sqrt(variance * 2 / rounds)
        return (two_sided(level, df) + two_sided(tail, df)) * error <= size

    # Each further block narrows the interval, so the first that decides is found by halving.
    found = bisect_left(range(1, MOST_BLOCKS + 1), True, key=decides) + 1
    return found if found <= MOST_BLOCKS else None

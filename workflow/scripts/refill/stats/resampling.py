"""Hierarchical bootstrap of the ratio of two medians: rounds first, then trials within a round.

Rounds are what varies between two measurements of one thing (new processes, another layout in
memory, the machine at that minute); trials of one round share all of it. Resampling trials alone
would take three looks at one round for three rounds.

Sources: T. Kalibera and R. Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013, pp. 63-74
(levels of repetition, ratio of means with its interval); A. C. Davison and D. V. Hinkley,
"Bootstrap Methods and their Application", Cambridge 1997, section 3.8 (both levels with
replacement) and 5.3 (percentile interval). Latencies are skewed, so the figure here is the median,
as in the source of the experiment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from refill.stats.quantiles import nearest_rank, rank

Rounds = Sequence[Sequence[float]]
"""One sequence a round, of one quantile of each of its trials, all above 0."""

EXACT_LIMIT = 20_000
"""Resamples of one arm up to which all of them are formed: 2 rounds of 3 trials have 2,916."""
DRAWS = 1_999
SEED = 20_130_620


def arm_median(rounds: Rounds) -> float:
    """Return the median of all trials of an arm: of an even number the mean of the middle two."""
    return float(np.median(checked(rounds)))


def ratio_interval(old: Rounds, new: Rounds, level: float) -> tuple[float, float, str]:
    """Return (low, high, method) of the ratio new / old of `arm_median`.

    Every resample of an arm draws as many rounds as it has, and from each of these as many trials
    as it has, both with replacement. Up to `EXACT_LIMIT` resamples an arm, all pairs are formed and
    `method` is "exact"; else `DRAWS` pairs are drawn by a fixed seed and it is "drawn". The bounds
    are the nearest-rank quantiles at (1 - level) / 2 and 1 - (1 - level) / 2.

    Raises ValueError on an arm without rounds, rounds with unequal numbers of trials, and values
    that are not above 0.
    """
    tail = (1 - level) / 2
    a, b = checked(old), checked(new)
    if max(resamples(*a.shape), resamples(*b.shape)) <= EXACT_LIMIT:
        ratios, weights = _all_ratios(_all_medians(a), _all_medians(b))
        # At least half a resample below each bound: an exact distribution has no more to give.
        low, high = (_weighted(ratios, weights, q) for q in (tail, 1 - tail))
        return low, high, "exact"
    rng = np.random.default_rng(SEED)
    drawn = _drawn_medians(b, rng) / _drawn_medians(a, rng)
    return nearest_rank(drawn, tail), nearest_rank(drawn, 1 - tail), "drawn"


def resamples(rounds: int, trials: int) -> int:
    """Return the number of ordered resamples of an arm."""
    return int(rounds**rounds * trials ** (rounds * trials))


def checked(rounds: Rounds) -> NDArray[np.float64]:
    """Return the arm as an array (rounds, trials); raise ValueError when it cannot be one."""
    counts = sorted({len(trials) for trials in rounds})
    if not counts or counts[0] == 0:
        raise ValueError("an arm needs at least one round, and a round at least one trial")
    if len(counts) > 1:
        raise ValueError(f"rounds have {counts} trials: compare rounds with equal counts only")
    values = np.asarray(rounds, dtype=np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("a ratio needs finite values above 0")
    return values


@lru_cache(maxsize=32)
def _places(rounds: int, trials: int) -> NDArray[np.int64]:
    """All resamples of an arm, one a row, as places in its values laid out round after round."""
    drawn_rounds = np.array(list(itertools.product(range(rounds), repeat=rounds)))
    drawn_trials = np.array(list(itertools.product(range(trials), repeat=rounds * trials)))
    starts = np.repeat(drawn_rounds * trials, trials, axis=1)
    return np.asarray(
        (starts[:, None, :] + drawn_trials[None]).reshape(-1, rounds * trials), dtype=np.int64
    )


def _all_medians(arm: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    medians = np.median(arm.ravel()[_places(*arm.shape)], axis=1)
    values, counts = np.unique(medians, return_counts=True)
    return values, counts.astype(np.int64)


def _all_ratios(
    old: tuple[NDArray[np.float64], NDArray[np.int64]],
    new: tuple[NDArray[np.float64], NDArray[np.int64]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    ratios = (new[0][:, None] / old[0][None, :]).ravel()
    weights = (new[1][:, None] * old[1][None, :]).ravel()
    order = np.argsort(ratios, kind="stable")
    return ratios[order], weights[order]


def _weighted(values: NDArray[np.float64], weights: NDArray[np.int64], q: float) -> float:
    """Return the nearest-rank quantile of values that stand `weights` times each, in order."""
    reached = np.cumsum(weights)
    return float(values[np.searchsorted(reached, rank(q, int(reached[-1])))])


def _drawn_medians(arm: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    rounds, trials = arm.shape
    # In parts, so that many blocks do not take gigabytes.
    part = max(1, 2_000_000 // (rounds * trials))
    found = []
    for start in range(0, DRAWS, part):
        size = min(part, DRAWS - start)
        chosen = rng.integers(rounds, size=(size, rounds, 1))
        inside = rng.integers(trials, size=(size, rounds, trials))
        found.append(np.median(arm[chosen, inside].reshape(size, -1), axis=1))
    return np.concatenate(found)


def log_medians(rounds: Rounds) -> NDArray[np.float64]:
    """Return the logarithm of the median of each round's trials."""
    return np.asarray(
        [math.log(float(np.median(trials))) for trials in checked(rounds)], dtype=np.float64
    )

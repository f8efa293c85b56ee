"""Sessions drawn from measured rounds of one image: how often does the rule call what is not there?

A session is a stretch of rounds in the order in which they were measured (or its reverse), with a
round left out now and then, so that the drift and the neighbourhood of real rounds stay in it. Its
rounds are named old and new in the order of the blocks. All are of one image, so a call is false;
with the values of `new` scaled by a factor, a call in that direction is right.

Nothing is drawn within a trial: its quantile already has the noise of its requests, and drawing
requests again would add it a second time.

Source of the idea: block bootstrap of dependent data, H. R. Kunsch, "The Jackknife and the
Bootstrap for General Stationary Observations", Annals of Statistics 17(3), 1989, pp. 1217-1241.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refill.stats.ratios import (
    EQUIVALENT,
    FASTER,
    MARGIN,
    SLOWER,
    Comparison,
    Drift,
    block_drift,
    compare,
)

LEFT_OUT = 0.25
"""Share of steps between two rounds of a session that pass over a round."""


@dataclass(frozen=True)
class Rates:
    """What became of the verdicts of many sessions: shares of all verdicts.

    Attributes:
        verdicts: their number (sessions x cells and quantiles).
        faster, slower, equivalent: shares; the rest is undecidable.
        sessions_with_a_call: share of sessions in which any cell was called.
        worst: share of calls in the cell and quantile that has most.
    """

    verdicts: int
    faster: float
    slower: float
    equivalent: float
    sessions_with_a_call: float
    worst: float

    @property
    def called(self) -> float:
        """Share of verdicts that call a difference."""
        return self.faster + self.slower


def draw(rounds: int, wanted: int, rng: np.random.Generator) -> list[int]:
    """Return `wanted` places of a stretch of `rounds` measured ones, in their order or its reverse.

    Raises ValueError when there are fewer rounds than wanted.
    """
    if rounds < wanted:
        raise ValueError(f"{wanted} rounds are wanted, {rounds} are there: measure more blocks")
    passed = rng.random(wanted - 1) < LEFT_OUT
    # A stretch that would be too long passes over fewer.
    while wanted + passed.sum() > rounds:
        passed[rng.choice(np.flatnonzero(passed))] = False
    places = np.concatenate([[0], np.cumsum(1 + passed)])
    places += rng.integers(rounds - int(places[-1]))
    return [int(place) for place in (places[::-1] if rng.random() < 0.5 else places)]


def simulate(
    measured: NDArray[np.float64],
    names: Sequence[tuple[str, int]],
    sessions: int,
    seed: int,
    factor: float = 1.0,
    margin: float = MARGIN,
) -> Rates:
    """Return the rates over `sessions` sessions.

    Args:
        measured: (rounds, cells and quantiles, trials), rounds in the order of measuring.
        names: (arm, number) in the order of a session, as `refill.phases.round_plan.order` gives.
        sessions: how many are drawn.
        seed: of the draw.
        factor: by which all values of the arm `new` are multiplied.
        margin: of equivalence.
    """
    rng = np.random.default_rng(seed)
    outcomes = np.empty((sessions, measured.shape[1]), dtype=object)
    for session in range(sessions):
        drawn = measured[draw(len(measured), len(names), rng)]
        for cell in range(measured.shape[1]):
            outcomes[session, cell] = _one(drawn[:, cell], names, factor, margin).verdict
    calls = (outcomes == FASTER) | (outcomes == SLOWER)
    return Rates(
        verdicts=int(outcomes.size),
        faster=float((outcomes == FASTER).mean()),
        slower=float((outcomes == SLOWER).mean()),
        equivalent=float((outcomes == EQUIVALENT).mean()),
        sessions_with_a_call=float(calls.any(axis=1).mean()),
        worst=float(calls.mean(axis=0).max()),
    )


def _one(
    trials: NDArray[np.float64], names: Sequence[tuple[str, int]], factor: float, margin: float
) -> Comparison:
    """Compare the arms of one session in one cell; `trials` is (rounds, trials) in its order."""
    arms = {}
    for arm, scale in (("old", 1.0), ("new", factor)):
        places = sorted((n, place) for place, (name, n) in enumerate(names) if name == arm)
        arms[arm] = [[float(v) * scale for v in trials[place]] for _, place in places]
    drift = Drift(block_drift(arms["old"], arms["new"]), {})
    return compare(arms["old"], arms["new"], margin, drift)

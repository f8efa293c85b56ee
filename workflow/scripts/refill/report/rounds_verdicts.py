"""Verdicts of the cells of the gateway rounds, with what drifted beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from refill.report.lookup import NOT_MEASURED
from refill.stats.planning import MOST_BLOCKS, blocks_to_decide
from refill.stats.ratios import (
    FASTER,
    INVALID,
    LEVEL,
    MIN_ROUNDS,
    SLOWER,
    Comparison,
    Drift,
    block_drift,
    compare,
)
from refill.stats.resampling import Rounds, arm_median
from refill.stats.verdict import UNDECIDABLE

Trials = Mapping[str, Sequence[Sequence[float]]]
"""Trial quantiles by arm (old, new) and round."""

PARTS = (
    "ratio_low", "ratio_high", "verdict", "why", "mde_faster", "mde_slower", "drift_block",
    "drift_controls", "blocks_to_decide",
)  # fmt: skip


def verdict_columns(quantile: str) -> list[str]:
    """Return the names of the columns of a quantile's verdict (`p50` gives p50_ratio_low, ...)."""
    return [f"{quantile}_{part}" for part in PARTS]


def drift(trials: Trials, controls: Mapping[str, Trials]) -> Drift:
    """Return what moved meanwhile: the block itself, and engines that are not of the images.

    Args:
        trials: of the cell that is judged.
        controls: of the same cell of each other engine, where it was measured.
    """
    lost = lost_gauges(controls)
    return Drift(
        block_drift(trials["old"], trials["new"]),
        {
            name: arm_median(other["new"]) / arm_median(other["old"])
            for name, other in controls.items()
            if name not in lost
        },
    )


def lost_gauges(controls: Mapping[str, Trials]) -> list[str]:
    """Return the engines that are in no round of an arm: they cannot tell what moved."""
    return [name for name, other in controls.items() if not all(other.values())]


def compared(trials: Trials, controls: Mapping[str, Trials], margin: float) -> Comparison:
    """Return the verdict on new / old of one cell and quantile.

    With a gauge of drift lost, no difference is called: less evidence makes no verdict firmer.
    """
    found = compare(trials["old"], trials["new"], margin, drift(trials, controls))
    lost = lost_gauges(controls)
    if not lost or found.verdict not in (FASTER, SLOWER):
        return found
    why = (
        f"{' and '.join(lost)}, which would show a drift, was lost in all rounds of an image; "
        f"without it the verdict would be {found.verdict}"
    )
    return replace(found, verdict=UNDECIDABLE, why=why)


def blocks_wanted(
    found: Comparison,
    old: Rounds,
    new: Rounds,
    published: float | None,
    margin: float,
    in_blocks: bool = True,
) -> int | None:
    """Return how many blocks would decide the published ratio; None where that is no question.

    It is one where the verdict is undecidable and a figure was published; `MOST_BLOCKS` + 1 stands
    for more than `MOST_BLOCKS`.
    """
    if found.verdict != UNDECIDABLE or published is None or min(len(old), len(new)) < MIN_ROUNDS:
        return None
    return blocks_to_decide(old, new, published, margin, in_blocks) or MOST_BLOCKS + 1


def blocks_text(blocks: int | None) -> str:
    """Return a number of blocks in words; empty for None."""
    if blocks is None:
        return ""
    if blocks > MOST_BLOCKS:
        return f"more than {MOST_BLOCKS} blocks"
    return f"about {blocks} block{'s' * (blocks > 1)}"


def decided(
    quantile: str,
    trials: Trials,
    controls: Mapping[str, Trials],
    margin: float,
    published: float | None = None,
) -> dict[str, Any]:
    """Return the ratio's and the verdict's columns of one cell and quantile."""
    moved = drift(trials, controls)
    found = compared(trials, controls, margin)
    span = found.interval
    values = (
        span.low if span else None,
        span.high if span else None,
        found.verdict,
        found.why,
        found.mde_faster,
        found.mde_slower,
        moved.block,
        "; ".join(
            [
                *(f"{name} {value:.3f}" for name, value in moved.controls.items()),
                *(f"{name} lost" for name in lost_gauges(controls)),
            ]
        ),
        blocks_wanted(found, trials["old"], trials["new"], published, margin),
    )
    return {
        f"{quantile}_ratio": found.ratio,
        **dict(zip(verdict_columns(quantile), values, strict=True)),
        "interval_level": LEVEL,
        "interval_method": span.method if span else None,
    }


def undecided(quantile: str, status: str) -> dict[str, Any]:
    """Return the verdict's columns of a cell without figures: not measured or invalid, and why."""
    kind, _, why = status.partition(": ")
    verdict = INVALID if kind == INVALID else NOT_MEASURED
    return {f"{quantile}_verdict": verdict, f"{quantile}_why": why}

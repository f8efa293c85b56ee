"""The comparisons of optimizer configurations, each figure with its verdict over repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from refill.report import text
from refill.report.claims import identical_runs
from refill.report.lookup import NOT_MEASURED, figure, phase_of, usable
from refill.report.machine import measured_alike, mixed_runs
from refill.stats.ratios import LEVEL, MARGIN, Comparison
from refill.stats.repeats import compare_runs, noise
from refill.stats.verdict import UNDECIDABLE, Value

Record = Mapping[str, Any]

# (left, right): what left does otherwise than right.
COMPARISONS = (
    ("A3", "A1"), ("A2", "A1"), ("B1", "B2"), ("B3", "B2"), ("B4", "B2"), ("B4", "B3"),
    ("C1", "C2"), ("D1", "D2"), ("E2", "E1"),
)  # fmt: skip
FOLLOWED = ("D", "E")
PLAIN = ("draining", "steady")
FOLLOWUPS = ("followup-draining", "followup-steady")
QUANTILES = ("p50_ms", "p95_ms")
_LOOP = ("left", "right", "ratio", "ratio_low", "ratio_high", "noise", "verdict", "why")
COLUMNS = (
    "comparison", "left_run", "right_run", "phase", "statistic", *_LOOP,
    *(f"closed_{name}" for name in _LOOP),
    "left_recall", "right_recall", "left_visible_share", "right_visible_share",
    "left_repeats", "right_repeats", "identical_runs", "interval_level", "margin",
    "scale", "engine", "embedded",
)  # fmt: skip


def optimizer_verdicts(
    records: Sequence[Record], identical: Sequence[str], margin: float = MARGIN
) -> pd.DataFrame:
    """Return one row a comparison, phase and figure.

    `left` and `right` are the medians over repeats of the open loop, which samples time evenly, so
    a slow minute weighs as much as a fast one; of a drain there is no loop. `closed_*` is the same
    in the closed loop, as published. `ratio` is left / right with its interval, `noise` the factor
    that identical runs allow to be called. Recall (open loop) and the lowest visible share stand in
    the same row, as medians over repeats. Latencies in ms, drains in s.

    Args:
        records: of the optimizer runs.
        identical: ids of what is one configuration under several names.
        margin: share by which two medians may differ and be equivalent.
    """
    same = identical_runs(records, identical).records
    rows = [
        _row(records, same, left, right, phase, statistic, margin)
        for left, right in COMPARISONS
        for phase, statistic in _figures(left)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _figures(run: str) -> list[tuple[str, str]]:
    """Return (phase, statistic) of what is compared of a run: the drain first, then latencies."""
    phases = [*PLAIN, *(FOLLOWUPS if run[0] in FOLLOWED else ())]
    found = []
    for phase in phases:
        if phase.endswith("draining"):
            found.append((phase, "drain_s"))
        found += [(phase, quantile) for quantile in QUANTILES]
    return found


def _row(
    records: Sequence[Record],
    same: Sequence[Record],
    left: str,
    right: str,
    phase: str,
    statistic: str,
    margin: float,
) -> dict[str, Any]:
    sides = {side: [r for r in records if r["id"] == run] for side, run in
             (("left", left), ("right", right))}  # fmt: skip
    used = [record for mine in sides.values() for record in mine]
    row: dict[str, Any] = {
        "comparison": f"{left}-{right}",
        "left_run": left,
        "right_run": right,
        "phase": phase,
        "statistic": statistic,
        "identical_runs": " ".join(f"{r['id']}/{r['repeat']}" for r in same),
        "interval_level": LEVEL,
        "margin": margin,
        "scale": "; ".join(sorted({text.scale(r) for r in used})),
        "engine": "; ".join(sorted({text.engine(r) for r in used})),
        "embedded": any(r["engine"]["embedded"] for r in used) if used else None,
    }
    for side, mine in sides.items():
        kept = [r for r in mine if usable(r)]
        row[f"{side}_repeats"] = len(kept)
        row[f"{side}_recall"] = _median(
            figure(r, "recall_mean", phase, "open") for r in kept if phase_of(r, phase)
        )
        row[f"{side}_visible_share"] = _median(
            figure(r, "visible_share_min", phase, None) for r in kept if phase_of(r, phase)
        )
    loops = ("open", "closed") if statistic in QUANTILES else ("",)
    for loop in loops:
        prefix = "closed_" if loop == "closed" else ""
        found = _decided(sides, same, (left, right), phase, statistic, loop, margin)
        row |= {f"{prefix}{name}": value for name, value in found.items()}
    return row


def _decided(
    sides: Mapping[str, Sequence[Record]],
    same: Sequence[Record],
    runs: tuple[str, str],
    phase: str,
    statistic: str,
    loop: str,
    margin: float,
) -> dict[str, Any]:
    values, missing = {}, []
    for (side, mine), run in zip(sides.items(), runs, strict=True):
        values[side], reasons = _values(mine, phase, statistic, loop)
        missing += reasons if mine else [f"no record of {run}"]
    if not (values["left"] and values["right"]):
        return {"verdict": NOT_MEASURED, "why": "; ".join(dict.fromkeys(missing))}
    used = [r for mine in sides.values() for r in mine if usable(r)]
    # Identical runs have no follow-up: their plain phase stands for its noise.
    identical = _values(
        measured_alike(same, used), phase.removeprefix("followup-"), statistic, loop
    )[0]
    repeats = [values[s] for s, mine in sides.items() if not any(r in same for r in mine)]
    spread = noise(identical, repeats, relative=True)
    found = compare_runs(values["left"], values["right"], spread, margin)
    if differ := mixed_runs(used):
        why = f"the runs differ in {' and in '.join(differ)}: measure them anew"
        found = Comparison(found.ratio, None, UNDECIDABLE, why)
    span = found.interval
    return {
        "left": _shown(values["left"]),
        "right": _shown(values["right"]),
        "ratio": found.ratio,
        "ratio_low": span.low if span else None,
        "ratio_high": span.high if span else None,
        "noise": spread.floor(len(values["left"]), len(values["right"])).size,
        "verdict": found.verdict,
        "why": "; ".join([found.why, *(f"left out: {why}" for why in missing)]),
    }


def _values(
    records: Sequence[Record], phase: str, statistic: str, loop: str
) -> tuple[list[Value], list[str]]:
    got = [figure(r, statistic, phase, loop or None) for r in records]
    known = [value for value in got if isinstance(value, Value)]
    return known, [why for why in got if isinstance(why, str)]


def _median(found: Any) -> float | None:
    known = [value.value for value in found if isinstance(value, Value)]
    return float(pd.Series(known).median()) if known else None


def _shown(values: Sequence[Value]) -> str:
    """Return the median over repeats; marked where it rests on a bound."""
    middle = float(pd.Series([v.value for v in values]).median())
    mark = ">=" if any(v.bound for v in values) else "<=" if any(v.at_most for v in values) else ""
    return f"{mark}{middle:.6g}"

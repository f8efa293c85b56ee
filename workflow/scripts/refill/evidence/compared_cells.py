"""The verdict of each cell of new results against old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refill.config import load_claims
from refill.report.claims import identical_runs
from refill.report.lookup import NOT_MEASURED, figure
from refill.stats.ratios import compare
from refill.stats.repeats import Noise, compare_runs, effect, noise
from refill.stats.resampling import Rounds, arm_median
from refill.stats.verdict import UNDECIDABLE, Value

Record = Mapping[str, Any]
Key = tuple[str, ...]

QUANTILES = ("p50_ms", "p95_ms")
# Statistic, phase, loop: what an optimizer run is compared by, the time-weighted figures first.
_OPTIMIZER = (
    ("drain_s", None, None),
    ("p50_ms", "steady", "open"),
    ("p95_ms", "steady", "open"),
    ("p50_ms", "steady", "closed"),
    ("recall_mean", "steady", "open"),
)
_HEAD = ("cell", "figure", "old", "new", "new/old", "verdict", "why")


def table(old: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """Return lines of a table: one row a cell and figure, its medians, verdict and why."""
    rows = [_HEAD, *_round_rows(old, new), *_optimizer_rows(old, new)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD) - 1)]
    return [
        "  ".join([*(t.ljust(w) for t, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]


def _round_rows(old: Sequence[Record], new: Sequence[Record]) -> list[Key]:
    sides = [_round_values(old), _round_values(new)]
    rows = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = (side.get(key, []) for side in sides)
        middles = [arm_median(side) if side else None for side in (a, b)]
        rows.append(_row(key, middles, partial(_of_rounds, a, b)))
    return rows


def _of_rounds(old: Rounds, new: Rounds) -> tuple[str, str]:
    # Two sessions are no blocks: none of their rounds are neighbours in time.
    decided = compare(old, new, in_blocks=False)
    return decided.verdict, decided.why


def _round_values(records: Sequence[Record]) -> dict[Key, list[list[float]]]:
    """Return the trials' quantiles by round, by cell and figure; invalid cells have none."""
    found: dict[Key, list[list[float]]] = {}
    for record in (r for r in records if r["schema"].startswith("refill.round/")):
        for cell in record["cells"]:
            clients = f"{cell['clients']} client" + ("s" if cell["clients"] > 1 else "")
            place = f"{record['profile']}, {record['image']}, {cell['operation']}"
            where = f"{place}, {cell['engine']}, {clients}"
            for quantile in QUANTILES:
                rounds = found.setdefault((where, f"{cell['profile']} {quantile}"), [])
                if cell["valid"] and record["outcome"] == "completed":
                    rounds.append([trial["stats"][quantile] for trial in cell["trials"]])
    return found


def _optimizer_rows(old: Sequence[Record], new: Sequence[Record]) -> list[Key]:
    sides = [
        [r for r in side if r["schema"].startswith("refill.optimizer-run/")] for side in (old, new)
    ]
    identical = load_claims()["experiments"]["optimizers"]["identical"]
    same = [identical_runs(side, identical).records for side in sides]
    rows = []
    for id_ in dict.fromkeys(r["id"] for side in sides for r in side):
        for what in _OPTIMIZER:
            mine = [[r for r in side if r["id"] == id_] for side in sides]
            a, b = (_figures(side, what) for side in mine)
            share = what[0] == "recall_mean"
            twins = [_figures(side, what) for side in same]
            # A twin's runs are in its group already: counted twice they would halve the noise.
            repeats = [
                _figures([r for r in side if r not in same[n]], what) for n, side in enumerate(mine)
            ]
            found = noise(twins[0], [twins[1], *repeats], not share)
            middles = [
                float(np.median([v.value for v in side])) if side else None for side in (a, b)
            ]
            key = (id_, " ".join(filter(None, [what[1], what[2], what[0]])))
            rows.append(_row(key, middles, partial(_of_runs, a, b, found)))
    return rows


def _of_runs(old: Sequence[Value], new: Sequence[Value], found: Noise) -> tuple[str, str]:
    if found.relative:
        decided = compare_runs(new, old, found)
        return decided.verdict, decided.why
    moved = effect(new, old, [found])
    if moved is None:
        return UNDECIDABLE, f"no noise floor: {found.why}"
    span = f"the difference {moved.effect:+.4f}, its interval {moved.low:+.4f} to {moved.high:+.4f}"
    if moved.low > 0:
        return "higher", span
    return ("lower" if moved.high < 0 else UNDECIDABLE), span


def _figures(records: Sequence[Record], what: tuple[str, str | None, str | None]) -> list[Value]:
    found = (figure(record, *what) for record in records)
    return [value for value in found if isinstance(value, Value)]


def _row(key: Key, middles: Sequence[float | None], decide: Callable[[], tuple[str, str]]) -> Key:
    """Return a row; `decide` gives the verdict and why, where both sides have a figure."""
    shown = ["" if middle is None else f"{middle:.4g}" for middle in middles]
    old, new = middles
    if old is None or new is None:
        absent = " and ".join(n for n, m in (("old", old), ("new", new)) if m is None)
        return (*key, *shown, "", NOT_MEASURED, f"no valid figure in the {absent} results")
    ratio = f"{new / old:.3f}" if old else ""
    return (*key, *shown, ratio, *decide())

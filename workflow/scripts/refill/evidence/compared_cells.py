"""The verdict of each cell of new results against old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refill.config import load_claims
from refill.report.claims import identical_runs
from refill.report.lookup import NOT_MEASURED, figure
from refill.stats.verdict import CONTRADICTED, REPRODUCED, Floor, Value, judge, noise_floor

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


def verdict_of(
    old: Sequence[Value], new: Sequence[Value], floors: Sequence[Floor], words: tuple[str, str]
) -> tuple[str, str]:
    """Return the verdict on new against old values, and why; the one place that decides.

    One value a round or repeat. `words` are those for below and above, such as faster and slower.
    """
    decided = judge(new, old, "below", floors)
    known = {REPRODUCED: words[0], CONTRADICTED: words[1]}
    return known.get(decided.verdict, decided.verdict), decided.why


def _round_rows(old: Sequence[Record], new: Sequence[Record]) -> list[Key]:
    sides = [_round_values(old), _round_values(new)]
    rows = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(key, []) for side in sides]
        floors = [noise_floor(side, relative=True) for side in values]
        rows.append(_row(key, values, floors, ("faster", "slower")))
    return rows


def _round_values(records: Sequence[Record]) -> dict[Key, list[Value]]:
    """Return the median of each round's trials, by cell and figure; invalid cells have none."""
    found: dict[Key, list[Value]] = {}
    for record in (r for r in records if r["schema"].startswith("refill.round/")):
        for cell in record["cells"]:
            clients = f"{cell['clients']} client" + ("s" if cell["clients"] > 1 else "")
            place = f"{record['profile']}, {record['image']}, {cell['operation']}"
            where = f"{place}, {cell['engine']}, {clients}"
            for quantile in QUANTILES:
                values = found.setdefault((where, f"{cell['profile']} {quantile}"), [])
                if cell["valid"] and record["outcome"] == "completed":
                    trials = [trial["stats"][quantile] for trial in cell["trials"]]
                    values.append(Value(float(np.median(trials))))
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
            values = [_figures([r for r in side if r["id"] == id_], what) for side in sides]
            share = what[0] == "recall_mean"
            floors = [noise_floor(_figures(side, what), not share) for side in same]
            words = ("lower", "higher") if share else ("faster", "slower")
            key = (id_, " ".join(filter(None, [what[1], what[2], what[0]])))
            rows.append(_row(key, values, floors, words))
    return rows


def _figures(records: Sequence[Record], what: tuple[str, str | None, str | None]) -> list[Value]:
    found = (figure(record, *what) for record in records)
    return [value for value in found if isinstance(value, Value)]


def _row(
    key: Key, values: Sequence[Sequence[Value]], floors: Sequence[Floor], words: tuple[str, str]
) -> Key:
    middles = [float(np.median([v.value for v in side])) if side else None for side in values]
    shown = ["" if middle is None else f"{middle:.4g}" for middle in middles]
    old, new = middles
    if old is None or new is None:
        absent = " and ".join(n for n, m in (("old", old), ("new", new)) if m is None)
        return (*key, *shown, "", NOT_MEASURED, f"no valid figure in the {absent} results")
    ratio = f"{new / old:.3f}" if old else ""
    return (*key, *shown, ratio, *verdict_of(values[0], values[1], floors, words))

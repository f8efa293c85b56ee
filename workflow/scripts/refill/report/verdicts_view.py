"""What the page shows of verdicts on ratios: a chip with the word, an interval, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from refill.report import text
from refill.report.lookup import NOT_MEASURED
from refill.report.optimizer_verdicts import optimizer_verdicts
from refill.report.views import Cell, Table
from refill.stats.ratios import EQUIVALENT, FASTER, INVALID, SLOWER
from refill.stats.verdict import UNDECIDABLE

Record = Mapping[str, Any]

LOOKS = {
    FASTER: "state ok",
    SLOWER: "state bad",
    EQUIVALENT: "state ok",
    UNDECIDABLE: "state warn",
    INVALID: "state bad",
    NOT_MEASURED: "state missing",
}
# Answers that differ by more in recall, or in the share of the points that are visible, are not of
# the same work: a latency on one side is then no gain over the other.
ALIKE = 0.02
_FIGURES = {"drain_s": "drain, s", "p50_ms": "p50, ms", "p95_ms": "p95, ms"}
_TRUTH = (("recall", "recall"), ("visible points", "visible_share"))


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table by column name."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def verdict_cell(verdict: str, note: str = "") -> Cell:
    """Return a verdict as a word in a chip, with a note below it."""
    return Cell(verdict, kind=LOOKS[verdict], note=note)


def ratio_text(ratio: Any, low: Any, high: Any) -> str:
    """Return a ratio with its interval, as far as they are known."""
    if ratio is None or pd.isna(ratio):
        return text.NONE
    if low is None or pd.isna(low):
        return f"{ratio:.2f}"
    return f"{ratio:.2f} {text.between(low, high)}"


def detectable(faster: Any, slower: Any) -> str:
    """Return the smallest effects that would have been called, in words."""
    if faster is None or pd.isna(faster):
        return ""
    return f"called below {faster:.2f} or above {slower:.2f}"


def comparisons(records: Sequence[Record], identical: Sequence[str]) -> Table:
    """Return the comparisons of optimizer configurations as a table."""
    rows = []
    for row in rows_of(optimizer_verdicts(records, identical)):
        known = [f"{row['left_repeats']} and {row['right_repeats']} runs"]
        rows.append(
            [
                Cell(f"{row['left_run']} by {row['right_run']}", str(row["phase"]), "name"),
                Cell("", kind="state ok"),
                Cell(_FIGURES[str(row["statistic"])], kind="words"),
                Cell(_shown(row["left"])),
                Cell(_shown(row["right"])),
                Cell(ratio_text(row["ratio"], row["ratio_low"], row["ratio_high"])),
                _verdict(row, known),
                _closed(row),
                Cell(f"{text.recall(row['left_recall'])}, {text.recall(row['right_recall'])}"),
                Cell(
                    f"{text.share(row['left_visible_share'])}, "
                    f"{text.share(row['right_visible_share'])}"
                ),
            ]
        )
    return Table(
        "comparisons",
        "Comparisons, with the noise of identical runs",
        "The open loop samples time evenly and comes first; the closed loop, as published, stands "
        "beside it. A ratio is the left run by the right one; the interval is as wide as the "
        "spread of runs that are the same makes it.",
        [("", 2), ("open loop", 4), ("", 1), ("truth, left and right", 2)],
        ["comparison", "figure", "left", "right", "left / right", "verdict", "closed loop",
         "recall@10", "visible, lowest"],
        rows,
        ["Reasons and closed-loop figures: results/tables/optimizer_verdicts.csv."],
    )  # fmt: skip


def _shown(value: Any) -> str:
    """Return the text of the table's figure, which may be marked as a bound."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return text.NONE
    written = str(value)
    mark = {">=": "≥ ", "<=": "≤ "}.get(written[:2], "")
    return f"{mark}{text.number(float(written.removeprefix('>=').removeprefix('<=')))}"


def _verdict(row: Mapping[str, Any], known: Sequence[str]) -> Cell:
    """Give the verdict of the open loop, without its colour where the answers are not alike."""
    cell = verdict_cell(str(row["verdict"]), _why(row, known))
    if unlike := [words for words, name in _TRUTH if _differs(row, name)]:
        other = f"not the same work: other {' and '.join(unlike)}"
        note = "; ".join(filter(None, [cell.note, other]))
        return replace(cell, kind=LOOKS[UNDECIDABLE], note=note)
    return cell


def _differs(row: Mapping[str, Any], name: str) -> bool:
    left, right = row[f"left_{name}"], row[f"right_{name}"]
    called = row["verdict"] in (FASTER, SLOWER)
    return called and not (pd.isna(left) or pd.isna(right)) and abs(left - right) > ALIKE


def _why(row: Mapping[str, Any], known: Sequence[str]) -> str:
    return str(row["why"]) if row["verdict"] == NOT_MEASURED else "; ".join(known)


def _closed(row: Mapping[str, Any]) -> Cell:
    verdict = row["closed_verdict"]
    if not isinstance(verdict, str):
        return Cell(text.NONE, kind="words")
    shown = ratio_text(row["closed_ratio"], row["closed_ratio_low"], row["closed_ratio_high"])
    return verdict_cell(verdict, "" if verdict == NOT_MEASURED else shown)

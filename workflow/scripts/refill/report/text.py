"""Figures as text: three digits, units, and never a bound that looks like a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from refill.stats.quantiles import is_lower_bound
from refill.stats.ratios import Interval
from refill.stats.verdict import Value

NONE = "–"
# From here on a bound of a ratio of two latencies says that nothing is known.
UNBOUNDED = 1000.0


def number(value: float | None, digits: int = 3) -> str:
    """Return `value` with at least `digits` significant digits and a separator of thousands."""
    if value is None or math.isnan(value):
        return NONE
    if value == 0:
        return "0"
    after = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(after, 6)}f}"


def printed(value: float | None) -> str:
    """Return a published figure with the digits that it was published with."""
    return NONE if value is None else f"{value:,.10g}"


def bounded(value: float | None, bound: bool, unit: str = "") -> str:
    """Return `value` with its unit, marked "≥" where it is only a lower bound."""
    if value is None or math.isnan(value):
        return NONE
    return f"{'≥ ' if bound else ''}{number(value)}{f' {unit}' if unit else ''}"


def value(measured: Value) -> str:
    """Return a measured value, marked "≥" or "≤" where it is only a bound."""
    mark = "≥ " if measured.bound else "≤ " if measured.at_most else ""
    return f"{mark}{number(measured.value)}"


def interval(ratio: float, span: Interval | None) -> str:
    """Return a ratio with its interval, such as `0.85 [0.79, 0.93]`."""
    return f"{ratio:.2f} {between(span.low, span.high)}" if span else f"{ratio:.2f}, no interval"


def between(low: float, high: float) -> str:
    """Return the bounds of a ratio; those that say nothing by a word and not by their digits."""
    if low < 1 / UNBOUNDED and high > UNBOUNDED:
        return "[not bounded]"
    least = "0" if low < 1 / UNBOUNDED else f"{low:.2f}" if low >= 0.1 else number(low, 2)
    return f"[{least}, {f'{high:.2f}' if high <= UNBOUNDED else 'not bounded'}]"


def latency(stats: Mapping[str, Any] | None, key: str, timeout: float) -> str:
    """Return one latency of a STATS block in milliseconds, without the unit."""
    if not stats:
        return NONE
    return bounded(stats.get(key), is_lower_bound(stats, key, timeout))


def share(value: float | None) -> str:
    """Return a share as a percentage; 100 % only when nothing is missing."""
    if value is None or math.isnan(value):
        return NONE
    if value < 1 and round(value * 100, 1) >= 100:
        return "> 99.9 %"
    return f"{value * 100:.4g} %" if value < 0.1 else f"{value * 100:.1f} %".replace(".0 %", " %")


def recall(value: float | None) -> str:
    """Return a recall with three decimals; 1 only when nothing is missing."""
    if value is None or math.isnan(value):
        return NONE
    return "> 0.999" if 0.9995 <= value < 1 else f"{value:.3f}"


def bytes_(value: float | None) -> str:
    """Return a size in MB or GB (powers of ten)."""
    if value is None or math.isnan(value):
        return NONE
    return f"{number(value / 1e9)} GB" if value >= 1e9 else f"{value / 1e6:,.0f} MB"


def engine(record: Mapping[str, Any]) -> str:
    """Return the engine of a record in a few words; an embedded one says so."""
    block = record["engine"]
    title = str(block.get("title") or block["name"])
    if block["embedded"]:
        # Its title names the version of the engine; the version it states is the server's API.
        shown = title if "embedded" in title else f"{title}, embedded"
        return f"{shown}, in a container" if block["runtime"] == "docker" else shown
    return f"{title} {block['version']} ({block['runtime']})".replace(" None", "")


def scale(record: Mapping[str, Any]) -> str:
    """Return scale and corpus of a record in a few words."""
    corpus = record["corpus"]
    return (
        f"{record['scale']}: {corpus['points']:,} x {corpus['dimension']} "
        f"{corpus['name']}, {corpus['distance']}"
    )

"""Plots as inline SVG that follows the page's colours: made by Altair and vl-convert, no script.

Every colour is written as a stand-in (`INK`, `SERIES`, ...) that the page's style sheet maps to a
light and a dark value (`svg [fill="#..."]`), so one picture is legible on both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from refill.report.bins import LOOPS, activity, latency_bins, point_counts

INK, MUTED, GRID, SHADE = "#010101", "#020202", "#030303", "#040404"
SERIES = {
    "upload batch": ("#050505", "square"),
    "search, open loop": ("#060606", "circle"),
    "search, closed loop": ("#070707", "triangle-up"),
}
FAILED = "#080808"
ACTIVITY = {
    "indexing": "#060606", "merge": "#070707", "vacuum": "#090909", "config_mismatch": "#080808",
    "waiting": "#020202",
}  # fmt: skip
COUNTS = {"stored": "#020202", "visible": "#060606", "indexed": "#070707"}
DASHES = {"stored": [2, 3], "visible": [1, 0], "indexed": [6, 3]}
RECALL = ["#c2410c", "#e0b83a", "#0e8f86"]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
AXIS_WIDTH = 92


def to_svg(chart: Any, prefix: str) -> str:
    """Return a chart as an SVG element; ids get `prefix`, since several stand in one page."""
    svg: str = vl_convert.vegalite_to_svg(json.loads(chart.to_json()), vl_version="6.1")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'(?<=\d\.\d\d)\d+(?=[,\s"A-Za-z)])', "", svg)
    # The page names and describes the picture; roles of single marks would be read out one by one.
    svg = re.sub(r'\s(?:role|aria-label|aria-roledescription|aria-hidden)="[^"]*"', "", svg)
    width, height = (float(re.search(rf'<svg[^>]*\b{k}="([\d.]+)"', svg)[1]) for k in _SIZE)  # type: ignore[index]
    return re.sub(
        r"<svg[^>]*>",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        'aria-hidden="true" focusable="false">',
        svg,
        count=1,
    )


_SIZE = ("width", "height")


def timeline(
    record: Mapping[str, Any], ledger: pd.DataFrame, polls: pd.DataFrame, width: int
) -> Any:
    """Return one run over time: phases, latency, optimizer activity, points; one axis of time.

    `ledger` and `polls` are the run's Parquet tables. Latencies are binned (one bin a 7 px): median
    and max of each loop. `width` is the whole picture's, in px.
    """
    inner = width - AXIS_WIDTH - 12
    # What was sent or polled after the last phase ended is drawn too.
    ends = [*(p["end_s"] for p in record["phases"]), ledger["sent"].max(), polls["t"].max()]
    end = float(np.nanmax(np.array(ends, dtype=np.float64)))
    limit_s = float(record["sampler"]["timeout_s"])
    bins = latency_bins(ledger, limit_s, end, max(20, inner // 7))
    phases = pd.DataFrame(
        [
            {"phase": p["name"], "start": p["start_s"], "end": p["end_s"], "odd": i % 2}
            for i, p in enumerate(record["phases"])
        ]
    )
    panels = [
        _phases(phases, end, inner),
        _latency(bins, phases, end, inner),
        _activity(activity(polls, end), phases, end, inner),
        _points(point_counts(polls, end, max(20, inner // 4)), phases, end, inner),
    ]
    stacked = alt.vconcat(*panels, spacing=10).resolve_scale(
        color="independent", shape="independent"
    )
    return styled(stacked, small=width < 500)


def trade_off(points: Sequence[Mapping[str, Any]], title: str, width: int, height: int) -> Any:
    """Return drain time against steady p50, both logarithmic, coloured by recall where it is known.

    `points`: id, drain_s, p50_ms, recall (None: not known), bound (the drain hit its limit),
    at_most (it was too short to be resolved).
    """
    frame = pd.DataFrame(points)
    frame["recall"] = frame["recall"].astype(float)
    x_domain, y_domain = (log_domain(frame[column]) for column in ("drain_s", "p50_ms"))
    inner, tall = width - 74, height - 70
    marks = np.select([frame["bound"], frame["at_most"]], ["≥ ", "≤ "], "")
    frame["label"] = marks + frame["id"].astype(str).to_numpy(dtype=object)
    placed = _placed(frame, x_domain, y_domain, inner, tall)
    x = alt.X(
        "drain_s:Q",
        title="drain time, s (log)",
        scale=alt.Scale(type="log", domain=x_domain, nice=False),
        axis=alt.Axis(format=",~f", values=log_ticks(x_domain)),
    )
    y = alt.Y(
        "p50_ms:Q",
        title="steady p50, ms (log)",
        scale=alt.Scale(type="log", domain=y_domain, nice=False),
        axis=alt.Axis(format=",~f", values=log_ticks(y_domain), minExtent=34),
    )
    color: Any = alt.value(MUTED)
    if frame["recall"].notna().any():
        low = float(min(0.9, np.floor(frame["recall"].min() * 20) / 20))
        color = alt.Color(
            "recall:Q",
            title="steady recall@10",
            scale=alt.Scale(domain=[low, 1.0], range=RECALL, interpolate="rgb"),
            legend=alt.Legend(orient="bottom", direction="horizontal", gradientLength=inner // 2,
                              format=".3~f", tickCount=3),
        )  # fmt: skip
    base = alt.Chart(placed).encode(x=x, y=y)
    marks = base.mark_point(filled=True, size=70, opacity=1, stroke=INK, strokeWidth=0.7)
    text = alt.Chart(placed).encode(
        x=alt.X("label_x:Q", scale=alt.Scale(type="log", domain=x_domain, nice=False)),
        y=alt.Y("label_y:Q", scale=alt.Scale(type="log", domain=y_domain, nice=False)),
        text="label:N",
    )
    names = text.mark_text(fontSize=12, fontWeight=600, color=INK, align="center")
    chart = alt.layer(marks.encode(color=color), names).properties(
        width=inner, height=tall, title=title
    )
    return styled(chart, small=width < 500)


def _x(end: float, labels: bool) -> Any:
    return alt.X(
        "t:Q",
        title="seconds since the run's start" if labels else None,
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=alt.Axis(labels=labels, ticks=labels, grid=False, format=",~f", tickCount=6),
    )


def _shading(phases: pd.DataFrame, end: float) -> Any:
    scale = alt.Scale(domain=[0, end], nice=False)
    return (
        alt.Chart(phases[phases["odd"] == 1])
        .mark_rect(color=SHADE, opacity=1)
        .encode(x=alt.X("start:Q", scale=scale), x2="end:Q")
    )


def _phases(phases: pd.DataFrame, end: float, width: int) -> Any:
    y = alt.Y("phase:N", sort=list(phases["phase"]), title=None, axis=_names(wide=True))
    bars = alt.Chart(phases).mark_bar(height=9, color=MUTED).encode(x=_start(end), x2="end:Q", y=y)
    return alt.layer(_shading(phases, end), bars).properties(
        width=width, height=14 * len(phases), title="phase"
    )


def _start(end: float) -> Any:
    return alt.X(
        "start:Q",
        title=None,
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=alt.Axis(labels=False, ticks=False, grid=False),
    )


def _names(wide: bool = False) -> Any:
    return alt.Axis(
        grid=False, ticks=False, domain=False, minExtent=AXIS_WIDTH, maxExtent=AXIS_WIDTH,
        labelLimit=AXIS_WIDTH, labelFontSize=9 if wide else 10,
    )  # fmt: skip


def _latency(bins: pd.DataFrame, phases: pd.DataFrame, end: float, width: int) -> Any:
    known = bins[bins["median_ms"].notna()]
    loops = [loop for loop in LOOPS.values() if (bins["loop"] == loop).any()]
    color = alt.Color(
        "loop:N",
        scale=alt.Scale(domain=loops, range=[SERIES[loop][0] for loop in loops]),
        legend=None,
    )
    shape = alt.Shape(
        "loop:N",
        scale=alt.Scale(domain=loops, range=[SERIES[loop][1] for loop in loops]),
        legend=None,
    )
    y = _log_y(known, "median_ms")
    base = alt.Chart(known)
    medians = base.mark_point(filled=True, size=26, opacity=1).encode(
        x=_x(end, False), y=y, color=color, shape=shape
    )
    peaks = base.mark_point(filled=False, size=16, opacity=0.75, strokeWidth=1).encode(
        x=_x(end, False), y=_log_y(known, "max_ms"), color=color, shape=shape
    )
    layers = [_shading(phases, end), peaks, medians]
    lost = bins[bins["unanswered"] > 0]
    if len(lost):
        layers.append(
            alt.Chart(lost)
            .mark_point(shape="cross", filled=True, size=60, color=FAILED, opacity=1, angle=45)
            .encode(x=_x(end, False), y=alt.value(6))
        )
    return alt.layer(*layers).properties(width=width, height=190, title="latency, ms (log)")


def _log_y(bins: pd.DataFrame, field: str) -> Any:
    domain = (
        [float(bins["median_ms"].min()) * 0.7, float(bins["max_ms"].max()) * 1.4]
        if len(bins)
        else [0.1, 10.0]
    )
    return alt.Y(
        f"{field}:Q",
        title=None,
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(
            format=",~f", values=log_ticks(domain), minExtent=AXIS_WIDTH, maxExtent=AXIS_WIDTH
        ),
    )


def _activity(spans: pd.DataFrame, phases: pd.DataFrame, end: float, width: int) -> Any:
    names = [name for name in ACTIVITY if (spans["optimizer"] == name).any()]
    names += sorted(set(spans["optimizer"]) - set(names))
    if not names:
        note = alt.Chart(pd.DataFrame({"note": ["no poll saw an optimizer running"]}))
        empty = note.mark_text(align="left", color=MUTED, fontSize=11).encode(
            x=alt.value(6), y=alt.value(9), text="note:N"
        )
        return alt.layer(_shading(phases, end).encode(x=_start(end)), empty).properties(
            width=width, height=18, title="optimizers running"
        )
    bars = (
        alt.Chart(spans)
        .mark_bar(height=10)
        .encode(
            x=_start(end),
            x2="end:Q",
            y=alt.Y("optimizer:N", sort=names, title=None, axis=_names()),
            color=alt.Color(
                "optimizer:N",
                scale=alt.Scale(domain=names, range=[ACTIVITY.get(name, MUTED) for name in names]),
                legend=None,
            ),
        )
    )
    return alt.layer(_shading(phases, end), bars).properties(
        width=width, height=18 * len(names), title="optimizers running"
    )


def _points(counts: pd.DataFrame, phases: pd.DataFrame, end: float, width: int) -> Any:
    names = list(COUNTS)
    lines = (
        alt.Chart(counts)
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(
            x=_x(end, True),
            y=alt.Y(
                "points:Q",
                title=None,
                axis=alt.Axis(format="~s", tickCount=4, minExtent=AXIS_WIDTH, maxExtent=AXIS_WIDTH),
            ),
            color=alt.Color(
                "series:N",
                scale=alt.Scale(domain=names, range=list(COUNTS.values())),
                legend=None,
            ),
            strokeDash=alt.StrokeDash(
                "series:N",
                scale=alt.Scale(domain=names, range=list(DASHES.values())),
                legend=None,
            ),
        )
    )
    return alt.layer(_shading(phases, end), lines).properties(
        width=width, height=110, title="points"
    )


def log_ticks(domain: Sequence[float]) -> list[float]:
    """Return the decades inside a logarithmic domain, with steps between them if they are few."""
    decades = range(int(np.floor(np.log10(domain[0]))), int(np.ceil(np.log10(domain[1]))) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        ticks = [round(step * 10.0**d, 9) for d in decades for step in steps]
        inside = [tick for tick in ticks if domain[0] <= tick <= domain[1]]
        if len(inside) >= 3:
            break
    return inside


def log_domain(values: pd.Series[Any]) -> list[float]:
    """Return the ends of a logarithmic axis that has some room around the values."""
    low, high = float(values.min()), float(values.max())
    pad = max(1.25, (high / low) ** 0.1)
    return [low / pad, high * pad]


def _placed(
    frame: pd.DataFrame, x: list[float], y: list[float], width: int, height: int
) -> pd.DataFrame:
    """Find a free place near each point for its name (label_x, label_y, in data units)."""
    px = width * np.log(frame["drain_s"] / x[0]) / np.log(x[1] / x[0])
    py = height * (1 - np.log(frame["p50_ms"] / y[0]) / np.log(y[1] / y[0]))
    points = list(zip(px.astype(float), py.astype(float), strict=True))
    taken: list[tuple[float, float]] = []
    for (at_x, at_y), label in zip(points, frame["label"], strict=True):
        half = 4.0 * len(label)
        tries = [
            (at_x + (r + half - 8) * np.cos(a), at_y + r * np.sin(a))
            for r in (16, 26, 38, 52)
            for a in np.radians([0, 180, 270, 90, 315, 45, 225, 135])
        ]
        free = [
            t
            for t in tries
            if half < t[0] < width - half and 8 < t[1] < height - 8
            and all(abs(t[0] - o[0]) > half + 12 or abs(t[1] - o[1]) > 13 for o in taken)
            and all(abs(t[0] - p[0]) > half + 6 or abs(t[1] - p[1]) > 10 for p in points)
        ]  # fmt: skip
        taken.append(free[0] if free else tries[0])
    placed = frame.copy()
    placed["label_x"] = [x[0] * (x[1] / x[0]) ** (t[0] / width) for t in taken]
    placed["label_y"] = [y[0] * (y[1] / y[0]) ** (1 - t[1] / height) for t in taken]
    return placed


def styled(chart: Any, small: bool) -> Any:
    """Return a chart with the page's type and colours."""
    size = 10 if small else 11
    return chart.configure(font=FONT, background="transparent", padding=4).configure_view(
        stroke=None
    ).configure_axis(
        labelColor=INK, titleColor=INK, gridColor=GRID, domainColor=MUTED, tickColor=MUTED,
        labelFontSize=size, titleFontSize=size, titleFontWeight="normal",
    ).configure_legend(
        labelColor=INK, titleColor=INK, labelFontSize=size, titleFontSize=size,
        titleFontWeight="normal", symbolOpacity=1,
    ).configure_title(
        color=INK, anchor="start", fontSize=size + 1, fontWeight=600, offset=4, frame="group",
    )  # fmt: skip

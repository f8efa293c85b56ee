"""The picture of the gateway rounds: every trial of the cold cells, old beside new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from refill.report.plots import GRID, INK, MUTED, log_domain, log_ticks, styled

# Stand-ins that the style sheet maps; the same two as for the loops of the other experiment.
COLORS = {"old": "#070707", "new": "#060606"}
ROWS = [f"{image} {quantile}" for quantile in ("p50", "p95") for image in ("old", "new")]


def trial_plot(
    points: Sequence[Mapping[str, Any]], marks: Sequence[Mapping[str, Any]], width: int
) -> Any:
    """Return one panel a profile and number of clients, stacked, on one logarithmic axis.

    Args:
        points: `panel`, `image`, `quantile`, `ms` of each trial.
        marks: the same of each median, and `of`: `measured` or `published`.
        width: of the whole picture in px.
    """
    frame, medians = pd.DataFrame(points), pd.DataFrame(marks)
    for part in (frame, medians):
        part["row"] = part["image"] + " " + part["quantile"]
    domain = log_domain(pd.concat([frame["ms"], medians["ms"]]))
    inner = width - 76
    panels = [
        _panel(
            frame[frame["panel"] == name], medians[medians["panel"] == name], name, domain, inner
        )
        for name in dict.fromkeys(frame["panel"])
    ]
    return styled(alt.vconcat(*panels, spacing=12), small=width < 500)


def _panel(
    points: pd.DataFrame, medians: pd.DataFrame, name: str, domain: list[float], width: int
) -> Any:
    x = alt.X(
        "ms:Q",
        title="ms (log)",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(format=",~f", values=log_ticks(domain), gridColor=GRID),
    )
    y = alt.Y("row:N", sort=ROWS, title=None, axis=alt.Axis(grid=False, minExtent=58))
    color = alt.Color(
        "image:N",
        scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())),
        legend=None,
    )
    trials = (
        alt.Chart(points)
        .mark_point(filled=True, size=34, opacity=0.8)
        .encode(x=x, y=y, color=color)
    )
    measured, published = (medians[medians["of"] == of] for of in ("measured", "published"))
    layers = [
        trials,
        alt.Chart(measured).mark_tick(color=INK, thickness=2, size=15).encode(x=x, y=y),
    ]
    if len(published):
        layers.append(
            alt.Chart(published)
            .mark_point(shape="diamond", filled=False, size=60, color=MUTED, strokeWidth=1.5)
            .encode(x=x, y=y)
        )
    return alt.layer(*layers).properties(width=width, height=84, title=name)

"""From thousands of rows to the few marks that a plot needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from refill.stats.quantiles import nearest_rank

LOOPS = {"upload": "upload batch", "open": "search, open loop", "closed": "search, closed loop"}


def request_latency_ms(ledger: pd.DataFrame, timeout_s: float) -> pd.Series[float]:
    """Return the latency of each row in ms: from the planned send at the open loop, else from sent.

    A timeout is at least the limit. A row with no answer (error) is NaN.
    """
    start = ledger["planned"].where(ledger["loop"].astype(str) == "open", ledger["sent"])
    seconds = ledger["done"] - start
    status = ledger["status"].astype(str)
    # fmax ignores the NaN of a timeout without a time of its own.
    limited = pd.Series(np.fmax(seconds, timeout_s), index=ledger.index)
    seconds = seconds.where(status != "timeout", limited)
    return seconds.where(status != "error") * 1e3


def latency_bins(ledger: pd.DataFrame, timeout_s: float, end_s: float, count: int) -> pd.DataFrame:
    """Return median and max latency of each loop in `count` equal bins of 0..end_s.

    Columns: t (mean time of sending, s), loop (as printed), n, median_ms, max_ms, unanswered
    (errors and timeouts). A bin of errors alone has NaN latencies; none reaches over the end of a
    phase.
    """
    width = end_s / count
    frame = pd.DataFrame(
        {
            "bin": np.minimum((ledger["sent"] / width).astype(int), count - 1),
            "phase": ledger["phase"].astype(str),
            "loop": ledger["loop"].astype(str),
            "ms": request_latency_ms(ledger, timeout_s),
            "unanswered": ledger["status"].astype(str).isin(["error", "timeout"]),
            "sent": ledger["sent"],
        }
    )
    rows = []
    for (_, _, loop), part in frame.groupby(["bin", "phase", "loop"], sort=True):
        known = part["ms"].dropna()
        rows.append(
            {
                "t": float(part["sent"].mean()),
                "loop": LOOPS[str(loop)],
                "n": len(part),
                "median_ms": nearest_rank(known, 0.5) if len(known) else np.nan,
                "max_ms": float(known.max()) if len(known) else np.nan,
                "unanswered": int(part["unanswered"].sum()),
            }
        )
    columns = ["t", "loop", "n", "median_ms", "max_ms", "unanswered"]
    return pd.DataFrame(rows, columns=columns)


def activity(polls: pd.DataFrame, end_s: float) -> pd.DataFrame:
    """Return when each optimizer ran: columns optimizer, start, end (s); adjoining polls merged.

    A poll speaks for the time until the next one. `waiting` are polls with queued work and nothing
    running.
    """
    polls = polls.sort_values("t")
    until = np.append(polls["t"].to_numpy()[1:], end_s)
    spans: list[tuple[str, float, float]] = []
    for name, start, end in _spoken_for(polls, until):
        before = next((i for i in reversed(range(len(spans))) if spans[i][0] == name), None)
        if before is not None and spans[before][2] >= start:
            spans[before] = (name, spans[before][1], end)
        else:
            spans.append((name, start, end))
    return pd.DataFrame(spans, columns=["optimizer", "start", "end"])


def _spoken_for(polls: pd.DataFrame, until: np.ndarray) -> Iterator[tuple[str, float, float]]:
    for t, end, running, queued in zip(
        polls["t"], until, polls["running"].fillna("").astype(str), polls["queued"], strict=True
    ):
        names = [name for name in running.split(",") if name]
        if not names and queued > 0:
            names = ["waiting"]
        for name in names:
            yield name, float(t), float(end)


def point_counts(polls: pd.DataFrame, end_s: float, count: int) -> pd.DataFrame:
    """Return stored, visible and indexed points over time, thinned to `count` polls at the most.

    Columns: t (s), series (stored, visible, indexed), points. The lowest poll of a bin is kept, so
    that a short dip stays; unknown values are left out.
    """
    known = polls[polls["points"].notna()].sort_values("t")
    parts = []
    for column, name in (("points", "stored"), ("visible", "visible"), ("indexed", "indexed")):
        series = known[["t", column]].dropna().rename(columns={column: "points"})
        bins = np.minimum((series["t"] / (end_s / count)).astype(int), count - 1)
        lowest = series.groupby(bins)["points"].idxmin()
        parts.append(series.loc[lowest].assign(series=name))
    return pd.concat(parts, ignore_index=True)

"""Rows of a ledger that no driver writes: time that runs backwards, an answer that was none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from refill.evidence.json_difference import Unequal
from refill.load.ledger import STATUSES


def impossible(rows: pd.DataFrame) -> Iterator[Unequal]:
    """Give one difference for each rule that rows of a ledger break, with the first such row."""
    planned, sent, done = (rows[key].to_numpy(dtype=float) for key in ("planned", "sent", "done"))
    status, http = rows["status"].astype(str), rows["http"]
    ok = (status == "ok").to_numpy()
    answered = http.between(200, 299).to_numpy()
    rules = {
        "planned, sent and done are finite": np.isfinite(planned + sent + done),
        "planned <= sent <= done": (planned <= sent) & (sent <= done),
        f"status is one of {', '.join(STATUSES)}": status.isin(STATUSES).to_numpy(),
        "ok is an answer of 200 to 299": ~ok | answered,
        "ok has no detail": ~ok | (rows["detail"].fillna("") == "").to_numpy(),
        "client and window are 0 or more": (
            (rows["client"] >= 0) & (rows["window"] >= 0)
        ).to_numpy(),
    }
    if "recall" in rows:
        recall = rows["recall"]
        rules["recall is from 0 to 1"] = (recall.isna() | recall.between(0, 1)).to_numpy()
    for rule, holds in rules.items():
        if not holds.all():
            first = int(np.flatnonzero(~holds)[0])
            yield f"ledger, row {first}", rule, f"{int((~holds).sum())} rows that break this"

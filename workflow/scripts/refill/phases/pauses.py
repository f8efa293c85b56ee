"""Did the driver stand still? What it measured then is its own pause, not the engine's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from refill.load.worker import Done

STALL_LIMIT_S = 1.0
GAP_LIMIT_S = 5.0


def client_pauses(windows: Sequence[Done]) -> tuple[float, list[str]]:
    """Find the windows in which a client stood still, by its heart beat.

    Returns:
        The longest pause in seconds, and what makes the run invalid.
    """
    found = [
        f"client {window.client} stood still for {window.stalled_s:.1f} s in window "
        f"{window.window}: suspended, or starved of the processor"
        for window in windows
        if window.stalled_s > STALL_LIMIT_S
    ]
    return max((window.stalled_s for window in windows), default=0.0), found


def stood_still(
    windows: Sequence[Done], polls: pd.DataFrame, poll_s: float
) -> tuple[float, list[str]]:
    """Find when the driver stood still: suspended, or starved of the processor.

    What it measured then is its own pause, not the engine's. A client notices by its heart beat,
    the controller by a gap between two polls that the engine did not cause.

    Returns:
        The longest pause in seconds, and what makes the run invalid.
    """
    longest, found = client_pauses(windows)
    began = polls["t"].to_numpy(dtype=np.float64)
    over = began + polls["poll_ms"].to_numpy(dtype=np.float64) / 1e3
    gaps = began[1:] - over[:-1]
    limit = max(GAP_LIMIT_S, 4 * poll_s)
    found += [f"no poll for {gap:.1f} s: the run stood still" for gap in gaps if gap > limit]
    return longest, found

"""How long did an engine answer nothing although it was asked?

A stall shows in few samples of a closed loop and in no p99; the longest silence shows it whatever
the loop, and where it was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# A silence is worth a word when it is as long as this and many times the usual latency.
LEAST_S = 1.0
TIMES_P50 = 20.0


class Silence(NamedTuple):
    """The longest span without an answer while a request waited: its start and length, seconds."""

    at: float
    seconds: float

    def plain(self) -> dict[str, float]:
        """Give it as it stands in a record."""
        return {"at_s": round(self.at, 4), "longest_s": round(self.seconds, 4)}


def longest_silence(asked_s: ArrayLike, done_s: ArrayLike) -> Silence | None:
    """Give the longest span in which a request waited and none was answered; None without any.

    Args:
        asked_s: when each request was planned or sent, in seconds; any order.
        done_s: when it was over, however it ended; the same length.

    Raises:
        ValueError: unequal lengths, or NaN.
    """
    asked = np.asarray(asked_s, dtype=np.float64)
    done = np.asarray(done_s, dtype=np.float64)
    if asked.shape != done.shape or asked.ndim != 1:
        raise ValueError(f"asked {asked.shape} and done {done.shape}: must be one list each")
    if np.isnan(asked).any() or np.isnan(done).any():
        raise ValueError("asked or done holds NaN: every request began and ended")
    if not done.size:
        return None
    order = np.argsort(done, kind="stable")
    asked, done = asked[order], done[order]
    # Of the requests that are not over before an answer, when the first of them began to wait.
    waiting_since = np.minimum.accumulate(asked[::-1])[::-1]
    before = np.concatenate([[-np.inf], done[:-1]])
    begins = np.maximum(before, waiting_since)
    longest = int(np.argmax(done - begins))
    return Silence(float(begins[longest]), float(done[longest] - begins[longest]))


def is_long(seconds: float, p50_s: float | None) -> bool:
    """Tell whether a silence of so many seconds is worth a word, given the usual latency."""
    return bool(seconds >= max(LEAST_S, TIMES_P50 * (p50_s or 0.0)))

"""Polls of the engine while a run lasts: what the optimizers do, what searches can see, counters.

Kept like the ledger: part files as the run goes, one Parquet file at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from refill.engines.description import EngineError
from refill.engines.qdrant import UNKNOWN_STATE, CollectionState
from refill.runtimes.process import Resources

PART_EVERY_S = 1.0
# An engine that has not answered a poll for this long is taken for lost.
SILENT_LIMIT_S = 60.0


@dataclass(frozen=True)
class Poll:
    """One look at the engine; NaN where it did not say."""

    t: float
    phase: str
    points: float
    indexed: float
    deferred: float
    visible: float
    segments: float
    color: str
    optimizer_status: str
    running: str
    running_done: float
    running_total: float
    queued: float
    queued_points: float
    rss_bytes: float
    cpu_s: float
    read_bytes: float
    write_bytes: float
    poll_ms: float
    error: str
    busy: str


class Polls:
    """Polls an engine and keeps every poll, the failed ones too.

    Args:
        folder: where the part files go.
        state: asks the engine for its collection's state.
        resources: reads the counters of the engine's processes.
        now: seconds since the run's start.
    """

    def __init__(
        self,
        folder: Path,
        state: Callable[[], CollectionState],
        resources: Callable[[], Resources],
        now: Callable[[], float],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._state = state
        self._resources = resources
        self._now = now
        self._written = 0
        self._parts = 0
        self._last_part = time.monotonic()
        self._last_answer = time.monotonic()
        self.rows: list[Poll] = []

    def poll(self, phase: str) -> Poll:
        """Look once.

        Raises:
            EngineError: no poll was answered for a minute.
        """
        start = self._now()
        error = ""
        try:
            state = self._state()
            self._last_answer = time.monotonic()
        except EngineError as failed:
            error = str(failed)
            state = UNKNOWN_STATE
            if time.monotonic() - self._last_answer > SILENT_LIMIT_S:
                raise EngineError(
                    f"qdrant has answered no poll for {SILENT_LIMIT_S:g} s: {error}"
                ) from failed
        took_ms = (self._now() - start) * 1e3
        counters = self._resources()
        poll = Poll(
            start, phase, state.points, state.indexed, state.deferred, state.visible,
            state.segments, state.color, state.optimizer_status, ",".join(state.running),
            state.running_done, state.running_total, state.queued, state.queued_points,
            counters.rss_bytes, counters.cpu_s, counters.read_bytes, counters.write_bytes,
            took_ms, error, error or state.busy or "",
        )  # fmt: skip
        self.rows.append(poll)
        if time.monotonic() - self._last_part >= PART_EVERY_S:
            self._write_part()
        return poll

    def _write_part(self) -> None:
        self._last_part = time.monotonic()
        waiting = self.rows[self._written :]
        if not waiting:
            return
        path = self._folder / f"polls-{self._parts:06d}.parquet"
        temporary = path.with_suffix(".writing")
        pq.write_table(polls_table(waiting), temporary, compression="zstd")
        temporary.replace(path)
        self._parts += 1
        self._written = len(self.rows)

    def finish(self, path: Path) -> int:
        """Write all polls into one file at `path` and give their number."""
        self._write_part()
        temporary = path.with_name(path.name + ".writing")
        pq.write_table(polls_table(self.rows), temporary, compression="zstd")
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        return len(self.rows)

    def frame(self) -> pd.DataFrame:
        """Give all polls as a data frame."""
        frame: pd.DataFrame = polls_table(self.rows).to_pandas()
        return frame


def polls_table(rows: list[Poll]) -> pa.Table:
    """Give polls as an Arrow table with the columns of `Poll`."""
    kinds = {"str": pa.string(), "float": pa.float64()}
    columns: dict[str, Any] = {
        field.name: pa.array([getattr(row, field.name) for row in rows], kinds[str(field.type)])
        for field in fields(Poll)
    }
    return pa.table(columns)

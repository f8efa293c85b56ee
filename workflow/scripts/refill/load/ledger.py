"""The ledger: every request that was issued, one row each, in Parquet, written as the run goes.

While a run lasts its rows stand in numbered part files, one a second at the most, each put in
place by a rename: a kill loses at most the last second. At the end the parts become one file.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from refill.load.loops import Row
from refill.load.worker import Done

PART_EVERY_S = 1.0
STATUSES = ("ok", "wrong", "error", "timeout")

SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("phase", pa.dictionary(pa.int8(), pa.string())),
        ("loop", pa.dictionary(pa.int8(), pa.string())),
        ("window", pa.int32()),
        ("client", pa.int16()),
        ("query", pa.int32()),
        ("first", pa.int64()),
        ("planned", pa.float64()),
        ("sent", pa.float64()),
        ("done", pa.float64()),
        ("status", pa.dictionary(pa.int8(), pa.string())),
        ("http", pa.int16()),
        ("hits", pa.int16()),
        ("recall", pa.float32()),
        ("bytes", pa.int32()),
        ("detail", pa.string()),
    ],
    metadata={
        "times": "seconds since the run's start",
        "latency": "open loop: done - planned; closed loop and upload: done - sent; "
        "a timeout is censored at the limit",
    },
)


class Judgement(NamedTuple):
    """What the oracle says of one answer; `hits` is -1 and `recall` NaN where neither applies."""

    status: str
    hits: int
    recall: float
    detail: str


Judge = Callable[[Row], Judgement]


class Ledger:
    """Takes rows, has the answered ones judged, and writes them to part files in `folder`.

    A row whose request got no answer is `timeout` or `error`; an answered one is `ok`, `wrong`,
    or `error` as the judge says. Nothing else happens to a row, and none is left out.
    """

    def __init__(self, folder: Path, judge: Judge) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._judge = judge
        self._waiting: list[tuple[Any, ...]] = []
        self._written = 0
        self._parts = 0
        self._last_part = time.monotonic()
        self.issued = 0
        self.counts: Counter[str] = Counter()
        self.recent_ms: list[float] = []
        self._phase = ""

    def add(self, rows: Sequence[Row]) -> None:
        """Judge rows and keep them; write a part when the last one is a second old."""
        for row in rows:
            if row.outcome == "answered":
                verdict = self._judge(row)
            else:
                verdict = Judgement(row.outcome, -1, float("nan"), row.detail)
            upload = row.loop == "upload"
            self._waiting.append(
                (
                    self.issued, row.phase, row.loop, row.window, row.client,
                    -1 if upload else row.key, row.key if upload else -1,
                    row.planned, row.sent, row.done,
                    verdict.status, row.http, verdict.hits, verdict.recall,
                    len(row.body), verdict.detail,
                )
            )  # fmt: skip
            self.issued += 1
            self.counts[verdict.status] += 1
            start = row.planned if row.loop == "open" else row.sent
            if row.phase != self._phase:
                # What is told of a phase is of that phase alone.
                self._phase = row.phase
                self.recent_ms.clear()
            self.recent_ms.append((row.done - start) * 1e3)
        del self.recent_ms[:-200]
        self.tick()

    def tick(self) -> None:
        """Write a part if one is due. To be called at least once a second."""
        if self._waiting and time.monotonic() - self._last_part >= PART_EVERY_S:
            self._write_part()

    def _write_part(self) -> None:
        self._last_part = time.monotonic()
        columns = [list(column) for column in zip(*self._waiting, strict=True)]
        arrays = [
            pa.array(column, pa.string()).dictionary_encode().cast(field.type)
            if pa.types.is_dictionary(field.type)
            else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ]
        path = self._folder / f"part-{self._parts:06d}.parquet"
        temporary = path.with_suffix(".writing")
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), temporary, compression="zstd")
        temporary.replace(path)
        self._parts += 1
        self._written += len(self._waiting)
        self._waiting.clear()

    def finish(self, path: Path) -> int:
        """Write what waits, join the parts into one file at `path`, and give its rows' number."""
        if self._waiting:
            self._write_part()
        rows = join_parts(self._folder, path)
        if rows != self.issued:
            raise RuntimeError(f"{path.name}: {rows} rows were written, {self.issued} were issued")
        return rows

    def frame(self) -> pd.DataFrame:
        """Give all rows so far as a data frame."""
        if self._waiting:
            self._write_part()
        return read_parts(self._folder)


def part_files(folder: Path) -> list[Path]:
    """Give the part files of a ledger in their order."""
    return sorted(folder.glob("part-*.parquet"))


def read_parts(folder: Path) -> pd.DataFrame:
    """Read the parts of a ledger, also of one that was never finished."""
    tables = [pq.read_table(part) for part in part_files(folder)]
    whole = pa.concat_tables(tables).unify_dictionaries() if tables else SCHEMA.empty_table()
    frame: pd.DataFrame = whole.to_pandas()
    return frame


def join_parts(folder: Path, path: Path) -> int:
    """Join part files into one Parquet file, put in place by a rename; the parts stay.

    Returns:
        The number of rows in the file.
    """
    temporary = path.with_name(path.name + ".writing")
    rows = 0
    with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        for part in part_files(folder):
            table = pq.read_table(part, schema=SCHEMA)
            writer.write_table(table)
            rows += table.num_rows
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.replace(path)
    return rows


def latency_s(frame: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Latency of each row, in seconds: from the planned time in an open loop, else from sending.

    Args:
        frame: ledger rows.

    Returns:
        float64 array, one value a row.
    """
    start = np.where(frame["loop"] == "open", frame["planned"], frame["sent"])
    return np.asarray(frame["done"].to_numpy(dtype=np.float64) - start, dtype=np.float64)


def conservation(
    frame: pd.DataFrame, windows: Sequence[Done], tolerance: float = 0.02
) -> dict[str, Any]:
    """Check that nothing was dropped: the counts add up, and so does the time.

    In a closed loop without a pace a client is always either waiting for an answer or delivering
    rows, so the latencies of a window, its deliveries and the loop's own few microseconds a
    request add up to the window. Requests that were hidden, retried or dropped would leave a hole;
    so does a client that is kept from a processor between two requests, for as long as the kernel
    says at most.

    Args:
        frame: all rows of the ledger.
        windows: each client's own account of each window: requests issued, time taken.
        tolerance: share of a window that may be the loop's own work, beside 150 us a request.

    Returns:
        `ok`, the `checks` with their numbers, and the `violations` in words.
    """
    counts = {status: int((frame["status"] == status).sum()) for status in STATUSES}
    issued = sum(window.issued for window in windows)
    violations = []
    if sum(counts.values()) != issued or len(frame) != issued:
        violations.append(f"issued {issued}, but the ledger holds {len(frame)}: {counts}")
    if len(frame) and (frame["seq"].to_numpy() != np.arange(len(frame))).any():
        violations.append("the ledger's sequence has a gap")
    closed = frame[frame["loop"] == "closed"]
    spans = closed.assign(latency=latency_s(closed)).groupby(["client", "window"], observed=True)
    sums, sizes = spans["latency"].sum(), spans["latency"].size()
    checked, widest, longest_wait_s = 0, 0.0, 0.0
    for window in windows:
        key = (window.client, window.window)
        if key not in sums.index:
            continue
        wall = window.end - window.start
        hole = wall - float(sums[key]) - window.delivering_s
        allowed = tolerance * wall + 150e-6 * int(sizes[key]) + 0.02
        back_off = 0.05 * int((closed["status"] == "error").sum())
        checked += 1
        widest = max(widest, hole / wall if wall else 0.0)
        longest_wait_s = max(longest_wait_s, window.waited_s)
        if hole > allowed + back_off + window.waited_s or hole < -allowed:
            violations.append(
                f"window {window.window}, client {window.client}: latencies add up to "
                f"{float(sums[key]):.3f} s of {wall:.3f} s, {hole:.3f} s are unaccounted for; the "
                f"client waited for a processor for {window.waited_s:.3f} s"
            )
    return {
        "ok": not violations,
        "violations": violations,
        "counts": {"issued": issued, **counts},
        "checks": {
            "windows": checked,
            "widest_hole_share": round(widest, 4),
            "longest_wait_s": round(longest_wait_s, 4),
        },
    }

"""The ledger of a round: every request that was issued, one row each, with its cell and trial."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from refill.phases.round_run import Trial

_NAME = pa.dictionary(pa.int8(), pa.string())

SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("profile", _NAME),
        ("engine", _NAME),
        ("operation", _NAME),
        ("clients", pa.int16()),
        ("trial", pa.int16()),
        ("window", pa.int32()),
        ("client", pa.int16()),
        ("request", pa.int32()),
        ("sent", pa.float64()),
        ("done", pa.float64()),
        ("status", _NAME),
        ("http", pa.int16()),
        ("bytes", pa.int32()),
        ("detail", pa.string()),
    ],
    metadata={
        "times": "seconds since the round's start",
        "latency": "done - sent (closed loop); a timeout is censored at the limit",
        "warm-up": "rows of the profile warm-up belong to no trial and to no figure",
    },
)


def write_ledger(
    path: Path, rows: pd.DataFrame, trials: Sequence[Trial], engines: Mapping[int, str]
) -> int:
    """Write a round's ledger, put in place by a rename.

    Args:
        path: the Parquet file.
        rows: rows of `refill.load.ledger`, in the order of their judging.
        trials: which window was which trial; rows of other windows belong to none.
        engines: which engine the requests of a window went to.

    Returns:
        The number of rows.
    """
    known = {trial.window: trial for trial in trials}
    of_row = [known.get(int(window)) for window in rows["window"]]
    frame = rows.rename(columns={"phase": "profile", "query": "request"}).assign(
        engine=pd.Series([engines[int(window)] for window in rows["window"]], dtype=object),
        operation=pd.Series([t.cell.operation if t else None for t in of_row], dtype=object),
        clients=pd.array([t.cell.clients if t else None for t in of_row], dtype="Int16"),
        trial=pd.array([t.number if t else None for t in of_row], dtype="Int16"),
    )
    arrays = [
        pa.array(frame[field.name].astype(object), pa.string(), from_pandas=True)
        .dictionary_encode()
        .cast(field.type)
        if pa.types.is_dictionary(field.type)
        else pa.array(frame[field.name], field.type, from_pandas=True)
        for field in SCHEMA
    ]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".writing")
    pq.write_table(table, temporary, compression="zstd")
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.replace(path)
    return int(table.num_rows)

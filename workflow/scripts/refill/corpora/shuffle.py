"""Rows that arrive in any order, written in the order of their ids, in bounded memory.

Ids are cut into equal ranges. Rows go to one file a range first (Arrow IPC streams), then each
range is read, ordered in memory and appended: every byte is written twice, always in sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from refill.oracle.exact import Float32, Int64

RANGE_BYTES = 1 << 26
# Payloads are not counted in bytes, so rows are bounded as well; open files, too.
RANGE_ROWS, MAX_RANGES = 32_768, 256


class Shuffle:
    """Collects rows, then gives them in the order of ids.

    Args:
        folder: an empty folder for the files, which are deleted as they are read.
        points: ids are 0 to points - 1; each must be added once.
        dimension: of the vectors.
        payload: columns of the payloads, or None without any.
    """

    def __init__(self, folder: Path, points: int, dimension: int, payload: pa.Schema | None):
        self._points, self._dimension = points, dimension
        self._payload = payload
        self.range_rows = max(
            1, min(RANGE_ROWS, RANGE_BYTES // (4 * dimension)), -(-points // MAX_RANGES)
        )
        fields = [("id", pa.int64()), ("vector", pa.list_(pa.float32(), dimension))]
        # Columns are found by place, so a payload column may be named `id`.
        fields += [(f"payload{i}", field.type) for i, field in enumerate(payload or ())]
        self._schema = pa.schema(fields)
        self._paths = [
            folder / f"range-{number}.arrow" for number in range(-(-points // self.range_rows))
        ]
        self._writers = [pa.ipc.new_stream(str(path), self._schema) for path in self._paths]

    def add(self, ids: Int64, vectors: Float32, payload: pa.Table | None) -> None:
        """Add rows: ids of shape (n,), vectors of shape (n, dimension), payloads of n rows."""
        ranges = ids // self.range_rows
        order = np.argsort(ranges, kind="stable")
        flat = pa.array(np.ascontiguousarray(vectors[order]).reshape(-1))
        columns = [pa.array(ids[order]), pa.FixedSizeListArray.from_arrays(flat, self._dimension)]
        if payload is not None:
            columns += [column.combine_chunks() for column in payload.take(order).columns]
        table = pa.table(columns, schema=self._schema)
        cuts = np.flatnonzero(np.diff(ranges[order])) + 1
        starts = [0, *cuts.tolist(), len(ids)]
        for start, stop in pairwise(starts):
            if stop > start:
                number = int(ranges[order[start]])
                self._writers[number].write_table(table.slice(start, stop - start))

    def drain(self) -> Iterator[tuple[int, Float32, pa.Table | None]]:
        """Give (first id, vectors, payloads) of one range after the other, in the order of ids.

        Raises:
            RuntimeError: an id that was not added, or added twice.
        """
        self.close()
        for number, path in enumerate(self._paths):
            first = number * self.range_rows
            with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all().combine_chunks()
            ids = table.column(0).to_numpy()
            order = np.argsort(ids)
            stop = min(first + self.range_rows, self._points)
            if not np.array_equal(ids[order], np.arange(first, stop)):
                raise RuntimeError(f"ids {first} to {stop - 1} were not added once each")
            # Through chunk 0: `combine_chunks` left one, and its values are no copy.
            lists = cast(Any, table.column(1).chunk(0))
            vectors = cast(Float32, lists.values.to_numpy(zero_copy_only=True))
            payload = None
            if self._payload is not None:
                names = self._payload.names
                payload = table.select(range(2, 2 + len(names))).take(order).rename_columns(names)
            yield first, vectors.reshape(-1, self._dimension)[order], payload
            path.unlink()

    def close(self) -> None:
        """Close the files that are written."""
        for writer in self._writers:
            writer.close()
        self._writers = []

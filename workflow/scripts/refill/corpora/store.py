"""A prepared corpus on disk, read by plain reads, so that memory does not grow with its size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from refill.corpora.errors import CorpusError
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json
from refill.oracle.exact import Float32, Int64
from refill.oracle.recall import Truth

SCHEMA = "refill.corpus/1"
RECORD, VECTORS, QUERIES = "corpus.json", "vectors.npy", "queries.npy"
TRUTH_IDS, TRUTH_SCORES, PAYLOAD = "truth_ids.npy", "truth_scores.npy", "payload.parquet"
# Rows that stand closer than this in the file are read in one go, at most so many bytes.
GAP_BYTES, SPAN_BYTES = 1 << 16, 1 << 23
REMEDY = "delete the corpus's folder and run the workflow again"

Payload = list[dict[str, Any]]


class VectorFile:
    """A float32 .npy file of shape (points, dimension); row i is point id i.

    Raises:
        ValueError: another shape or type.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            self._start = file.tell()
        if len(shape) != 2 or fortran or dtype != np.float32:
            raise ValueError(f"{path.name}: {dtype} of shape {shape} is not what vectors are")
        self._points, self.dimension = shape

    def __len__(self) -> int:
        return self._points

    def rows(self, first: int, count: int) -> Float32:
        """Read `count` rows from `first` on, or as many as there are: (n, dimension).

        Raises:
            OSError: the file ends early.
        """
        count = max(0, min(count, self._points - first))
        rows = np.empty((count, self.dimension), np.float32)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._start + first * self.dimension * 4)
            view, done = rows.data.cast("B"), 0
            while done < len(view):
                # One read takes 2 GB at most.
                got = file.readinto(view[done:])
                if not got:
                    raise OSError(f"{self._path.name}: ends before point {first + count}")
                done += got
        return rows

    def blocks(self, rows: int) -> Iterator[tuple[int, Float32]]:
        """Read all points in order, `rows` at a time."""
        for first in range(0, self._points, rows):
            yield first, self.rows(first, rows)

    def take(self, ids: Int64) -> Float32:
        """Read the rows of some ids, ascending: (len(ids), dimension)."""
        out = np.empty((len(ids), self.dimension), np.float32)
        row_bytes = self.dimension * 4
        gap, span = max(1, GAP_BYTES // row_bytes), max(1, SPAN_BYTES // row_bytes)
        apart = np.flatnonzero(np.diff(ids) > gap) + 1
        start = 0
        while start < len(ids):
            stop = int(np.searchsorted(ids, ids[start] + span))
            later = apart[np.searchsorted(apart, start + 1) :]
            if len(later):
                stop = min(stop, int(later[0]))
            first, last = int(ids[start]), int(ids[stop - 1])
            out[start:stop] = self.rows(first, last - first + 1)[ids[start:stop] - first]
            start = stop
        return out


class Corpus:
    """A prepared corpus.

    Attributes:
        folder: where it stands.
        record: the content of its corpus.json.
        name: its name in the configuration.
        points: vectors to upload; their ids are 0 to points - 1.
        dimension: of the vectors.
        distance: Cosine, Dot or Euclid.
    """

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        self.folder = folder
        self.record = record
        self.name: str = record["name"]
        self.points: int = record["points"]
        self.dimension: int = record["dimension"]
        self.distance: str = record["distance"]
        self._vectors = VectorFile(folder / VECTORS)
        self._payload = PayloadFile(folder / PAYLOAD) if PAYLOAD in record["files"] else None

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> Corpus:
        """Open a corpus's folder; the sizes of its files are checked.

        Args:
            folder: holds corpus.json and the files that it lists.
            verify: read every file and check its SHA-256, too.

        Raises:
            CorpusError: a file that is missing, or not what corpus.json says.
            RecordError: no corpus.json, or another schema's.
        """
        record = read_json(folder / RECORD, SCHEMA)
        for file, said in record["files"].items():
            path = folder / file
            size = path.stat().st_size if path.is_file() else None
            if size != said["bytes"]:
                found = "no such file" if size is None else f"{size} bytes"
                raise CorpusError(
                    record["name"], file, "path", f"{found}, not {said['bytes']} bytes", REMEDY
                )
            if verify and (got := sha256_file(path)) != said["sha256"]:
                problem = f"its SHA-256 is {got}, not {said['sha256']} as when it was made"
                raise CorpusError(record["name"], file, "path", problem, REMEDY)
        return cls(folder, record)

    def queries(self) -> Float32:
        """Read the queries: float32, shape (queries, dimension)."""
        return np.asarray(np.load(self.folder / QUERIES), np.float32)

    def truth(self, k: int) -> Truth:
        """Read the exact neighbours, for recall@k.

        Raises:
            TruthError: fewer than `k` are known.
        """
        return Truth(np.load(self.folder / TRUTH_IDS), np.load(self.folder / TRUTH_SCORES), k)

    def rows(self, first: int, count: int) -> tuple[Float32, Payload | None]:
        """Read points `first` to `first + count`, or to the last one.

        Returns:
            float32 vectors of shape (n, dimension), and their payloads, if the corpus has any.
        """
        payload = None if self._payload is None else self._payload.rows(first, count)
        return self._vectors.rows(first, count), payload

    def take(self, ids: Int64) -> Float32:
        """Read the vectors of some points, ids ascending: (len(ids), dimension)."""
        return self._vectors.take(ids)

    def batches(self, size: int, start: int = 0) -> Iterator[tuple[int, Float32, Payload | None]]:
        """Read all points from `start` on, `size` at a time: (first id, vectors, payloads)."""
        for first in range(start, self.points, size):
            yield first, *self.rows(first, size)


class PayloadFile:
    """A Parquet file with one row a point; the row group that was read last is kept."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path, memory_map=False, pre_buffer=False)
        meta = self._file.metadata
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._kept: tuple[int, pa.Table] | None = None

    def rows(self, first: int, count: int) -> Payload:
        """Read the payloads of points `first` to `first + count`, or to the last one."""
        stop = min(first + count, int(self._starts[-1]))
        found: Payload = []
        while first < stop:
            group = int(np.searchsorted(self._starts, first, side="right")) - 1
            offset = first - int(self._starts[group])
            part = self._group(group).slice(offset, stop - first)
            found += part.to_pylist()
            first += len(part)
        return found

    def _group(self, group: int) -> pa.Table:
        if self._kept is None or self._kept[0] != group:
            self._kept = (group, self._file.read_row_group(group, use_threads=False))
        return self._kept[1]

"""Files that hold vectors (.npy, Parquet, ann-benchmarks HDF5), read in batches, by plain reads.

A source says what is wrong with its file (missing column, type, ragged rows, cut short); what is
wrong with the values (NaN, zero vectors) is found by `refill.corpora.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol, cast

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from refill.corpora.errors import CorpusError

Float32 = NDArray[np.float32]
Batch = tuple[int, Float32, pa.Table | None]

FLOATS = ("float16", "float32", "float64")
# Bytes that Parquet reads at a time of a column: without it a whole column chunk is held.
PARQUET_BUFFER = 1 << 20
ANN_DISTANCES = {"angular": "Cosine", "cosine": "Cosine", "euclidean": "Euclid", "dot": "Dot"}
SUFFIXES = {".npy": "npy", ".parquet": "parquet", ".hdf5": "hdf5", ".h5": "hdf5"}


class Source(Protocol):
    """Vectors in the order of a file's rows.

    Attributes:
        rows: how many vectors there are.
        dimension: their dimension.
        file: the file's base name, for errors.
        key: the key of the configuration that names the vectors.
    """

    rows: int
    dimension: int
    file: str
    key: str

    def batches(self, size: int) -> Iterator[Batch]:
        """Give (first row, float32 vectors (n, dimension), payload columns or None) in order.

        Raises:
            CorpusError: rows that are ragged, null or cut short.
        """
        ...


def open_source(spec: Mapping[str, Any], name: str, path: Path) -> Source:
    """Open the file of a corpus; a package's file is its member, of the kind its suffix says.

    Raises:
        CorpusError: not such a file, no such column, not floating-point vectors, or of another
            dimension than the configuration says.
    """
    source = _open(spec, name, path)
    wanted = spec.get("dimension", source.dimension)
    if source.dimension != wanted:
        problem = f"its vectors have {source.dimension} dimensions, the configuration says {wanted}"
        raise CorpusError(
            name, source.file, "dimension", problem, "give the right file, or mend it"
        )
    return source


def _open(spec: Mapping[str, Any], name: str, path: Path) -> Source:
    kind = spec["kind"]
    if kind == "package":
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            known = ", ".join(SUFFIXES)
            raise CorpusError(name, path.name, "member", "unknown kind", f"give one of {known}")
        kind = SUFFIXES[suffix]
    if kind == "npy":
        return NpySource(name, path, "member" if spec["kind"] == "package" else "path")
    if kind == "parquet":
        return ParquetSource(name, path, spec.get("vector", ""), spec.get("payload", []))
    return Hdf5Source(name, path, "train")


class NpySource:
    """A NumPy file of shape (rows, dimension), stored by rows (C order) or columns (Fortran)."""

    def __init__(self, name: str, path: Path, key: str) -> None:
        self._name, self._path = name, path
        self.file, self.key = path.name, key
        with path.open("rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, fortran, self._dtype = read(file)
            except ValueError as error:
                raise self._error(f"not a .npy file ({error})", "give a .npy file") from error
            self._start = file.tell()
        if len(shape) != 2 or shape[1] < 1:
            raise self._error(f"has the shape {shape}", "it must be (rows, dimension)")
        if self._dtype.name not in FLOATS:
            raise self._error(f"holds {self._dtype}", f"convert it to one of {', '.join(FLOATS)}")
        self._fortran = fortran
        self.rows, self.dimension = shape
        wanted = self._start + self.rows * self.dimension * self._dtype.itemsize
        if path.stat().st_size < wanted:
            raise self._error(
                f"is cut short: {path.stat().st_size} bytes of {wanted}", "get the whole file"
            )

    def batches(self, size: int) -> Iterator[Batch]:
        """Read `size` rows at a time."""
        with self._path.open("rb") as file:
            for first in range(0, self.rows, size):
                rows = min(size, self.rows - first)
                if not self._fortran:
                    batch = np.empty((rows, self.dimension), self._dtype)
                    self._read(file, first * self.dimension, batch)
                    yield first, _float32(batch), None
                    continue
                # A batch is one piece of each column.
                columns = np.empty((self.dimension, rows), self._dtype)
                for number, column in enumerate(columns):
                    self._read(file, number * self.rows + first, column)
                yield first, _float32(columns.T), None

    def _read(self, file: IO[bytes], start: int, values: NDArray[Any]) -> None:
        """Fill `values` with the file's values from number `start` on."""
        file.seek(self._start + start * self._dtype.itemsize)
        data = file.read(values.nbytes)
        if len(data) != values.nbytes:
            raise self._error("is cut short", "get the whole file")
        values.reshape(-1)[:] = np.frombuffer(data, self._dtype)

    def _error(self, problem: str, remedy: str) -> CorpusError:
        return CorpusError(self._name, self.file, self.key, problem, remedy)


class Hdf5Source:
    """A data set of an ann-benchmarks HDF5 file, shape (rows, dimension): `train` or `test`."""

    def __init__(self, name: str, path: Path, dataset: str) -> None:
        self._name, self._path, self._dataset = name, path, dataset
        self.file, self.key = path.name, "path"
        try:
            with h5py.File(path, "r") as file:
                names = list(file)
                data = file.get(dataset)
                if not isinstance(data, h5py.Dataset):
                    raise self._error(
                        f"has no data set {dataset!r} (it has {', '.join(names) or 'none'})",
                        "give an ann-benchmarks file"
                        + (", or set queries_from: train" if dataset == "test" else ""),
                    )
                shape, dtype = data.shape, data.dtype
        except OSError as error:
            raise self._error(f"not an HDF5 file ({error})", "give an HDF5 file") from error
        if len(shape) != 2 or shape[1] < 1:
            raise self._error(f"{dataset!r} has the shape {shape}", "it must be (rows, dimension)")
        if dtype.name not in FLOATS:
            raise self._error(
                f"{dataset!r} holds {dtype}", f"give a file with one of {', '.join(FLOATS)}"
            )
        self.rows, self.dimension = int(shape[0]), int(shape[1])

    def batches(self, size: int) -> Iterator[Batch]:
        """Read `size` rows at a time."""
        with h5py.File(self._path, "r") as file:
            data = file[self._dataset]
            for first in range(0, self.rows, size):
                yield first, _float32(data[first : first + size]), None

    def distance(self) -> str | None:
        """Give the distance that the file's attribute says, as Qdrant names it; None without one.

        Raises:
            CorpusError: a distance that is not known here.
        """
        with h5py.File(self._path, "r") as file:
            said = file.attrs.get("distance")
        if said is None:
            return None
        text = said.decode() if isinstance(said, bytes) else str(said)
        if text not in ANN_DISTANCES:
            raise self._error(
                f"its attribute distance is {text!r}",
                f"give a file with one of {', '.join(ANN_DISTANCES)}",
            )
        return ANN_DISTANCES[text]

    def neighbors(self, rows: int) -> NDArray[np.int64] | None:
        """Give the file's own nearest rows of `train` of each row of `test`; None without them.

        Raises:
            CorpusError: they are not one row of numbers below `rows` for each row of `test`.
        """
        with h5py.File(self._path, "r") as file:
            if "neighbors" not in file:
                return None
            data = file["neighbors"]
            what, remedy = "'neighbors'", "give the whole ann-benchmarks file"
            if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "iu":
                raise self._error(f"{what} holds no whole numbers", remedy)
            if data.ndim != 2 or data.shape[0] != self.rows or not data.shape[1]:
                raise self._error(
                    f"{what} has the shape {data.shape}, {self._dataset!r} has {self.rows} rows",
                    remedy,
                )
            found = np.asarray(data[...]).astype(np.int64)
        if found.min() < 0 or found.max() >= rows:
            wrong = found.min() if found.min() < 0 else found.max()
            raise self._error(f"{what} names row {wrong}, 'train' has {rows} rows", remedy)
        return found

    def _error(self, problem: str, remedy: str) -> CorpusError:
        return CorpusError(self._name, self.file, self.key, problem, remedy)


class ParquetSource:
    """A column of float lists (variable, large or fixed size), with payload columns beside it."""

    def __init__(self, name: str, path: Path, vector: str, payload: list[str]) -> None:
        self._name, self._path = name, path
        self._vector, self._payload = vector, list(payload)
        self.file, self.key = path.name, "vector"
        with self._open() as file:
            schema = file.schema_arrow
            self.rows = file.metadata.num_rows
            for key, column in [("vector", vector), *(("payload", c) for c in payload)]:
                if column not in schema.names:
                    raise CorpusError(
                        name,
                        self.file,
                        key,
                        f"no column {column!r}",
                        f"it has {', '.join(schema.names)}",
                    )
            kind = schema.field(vector).type
            if not _is_list(kind) or str(kind.value_type) not in ("halffloat", "float", "double"):
                raise self._error(
                    f"column {vector!r} holds {kind}",
                    "it must be a list of float16, float32 or float64",
                )
            for column in self._payload:
                _check_payload_type(schema.field(column), name, self.file)
            self.dimension = self._first_length(file)

    def batches(self, size: int) -> Iterator[Batch]:
        """Read `size` rows at a time; the last batch of a row group may be shorter."""
        first = 0
        columns = [self._vector, *(c for c in self._payload if c != self._vector)]
        with self._open() as file:
            for batch in file.iter_batches(size, columns=columns, use_threads=False):
                vectors = self._vectors(batch.column(self._vector), first)
                payload = None
                if self._payload:
                    payload = pa.Table.from_batches([batch]).select(self._payload)
                yield first, vectors, payload
                first += len(batch)

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(
                self._path, memory_map=False, buffer_size=PARQUET_BUFFER, pre_buffer=False
            )
        except pa.ArrowInvalid as error:
            raise CorpusError(
                self._name,
                self.file,
                "path",
                f"not a Parquet file ({error})",
                "give a whole Parquet file",
            ) from error

    def _first_length(self, file: pq.ParquetFile) -> int:
        kind = file.schema_arrow.field(self._vector).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in file.iter_batches(1, columns=[self._vector], use_threads=False):
            if batch.column(0).null_count:
                raise self._error("row 0 is null", "leave rows without a vector out")
            return len(cast(Any, batch.column(0)).flatten())
        return 0

    def _vectors(self, column: Any, first: int) -> Float32:
        if column.null_count:
            row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise self._error(f"row {row} is null", "leave rows without a vector out")
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        wrong = lengths != self.dimension
        if wrong.any():
            place = int(np.argmax(wrong))
            raise self._error(
                f"row {first + place} has the dimension {lengths[place]}, the rows before it "
                f"{self.dimension}",
                "all vectors must have one dimension",
            )
        values = column.flatten()
        if values.null_count:
            place = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise self._error(
                f"row {first + place // self.dimension} has a null value", "leave such rows out"
            )
        flat = values.to_numpy(zero_copy_only=True)
        return _float32(flat.reshape(len(column), self.dimension))

    def _error(self, problem: str, remedy: str) -> CorpusError:
        return CorpusError(self._name, self.file, "vector", problem, remedy)


def _is_list(kind: pa.DataType) -> bool:
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
    )
    return any(check(kind) for check in checks)


def _check_payload_type(field: pa.Field[Any], name: str, file: str) -> None:
    kind = cast(Any, field.type)
    while _is_list(kind):
        kind = kind.value_type
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_null,
    )
    if not any(check(kind) for check in checks):
        raise CorpusError(
            name,
            file,
            "payload",
            f"column {field.name!r} holds {field.type}, which JSON does not have",
            "give columns of text, numbers, true or false, or lists of them",
        )


def _float32(values: NDArray[Any]) -> Float32:
    # A float64 too large for float32 becomes infinite, which the checks then find.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)

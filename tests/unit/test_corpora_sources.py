"""Files of vectors: what is read from each kind, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refill.corpora.checks import check_vectors
from refill.corpora.errors import CorpusError
from refill.corpora.sources import Source, open_source

ROWS, DIMENSION = 250, 6


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((ROWS, DIMENSION))


def read(source: Source, size: int = 64) -> np.ndarray:
    firsts, parts = [], []
    for first, part, _ in source.batches(size):
        assert part.dtype == np.float32
        assert len(part) <= size
        firsts.append(first)
        parts.append(part)
    assert firsts == np.cumsum([0, *map(len, parts[:-1])]).tolist()
    return np.concatenate(parts)


def spec(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "distance": "Cosine", **more}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_npy(tmp_path: Path, vectors: np.ndarray, order: Any, dtype: str) -> None:
    saved = np.asarray(vectors, dtype, order=order)
    np.save(tmp_path / "x.npy", saved)
    source = open_source(spec("npy"), "c", tmp_path / "x.npy")
    assert (source.rows, source.dimension) == (ROWS, DIMENSION)
    assert np.array_equal(read(source), saved.astype(np.float32))


def test_a_dimension_that_is_configured_is_the_files(tmp_path: Path, vectors: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", vectors)
    assert open_source(spec("npy", dimension=DIMENSION), "c", tmp_path / "x.npy").rows == ROWS
    with pytest.raises(CorpusError, match=r"corpora\.c\.dimension: .*6 dimensions.* says 1024"):
        open_source(spec("npy", dimension=1024), "c", tmp_path / "x.npy")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_hdf5(tmp_path: Path, vectors: np.ndarray, dtype: str) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["train"] = vectors.astype(dtype)
    source = open_source(spec("hdf5"), "c", tmp_path / "x.hdf5")
    assert (source.rows, source.dimension) == (ROWS, DIMENSION)
    assert np.array_equal(read(source), vectors.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("value", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("form", ["list", "large_list", "fixed_size_list"])
def test_parquet(tmp_path: Path, vectors: np.ndarray, value: pa.DataType, form: str) -> None:
    dtype = value.to_pandas_dtype()
    kind = {
        "list": pa.list_(value),
        "large_list": pa.large_list(value),
        "fixed_size_list": pa.list_(value, DIMENSION),
    }[form]
    rows = pa.array(list(vectors.astype(dtype)), type=kind)
    names = pa.array([f"doc {i}" for i in range(ROWS)])
    table = pa.table({"emb": rows, "name": names, "n": range(ROWS)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    entry = spec("parquet", vector="emb", payload=["n", "name"])
    source = open_source(entry, "c", tmp_path / "x.parquet")
    assert (source.rows, source.dimension) == (ROWS, DIMENSION)
    assert np.array_equal(read(source), vectors.astype(dtype).astype(np.float32))
    payload = pa.concat_tables([p for _, _, p in source.batches(64) if p is not None])
    assert payload.to_pylist() == [{"n": i, "name": f"doc {i}"} for i in range(ROWS)]


def write_parquet(path: Path, emb: list[Any], kind: pa.DataType | None = None) -> None:
    pq.write_table(pa.table({"emb": pa.array(emb, type=kind)}), path)


PARQUET = spec("parquet", vector="emb")


@pytest.mark.parametrize(
    ("emb", "kind", "said"),
    [
        ([[1.0, 2.0], [1.0, 2.0, 3.0]], None, "row 1 has the dimension 3, the rows before it 2"),
        ([[1.0, 2.0], [], [1.0, 2.0]], None, "row 1 has the dimension 0"),
        ([[1.0, 2.0], None], None, "row 1 is null"),
        ([None, [1.0, 2.0]], None, "row 0 is null"),
        ([[1.0, 2.0], [None, 1.0]], None, "row 1 has a null value"),
        ([[1.0, 2.0], None], pa.list_(pa.float32(), 2), "row 1 is null"),
        ([[1, 2]], None, "'emb' holds list<.*int64.*float16, float32 or float64"),
        (["text"], None, "'emb' holds string"),
    ],
)
def test_bad_parquet_columns(
    tmp_path: Path, emb: list[Any], kind: pa.DataType | None, said: str
) -> None:
    write_parquet(tmp_path / "x.parquet", emb, kind)
    with pytest.raises(CorpusError, match=rf"corpora\.c\.vector: x\.parquet: .*{said}"):
        read(open_source(PARQUET, "c", tmp_path / "x.parquet"))


def test_missing_parquet_columns_name_those_that_are_there(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", [[1.0]])
    with pytest.raises(CorpusError, match=r"corpora\.c\.vector: .*no column 'e'; it has emb"):
        open_source(spec("parquet", vector="e"), "c", tmp_path / "x.parquet")
    with pytest.raises(CorpusError, match=r"corpora\.c\.payload: .*no column 'url'"):
        open_source({**PARQUET, "payload": ["url"]}, "c", tmp_path / "x.parquet")


def test_a_payload_that_json_lacks_is_refused(tmp_path: Path) -> None:
    table = pa.table({"emb": [[1.0]], "at": pa.array([0], pa.timestamp("s"))})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(CorpusError, match=r"payload: .*'at' holds timestamp"):
        open_source({**PARQUET, "payload": ["at"]}, "c", tmp_path / "x.parquet")


def test_files_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"neither of them, and long enough for every magic number")
    for entry, said in (
        (PARQUET, "not a Parquet file"),
        (spec("npy"), "not a .npy file"),
        (spec("hdf5"), "not an HDF5 file"),
    ):
        with pytest.raises(CorpusError, match=rf"corpora\.c\.path: x\.bin: {said}"):
            open_source(entry, "c", path)
    with pytest.raises(CorpusError, match=r"corpora\.c\.member: x\.bin: .*\.npy"):
        open_source(spec("package"), "c", path)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(5), "has the shape"),
        (np.zeros((5, 2, 2)), "has the shape"),
        (np.zeros((5, 2), np.int64), "holds int64"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path: Path, array: np.ndarray, said: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["train"] = array
    for name in ("npy", "hdf5"):
        with pytest.raises(CorpusError, match=said):
            open_source(spec(name), "c", tmp_path / f"x.{name}")


def test_a_file_that_is_cut_short(tmp_path: Path, vectors: np.ndarray) -> None:
    path = tmp_path / "x.npy"
    np.save(path, vectors)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorpusError, match="is cut short"):
        open_source(spec("npy"), "c", path)


def test_a_missing_data_set_of_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["base"] = np.ones((2, 2))
    with pytest.raises(CorpusError, match=r"no data set 'train' \(it has base\)"):
        open_source(spec("hdf5"), "c", tmp_path / "x.hdf5")


def check_all(source: Source, distance: str) -> None:
    for first, part, _ in source.batches(64):
        check_vectors(part, first, distance, "c", source)


@pytest.mark.parametrize(
    ("value", "distance", "said"),
    [
        (np.nan, "Dot", "row 103 has the value nan at component 2"),
        (np.inf, "Euclid", "row 103 has the value inf at component 2"),
        (1e300, "Dot", "row 103 has the value inf at component 2.*too large for float32"),
        (1e30, "Cosine", "row 103 has the norm 1e"),
    ],
)
def test_values_that_no_engine_can_search(
    tmp_path: Path, vectors: np.ndarray, value: float, distance: str, said: str
) -> None:
    vectors[103, 2] = value
    np.save(tmp_path / "x.npy", vectors)
    source = open_source(spec("npy"), "c", tmp_path / "x.npy")
    with pytest.raises(CorpusError, match=rf"corpora\.c\.path: x\.npy: {said}"):
        check_all(source, distance)


def test_a_zero_vector_is_wrong_under_cosine_only(tmp_path: Path, vectors: np.ndarray) -> None:
    vectors[7] = 0
    np.save(tmp_path / "x.npy", vectors)
    source = open_source(spec("npy"), "c", tmp_path / "x.npy")
    batch = read(source, ROWS)
    check_vectors(batch, 0, "Dot", "c", source)
    check_vectors(batch, 0, "Euclid", "c", source)
    with pytest.raises(CorpusError, match="row 7 is a zero vector"):
        check_vectors(batch, 0, "Cosine", "c", source)

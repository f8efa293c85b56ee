"""A corpus's folder: what is held out, how points are ordered, its truth, and its refusals."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refill.corpora import prepare as preparing
from refill.corpora import shuffle
from refill.corpora.errors import CorpusError
from refill.corpora.prepare import prepare
from refill.corpora.store import Corpus
from refill.evidence.hashes import sha256_file
from refill.processes import module_environment, wait_for
from refill.told import SupersededError

ROWS, DIMENSION, POINTS, QUERIES = 900, 8, 600, 25


@pytest.fixture
def vectors() -> np.ndarray:
    rng = np.random.default_rng(5)
    # Small whole numbers: rows repeat, and scores tie.
    return rng.integers(1, 4, (ROWS, DIMENSION)).astype(np.float32)


def entry(path: Path, kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "path": str(path), "sha256": sha256_file(path), **more}


def silent(_: str) -> None:
    pass


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Corpus]:
    def run(spec: dict[str, Any], points: int = POINTS, seed: int = 1, out: str = "c") -> Corpus:
        prepare(spec, "mine", points, QUERIES, seed, tmp_path / out, Path(spec["path"]), say=silent)
        return Corpus.open(tmp_path / out, verify=True)

    return run


@pytest.fixture
def npy(tmp_path: Path, vectors: np.ndarray) -> dict[str, Any]:
    np.save(tmp_path / "x.npy", vectors)
    return entry(tmp_path / "x.npy", "npy", distance="Cosine")


def all_rows(corpus: Corpus) -> np.ndarray:
    return np.concatenate([rows for _, rows, _ in corpus.batches(77)])


def as_bag(rows: np.ndarray) -> list[bytes]:
    return sorted(row.tobytes() for row in rows)


def test_queries_are_held_out_of_the_upload(
    npy: dict[str, Any], vectors: np.ndarray, make: Callable[..., Corpus]
) -> None:
    corpus = make(npy, points=ROWS - QUERIES)
    uploaded, queries = all_rows(corpus), corpus.queries()
    assert uploaded.shape == (ROWS - QUERIES, DIMENSION)
    assert queries.shape == (QUERIES, DIMENSION)
    # Every row of the file is used once: as a point or as a query.
    assert as_bag(np.concatenate([uploaded, queries])) == as_bag(vectors)
    equal = sum((row == queries).all(axis=1).any() for row in uploaded)
    assert equal > 0
    assert corpus.record["duplicates_of_queries"] == equal


def test_the_seed_fixes_queries_points_and_order(
    npy: dict[str, Any], make: Callable[..., Corpus]
) -> None:
    one, same, other = make(npy), make(npy, out="d"), make(npy, out="e", seed=2)
    assert one.record["files"] == same.record["files"]
    assert np.array_equal(all_rows(one), all_rows(same))
    assert not np.array_equal(all_rows(one), all_rows(other))
    assert not np.array_equal(one.queries(), other.queries())


def test_rows_are_drawn_from_the_whole_file(tmp_path: Path, make: Callable[..., Corpus]) -> None:
    numbered = np.arange(1, ROWS + 1, dtype=np.float32)[:, None].repeat(2, axis=1)
    np.save(tmp_path / "n.npy", numbered)
    corpus = make(entry(tmp_path / "n.npy", "npy", distance="Dot"))
    drawn = all_rows(corpus)[:, 0]
    assert len(set(drawn)) == POINTS
    assert not set(drawn) & set(corpus.queries()[:, 0])
    # A third of 600 uniform draws falls into each third of the file; and the order is random.
    thirds = np.bincount(((drawn - 1) // (ROWS / 3)).astype(int))
    assert thirds.min() > 150
    assert 0.3 < (np.diff(drawn) > 0).mean() < 0.7


def test_the_truth_reaches_as_deep_as_is_asked(npy: dict[str, Any], tmp_path: Path) -> None:
    path = Path(npy["path"])
    prepare(npy, "mine", POINTS, QUERIES, 1, tmp_path / "deep", path, say=silent, depth=250)
    corpus = Corpus.open(tmp_path / "deep")
    assert corpus.record["truth_depth"] == 250
    assert (corpus.truth(250).ids >= 0).all()


@pytest.mark.parametrize("distance", ["Cosine", "Dot", "Euclid"])
def test_the_truth_is_that_of_brute_force(
    tmp_path: Path, vectors: np.ndarray, make: Callable[..., Corpus], distance: str
) -> None:
    np.save(tmp_path / "x.npy", vectors)
    corpus = make(entry(tmp_path / "x.npy", "npy", distance=distance))
    points = all_rows(corpus).astype(np.float64)
    truth = corpus.truth(10)
    assert truth.ids.shape == (QUERIES, 100)
    for number, query in enumerate(corpus.queries().astype(np.float64)):
        dot, lengths = (points * query).sum(axis=1), (points * points).sum(axis=1)
        scores = {
            "Dot": dot,
            "Cosine": dot / np.sqrt(lengths * (query * query).sum()),
            "Euclid": -np.sqrt(((points - query) ** 2).sum(axis=1)),
        }[distance]
        best = np.lexsort((np.arange(POINTS), -scores))
        assert truth.ids[number].tolist() == best[:100].tolist()
        assert truth.recall(number, best[:10].tolist()) == 1.0


def test_the_record_says_what_was_made(npy: dict[str, Any], make: Callable[..., Corpus]) -> None:
    corpus = make(npy)
    record = json.loads((corpus.folder / "corpus.json").read_text())
    assert record["schema"] == "refill.corpus/1"
    assert record["source"] == {"path": "x.npy", "sha256": npy["sha256"]}
    assert (record["points"], record["queries"], record["truth_depth"]) == (POINTS, QUERIES, 100)
    assert record["files"].keys() == {
        "vectors.npy",
        "queries.npy",
        "truth_ids.npy",
        "truth_scores.npy",
    }
    for name, said in record["files"].items():
        assert said["sha256"] == sha256_file(corpus.folder / name)
    loaded = np.load(corpus.folder / "vectors.npy")
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, all_rows(corpus))


def test_payloads_stay_with_their_vectors(
    tmp_path: Path, make: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many small ranges, as a large corpus has.
    monkeypatch.setattr(shuffle, "RANGE_ROWS", 50)
    monkeypatch.setattr(preparing, "BATCH_ROWS", 64)
    values = np.arange(1, ROWS + 1, dtype=np.float32)
    table = pa.table(
        {
            "id": [f"doc {int(v)}" for v in values],
            "emb": [[v, 1.0] for v in values.tolist()],
            "tags": [["a"] if v % 2 else None for v in values.tolist()],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=130)
    corpus = make(
        entry(
            tmp_path / "x.parquet",
            "parquet",
            vector="emb",
            payload=["id", "tags"],
            distance="Euclid",
        )
    )
    seen = 0
    for first, rows, payload in corpus.batches(70, start=30):
        assert first == 30 + seen
        assert payload is not None
        for row, item in zip(rows, payload, strict=True):
            assert item == {"id": f"doc {int(row[0])}", "tags": ["a"] if row[0] % 2 else None}
        seen += len(rows)
    assert seen == POINTS - 30
    late, early = corpus.rows(POINTS - 5, 50), corpus.rows(0, 2)
    assert len(late[0]) == len(late[1] or []) == 5
    assert early[1] == [
        {"id": f"doc {int(v)}", "tags": ["a"] if v % 2 else None} for v in early[0][:, 0]
    ]


def write_hdf5(path: Path, train: np.ndarray, test: np.ndarray, **more: Any) -> None:
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = train, test
        for name, value in more.items():
            if name == "distance":
                file.attrs["distance"] = value
            else:
                file[name] = value


def test_rows_of_test_are_the_queries_of_an_hdf5_file(
    tmp_path: Path, make: Callable[..., Corpus]
) -> None:
    rng = np.random.default_rng(1)
    train, test = rng.standard_normal((200, 5)), rng.standard_normal((60, 5))
    distances = np.linalg.norm(test[:, None] - train[None], axis=2)
    neighbors = np.argsort(distances, axis=1)[:, :20]
    path = tmp_path / "x.hdf5"
    write_hdf5(path, train, test, neighbors=neighbors, distance="euclidean")
    corpus = make(entry(path, "hdf5"), points=200)
    assert corpus.distance == "Euclid"
    assert as_bag(all_rows(corpus)) == as_bag(train.astype(np.float32))
    assert set(as_bag(corpus.queries())) <= set(as_bag(test.astype(np.float32)))
    assert corpus.record["published_neighbors"] == 1.0

    held_out = make(entry(path, "hdf5", queries_from="train"), points=175, out="d")
    both = np.concatenate([all_rows(held_out), held_out.queries()])
    assert as_bag(both) == as_bag(train.astype(np.float32))
    assert held_out.record["published_neighbors"] is None


def test_an_hdf5_file_that_contradicts_itself(tmp_path: Path, make: Callable[..., Corpus]) -> None:
    rng = np.random.default_rng(1)
    train, test = rng.standard_normal((200, 5)), rng.standard_normal((60, 5))
    path = tmp_path / "x.hdf5"
    wrong = rng.integers(0, 200, (60, 20))
    write_hdf5(path, train, test, neighbors=wrong, distance="angular")
    with pytest.raises(CorpusError, match=r"distance: x\.hdf5: only .* neighbours are nearest"):
        make(entry(path, "hdf5"), points=200)
    with pytest.raises(CorpusError, match="is Dot, the file says Cosine"):
        make(entry(path, "hdf5", distance="Dot"), points=200)
    write_hdf5(path, train, test, distance="hamming")
    with pytest.raises(CorpusError, match="its attribute distance is 'hamming'"):
        make(entry(path, "hdf5"), points=200)
    write_hdf5(path, train, test[:, :3])
    with pytest.raises(CorpusError, match="test has the dimension 3, train 5"):
        make(entry(path, "hdf5", distance="Dot"), points=200)
    with pytest.raises(CorpusError, match=r"distance: .*is missing; give one of Cosine"):
        make(entry(path, "hdf5"), points=200)
    write_hdf5(path, train, test[:3])
    with pytest.raises(CorpusError, match="has 3 rows, too few for 25 queries"):
        make(entry(path, "hdf5", distance="Dot"), points=200)


@pytest.mark.parametrize(
    ("neighbors", "words"),
    [
        (np.zeros((29, 10), np.int32), r"the shape \(29, 10\), 'test' has 30 rows"),
        (np.zeros(30, np.int32), r"the shape \(30,\), 'test' has 30 rows"),
        (np.zeros((30, 0), np.int32), r"the shape \(30, 0\), 'test' has 30 rows"),
        (np.full((30, 10), 300), "names row 300, 'train' has 300 rows"),
        (np.full((30, 10), -1), "names row -1, 'train' has 300 rows"),
        (np.zeros((30, 10), np.float32), "holds no whole numbers"),
        (None, "holds no whole numbers"),
    ],
)
def test_neighbours_of_another_file_are_refused(
    tmp_path: Path, make: Callable[..., Corpus], neighbors: np.ndarray | None, words: str
) -> None:
    rng = np.random.default_rng(4)
    path = tmp_path / "x.hdf5"
    write_hdf5(path, rng.standard_normal((300, 5)), rng.standard_normal((30, 5)))
    with h5py.File(path, "a") as file:
        if neighbors is None:
            file.create_group("neighbors")
        else:
            file["neighbors"] = neighbors
    with pytest.raises(CorpusError, match=rf"'neighbors' .*{words}"):
        make(entry(path, "hdf5", distance="Dot"), points=300)


def test_refusals_leave_nothing_behind(
    npy: dict[str, Any], tmp_path: Path, make: Callable[..., Corpus]
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CorpusError, match="has 900 rows, too few for 880 points and 25 queries"):
        make(npy, points=880)
    with pytest.raises(CorpusError, match=r"corpora\.mine\.distance: .*'Manhattan' is not known"):
        make({**npy, "distance": "Manhattan"})
    with pytest.raises(CorpusError, match=rf"sha256: .*expected {'0' * 64}, got {npy['sha256']}"):
        make({**npy, "sha256": "0" * 64})
    with pytest.raises(CorpusError, match=f"is not pinned .*{npy['sha256']}"):
        make({**npy, "sha256": None})
    with pytest.raises(CorpusError, match=r"corpora\.mine\.path: .*no such file"):
        make({**npy, "path": str(tmp_path / "none.npy")})
    bad = np.load(npy["path"])
    bad[-1, -1] = np.nan
    np.save(tmp_path / "x.npy", bad)
    # Row 899 may be neither point nor query: a bad file is refused whatever is drawn.
    with pytest.raises(CorpusError, match="row 899 has the value nan"):
        make(entry(tmp_path / "x.npy", "npy", distance="Dot"))
    assert sorted(tmp_path.iterdir()) == before


def test_an_older_corpus_is_replaced_only_by_a_whole_one(
    npy: dict[str, Any], tmp_path: Path, make: Callable[..., Corpus]
) -> None:
    first = make(npy)
    (first.folder / "stray.txt").write_text("not part of a corpus")
    with pytest.raises(CorpusError):
        make(npy, points=5000)
    assert Corpus.open(tmp_path / "c", verify=True).record == first.record
    second = make(npy, points=100)
    assert second.points == 100
    assert not (second.folder / "stray.txt").exists()


def test_a_kill_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((60_000, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    spec = entry(tmp_path / "x.npy", "npy", distance="Cosine")
    work = (
        "import json, sys; from pathlib import Path; from refill.corpora.prepare import prepare\n"
        "spec, out = json.loads(sys.argv[1]), Path(sys.argv[2])\n"
        "while True: prepare(spec, 'mine', 50_000, 500, 1, out, Path(spec['path']))\n"
    )
    out = tmp_path / "corpora" / "c"
    command = [sys.executable, "-c", work, json.dumps(spec), str(out)]
    with subprocess.Popen(command, env=module_environment(), stdout=subprocess.DEVNULL) as process:
        try:
            # Killed as soon as the vectors are being written, long before the truth is.
            assert wait_for(
                lambda: any(out.parent.glob(str(Path(".c.partial-*", "work", "*")))), 60
            )
            os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
    assert not out.exists()
    assert list(out.parent.iterdir()) != []
    kept = [
        ".c.partial-notes",
        f".c.partial-{platform.node()}-{os.getppid()}",
        # Of a node that shares this folder: nothing is known of its processes.
        f".c.partial-elsewhere-{process.pid}",
    ]
    for name in kept:
        (out.parent / name).mkdir()
    prepare(spec, "mine", 1000, 10, 1, out, Path(spec["path"]), say=silent)
    # What is not a leftover stays: another run's folder, a name that is not ours.
    assert sorted(path.name for path in out.parent.iterdir()) == sorted([*kept, "c"])


def test_a_corpus_that_another_job_prepares_by_now_takes_no_place(
    npy: dict[str, Any], tmp_path: Path
) -> None:
    def taken_over() -> None:
        raise SupersededError("taken over")

    out, path = tmp_path / "corpora" / "c", Path(npy["path"])
    with pytest.raises(SupersededError):
        prepare(npy, "mine", 100, 10, 1, out, path, say=silent, check=taken_over)
    assert list(out.parent.iterdir()) == []
    prepare(npy, "mine", 100, 10, 1, out, path, say=silent)
    with pytest.raises(SupersededError):
        prepare(npy, "mine", 200, 10, 1, out, path, say=silent, check=taken_over)
    assert Corpus.open(out).points == 100


def test_a_corpus_that_was_changed_is_refused(
    npy: dict[str, Any], make: Callable[..., Corpus]
) -> None:
    corpus = make(npy)
    queries = corpus.folder / "queries.npy"
    data = bytearray(queries.read_bytes())
    data[-1] ^= 1
    queries.write_bytes(bytes(data))
    Corpus.open(corpus.folder)
    with pytest.raises(CorpusError, match=r"queries\.npy: its SHA-256 is .* run the workflow"):
        Corpus.open(corpus.folder, verify=True)
    queries.write_bytes(bytes(data[:-1]))
    with pytest.raises(CorpusError, match=r"queries\.npy: \d+ bytes, not \d+ bytes"):
        Corpus.open(corpus.folder)
    queries.unlink()
    with pytest.raises(CorpusError, match=r"queries\.npy: no such file"):
        Corpus.open(corpus.folder)

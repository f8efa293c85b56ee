"""Two figures of `make bench`: exact search against a bare product, memory while streaming."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from refill.corpora.prepare import prepare
from refill.corpora.sources import open_source
from refill.corpora.store import Corpus
from refill.evidence.hashes import sha256_file
from refill.oracle.exact import ArrayPoints, exact_topk
from refill.processes import die_with_parent, module_command, module_environment

QUERIES = 1000
ROW_GROUP = 50_000
TIMEOUT_S = 1800


def exact_topk_ratio(
    points: int = 400_000,
    dimension: int = 50,
    queries: int = QUERIES,
    distance: str = "Cosine",
    repeats: int = 5,
) -> dict[str, Any]:
    """Time the exact search against NumPy's product of the same matrices, in turn.

    Returns:
        Sizes, and the smallest of `repeats` times in seconds: `exact_s`; `product_s`, the plain
        `points @ queries.T`, with `ratio` to it; `product_in_place_s`, the same into memory that
        is there already, which no program that keeps its answer gets, with `ratio_in_place`.
    """
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((points, dimension), dtype=np.float32)
    asked = rng.standard_normal((queries, dimension), dtype=np.float32)
    out = np.zeros((points, queries), np.float32)
    exact, product, in_place = [], [], []
    for _ in range(repeats):
        exact.append(_seconds(lambda: exact_topk(ArrayPoints(rows), asked, distance)))
        product.append(_seconds(lambda: rows @ asked.T))
        in_place.append(_seconds(lambda: np.matmul(rows, asked.T, out=out)))
    return {
        "points": points,
        "dimension": dimension,
        "queries": queries,
        "distance": distance,
        "exact_s": round(min(exact), 4),
        "product_s": round(min(product), 4),
        "product_in_place_s": round(min(in_place), 4),
        "ratio": round(min(exact) / min(product), 3),
        "ratio_in_place": round(min(exact) / min(in_place), 3),
    }


def stream_memory(
    folder: Path, points: int = 500_000, dimension: int = 1024, queries: int = QUERIES
) -> dict[str, Any]:
    """Measure the memory of reading a generated Parquet file, and of preparing and uploading it.

    Each is done in a process of its own, without an engine.

    Args:
        folder: on a disk with room for three copies of the vectors; nothing is left there.
        points: rows of the file.
        dimension: of its vectors, float32.
        queries: held out when it is prepared.

    Returns:
        Sizes, the largest resident set in bytes of each process (`read`, `prepare`, `upload`)
        and of all (`peak_bytes`), their seconds, and the bytes of the file.
    """
    with tempfile.TemporaryDirectory(prefix="stream-memory-", dir=folder) as work:
        path = Path(work) / "generated.parquet"
        _generate(path, points, dimension)
        spec = {
            "kind": "parquet",
            "path": str(path),
            "sha256": sha256_file(path),
            "vector": "emb",
            "payload": ["docid", "title"],
            "distance": "Cosine",
        }
        job = {"spec": spec, "points": points - queries, "queries": queries, "folder": work}
        steps = {step: _measure(step, job) for step in ("read", "prepare", "upload")}
        size = path.stat().st_size
    return {
        "points": points,
        "dimension": dimension,
        "file_bytes": size,
        "peak_bytes": max(step["peak_bytes"] for step in steps.values()),
        "steps": steps,
    }


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _generate(path: Path, points: int, dimension: int) -> None:
    rng = np.random.default_rng(1)
    fields = [("docid", pa.string()), ("title", pa.string()), ("emb", pa.list_(pa.float32()))]
    schema = pa.schema(fields)
    # Random floats do not compress, and a dictionary of them only costs time.
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, points, ROW_GROUP):
            rows = min(ROW_GROUP, points - first)
            values: Any = pa.array(rng.standard_normal(rows * dimension, dtype=np.float32))
            offsets: Any = pa.array(np.arange(rows + 1, dtype=np.int32) * dimension)
            names = [f"document {number}" for number in range(first, first + rows)]
            lists = pa.ListArray.from_arrays(offsets, values)
            table = pa.table([pa.array(names), pa.array(names), lists], schema=schema)
            writer.write_table(table, row_group_size=rows)


def _measure(step: str, job: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        module_command("refill.oracle.bench", step, json.dumps(job)),
        env=module_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
        preexec_fn=die_with_parent,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _run(step: str, job: dict[str, Any]) -> dict[str, Any]:
    """Do one step in this process and measure it."""
    began = time.monotonic()
    spec, corpus = job["spec"], Path(job["folder"]) / "corpus"
    path = Path(spec["path"])
    rows = 0
    if step == "read":
        for _, vectors, _ in open_source(spec, "generated", path).batches(2048):
            rows += len(vectors)
    elif step == "prepare":
        made = prepare(spec, "generated", job["points"], job["queries"], 1, corpus, path)
        rows = made["points"] + made["queries"]
    else:
        for _, vectors, _ in Corpus.open(corpus).batches(500):
            rows += len(vectors)
    return {
        "rows": rows,
        "peak_bytes": _peak_bytes(),
        "seconds": round(time.monotonic() - began, 3),
    }


def _peak_bytes() -> int:
    # Not ru_maxrss: after a fork it starts from the parent's size.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM: this figure needs Linux")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_run(sys.argv[1], json.loads(sys.argv[2]))) + "\n")

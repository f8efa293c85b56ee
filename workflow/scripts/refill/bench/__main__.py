"""Measure this project's own speed and memory: `python -m refill.bench --output FILE`.

Every figure is a ratio within one run, or a size: machines are shared and noisy, so a time alone
says little. What could not be measured says so in its place.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from refill.bench import docker_network, floor, gateway, inputs, records, slow_log, upload
from refill.config import PROJECT
from refill.corpora.documents import Documents
from refill.corpora.errors import CorpusError
from refill.engines.description import EngineError
from refill.evidence.host import host_facts
from refill.evidence.records import read_json, write_json
from refill.load.clients import ClientError
from refill.load.wire import WireError
from refill.operations.catalog import Operations, load_operations
from refill.oracle import bench as oracle
from refill.phases.lock import machine_lock

Measure = Callable[[Mapping[str, Path], Documents, Operations, Path], dict[str, Any]]

SCHEMA = "refill.bench/1"
VECTORS = "refill.corpus/1"
# What keeps a figure from being measured; anything else is a fault of the bench itself.
NOT_MEASURED = (
    OSError, ValueError, RuntimeError, EngineError, ClientError, WireError, CorpusError,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m refill.bench", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument(
        "--results",
        type=Path,
        default=PROJECT / "results",
        help="results of a run at default scale; some figures are about them",
    )
    parser.add_argument(
        "--only",
        metavar="NAME,...",
        type=_names,
        help="measure these figures alone; the file then holds no others",
    )
    parser.add_argument(
        "--log-delays",
        metavar="MS,...",
        type=_delays,
        help="also how the gateway's gain depends on the disk: cold pages again, with every wait "
        "for the log's disk that many ms longer (needs strace), for example 0,1,2,5",
    )
    options = parser.parse_args(arguments)
    results: Path = options.results
    figures: dict[str, Any] = {"schema": SCHEMA, "host": host_facts(PROJECT)}
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "driver_floor": lambda: floor.against_records(results),
        "upload": lambda: _upload(results),
        "gateway": lambda: _gateway(results, gateway.measure),
        "exact_topk_50": lambda: _topk(400_000, 50),
        "exact_topk_1024": lambda: _topk(200_000, 1024),
        "stream_memory": _memory,
        "docker_network": lambda: _docker_network(results),
        "measured_share": lambda: records.measured_share(results),
    }
    if (delays := options.log_delays) is not None:
        steps["gateway_slow_log"] = lambda: _gateway(results, partial(_slow_log, delays))
    if options.only is not None:
        if unknown := sorted(options.only - steps.keys()):
            parser.error(f"--only: no figure {', '.join(unknown)}; there are {', '.join(steps)}")
        steps = {name: step for name, step in steps.items() if name in options.only}
    with machine_lock(_say):
        for name, step in steps.items():
            _say(f"{name} ...")
            try:
                figures[name] = step()
            except NOT_MEASURED as error:
                figures[name] = {"not_measured": str(error)}
            _say(f"{name}: {figures[name]}")
    write_json(options.output, figures)
    _say(f"written: {options.output}")
    return 0


def _upload(results: Path) -> dict[str, Any]:
    image = read_json(results / "images" / "qdrant-edge.json", "refill.image/1")
    paths = sorted((results / "corpora").glob("*/corpus.json"))
    # Beside corpora of vectors, a folder of documents may stand there.
    corpora = [path for path in paths if read_json(path)["schema"] == VECTORS]
    if not corpora:
        raise RuntimeError("no prepared corpus in results/corpora: run `make all` first")
    return upload.measure(image, results.parent, corpora[0].parent)


def _gateway(results: Path, measure: Measure) -> dict[str, Any]:
    config = inputs.read_config()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archives = inputs.archives(config, results, folder)
        documents = inputs.documents(config, results, folder)
        return measure(archives, documents, load_operations(), folder)


def _docker_network(results: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        return docker_network.measure(results, Path(name))


def _slow_log(
    delays: Sequence[float],
    archives: Mapping[str, Path],
    documents: Documents,
    operations: Operations,
    folder: Path,
) -> dict[str, Any]:
    return slow_log.measure(archives, documents, operations, folder, delays)


def _names(text: str) -> set[str]:
    return set(text.split(","))


def _delays(text: str) -> list[float]:
    delays = [float(part) for part in text.split(",")]
    if not all(0 <= delay <= 1000 for delay in delays):
        raise argparse.ArgumentTypeError("give spans of 0 to 1000 ms")
    return delays


def _topk(points: int, dimension: int) -> dict[str, Any]:
    return oracle.exact_topk_ratio(points, dimension) | {"wanted": "ratio <= 2"}


def _memory() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return oracle.stream_memory(Path(folder)) | {"wanted": "below 1 GiB"}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

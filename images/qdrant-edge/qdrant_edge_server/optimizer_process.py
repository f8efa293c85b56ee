"""The optimizer process: runs Qdrant's planner and optimizers on clones, one job at a time.

The wheel holds the interpreter lock in every call, so optimizing beside searching takes a process
of its own. Jobs come as JSON lines on stdin, answers go as JSON lines to stdout.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import qdrant_edge as edge

from .cloning import make_durable
from .configuration import CollectionConfig
from .layers import segment_sizes

_PR_SET_PDEATHSIG = 1


def serve(parent: int) -> int:
    """Take jobs until stdin ends. `parent` is the server's process id."""
    die_with(parent)
    # Ctrl+C reaches the whole process group; the server decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        job = orjson.loads(line)
        try:
            answer = optimize(Path(job["directory"]), CollectionConfig.from_json(job["config"]))
        except Exception as error:  # noqa: BLE001 - reported to the server
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.buffer.write(orjson.dumps({"job": job["job"], **answer}) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, and end now if it has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the server that started this optimizer process has ended")


def optimize(directory: Path, config: CollectionConfig) -> dict[str, Any]:
    """Optimize the shard in `directory` until the planner has nothing more to do.

    Returns whether anything was optimized, the numbers of points and of indexed vectors, the
    segments by UUID with the points placed in them, and the seconds of each step.
    """
    marks = [time.perf_counter()]
    shard = edge.EdgeShard.load(str(directory), config.edge_config())
    marks.append(time.perf_counter())
    optimized = shard.optimize()
    marks.append(time.perf_counter())
    # Replaced segments stay on disk until this flush: read before it, points count twice.
    shard.flush()
    info = shard.info()
    shard.close()
    # The flush covers what the shard wrote, not the files that came as copies into the clone.
    make_durable(directory)
    marks.append(time.perf_counter())
    return {
        "optimized": optimized,
        "points": info.points_count,
        "indexed": info.indexed_vectors_count,
        "segments": segment_sizes(directory),
        "seconds": {
            name: marks[n + 1] - marks[n] for n, name in enumerate(("load", "optimize", "flush"))
        },
    }

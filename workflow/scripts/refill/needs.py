"""What each kind of job asks of a cluster's scheduler: memory and time, from the configuration.

Upper bounds, not estimates: a job that takes more is killed, and a measurement has its node for
itself anyway. At the default scale an engine was seen to take 0.3 GB and a run one minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refill.engines.native import HEAP_SHARE_OF_BUFFERS, heap_bytes

# Points of 1,024 float32 (4 KB each): raw data, the exact search beside it, and an index.
_CORPUS_KB_PER_POINT = 16
_OPTIMIZER_KB_PER_POINT = 12
_BASE_MB = 3000
_SLACK_S = 600.0
# Threads, compiled code and classes of an engine in Java.
_JAVA_OWN_MB = 800
# It fills its cache, sees each request once more, and walks the cold path.
_GATEWAY_WARM_UPS = 3
# What is taken for an upload without a pace, and for one closed-loop search.
_SLOWEST_UPLOAD_PER_S = 1000.0
_SLOWEST_SEARCH_S = 0.1


@dataclass(frozen=True)
class Need:
    """Memory in MB and time in minutes, as Snakemake's `mem_mb` and `runtime`."""

    mem_mb: int
    runtime: int


# Of rounds where none is configured: no job asks for it.
NOTHING = Need(_BASE_MB, 1)


def corpus(config: Mapping[str, Any]) -> Need:
    """Return what the preparation of a corpus of vectors needs."""
    points = config["corpus"]["points"]
    return Need(_BASE_MB + points * _CORPUS_KB_PER_POINT // 1024, 120)


def optimizer(config: Mapping[str, Any]) -> Need:
    """Return what one run of an optimizer configuration needs, every phase at its limit."""
    points, queries = config["corpus"]["points"], config["corpus"]["queries"]
    optimizers = config["optimizers"]
    upload, steady = optimizers["upload"], optimizers["steady"]
    upload_s = points / (upload["points_per_s"] or _SLOWEST_UPLOAD_PER_S)
    open_s = steady["open_passes"] * queries / steady["open_per_s"]
    steady_s = steady["passes"] * queries * _SLOWEST_SEARCH_S + open_s
    # Draining and steady come twice where a follow-up is, and it is verified as the upload is.
    after_s = optimizers["draining"]["limit_s"] + steady_s + upload["verify_timeout_s"]
    mem_mb = _BASE_MB + points * _OPTIMIZER_KB_PER_POINT // 1024
    return Need(mem_mb, _minutes(upload_s + 2 * after_s))


def one_round(config: Mapping[str, Any], trials: int) -> Need:
    """Return what one round needs, every start, warm-up and trial at its limit.

    `trials` is how many a round with the cache on has, those of all engines.
    """
    rounds, native = config["rounds"], config["rounds"]["native"]
    natives = [native[name] for name in rounds["engines"] if name in native]
    local = [settings for settings in natives if settings["url"] is None]
    starts_s = config["qdrant"]["start_timeout_s"] + 2 * rounds["valkey"]["start_timeout_s"]
    starts_s += sum(settings["start_timeout_s"] for settings in local)
    timed = trials + _GATEWAY_WARM_UPS + len(natives)
    memory_mb = _BASE_MB + len(local) * _java_mb(native["heap"])
    return Need(memory_mb, _minutes(starts_s + timed * rounds["trial_limit_s"]))


def _java_mb(heap: str) -> int:
    """Return what a Java with a heap takes at most: buffers and Java's own beside it."""
    whole = heap_bytes(heap)
    return (whole + whole // HEAP_SHARE_OF_BUFFERS) // 2**20 + _JAVA_OWN_MB


def _minutes(seconds: float) -> int:
    return math.ceil((seconds + _SLACK_S) / 60)

"""What each kind of job asks of a cluster's scheduler: memory and time, from the configuration.

Upper bounds, not estimates: a job that takes more is killed, and a measurement has its node for
itself anyway. At the default scale an engine was seen to take 0.3 GB and a run one minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Points of 1,024 float32 (4 KB each): raw data, the exact search beside it, and an index.
_CORPUS_KB_PER_POINT = 16
_OPTIMIZER_KB_PER_POINT = 12
_BASE_MB = 3000
_SLACK_S = 600.0
# What is taken for an upload without a pace, and for one closed-loop search.
_SLOWEST_UPLOAD_PER_S = 1000.0
_SLOWEST_SEARCH_S = 0.1


@dataclass(frozen=True)
class Need:
    """Memory in MB and time in minutes, as Snakemake's `mem_mb` and `runtime`."""

    mem_mb: int
    runtime: int


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


def one_round(counts: Mapping[str, Any], operations: int, trial_limit_s: float) -> Need:
    """Return what one round needs, every trial at its limit.

    `counts` has `trials` and `clients`; `operations` is how many a round measures.
    """
    trials = counts["trials"] * len(counts["clients"]) * operations
    return Need(_BASE_MB, _minutes(trials * trial_limit_s))


def _minutes(seconds: float) -> int:
    return math.ceil((seconds + _SLACK_S) / 60)

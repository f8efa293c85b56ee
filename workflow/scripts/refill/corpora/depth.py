"""How many exact neighbours of each query must be known, so that recall survives deletions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

# What ann-benchmarks files hold, and enough for 10 hits with a quarter of the points deleted.
MIN_DEPTH = 100
# Two arrays of 8 and 4 bytes for each neighbour of each query are held in memory.
MAX_DEPTH = 10_000
# Chance that a query has too few known neighbours left.
MISS = 1e-12


def deleted_share(entry: Mapping[str, Any]) -> float:
    """Return the share of the points that a configuration of optimizers.yaml deletes, else 0."""
    return float(entry.get("followup", {}).get("delete", {}).get("share", 0))


def wanted_depth(limit: int, share: float, points: int) -> int:
    """Return how many nearest points must be known so that `limit` of them survive a deletion.

    Each point is deleted alike with probability `share`. Of `d` neighbours m = d (1 - share)
    survive on average, and fewer than m - t with a chance below exp(-t^2 / 2 m) (Chernoff; drawing
    without replacement spreads less). So m must reach limit + z sqrt(m), z^2 = 2 ln(1 / MISS).
    """
    if not share:
        return min(points, limit)
    z = math.sqrt(2 * math.log(1 / MISS))
    root = (z + math.sqrt(z * z + 4 * limit)) / 2
    return min(points, math.ceil(root * root / (1 - share)))


def truth_depth(limit: int, entries: Iterable[Mapping[str, Any]], points: int) -> int:
    """Return the depth of a corpus's truth that fits every one of some configurations.

    It is at least MIN_DEPTH (or all points) and at most MAX_DEPTH; a run that needs more is refused
    with the configuration.
    """
    wanted = [wanted_depth(limit, deleted_share(entry), points) for entry in entries]
    return min(points, max(MIN_DEPTH, *(depth for depth in wanted if depth <= MAX_DEPTH), limit))

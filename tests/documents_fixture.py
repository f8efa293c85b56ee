"""A small table of flights for tests: ties, missing values, keywords of any script."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from refill.corpora.documents import TYPES, Documents
from refill.corpora.flights import FIELDS

CARRIERS = ["UA", "B6", "9E", "ÄÖ"]
ORIGINS = ["EWR", "JFK", "LGA"]
DESTINATIONS = [f"D{number:02d}" for number in range(23)]
FIRST_HOUR_MS = 1_356_998_400_000  # 2013-01-01T00:00:00Z


def rows(count: int, seed: int = 3) -> list[dict[str, Any]]:
    """Make rows as plain values; None where a flight has no value."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        delay = float(rng.integers(-5, 12))
        made.append(
            {
                "_id": str(number),
                "flight_id": number,
                "carrier": CARRIERS[int(rng.integers(len(CARRIERS)))],
                "flight": int(rng.integers(1, 40)),
                "tailnum": None if rng.random() < 0.2 else f"N{int(rng.integers(30)):03d}",
                "origin": ORIGINS[int(rng.integers(len(ORIGINS)))],
                "dest": DESTINATIONS[int(rng.integers(len(DESTINATIONS)))],
                "dep_delay": None if rng.random() < 0.1 else delay,
                "arr_delay": None if rng.random() < 0.1 else delay + 1.5,
                "air_time": None if rng.random() < 0.1 else float(rng.integers(20, 300)),
                "distance": float(rng.integers(2, 30) * 100),
                "time_hour": FIRST_HOUR_MS + int(rng.integers(24 * 365)) * 3_600_000,
            }
        )
    return made


def documents(made: list[dict[str, Any]]) -> Documents:
    """Make a corpus of rows."""
    types = {"_id": pa.string(), **{name: TYPES[kind] for name, kind in FIELDS.items()}}
    columns = {name: pa.array([row[name] for row in made], kind) for name, kind in types.items()}
    return Documents(pa.table(columns), FIELDS)

"""What one durable write takes on the disk that holds the log."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from refill.stats.quantiles import nearest_rank

WRITES = 300


def synced_write(folder: Path, size: int, writes: int = WRITES) -> dict[str, Any]:
    """Append to a file and wait for the disk, as Valkey does for a fill with `appendfsync always`.

    Args:
        folder: on the disk in question; nothing stays in it.
        size: bytes of each write.
        writes: how many are made.

    Returns:
        `bytes`, and `p50_ms` and `p95_ms` of a write with its fdatasync.

    Raises:
        OSError: the file cannot be written.
    """
    path, data, times = folder / "synced-write", os.urandom(size), []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(writes):
            start = time.perf_counter()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()
    quantiles = {f"p{q}_ms": round(nearest_rank(times, q / 100) * 1e3, 4) for q in (50, 95)}
    return {"bytes": size, **quantiles}

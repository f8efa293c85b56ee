"""Event logs in the published format, made by hand or by a small real closed loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refill.load.wire import Address, Connection, WireError, prepare

IDLE = {
    "queued_optimizations": 0, "queued_points": 0, "queued_segments": 0, "idle_segments": 7,
    "running": 0, "running_optimizers": [], "queued_optimizers": [], "completed_optimizers": [],
}  # fmt: skip
INDEXING = IDLE | {"running": 1, "running_optimizers": ["indexing"], "queued_optimizations": 3}


class EventLog:
    """Events in their order; `t` moves as they are added."""

    def __init__(self, t: float = 100.0) -> None:
        self.t = t
        self.events: list[dict[str, Any]] = []

    def change(self, phase: str) -> None:
        self._add("phase_change", phase)

    def look(self, state: dict[str, Any], phase: str = "draining") -> None:
        self._add("optimizer", phase, **state)

    def memory(self, phase: str) -> None:
        names = ("disk_bytes", "ram_bytes", "cached_bytes", "expected_cache_bytes")
        self._add("memory", phase, **dict.fromkeys(names, 1))

    def searches(self, phase: str, count: int, latency_ms: float) -> None:
        """Searches one after the other, some microseconds apart, and not all equal."""
        for n in range(count):
            latency = latency_ms * (1 + 0.001 * (n % 7))
            self.t += latency / 1e3 + 20e-6
            self._add("search", phase, latency_ms=latency)

    def lose(self, seconds: float) -> None:
        """A search that failed after so long: it leaves no event."""
        self.t += seconds

    def _add(self, kind: str, phase: str, **fields: Any) -> None:
        self.events.append({"kind": kind, "t": self.t, "phase": phase, **fields})

    def write(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events))
        return path


def closed_loop(
    address: Address,
    requests: list[tuple[str, str, bytes]],
    passes: int,
    timeout_s: float,
    begun: Callable[[], None] = lambda: None,
) -> EventLog:
    """Search in a closed loop as the published harness did: what fails leaves no line.

    The log has a drain of one pass, and a steady phase of `passes`; `begun` is called between.
    """
    log, origin = EventLog(0.0), time.monotonic()
    connection = Connection(address, timeout_s)

    def run(phase: str, times: int) -> None:
        log.t = time.monotonic() - origin
        log.change(phase)
        for method, path, body in requests * times:
            data, sent = prepare(address, method, path, body), time.monotonic()
            try:
                status, _ = connection.request(data)
            except WireError:
                continue
            if status == 200:
                done = time.monotonic()
                log.t = done - origin
                log._add("search", phase, latency_ms=(done - sent) * 1e3)

    try:
        run("draining", 1)
        log.look(IDLE)
        begun()
        run("steady", passes)
    finally:
        connection.close()
    return log

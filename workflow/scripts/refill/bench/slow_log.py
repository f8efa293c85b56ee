"""How the gain depends on the disk: the cold trials again, with a log that is slower by so much.

This is a sensitivity run, for a disk that this machine does not have: Valkey runs under `strace`,
which holds every fdatasync of it up by a further span. Its figures are never those of the machine.
The span of 0 ms shows what the tracing alone does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.bench import cold
from refill.bench.gateway_parts import INDEX, Parts
from refill.corpora.documents import Documents
from refill.operations.catalog import Operations
from refill.operations.requests import RequestSet

LABEL = (
    "sensitivity run: Valkey's fdatasync was held up by strace for so many ms more; not this disk"
)
BLOCKS, REQUESTS = 1, 200


def measure(
    archives: Mapping[str, Path],
    documents: Documents,
    operations: Operations,
    folder: Path,
    delays_ms: Sequence[float],
    requests: int = REQUESTS,
    clients: Sequence[int] = (1, 8),
) -> dict[str, Any]:
    """Measure the ratio of cold pages at each delay.

    Args:
        archives, documents, operations: as for `refill.bench.gateway.measure`.
        folder: an empty folder for data and logs.
        delays_ms: how much longer each fdatasync takes.
        requests: in each trial.
        clients: numbers of clients.

    Returns:
        `label`, and by delay (`+1 ms`) and clients the ratio and the medians of p50 and p95.

    Raises:
        RuntimeError: there is no strace, or it may not trace here.
        EngineError, ClientError, WireError: as for `refill.bench.gateway.measure`.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise RuntimeError("a slower log needs strace (Debian: apt install strace)")
    found: dict[str, Any] = {"label": LABEL}
    for delay in delays_ms:
        source = RequestSet.build(operations, documents, 1, INDEX, f"bench log +{delay:g}")
        place = folder / f"slow-log-{delay:g}"
        place.mkdir()
        with (
            Parts(archives, place, under_strace(strace, delay)) as parts,
            parts.gateway("old") as old,
            parts.gateway("new") as new,
        ):
            for address in (old, new):
                parts.load(address, documents)
            each = cold.measure(parts, {"old": old, "new": new}, source, BLOCKS, requests, clients)
        found[f"+{delay:g} ms"] = {name: _short(cell) for name, cell in each.items()}
    return found


def under_strace(strace: str, delay_ms: float) -> Callable[[Sequence[str]], list[str]]:
    """Give what makes a command one whose every fdatasync takes so much longer.

    With the filter in the kernel no other system call stops for the tracer.
    """
    microseconds = round(delay_ms * 1e3)
    inject = f"inject=fdatasync:delay_exit={microseconds}" if microseconds else "status=none"
    prefix = [
        strace, "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null",
        "-e", "trace=fdatasync", "-e", inject,
    ]  # fmt: skip
    return lambda command: [*prefix, *command]


def _short(cell: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in ("p50", "p95"):
        out[f"{name}_ms"], out[f"{name}_ratio"] = cell[f"{name}_ms"], cell[f"{name}_ratio"]
    return out

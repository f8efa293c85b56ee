"""Cold pages of both images: how long they take, and where the time goes.

Trials come in the order old, new, new, old, each with cache keys never used before; the same
requests go to both images. A trial gives a p50 and a p95; the figure is the ratio of the medians
over the trials of an image.

Beside it stands what explains it. `old` waits for the disk once a fill, `new` does not, and that is
all that they differ in. One client waits for each step of a page in turn, so there the ratio is
about new / (new + wait). With several clients the page of one is computed while that of another is
written, and a page takes about as many times the pace of the slowest step as there are clients: the
wait has to be long against all of that to show. So: the processor time that each part spends on a
page, the wall time a page, and in `refill.bench.gateway` the time of one synced write.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from refill.bench.gateway_parts import Load, Parts, control
from refill.engines import gateway
from refill.load.loops import Row
from refill.load.wire import Address
from refill.operations.requests import RequestSet
from refill.stats.quantiles import nearest_rank

ABBA = ("old", "new", "new", "old")
NOT_TOLD = "not measured: this kernel does not tell the time of threads"


def measure(
    parts: Parts,
    gateways: Mapping[str, Address],
    source: RequestSet,
    blocks: int,
    requests: int,
    numbers: Sequence[int],
) -> dict[str, dict[str, Any]]:
    """Measure cold trials.

    Args:
        parts: runs the gateways.
        gateways: where each image listens, with its documents loaded.
        source: makes the requests.
        blocks: of four trials each, for each number of clients.
        requests: in each trial.
        numbers: of clients.

    Returns:
        For each number of clients: the p50 and the p95 of each trial and their ratio, `wanted`, and
        for each image `cpu_ms_per_page` by part and `wall_ms_per_page`, medians of the trials.

    Raises:
        RuntimeError: a response was not right, or a request was no miss that was filled.
    """
    asked = source.cold(requests, 0, 1, "bench warm-up")
    places: dict[tuple[int, int], range] = {}
    for clients in numbers:
        for trial in range(2 * blocks):
            first = len(asked)
            asked += source.cold(requests, trial, clients, "bench cold")
            places[clients, trial] = range(first, len(asked))
    trials: dict[tuple[str, int], list[_Trial]] = {}
    with ExitStack() as open_:
        loads, apis = {}, {}
        for image, address in gateways.items():
            loads[image] = open_.enter_context(Load(address, asked, max(numbers)))
            apis[image] = open_.enter_context(control(address))
            loads[image].issue(range(requests), max(numbers))
        for clients in numbers:
            for image in ABBA * blocks:
                kept = trials.setdefault((image, clients), [])
                before, spent = apis[image].counters(), parts.cpu(gateways[image])
                rows = loads[image].issue(places[clients, len(kept)], clients)
                used = _used(spent, parts.cpu(gateways[image]), requests)
                done = gateway.counted(before, apis[image].counters())
                if (done["misses"], done["fills"]) != (requests, requests):
                    raise RuntimeError(f"{image}: {requests} cold requests gave {done}")
                kept.append(_Trial(rows, used))
    return {
        f"{clients} client{'s' * (clients > 1)}": compared(
            [trial.seconds for trial in trials["old", clients]],
            [trial.seconds for trial in trials["new", clients]],
            clients,
        )
        | _where({image: trials[image, clients] for image in ("old", "new")})
        for clients in numbers
    }


def compared(
    old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], clients: int
) -> dict[str, Any]:
    """Compare the trials of two images: seconds of each request of each trial."""
    found: dict[str, Any] = {}
    for name, q in (("p50", 0.5), ("p95", 0.95)):
        each = {
            image: [nearest_rank(trial, q) * 1e3 for trial in trials]
            for image, trials in (("old", old), ("new", new))
        }
        ratio = statistics.median(each["new"]) / statistics.median(each["old"])
        rounded = {image: [round(value, 4) for value in values] for image, values in each.items()}
        found |= {f"{name}_ms": rounded, f"{name}_ratio": round(ratio, 3)}
    found["wanted"] = "p50 ratio <= 0.80" + (", p95 ratio <= 0.5" if clients == 8 else "")
    return found


class _Trial:
    """One trial: seconds of each request, wall time and processor time of a page in ms."""

    def __init__(self, rows: Sequence[Row], cpu_ms: Mapping[str, float]) -> None:
        self.seconds = [row.done - row.sent for row in rows]
        wall = max(row.done for row in rows) - min(row.sent for row in rows)
        self.wall_ms = wall / len(rows) * 1e3
        self.cpu_ms = cpu_ms


def _used(
    before: Mapping[str, float | None], after: Mapping[str, float | None], pages: int
) -> dict[str, float]:
    return {
        part: (end - start) / pages * 1e3
        for part, end in after.items()
        if end is not None and (start := before[part]) is not None
    }


def _where(trials: Mapping[str, Sequence[_Trial]]) -> dict[str, Any]:
    """Say where a page's time goes, by image."""
    cpu: dict[str, Any] = {}
    for image, of_image in trials.items():
        parts = of_image[0].cpu_ms
        cpu[image] = {part: _median(t.cpu_ms[part] for t in of_image) for part in parts} or NOT_TOLD
    wall = {image: _median(t.wall_ms for t in of_image) for image, of_image in trials.items()}
    return {"cpu_ms_per_page": cpu, "wall_ms_per_page": wall}


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)

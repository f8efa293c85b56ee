"""The gateway's speed and what its fills cost the log, as ratios within one run.

One durable Valkey and one embedded Qdrant carry all gateways of the run, `old` and `new` in a
namespace of their own each, so that nothing but the image differs between two trials that are
compared. Every response is held against the oracle after its timed section; one that is not right
makes the run an error.

- `warm_hit`: hits of `new` at one client, by each warm operation, against the *floor* of the same
  block: `GET /` of the same server, which looks nothing up, plus one PING to Valkey. Blocks
  alternate their order; the figure is the median of the blocks' ratios.
- `cold`: the cold operation with serving enabled, trials in the order old, new, new, old, each
  trial with new cache keys; the same requests go to both images. A trial gives a p50 and a p95;
  the figure is the ratio of the medians over the trials of an image.
- `added`: cold pages of `new` with serving disabled, each page in turn through the gateway and as
  the Qdrant calls that the gateway makes for it (`refill.bench.qdrant_calls`), both from one
  process on kept connections. The figure is the median over pages of the difference of the two,
  each the median of its repeats.
- `aof_per_fill`: growth of the append-only log over the whole life of fills: published, hit once,
  expired, swept. The gateway's counters must show each of these steps for every fill.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.bench.gateway_parts import INDEX, TIMEOUT_S, Load, Parts
from refill.bench.qdrant_calls import Call, Direct, Recorder
from refill.corpora.documents import Documents
from refill.engines import gateway
from refill.engines.valkey import growth
from refill.load.loops import Row
from refill.load.wire import Address, Connection, prepare
from refill.operations.catalog import Operations
from refill.operations.requests import Request, RequestSet
from refill.processes import wait_for
from refill.stats.quantiles import nearest_rank

SWEPT_S = 30.0
ABBA = ("old", "new", "new", "old")


@dataclass(frozen=True)
class Counts:
    """How much is measured.

    Attributes:
        blocks: blocks of warm hits; `warm` requests of each operation, `/` and PING in each.
        cold_blocks: ABBA blocks of cold trials; `cold` requests in each trial.
        clients: numbers of clients of the cold trials.
        pages: pages whose Qdrant calls are compared, `page_repeats` times each.
        fills: fills whose life is followed, each for `fill_ttl_s` seconds.
    """

    blocks: int = 8
    warm: int = 200
    cold_blocks: int = 3
    cold: int = 200
    clients: Sequence[int] = (1, 8)
    pages: int = 60
    page_repeats: int = 6
    fills: int = 100
    fill_ttl_s: float = 3.0


def measure(
    archives: Mapping[str, Path],
    documents: Documents,
    operations: Operations,
    folder: Path,
    counts: Counts | None = None,
) -> dict[str, Any]:
    """Measure all four figures.

    Args:
        archives: those of the images `old`, `new` and `qdrant`.
        documents: what is loaded.
        operations: what is asked for.
        folder: an empty folder for data and logs.
        counts: how much is measured.

    Returns:
        `warm_hit`, `cold`, `added` and `aof_per_fill`, as above, and the seconds it took.

    Raises:
        EngineError, ClientError, WireError: a part ended or did not answer.
        RuntimeError: a response is not right, or a step was not what it must be (a hit that was
            a miss, a fill that was not swept).
    """
    counts, began = counts or Counts(), time.monotonic()
    requests = RequestSet.build(operations, documents, 1, INDEX, "bench")
    with Parts(archives, folder) as parts:
        with ExitStack() as open_:
            gateways = {name: open_.enter_context(parts.gateway(name)) for name in ("old", "new")}
            for address in gateways.values():
                parts.load(address, documents)
            found = {
                "warm_hit": _warm_hit(parts, gateways["new"], requests, operations, counts),
                "cold": _cold(gateways, requests, counts),
            }
        found["added"] = _added(parts, requests, counts)
        found["aof_per_fill"] = _aof_per_fill(parts, requests, counts)
    return found | {"documents": documents.count, "seconds": round(time.monotonic() - began, 1)}


def _warm_hit(
    parts: Parts,
    address: Address,
    source: RequestSet,
    operations: Operations,
    counts: Counts,
) -> dict[str, Any]:
    requests: list[Request | None] = [None]
    places = {"null": range(1)}
    for operation in operations.warm:
        first = len(requests)
        requests += source.warm(operation.id)
        places[operation.id] = range(first, len(requests))
    p50s: dict[str, list[float]] = {name: [] for name in ("ping", *places)}
    with Load(address, requests, 1) as load, parts.ping() as ping, _control(address) as api:
        load.issue(range(1, len(requests)))
        for keys in places.values():  # the first hits, and connections in use
            load.issue(_repeated(keys, counts.warm))
        before = api.counters()
        for block in range(counts.blocks):
            names = list(p50s)
            for name in names if block % 2 == 0 else reversed(names):
                if name == "ping":
                    times = [ping() for _ in range(counts.warm)]
                else:
                    times = _seconds(load.issue(_repeated(places[name], counts.warm)))
                p50s[name].append(nearest_rank(times, 0.5) * 1e3)
        done = gateway.counted(before, api.counters())
    wanted = counts.blocks * counts.warm * len(operations.warm)
    if (done["hits"], done["misses"]) != (wanted, 0):
        raise RuntimeError(f"{wanted} warm requests gave {done['hits']} hits")
    floors = [null + trip for null, trip in zip(p50s["null"], p50s["ping"], strict=True)]
    ratios = {
        operation.id: statistics.median(
            hit / floor for hit, floor in zip(p50s[operation.id], floors, strict=True)
        )
        for operation in operations.warm
    }
    return {
        "floor_ms": _rounded(floors),
        "p50_ms": {name: round(statistics.median(values), 4) for name, values in p50s.items()},
        "ratio": {name: round(value, 3) for name, value in ratios.items()},
        "largest_ratio": round(max(ratios.values()), 3),
        "wanted": "<= 2",
    }


def _cold(
    gateways: Mapping[str, Address], source: RequestSet, counts: Counts
) -> dict[str, dict[str, Any]]:
    trials = 2 * counts.cold_blocks
    requests = source.cold(counts.cold, 0, 1, "bench warm-up")
    places: dict[tuple[int, int], range] = {}
    for clients in counts.clients:
        for trial in range(trials):
            first = len(requests)
            requests += source.cold(counts.cold, trial, clients, "bench cold")
            places[clients, trial] = range(first, len(requests))
    times: dict[tuple[str, int], list[list[float]]] = {}
    with ExitStack() as open_:
        loads, apis = {}, {}
        for image, address in gateways.items():
            loads[image] = open_.enter_context(Load(address, requests, max(counts.clients)))
            apis[image] = open_.enter_context(_control(address))
            loads[image].issue(range(counts.cold), max(counts.clients))
        for clients in counts.clients:
            for image in ABBA * counts.cold_blocks:
                kept = times.setdefault((image, clients), [])
                before = apis[image].counters()
                rows = loads[image].issue(places[clients, len(kept)], clients)
                done = gateway.counted(before, apis[image].counters())
                if (done["misses"], done["fills"]) != (counts.cold, counts.cold):
                    raise RuntimeError(f"{image}: {counts.cold} cold requests gave {done}")
                kept.append(_seconds(rows))
    return {
        f"{clients} client{'s' * (clients > 1)}": compared(
            times["old", clients], times["new", clients], clients
        )
        for clients in counts.clients
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
        found |= {f"{name}_ms": {image: _rounded(values) for image, values in each.items()}}
        found |= {f"{name}_ratio": round(ratio, 3)}
    found["wanted"] = "p50 ratio <= 0.80" + (", p95 ratio <= 0.5" if clients == 8 else "")
    return found


def _added(parts: Parts, source: RequestSet, counts: Counts) -> dict[str, Any]:
    requests = source.cold(counts.pages, 0, 1, "bench pages")
    calls = _recorded(parts, requests)
    with parts.gateway("new", serving=False) as address, Direct(parts.qdrant) as direct:
        connection = Connection(address, TIMEOUT_S)
        pages = [prepare(address, r.method, r.path, r.body) for r in requests]
        replayed = [direct.prepared(made) for made in calls]
        through: list[list[float]] = [[] for _ in pages]
        directly: list[list[float]] = [[] for _ in pages]
        in_turn: list[float] = []
        gc.collect()
        gc.disable()
        try:
            for repeat in range(counts.page_repeats + 1):
                for n, page in enumerate(pages):
                    if repeat % 2 == 0:
                        through[n].append(_page(connection, page))
                        directly[n].append(direct.page(*replayed[n]))
                    else:
                        directly[n].append(direct.page(*replayed[n]))
                        through[n].append(_page(connection, page))
                    in_turn.append(direct.in_turn(*replayed[n]))
        finally:
            gc.enable()
            connection.close()
    # The first repeat of each was for warming up.
    pairs = [
        (statistics.median(a[1:]) * 1e3, statistics.median(b[1:]) * 1e3)
        for a, b in zip(through, directly, strict=True)
    ]
    kinds = sorted({" ".join(sorted(call.kind for call in made)) for made in calls})
    return {
        "calls_of_a_page": kinds,
        "page_ms": round(statistics.median(a for a, _ in pairs), 4),
        "direct_ms": round(statistics.median(b for _, b in pairs), 4),
        "direct_in_turn_ms": round(statistics.median(in_turn[len(pages) :]) * 1e3, 4),
        "added_ms": round(statistics.median(a - b for a, b in pairs), 4),
        "wanted": "added_ms <= 0.6",
    }


def _recorded(parts: Parts, requests: Sequence[Request]) -> list[list[Call]]:
    """Give the Qdrant calls of each request, seen by a relay between a gateway and Qdrant."""
    calls = []
    with Recorder(parts.qdrant) as recorder:
        behind = recorder.address
        with (
            parts.gateway("new", serving=False, behind=behind) as address,
            Load(address, requests, 1) as load,
        ):
            recorder.take()
            for key in range(len(requests)):
                load.issue([key])
                calls.append(recorder.take())
    return calls


def _page(connection: Connection, data: bytes) -> float:
    start = time.perf_counter()
    status, body = connection.request(data)
    took = time.perf_counter() - start
    if status != 200:
        raise RuntimeError(f"a page: {status}: {body[:200]!r}")
    return took


def _aof_per_fill(parts: Parts, source: RequestSet, counts: Counts) -> dict[str, Any]:
    requests = source.cold(counts.fills, 0, 1, "bench fills")
    keys = range(len(requests))
    found: dict[str, Any] = {}
    for image in ("old", "new"):
        with (
            parts.gateway(image, ttl_s=counts.fill_ttl_s) as address,
            Load(address, requests, 1) as load,
            _control(address) as api,
        ):
            start, before = api.counters(), parts.control.aof()
            sizes = [len(row.body) for row in load.issue(keys)]
            load.issue(keys)
            swept = _all_swept(api, start["swept"] + counts.fills, counts.fill_ttl_s + SWEPT_S)
            done = gateway.counted(start, api.counters())
            log = growth(before, parts.control.aof())
            steps = {name: done[name] for name in ("fills", "hits", "swept")}
            if not swept or set(steps.values()) != {counts.fills} or log["bytes"] is None:
                raise RuntimeError(f"{image}: {counts.fills} fills, but {steps} and {log}")
            found[image] = round(log["bytes"] / counts.fills, 1)
            found["response_bytes"] = round(statistics.mean(sizes), 1)
    found["old_to_response"] = round(found["old"] / found["response_bytes"], 3)
    return found | {"fills": counts.fills, "wanted": "old about the response's size, new 0"}


def _all_swept(api: gateway.Api, wanted: int, seconds: float) -> bool:
    return wait_for(lambda: api.counters()["swept"] >= wanted, seconds, 0.1)


@contextmanager
def _control(address: Address) -> Iterator[gateway.Api]:
    api = gateway.Api(address)
    try:
        yield api
    finally:
        api.close()


def _repeated(keys: Sequence[int], count: int) -> list[int]:
    return [keys[n % len(keys)] for n in range(count)]


def _seconds(rows: Sequence[Row]) -> list[float]:
    return [row.done - row.sent for row in rows]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]

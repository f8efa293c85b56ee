"""The gateway's speed and what its fills cost the log, as ratios within one run.

One durable Valkey and one embedded Qdrant carry all gateways of the run, `old` and `new` in a
namespace of their own each, so that nothing but the image differs between two trials that are
compared. Every response is held against the oracle after its timed section; one that is not right
makes the run an error.

- `warm_hit`: hits of `new` at one client, by each warm operation, against the *floor* of the same
  block: `GET /` of the same server, which looks nothing up, plus one PING to Valkey. Blocks
  alternate their order; the figure is the median of the blocks' ratios.
- `cold`: the cold operation with serving enabled, `new` against `old`, with the processor time of
  each part (`refill.bench.cold`).
- `log`: the time of one synced write of a response's size to the folder of the log, the ratio of
  `new` to `old` if each fill waited for one such write, and which part is busiest with a page. One
  client waits once a fill. Several share a wait (Valkey syncs what came in one turn of its loop at
  once) and wait for the busiest part, so for them this is about the most that can be seen.
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.bench import cold, disk
from refill.bench.gateway_parts import INDEX, TIMEOUT_S, Load, Parts, control
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
LOG_SAYS = (
    "a fill of `old` waits for about one synced write, and several clients share a wait: a ratio "
    "of 0.5 needs a synced write as long as a whole page of `new` at that number of clients"
)


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
    """Measure all figures.

    Args:
        archives: those of the images `old`, `new` and `qdrant`.
        documents: what is loaded.
        operations: what is asked for.
        folder: an empty folder for data and logs.
        counts: how much is measured.

    Returns:
        `warm_hit`, `cold`, `added`, `aof_per_fill` and `log`, as above, and the seconds it took.

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
                "cold": cold.measure(
                    parts, gateways, requests, counts.cold_blocks, counts.cold, counts.clients
                ),
            }
        found["added"] = _added(parts, requests, counts)
        found["aof_per_fill"] = _aof_per_fill(parts, requests, counts)
        found["log"] = _log(folder, found["cold"], found["aof_per_fill"]["response_bytes"])
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
    with Load(address, requests, 1) as load, parts.ping() as ping, control(address) as api:
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


def _log(
    folder: Path, cells: Mapping[str, Mapping[str, Any]], response_bytes: float
) -> dict[str, Any]:
    """Hold the wait for the disk against a page of `new`, by number of clients."""
    write = disk.synced_write(folder, round(response_bytes))
    out: dict[str, Any] = {"synced_write": write}
    for clients, cell in cells.items():
        found: dict[str, Any] = {}
        for name in ("p50", "p95"):
            page = statistics.median(cell[f"{name}_ms"]["new"])
            found[f"{name}_ratio_if_each_waits_once"] = round(
                page / (page + write[f"{name}_ms"]), 3
            )
        used = cell["cpu_ms_per_page"]["new"]
        if isinstance(used, str):
            found["busiest_part"] = used
        else:
            found["busiest_part"] = max(used, key=lambda part: float(used[part]))
            found["busiest_ms_per_page"] = used[found["busiest_part"]]
        out[clients] = found
    return out | {"says": LOG_SAYS}


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
            control(address) as api,
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


def _repeated(keys: Sequence[int], count: int) -> list[int]:
    return [keys[n % len(keys)] for n in range(count)]


def _seconds(rows: Sequence[Row]) -> list[float]:
    return [row.done - row.sent for row in rows]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]

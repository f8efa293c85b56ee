"""Logs of a small real closed loop that drops what fails, as the published harness did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
from edge_server import EdgeServer
from published_log import closed_loop
from refill.faults.process import FaultProxy
from refill.load.wire import Address
from refill.published.events import read
from refill.published.figures import Expected, examine

QUERIES, PASSES, TIMEOUT_S = 40, 5, 0.6
EXPECTED = Expected(QUERIES, PASSES, TIMEOUT_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with EdgeServer(tmp_path_factory.mktemp("published") / "storage") as running:
        vectors = np.random.default_rng(1).standard_normal((300, 4))
        running.result("PUT", "/collections/c", {"vectors": {"size": 4, "distance": "Dot"}})
        points = [{"id": n, "vector": row.tolist()} for n, row in enumerate(vectors)]
        running.result("PUT", "/collections/c/points?wait=true", {"points": points})
        yield running


def requests() -> list[tuple[str, str, bytes]]:
    rows = np.random.default_rng(2).standard_normal((QUERIES, 4))
    bodies = [orjson.dumps({"query": row.tolist(), "limit": 5}) for row in rows]
    return [("POST", "/collections/c/points/query", body) for body in bodies]


def flags(
    server: EdgeServer, tmp_path: Path, fault: str, **options: object
) -> tuple[dict[str, str], int, int]:
    """Give the flags, the searches in the log's steady phase, and the faults that were put in."""
    to = Address.from_url(server.url)
    with FaultProxy(to, fault, tmp_path / "faults.log", **options) as proxy:
        stall = proxy.stall if fault == "stall" else lambda: None
        made = closed_loop(proxy.address, requests(), PASSES, TIMEOUT_S, stall)
        put_in = len(proxy.put_in())
    record = examine(read(made.write(tmp_path / "bench.jsonl")), EXPECTED)
    found = {flag["check"]: flag["words"] for flag in record["flags"]}
    return found, record["phases"][1]["n"], put_in


def test_a_real_loop_without_a_fault_has_all_its_samples(
    server: EdgeServer, tmp_path: Path
) -> None:
    found, searches, _ = flags(server, tmp_path, "none")
    assert searches == QUERIES * PASSES
    assert not found.keys() & {"lost samples", "stopped early", "mislabelled phase"}


def test_searches_lost_in_a_stall_are_found_in_their_gap(
    server: EdgeServer, tmp_path: Path
) -> None:
    found, searches, _ = flags(server, tmp_path, "stall", at=0, seconds=1.6)
    assert searches < QUERIES * PASSES
    lost = QUERIES * PASSES - searches
    assert f"{lost} failed and left no line" in found["lost samples"]
    assert "about the client's limit of 0.6 s" in found["gaps"]
    assert "stopped early" not in found


def test_searches_that_failed_at_once_are_missed_though_no_gap_shows_them(
    server: EdgeServer, tmp_path: Path
) -> None:
    # The drain's pass is not hit, so every fault is one of the steady phase.
    found, searches, put_in = flags(server, tmp_path, "drop", share=0.02, at=QUERIES + 1)
    assert put_in == 4
    assert searches == QUERIES * PASSES - put_in
    # On a starved machine a failure may take long enough to be a gap.
    words = found.get("stopped early", "") + found.get("lost samples", "")
    assert f"{searches} of {QUERIES * PASSES} searches" in words

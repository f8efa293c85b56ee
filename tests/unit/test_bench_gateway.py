"""The gateway's bench at a small size, on the real parts: what it measures is what it says."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from refill.bench import gateway, inputs
from refill.bench.cold import compared
from refill.bench.gateway import Counts
from refill.bench.gateway_parts import Load
from refill.bench.qdrant_calls import Call, Direct, Recorder
from refill.config import load_images
from refill.load.wire import Address, Connection, prepare
from refill.operations.catalog import load_operations
from refill.operations.requests import RequestSet
from round_fixture import build_image, flights_package

SMALL = Counts(
    blocks=2, warm=9, cold_blocks=1, cold=10, clients=(1, 2), pages=4, page_repeats=2, fills=5,
    fill_ttl_s=2.0,
)  # fmt: skip

TWO_TRIALS = {"old": 2, "new": 2}


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[Address]:
    """A server that answers `{}` to everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Address("127.0.0.1", server.server_port)
        server.shutdown()


def flights(results: Path, count: int) -> dict[str, object]:
    config = inputs.read_config()
    config["corpora"]["flights"] = flights_package(results / "downloads/flights", count)
    config["rounds"]["corpus"] = {"name": "flights", "documents": count}
    return config


def test_all_figures(tmp_path: Path) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    work.mkdir()
    config = flights(results, 600)
    entries = load_images()
    for name in ("gateway-old", "gateway-new", "qdrant-edge"):
        build_image(tmp_path, name, entries[name])
    archives = inputs.archives(config, results, work)
    documents = inputs.documents(config, results, work)

    found = gateway.measure(archives, documents, load_operations(), work, SMALL)

    assert found["documents"] == 600
    warm = found["warm_hit"]
    assert len(warm["floor_ms"]) == 2
    assert set(warm["ratio"]) == {operation.id for operation in load_operations().warm}
    assert warm["largest_ratio"] == max(warm["ratio"].values()) > 0
    for clients in ("1 client", "2 clients"):
        cold = found["cold"][clients]
        for name in ("p50_ms", "p95_ms"):
            assert {image: len(trials) for image, trials in cold[name].items()} == TWO_TRIALS
        for image in ("old", "new"):
            used = cold["cpu_ms_per_page"][image]
            assert set(used) == {"gateway", "qdrant", "valkey"}
            assert min(used.values()) > 0
            assert cold["wall_ms_per_page"][image] > 0
    added = found["added"]
    assert set(added["calls_of_a_page"]) <= {"count scroll", "count scroll scroll"}
    assert added["calls_of_a_page"]
    assert min(added["page_ms"], added["direct_ms"], added["direct_in_turn_ms"]) > 0
    log = found["log"]
    assert 0 < log["synced_write"]["p50_ms"] <= log["synced_write"]["p95_ms"]
    assert log["synced_write"]["bytes"] == round(found["aof_per_fill"]["response_bytes"])
    cell, said = found["cold"]["2 clients"], log["2 clients"]
    used = cell["cpu_ms_per_page"]["new"]
    assert used[said["busiest_part"]] == said["busiest_ms_per_page"] == max(used.values())
    page = statistics.median(cell["p95_ms"]["new"])
    expected = page / (page + log["synced_write"]["p95_ms"])
    assert said["p95_ratio_if_each_waits_once"] == round(expected, 3)
    aof = found["aof_per_fill"]
    assert aof["new"] == 0
    assert aof["response_bytes"] < aof["old"] < aof["response_bytes"] + 400
    # Logs are left to whoever owns the folder, data and processes are not.
    assert [path.name for path in work.iterdir() if path.is_dir() and path.name != "flights"] == []


def test_ratio_is_of_the_medians_of_trials() -> None:
    old = [[0.010] * 94 + [0.040] * 6, [0.012] * 94 + [0.050] * 6, [0.011] * 94 + [0.045] * 6]
    new = [[0.005] * 94 + [0.010] * 6, [0.500] * 100, [0.0055] * 94 + [0.009] * 6]
    found = compared(old, new, 8)
    assert found["p50_ratio"] == 0.5
    assert found["p95_ratio"] == round(0.010 / 0.045, 3)
    assert found["p95_ms"]["old"] == [40.0, 50.0, 45.0]


def test_response_that_is_not_right(tmp_path: Path, answering: Address) -> None:
    documents = inputs.documents(flights(tmp_path, 600), tmp_path, tmp_path)
    requests = RequestSet.build(load_operations(), documents, 1, "flights", "test")
    with (
        Load(answering, requests.cold(1, 1, 1, "test"), 1) as load,
        pytest.raises(RuntimeError, match="wrong"),
    ):
        load.issue([0])


def test_calls_that_pass_are_kept(answering: Address) -> None:
    with Recorder(answering) as recorder:
        connection = Connection(recorder.address, 10.0)
        for path, body in (("/c/points/scroll", b'{"limit":1}'), ("/c/points/count", b"{}")):
            assert connection.request(prepare(recorder.address, "POST", path, body)) == (200, b"{}")
        calls = recorder.take()
        connection.close()
    assert calls == [
        Call("POST", "/c/points/scroll", b'{"limit":1}'),
        Call("POST", "/c/points/count", b"{}"),
    ]
    assert [call.kind for call in calls] == ["scroll", "count"]
    with Direct(answering) as direct:
        chain, beside = direct.prepared(calls)
        assert (len(chain), b"/c/points/count" in beside) == (1, True)
        with pytest.raises(ValueError, match="were: scroll"):
            direct.prepared(calls[:1])

"""The optimizers of the embedded Qdrant: when they run, what they do, what the API tells of it.

The directions of the 13 published configurations, on small collections: 8 dimensions, 32 bytes a
point, so that an indexing threshold of N KB is 32 N points.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.edge_server import EdgeServer, poll

SIZE = 8
DATA = np.random.default_rng(3).normal(size=(4000, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with EdgeServer(tmp_path_factory.mktemp("optimizer") / "storage") as running:
        yield running


def create(server: EdgeServer, name: str, optimizers: dict[str, Any], **fields: Any) -> None:
    body = {
        "vectors": {"size": SIZE, "distance": "Cosine"},
        "optimizers_config": optimizers,
        **fields,
    }
    server.result("PUT", f"/collections/{name}", body)


def upload(server: EdgeServer, name: str, ids: range, wait: str = "wait=true") -> Any:
    body = {"batch": {"ids": list(ids), "vectors": DATA[ids.start : ids.stop].tolist()}}
    return server.result("PUT", f"/collections/{name}/points?{wait}", body)


def delete(server: EdgeServer, name: str, ids: range) -> None:
    server.result("POST", f"/collections/{name}/points/delete?wait=true", {"points": list(ids)})


def patch(server: EdgeServer, name: str, **optimizers: Any) -> None:
    server.result("PATCH", f"/collections/{name}", {"optimizers_config": optimizers})


def count(server: EdgeServer, name: str) -> int:
    found: int = server.result("POST", f"/collections/{name}/points/count", {})["count"]
    return found


def done(server: EdgeServer, name: str) -> list[str]:
    """The optimizers of the completed optimizations, oldest first."""
    completed = server.optimizations(name)["completed"]
    return [job["optimizer"] for job in reversed(completed) if job["status"] == "done"]


def hold(server: EdgeServer) -> int:
    """Stop the optimizer process where it is, so that a test sees the states in between."""
    pid: int = poll("the optimizer process", server.optimizer_pid)
    os.kill(pid, signal.SIGSTOP)
    return pid


def wait_for_clone(server: EdgeServer) -> None:
    """Wait until the newest collection has its first job's clone: a write comes after it."""
    root = server.storage / "collections"
    newest = max(root.iterdir(), key=lambda directory: directory.stat().st_ctime_ns)
    poll("a clone", lambda: list(newest.glob("base-*/segments")))


def start_optimizer(server: EdgeServer) -> None:
    """Have the server start its optimizer process, which it does with the first job."""
    create(server, "starter", {"indexing_threshold": 1})
    upload(server, "starter", range(32))
    server.wait_green("starter")
    server.result("DELETE", "/collections/starter")


def test_a1_indexes_and_ends_green(server: EdgeServer) -> None:
    create(server, "a1", {"indexing_threshold": 16})
    upload(server, "a1", range(1800), "wait=false")
    info = server.wait_green("a1")
    assert info["points_count"] == 1800
    # Three full units of 512; the remainder is below the threshold and stays plain, as in Qdrant.
    assert info["indexed_vectors_count"] == 1536
    state = server.optimizations("a1")
    assert state["summary"]["queued_optimizations"] == 0
    assert state["running"] == state["queued"] == []
    assert done(server, "a1") == ["indexing"] * 3
    assert sum(segment["points_count"] for segment in state["idle_segments"]) == 1536
    progress = state["completed"][0]["progress"]
    assert progress["duration_sec"] > 0
    assert progress["done"] == progress["total"] == 1536
    hits = server.result("POST", "/collections/a1/points/query", {"query": 1700, "limit": 3})
    assert len(hits["points"]) == 3


def test_a2_never_indexes_and_e1_indexes_after_the_patch(server: EdgeServer) -> None:
    create(server, "e1", {"indexing_threshold": 1000})
    upload(server, "e1", range(1500))
    info = server.info("e1")
    assert (info["status"], info["indexed_vectors_count"]) == ("green", 0)
    assert server.optimizations("e1")["completed"] == []
    patch(server, "e1", indexing_threshold=10)
    assert server.info("e1")["status"] == "yellow"
    info = server.wait_green("e1")
    assert (info["points_count"], info["indexed_vectors_count"]) == (1500, 1500)
    assert info["config"]["optimizer_config"]["indexing_threshold"] == 10
    assert done(server, "e1") == ["indexing"]


def test_indexing_threshold_0_turns_indexing_off(server: EdgeServer) -> None:
    create(server, "off", {"indexing_threshold": 0})
    upload(server, "off", range(1000))
    assert server.info("off")["status"] == "green"
    assert server.info("off")["indexed_vectors_count"] == 0


def test_a3_hides_sealed_points_until_they_are_indexed(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "a3", {"indexing_threshold": 16, "prevent_unoptimized": True})
    optimizer = hold(server)
    try:
        upload(server, "a3", range(1200), "wait=false")
        poll("all applied", lambda: server.info("a3")["update_queue"]["length"] == 0)
        info = server.info("a3")
        assert info["points_count"] == 1200
        assert info["update_queue"]["deferred_points"] == 1024
        assert info["status"] == "yellow"
        # The active shard is below the threshold: its points are seen.
        assert count(server, "a3") == 176
        page = server.result("POST", "/collections/a3/points/scroll", {"limit": 1000})
        assert [point["id"] for point in page["points"]] == list(range(1024, 1200))
        assert server.result("POST", "/collections/a3/points", {"ids": [0, 1100]})[0]["id"] == 1100
        query = {"query": DATA[0].tolist(), "limit": 1200}
        hits = server.result("POST", "/collections/a3/points/query", query)["points"]
        assert {hit["id"] for hit in hits} == set(range(1024, 1200))
        # wait=true waits for the deferred points, up to the timeout.
        late = upload(server, "a3", range(1200, 1210), "wait=true&timeout=1")
        assert late["status"] == "wait_timeout"
        assert len(server.optimizations("a3")["queued"]) >= 1
    finally:
        os.kill(optimizer, signal.SIGCONT)
    assert upload(server, "a3", range(1210, 1220))["status"] == "completed"
    assert server.info("a3")["update_queue"]["deferred_points"] == 0
    assert count(server, "a3") == 1220


def test_e2_hides_everything_after_the_patch(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "e2", {"indexing_threshold": 1000, "prevent_unoptimized": True})
    upload(server, "e2", range(1000))
    assert count(server, "e2") == 1000
    optimizer = hold(server)
    try:
        patch(server, "e2", indexing_threshold=10)
        assert count(server, "e2") == 0
        assert server.info("e2")["update_queue"]["deferred_points"] == 1000
        # A deferred point can be overwritten and deleted all the same.
        upload(server, "e2", range(1), "wait=true&timeout=1")
        delete(server, "e2", range(1, 3))
        assert server.info("e2")["points_count"] == 998
        assert count(server, "e2") == 1
    finally:
        os.kill(optimizer, signal.SIGCONT)
    server.wait_green("e2")
    assert count(server, "e2") == 998
    assert server.info("e2")["update_queue"]["deferred_points"] == 0


def segments_after_upload(server: EdgeServer, name: str, optimizers: dict[str, Any]) -> int:
    create(server, name, {"indexing_threshold": 8, **optimizers})
    upload(server, name, range(3000))
    info = server.wait_green(name)
    assert info["points_count"] == 3000
    segments: int = info["segments_count"]
    return segments


def test_b_segment_numbers_and_sizes(server: EdgeServer) -> None:
    b1 = segments_after_upload(server, "b1", {"default_segment_number": 1})
    b3 = segments_after_upload(server, "b3", {"default_segment_number": 8})
    b4 = segments_after_upload(server, "b4", {"max_segment_size": 12, "default_segment_number": 2})
    assert b1 <= 3
    assert b3 > b1
    # At most 12 KB, 384 points, a segment.
    assert b4 >= 3000 // 384
    sizes = [segment["points_count"] for segment in server.optimizations("b4")["idle_segments"]]
    assert max(sizes) <= 384


def test_c1_thread_settings_are_recorded(server: EdgeServer) -> None:
    create(
        server,
        "c1",
        {"indexing_threshold": 8, "max_optimization_threads": 4},
        hnsw_config={"max_indexing_threads": 1},
    )
    info = server.info("c1")
    assert info["config"]["hnsw_config"]["max_indexing_threads"] == 1
    assert info["config"]["optimizer_config"]["max_optimization_threads"] == 4
    assert "modelled as 1" in info["warnings"][0]["message"]
    patch(server, "c1", max_optimization_threads=1)
    assert "warnings" not in server.info("c1")


@pytest.mark.parametrize(("name", "threshold", "vacuums"), [("d1", 0.2, True), ("d2", 0.5, False)])
def test_d_vacuum_after_deleting_a_quarter(
    server: EdgeServer, name: str, threshold: float, vacuums: bool
) -> None:
    create(
        server,
        name,
        {
            "indexing_threshold": 8,
            "deleted_threshold": threshold,
            "vacuum_min_vector_number": 100,
            "default_segment_number": 1,
        },
    )
    upload(server, name, range(2048))
    server.wait_green(name)
    before = done(server, name)
    assert set(before) == {"indexing"}
    delete(server, name, range(512))
    info = server.wait_green(name)
    assert info["points_count"] == count(server, name) == 1536
    after = done(server, name)[len(before) :]
    assert after == (["vacuum"] if vacuums else [])
    deleted = sum(layer["deleted_count"] for layer in server.layers(name))
    assert deleted == (0 if vacuums else 512)


def test_deletes_in_the_active_shard_are_vacuumed_too(server: EdgeServer) -> None:
    create(server, "active", {"indexing_threshold": 1000, "vacuum_min_vector_number": 100})
    upload(server, "active", range(1000))
    delete(server, "active", range(500))
    server.wait_green("active")
    assert count(server, "active") == 500
    assert sum(layer["deleted_count"] for layer in server.layers("active")) == 0
    delete(server, "active", range(1000))
    server.wait_green("active")
    assert count(server, "active") == 0
    upload(server, "active", range(10))
    assert count(server, "active") == 10


def test_hnsw_patch_rebuilds_the_index(server: EdgeServer) -> None:
    create(server, "mismatch", {"indexing_threshold": 8, "default_segment_number": 1})
    upload(server, "mismatch", range(1024))
    server.wait_green("mismatch")
    before = done(server, "mismatch")
    server.result("PATCH", "/collections/mismatch", {"hnsw_config": {"m": 8, "ef_construct": 32}})
    info = server.wait_green("mismatch")
    assert info["config"]["hnsw_config"]["m"] == 8
    assert info["indexed_vectors_count"] == 1024
    assert done(server, "mismatch")[len(before) :] == ["config mismatch"]


def test_a_patch_during_a_job_restarts_it_under_the_new_configuration(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "patched", {"indexing_threshold": 16, "default_segment_number": 1})
    hold(server)
    upload(server, "patched", range(512))
    wait_for_clone(server)
    patch(server, "patched", indexing_threshold=1000)
    info = server.wait_green("patched")
    assert info["indexed_vectors_count"] == 0
    cancelled = [
        job["status"]["cancelled"]
        for job in server.optimizations("patched")["completed"]
        if job["status"] != "done"
    ]
    assert cancelled == ["the collection's configuration changed"]


def test_a_killed_optimizer_is_started_again(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "killed", {"indexing_threshold": 16})
    optimizer = hold(server)
    upload(server, "killed", range(600))
    wait_for_clone(server)
    os.kill(optimizer, signal.SIGKILL)
    query = {"query": DATA[7].tolist(), "limit": 1}
    hits = server.result("POST", "/collections/killed/points/query", query)["points"]
    assert hits[0]["id"] == 7
    info = server.wait_green("killed")
    assert (info["points_count"], info["indexed_vectors_count"]) == (600, 512)
    assert server.optimizer_pid() not in (None, optimizer)
    assert server.optimizations("killed")["completed"][0]["status"] == "done"


def test_an_optimizer_error_is_shown_and_tried_again_after_a_write(server: EdgeServer) -> None:
    create(server, "red", {"indexing_threshold": 16})
    root = server.storage / "collections"
    newest = max(root.iterdir(), key=lambda directory: directory.stat().st_ctime_ns)
    # Files where the next clone would be: it cannot be made.
    blocks = [newest / f"base-{n}" for n in range(20)]
    for block in blocks:
        block.touch()
    upload(server, "red", range(600))
    info = poll("red", lambda: (i := server.info("red"))["status"] == "red" and i)
    assert "base-" in info["optimizer_status"]["error"]
    assert info["points_count"] == count(server, "red") == 600
    assert "error" in server.optimizations("red")["completed"][0]["status"]
    for block in blocks:
        block.unlink(missing_ok=True)
    upload(server, "red", range(600, 601))
    info = poll("recovery", lambda: (i := server.info("red"))["status"] == "green" and i)
    assert info["optimizer_status"] == "ok"
    assert info["indexed_vectors_count"] == 512


def test_tiny_thresholds_do_not_seal_every_point(server: EdgeServer) -> None:
    body = {"vectors": {"size": 1024, "distance": "Dot"}}
    server.result(
        "PUT", "/collections/tiny", {**body, "optimizers_config": {"indexing_threshold": 1}}
    )
    points = [{"id": n, "vector": [float(n)] * 1024} for n in range(130)]
    server.result("PUT", "/collections/tiny/points?wait=true", {"points": points})
    assert server.wait_green("tiny")["indexed_vectors_count"] == 128


def test_what_is_deleted_or_overwritten_during_a_job_stays_so(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "replay", {"indexing_threshold": 16})
    optimizer = hold(server)
    upload(server, "replay", range(600))
    wait_for_clone(server)
    delete(server, "replay", range(100))
    fresh = [
        {"id": n, "vector": DATA[n].tolist(), "payload": {"new": True}} for n in range(90, 200)
    ]
    server.result("PUT", "/collections/replay/points?wait=true", {"points": fresh})
    os.kill(optimizer, signal.SIGCONT)
    info = server.wait_green("replay")
    assert info["points_count"] == 510
    page = server.result("POST", "/collections/replay/points/scroll", {"limit": 1000})["points"]
    assert [point["id"] for point in page] == list(range(90, 600))
    new = [point["id"] for point in page if point.get("payload")]
    assert new == list(range(90, 200))


def test_a_payload_index_made_during_a_job_is_in_its_result(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "indexed", {"indexing_threshold": 16})
    optimizer = hold(server)
    points = [{"id": n, "vector": DATA[n].tolist(), "payload": {"k": n % 3}} for n in range(600)]
    server.result("PUT", "/collections/indexed/points?wait=true", {"points": points})
    wait_for_clone(server)
    server.result(
        "PUT",
        "/collections/indexed/index?wait=true",
        {"field_name": "k", "field_schema": "integer"},
    )
    assert not Path(f"/proc/{optimizer}").exists()
    info = server.wait_green("indexed")
    assert info["indexed_vectors_count"] == 512
    assert info["payload_schema"]["k"]["points"] == 600
    body = {"key": "k", "exact": True}
    hits = server.result("POST", "/collections/indexed/facet", body)["hits"]
    assert hits == [{"value": n, "count": 200} for n in range(3)]


def test_a_collection_can_be_deleted_during_a_job(server: EdgeServer) -> None:
    start_optimizer(server)
    create(server, "gone", {"indexing_threshold": 16})
    hold(server)
    upload(server, "gone", range(2000), "wait=false")
    poll("a running job", lambda: server.optimizations("gone")["running"])
    assert server.result("DELETE", "/collections/gone") is True
    assert server.request("GET", "/collections/gone")[0] == 404
    start_optimizer(server)

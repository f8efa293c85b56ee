"""What survives a clean stop and a SIGKILL, and the repair after an unclean stop."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.edge_server import EdgeServer, poll

SIZE = 8
C = "/collections/c"
DATA = np.random.default_rng(4).normal(size=(3000, SIZE)).astype(np.float32).tolist()


def create(server: EdgeServer, threshold: int = 16, flush: int = 1) -> None:
    """A collection whose units hold 32 * `threshold` points."""
    server.result(
        "PUT",
        C,
        {
            "vectors": {"size": SIZE, "distance": "Dot"},
            "optimizers_config": {"indexing_threshold": threshold, "flush_interval_sec": flush},
        },
    )
    server.result("PUT", f"{C}/index?wait=true", {"field_name": "k", "field_schema": "integer"})


def upload(server: EdgeServer, ids: range, k: int, wait: str = "true") -> None:
    points = [{"id": n, "vector": DATA[n], "payload": {"k": k}} for n in ids]
    server.result("PUT", f"{C}/points?wait={wait}", {"points": points})


def delete(server: EdgeServer, ids: range) -> None:
    server.result("POST", f"{C}/points/delete?wait=true", {"points": list(ids)})


def stored(server: EdgeServer) -> dict[int, int]:
    """`k` by id; fails if a point is found twice."""
    body = {"limit": 100_000, "with_payload": True}
    points = server.result("POST", f"{C}/points/scroll", body)["points"]
    found = {point["id"]: point["payload"]["k"] for point in points}
    assert len(found) == len(points)
    assert server.result("POST", f"{C}/points/count", {"exact": True})["count"] == len(points)
    assert server.info("c")["points_count"] == len(points)
    return found


def directory(storage: Path) -> Path:
    """The one collection's directory."""
    (found,) = (storage / "collections").iterdir()
    return found


def test_a_clean_stop_loses_no_acknowledged_write(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        create(server, flush=3600)
        # Not waited for: acknowledged when queued, and the stop comes right behind.
        for start in range(0, 3000, 500):
            upload(server, range(start, start + 500), k=1, wait="false")
        server.result("POST", f"{C}/points/delete", {"points": list(range(100))})
        info = server.info("c")
        assert server.stop() == 0
    with EdgeServer(tmp_path / "s") as server:
        assert stored(server) == dict.fromkeys(range(100, 3000), 1)
        again = server.info("c")
        assert again["config"] == info["config"]
        assert again["payload_schema"]["k"]["points"] == 2900
        assert server.wait_green("c")["points_count"] == 2900
        assert "not stopped cleanly" not in server.log.read_text()


def test_after_sigkill_everything_flushed_is_back(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        upload(server, range(1200), k=1)
        upload(server, range(100, 300), k=2)
        delete(server, range(50))
        server.wait_durable("c")
        server.kill()
    with EdgeServer(tmp_path / "s") as server:
        expected = {**dict.fromkeys(range(50, 1200), 1), **dict.fromkeys(range(100, 300), 2)}
        assert stored(server) == expected
        assert "was not stopped cleanly" in server.log.read_text()


@pytest.mark.parametrize("round_number", range(3))
def test_sigkill_at_any_time_brings_back_no_stale_point(tmp_path: Path, round_number: int) -> None:
    """Kill in the middle of overwrites, deletes and optimizations: what was durable before is
    there with its durable or a newer value, what was durably deleted stays deleted."""
    with EdgeServer(tmp_path / "s") as server:
        create(server, threshold=6)
        upload(server, range(900), k=1)
        upload(server, range(300), k=2)
        delete(server, range(800, 900))
        server.wait_durable("c")
        for n in range(40 + 15 * round_number):
            start = n * 20 % 700
            upload(server, range(start, start + 20), k=3, wait="false")
        server.kill()
    with EdgeServer(tmp_path / "s") as server:
        found = stored(server)
        assert set(found) == set(range(800))
        assert {found[n] for n in range(300)} <= {2, 3}
        assert {found[n] for n in range(300, 800)} <= {1, 3}
        # And everything can be written again.
        upload(server, range(0, 800, 2), k=4)
        delete(server, range(400, 800))
        expected = {n: 4 if n % 2 == 0 else found[n] for n in range(400)}
        assert stored(server) == expected
        server.wait_green("c")
        assert stored(server) == expected
        assert server.stop() == 0
    with EdgeServer(tmp_path / "s") as server:
        assert stored(server) == expected


def restore(saved: dict[Path, bytes]) -> None:
    for path, content in saved.items():
        path.write_bytes(content)


def test_an_id_in_several_layers_keeps_its_newest_copy(tmp_path: Path) -> None:
    """As if the kill came after the flush of the active shard and before that of the base: the
    older layer still has what was overwritten there."""
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        upload(server, range(512), k=1)
        server.wait_green("c")
        assert server.stop() == 0
    # The base as it was before the overwrite.
    (base,) = directory(tmp_path / "s").glob("base-*")
    shutil.copytree(base, tmp_path / "base")
    with EdgeServer(tmp_path / "s") as server:
        upload(server, range(100), k=2)
        server.wait_durable("c")
        server.kill()
    shutil.rmtree(base)
    shutil.copytree(tmp_path / "base", base)
    with EdgeServer(tmp_path / "s") as server:
        expected = {**dict.fromkeys(range(512), 1), **dict.fromkeys(range(100), 2)}
        assert stored(server) == expected
        delete(server, range(50))
        assert stored(server) == {n: k for n, k in expected.items() if n >= 50}


def test_deletes_and_overwrites_work_where_the_counter_was_behind(tmp_path: Path) -> None:
    """As if the kill came between the flush of the points' versions and that of the segment's:
    the shard's operation counter then starts below its points' versions."""
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        upload(server, range(10), k=1)
        server.wait_durable("c")
        saved = {
            path: path.read_bytes()
            for path in directory(tmp_path / "s").glob("active-*/segments/*/segment.json")
        }
        assert saved
        for start in range(10, 310, 3):
            upload(server, range(start, start + 3), k=1)
        server.wait_durable("c")
        server.kill()
    restore(saved)
    with EdgeServer(tmp_path / "s") as server:
        expected = dict.fromkeys(range(310), 1)
        assert stored(server) == expected
        delete(server, range(200, 310))
        upload(server, range(100, 200), k=2)
        expected = {**dict.fromkeys(range(100), 1), **dict.fromkeys(range(100, 200), 2)}
        assert stored(server) == expected
        # The repair itself is durable: a second kill right away changes nothing.
        server.wait_durable("c")
        server.kill()
    with EdgeServer(tmp_path / "s") as server:
        assert stored(server) == expected
        delete(server, range(200))
        assert stored(server) == {}


def test_what_the_manifest_does_not_name_is_removed(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        upload(server, range(20), k=1)
        assert server.stop() == 0
    collection = directory(tmp_path / "s")
    shutil.copytree(next(collection.glob("active-*")), collection / "base-99")
    (tmp_path / "s" / "collections" / "half-created" / "active-0").mkdir(parents=True)
    (collection / "manifest.json.new").write_bytes(b"cut sho")
    with EdgeServer(tmp_path / "s") as server:
        assert stored(server) == dict.fromkeys(range(20), 1)
        assert server.result("GET", "/collections")["collections"] == [{"name": "c"}]
        assert not (collection / "base-99").exists()
        assert directory(tmp_path / "s") == collection


def test_a_damaged_manifest_is_a_clear_error(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        assert server.stop() == 0
    manifest = directory(tmp_path / "s") / "manifest.json"
    manifest.write_bytes(b"{")
    with pytest.raises(AssertionError, match=r"manifest\.json: not JSON"):
        EdgeServer(tmp_path / "s")
    manifest.write_bytes(b'{"format": 99}')
    with pytest.raises(AssertionError, match="format 99, this version reads 1"):
        EdgeServer(tmp_path / "s")


def test_the_optimizer_process_dies_with_a_killed_server(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        upload(server, range(600), k=1)
        server.wait_green("c")
        optimizer = server.optimizer_pid()
        assert optimizer is not None
        # Stopped, it is like one in the middle of a job: it cannot see that its input has ended.
        os.kill(optimizer, signal.SIGSTOP)
        server.kill()

    def gone() -> bool:
        try:
            return "\nState:\tZ" in Path(f"/proc/{optimizer}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    try:
        poll("the optimizer process gone", gone, seconds=20)
    finally:
        if not gone():
            os.kill(optimizer, signal.SIGKILL)


def test_a_deleted_collection_stays_deleted(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        create(server)
        upload(server, range(600), k=1, wait="false")
        assert server.result("DELETE", C) is True
        create(server)
        assert stored(server) == {}
        upload(server, range(5), k=7)
        server.wait_durable("c")
        server.kill()
    with EdgeServer(tmp_path / "s") as server:
        found: dict[int, Any] = stored(server)
        assert found == dict.fromkeys(range(5), 7)

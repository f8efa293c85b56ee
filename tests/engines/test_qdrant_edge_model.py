"""Random writes and reads against a dictionary, while optimizations swap the layers underneath.

The long forms are marked `soak`: `pytest -m soak tests/engines/test_qdrant_edge_model.py`.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.edge_server import EdgeServer, poll

SIZE = 4
C = "/collections/c"
IDS = 1500


class Model:
    """The collection as a dictionary, and the same writes to the server."""

    def __init__(self, server: EdgeServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.points: dict[int, tuple[list[float], dict[str, Any]]] = {}
        self.writes: Counter[str] = Counter()

    def create(self, **optimizers: Any) -> None:
        """16 bytes a point: the threshold of 2 KB seals a unit every 128 points."""
        fields = {
            "indexing_threshold": 2,
            "vacuum_min_vector_number": 100,
            "flush_interval_sec": 1,
            **optimizers,
        }
        body = {"vectors": {"size": SIZE, "distance": "Euclid"}, "optimizers_config": fields}
        self.server.result("PUT", C, body)
        for field in ("k", "v"):
            schema = {"field_name": field, "field_schema": "integer"}
            self.server.result("PUT", f"{C}/index?wait=true", schema)

    def write(self) -> None:
        """One random write."""
        kinds = ("upsert", "upsert", "upsert", "batch", "delete", "delete", "filter", "payload")
        kind = self.random.choice(kinds)
        self.writes[kind] += 1
        getattr(self, f"_{kind}")()

    def _new_point(self) -> tuple[list[float], dict[str, Any]]:
        vector = [round(self.random.uniform(-1, 1), 3) for _ in range(SIZE)]
        return vector, {"k": self.random.randrange(5), "v": self.random.randrange(1000)}

    def _some(self, most: int) -> list[int]:
        return [self.random.randrange(IDS) for _ in range(self.random.randint(1, most))]

    def _upsert(self) -> None:
        new = {found: self._new_point() for found in self._some(60)}
        body = [{"id": n, "vector": vector, "payload": load} for n, (vector, load) in new.items()]
        wait = self.random.choice(("true", "false"))
        self.server.result("PUT", f"{C}/points?wait={wait}", {"points": body})
        self.points.update(new)

    def _batch(self) -> None:
        new = {found: self._new_point() for found in self._some(300)}
        batch = {
            "ids": list(new),
            "vectors": [vector for vector, _ in new.values()],
            "payloads": [payload for _, payload in new.values()],
        }
        self.server.result("PUT", f"{C}/points?wait=true", {"batch": batch})
        self.points.update(new)

    def _delete(self) -> None:
        ids = self._some(100)
        self.server.result("POST", f"{C}/points/delete?wait=true", {"points": ids})
        for found in ids:
            self.points.pop(found, None)

    def _filter(self) -> None:
        least = self.random.randrange(900, 1000)
        condition = {"must": [{"key": "v", "range": {"gte": least}}]}
        self.server.result("POST", f"{C}/points/delete?wait=true", {"filter": condition})
        self.points = {n: p for n, p in self.points.items() if p[1]["v"] < least}

    def _payload(self) -> None:
        ids = [found for found in dict.fromkeys(self._some(20)) if found in self.points]
        if not ids:
            return
        change = {"k": self.random.randrange(5)}
        body = {"payload": change, "points": ids}
        self.server.result("POST", f"{C}/points/payload?wait=true", body)
        for found in ids:
            vector, payload = self.points[found]
            self.points[found] = (vector, {**payload, **change})

    def check_quick(self) -> None:
        """Counts, a facet and an exact search."""
        post = self.server.result
        # A write that waits comes after all that did not.
        post("POST", f"{C}/points/delete?wait=true", {"points": [IDS + 1]})
        assert post("POST", f"{C}/points/count", {})["count"] == len(self.points)
        wanted = self.random.randrange(5)
        condition = {"must": [{"key": "k", "match": {"value": wanted}}]}
        number = sum(payload["k"] == wanted for _, payload in self.points.values())
        assert post("POST", f"{C}/points/count", {"filter": condition})["count"] == number
        hits = post("POST", f"{C}/facet", {"key": "k", "exact": True})["hits"]
        counted = Counter(payload["k"] for _, payload in self.points.values())
        assert {hit["value"]: hit["count"] for hit in hits} == counted
        self._check_search()

    def _check_search(self) -> None:
        if not self.points:
            return
        query = [self.random.uniform(-1, 1) for _ in range(SIZE)]
        body = {"query": query, "limit": 10, "params": {"exact": True}, "with_payload": True}
        hits = self.server.result("POST", f"{C}/points/query", body)["points"]
        ids = np.array(list(self.points))
        vectors = np.array([vector for vector, _ in self.points.values()])
        distances = np.sort(np.linalg.norm(vectors - np.array(query), axis=1))[:10]
        assert np.allclose([hit["score"] for hit in hits], distances, atol=1e-5)
        assert len({hit["id"] for hit in hits}) == len(hits) == min(10, len(ids))
        for hit in hits:
            assert hit["payload"] == self.points[hit["id"]][1]

    def check_all(self) -> None:
        """Every point with its vector and payload, paged through in both ways."""
        found: dict[int, Any] = {}
        offset = None
        while True:
            body = {"limit": 333, "offset": offset, "with_vector": True}
            page = self.server.result("POST", f"{C}/points/scroll", body)
            for point in page["points"]:
                assert point["id"] not in found
                found[point["id"]] = (point["vector"], point["payload"])
            offset = page["next_page_offset"]
            if offset is None:
                break
        assert list(found) == sorted(self.points)
        for number, (vector, payload) in self.points.items():
            assert np.allclose(found[number][0], vector, atol=1e-6)
            assert found[number][1] == payload
        body = {"limit": IDS * 2, "order_by": {"key": "v", "direction": "desc"}}
        page = self.server.result("POST", f"{C}/points/scroll", body)
        values = [point["payload"]["v"] for point in page["points"]]
        assert values == sorted((p["v"] for _, p in self.points.values()), reverse=True)
        assert self.server.info("c")["points_count"] == len(self.points)


def run(server: EdgeServer, seed: int, swaps: int) -> None:
    """Random writes with checks in between, until so many optimizations were swapped in, with
    a kill of the optimizer process after every fourth."""
    model = Model(server, seed)
    model.create()
    done = kills = writes = 0
    while done < swaps:
        model.write()
        writes += 1
        if writes % 5 == 0:
            model.check_quick()
            # Writes are quicker than optimizations: keep the queue of units short.
            poll("a short queue", lambda: len(server.optimizations("c")["queued"]) < 5)
            jobs = server.optimizations("c")["completed"]
            done = sum(job["status"] == "done" for job in jobs)
            optimizer = server.optimizer_pid()
            if done >= 4 * (kills + 1) and optimizer is not None:
                os.kill(optimizer, signal.SIGKILL)
                kills += 1
        if writes % 50 == 0:
            model.check_all()
    server.wait_green("c")
    model.check_all()
    assert all(model.writes[kind] for kind in ("upsert", "batch", "delete", "filter", "payload"))
    jobs = server.optimizations("c")["completed"]
    assert not [job for job in jobs if isinstance(job["status"], dict) and "error" in job["status"]]


def test_writes_during_swaps_and_optimizer_kills_match_a_dictionary(tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "s") as server:
        run(server, seed=11, swaps=14)
        assert server.stop() == 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_soak_writes_during_swaps(tmp_path: Path, seed: int) -> None:
    with EdgeServer(tmp_path / "s") as server:
        run(server, seed=seed, swaps=200)
        assert server.stop() == 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_soak_kills_of_the_server(tmp_path: Path, seed: int) -> None:
    """Kill the server at random; then everything is at its durable or at a newer state.

    Each round starts from a state that is known to be durable. After the kill every point must be
    in the state it had then or in one it got since.
    """
    chance = random.Random(seed)
    allowed: dict[int, list[dict[str, Any] | None]] = {}
    for round_number in range(25):
        with EdgeServer(tmp_path / "s") as server:
            model = Model(server, seed * 1000 + round_number)
            if round_number == 0:
                model.create()
            page = server.result(
                "POST", f"{C}/points/scroll", {"limit": IDS * 2, "with_vector": True}
            )["points"]
            found = {point["id"]: point["payload"] for point in page}
            assert len(found) == len(page)
            if round_number:
                for number, states in allowed.items():
                    assert found.get(number) in states, (number, found.get(number), states)
                assert set(found) <= set(allowed)
            model.points = {p["id"]: (p["vector"], p["payload"]) for p in page}
            for _ in range(chance.randrange(20)):
                model.write()
            server.wait_durable("c")
            allowed = {n: [None] for n in range(IDS)}
            for number, (_, payload) in model.points.items():
                allowed[number] = [payload]
            for _ in range(chance.randrange(1, 60)):
                model.write()
                for number in range(IDS):
                    state = model.points[number][1] if number in model.points else None
                    if state not in allowed[number]:
                        allowed[number].append(state)
            server.kill()

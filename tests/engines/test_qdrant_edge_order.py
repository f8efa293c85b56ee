"""Points in the order of a payload key, with ties, wherever they lie: one layer or several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines.edge_server import EdgeServer

SIZE = 8
POINTS = 1500
# Few values, so that ties run across segments, layers and pages; some points have none.
VALUES = [None if n % 17 == 0 else int(v) for n, v in enumerate(
    np.random.default_rng(11).integers(0, 40, POINTS)
)]  # fmt: skip
C = "/collections/c"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with EdgeServer(tmp_path_factory.mktemp("order") / "storage") as running:
        yield running


@pytest.fixture(scope="module", params=["active alone", "base of several segments", "all layers"])
def server(storage: EdgeServer, request: pytest.FixtureRequest) -> Iterator[EdgeServer]:
    optimizers: dict[str, Any] = {"indexing_threshold": 1_000_000}
    if request.param != "active alone":
        # 32 bytes a point: units of 256 points, of which the planner keeps four segments.
        optimizers = {"indexing_threshold": 8, "default_segment_number": 4, "max_segment_size": 12}
    body = {"vectors": {"size": SIZE, "distance": "Dot"}, "optimizers_config": optimizers}
    storage.result("PUT", C, body)
    for key in ("v", "even"):
        field = {"field_name": key, "field_schema": "integer"}
        storage.result("PUT", f"{C}/index?wait=true", field)
    upsert(storage, range(1280))
    storage.wait_green("c")
    if request.param == "base of several segments":
        upsert(storage, range(1280, POINTS))
        storage.result("PATCH", C, {"optimizers_config": {"indexing_threshold": 4}})
        storage.wait_green("c")
        rest = [layer["points_count"] for layer in storage.layers("c")[:-1]]
        storage.result(
            "POST",
            f"{C}/points/delete?wait=true",
            {"points": list(range(POINTS - sum(rest), POINTS))},
        )
        shown = [layer for layer in storage.layers("c") if layer["points_count"]]
        assert [layer["layer"] for layer in shown] == ["base"]
        assert storage.info("c")["segments_count"] > 2
    else:
        upsert(storage, range(1280, POINTS))
    if request.param == "all layers":
        assert sum(layer["points_count"] > 0 for layer in storage.layers("c")) > 1
    yield storage
    storage.result("DELETE", C)


def upsert(server: EdgeServer, ids: range) -> None:
    payloads = [
        {"even": n % 2} if (value := VALUES[n]) is None else {"v": value, "even": n % 2}
        for n in ids
    ]
    vectors = np.ones((len(ids), SIZE)).tolist()
    batch = {"ids": list(ids), "vectors": vectors, "payloads": payloads}
    server.result("PUT", f"{C}/points?wait=true", {"batch": batch})


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("limit", [7, 100, 5000])
@pytest.mark.parametrize("filtered", [False, True])
def test_pages_in_order(server: EdgeServer, direction: str, limit: int, filtered: bool) -> None:
    there = server.result("POST", f"{C}/points/count", {})["count"]
    known = [n for n in range(there) if VALUES[n] is not None and not (filtered and n % 2)]
    expected = sorted((VALUES[n] for n in known), reverse=direction == "desc")  # type: ignore[type-var]
    body: dict[str, Any] = {"limit": limit, "order_by": {"key": "v", "direction": direction}}
    if filtered:
        body["filter"] = {"must": [{"key": "even", "match": {"value": 0}}]}
    page = server.result("POST", f"{C}/points/scroll", body)
    points = page["points"]
    assert page["next_page_offset"] is None
    assert [point["order_value"] for point in points] == expected[:limit]
    assert [point["payload"]["v"] for point in points] == expected[:limit]
    found = [point["id"] for point in points]
    assert len(set(found)) == len(found)
    assert set(found) <= set(known)
    assert all(VALUES[n] == v for n, v in zip(found, expected, strict=False))


def test_counts_and_ids_of_an_empty_collection(storage: EdgeServer) -> None:
    storage.result("PUT", "/collections/empty", {"vectors": {"size": SIZE, "distance": "Dot"}})
    storage.result(
        "PUT", "/collections/empty/index?wait=true", {"field_name": "v", "field_schema": "integer"}
    )
    path = "/collections/empty/points"
    assert storage.result("POST", f"{path}/count", {}) == {"count": 0}
    nothing = {"points": [], "next_page_offset": None}
    assert storage.result("POST", f"{path}/scroll", {}) == nothing
    assert storage.result("POST", f"{path}/scroll", {"order_by": "v"}) == nothing
    assert storage.result("POST", path, {"ids": [1]}) == []
    facet = storage.result("POST", "/collections/empty/facet", {"key": "v"})
    assert facet == {"hits": []}
    storage.result("DELETE", "/collections/empty")

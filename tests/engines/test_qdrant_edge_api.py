"""The client library, unmodified, against the embedded Qdrant: every operation that is served.

The reads run over several layers (two sealed and optimized units and an active one), and are
compared with plain Python over the same points.
"""

from __future__ import annotations

import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from engines.edge_server import EdgeServer
from qdrant_client import QdrantClient, models
from qdrant_client.qdrant_remote import QdrantRemote

SIZE = 8
# 32 bytes a point: with an indexing threshold of 4 KB, a unit is sealed every 128 points.
SMALL = models.OptimizersConfigDiff(indexing_threshold=4)
CITIES = ["Rome", "Oslo", "Lima", "Bonn"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    with EdgeServer(tmp_path_factory.mktemp("api") / "storage") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EdgeServer) -> QdrantClient:
    return server.client()


def vectors_of(count: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(count, SIZE)).astype(np.float32)


def payload_of(number: int) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "n": number,
        "group": number % 7,
        "city": CITIES[number % 4],
        "share": number / 10,
        "even": number % 2 == 0,
        "at": f"2026-01-{number % 28 + 1:02d}T00:00:00Z",
        "parts": [{"kind": "a", "size": number % 5}, {"kind": "b", "size": number % 3}],
    }
    if number % 10 == 0:
        payload["note"] = None
    if number % 5 == 0:
        payload["tags"] = ["x", "y"][: number % 3]
    return payload


@pytest.fixture(scope="module")
def points(server: EdgeServer, client: QdrantClient) -> dict[int, dict[str, Any]]:
    """400 points in the collection "read": optimized ones, sealed ones and active ones."""
    client.create_collection(
        "read",
        models.VectorParams(size=SIZE, distance=models.Distance.COSINE),
        optimizers_config=SMALL,
    )
    for field, kind in (
        ("n", "integer"),
        ("group", "integer"),
        ("city", "keyword"),
        ("share", "float"),
        ("even", "bool"),
        ("at", "datetime"),
    ):
        client.create_payload_index("read", field, models.PayloadSchemaType(kind))
    vectors = vectors_of(400)
    content = {n: payload_of(n) for n in range(400)}
    client.upsert(
        "read",
        models.Batch(ids=list(content), vectors=vectors.tolist(), payloads=list(content.values())),
    )
    # Overwritten and deleted points must not be counted from the layers they were in.
    for n in range(0, 120, 3):
        content[n] = {**content[n], "group": 6, "city": "Kyiv"}
    client.upsert(
        "read",
        [
            models.PointStruct(id=n, vector=vectors[n].tolist(), payload=content[n])
            for n in range(0, 120, 3)
        ],
    )
    gone = list(range(1, 200, 10))
    client.delete("read", models.PointIdsList(points=list(gone)))
    for n in gone:
        del content[n]
    server.wait_green("read")
    assert {layer["layer"] for layer in server.layers("read")} == {"active", "base"}
    return content


def match(**wanted: Any) -> models.FieldCondition:
    ((key, value),) = wanted.items()
    return models.FieldCondition(key=key, match=models.MatchValue(value=value))


FILTERS: dict[str, tuple[models.Filter, Any]] = {
    "match integer": (models.Filter(must=[match(group=6)]), lambda p: p["group"] == 6),
    "match keyword": (models.Filter(must=[match(city="Kyiv")]), lambda p: p["city"] == "Kyiv"),
    "match bool": (models.Filter(must=[match(even=True)]), lambda p: p["even"]),
    "any": (
        models.Filter(
            must=[models.FieldCondition(key="city", match=models.MatchAny(any=["Rome", "Kyiv"]))]
        ),
        lambda p: p["city"] in ("Rome", "Kyiv"),
    ),
    "except": (
        models.Filter(
            must=[
                models.FieldCondition(
                    key="group", match=models.MatchExcept.model_validate({"except": [1, 2]})
                )
            ]
        ),
        lambda p: p["group"] not in (1, 2),
    ),
    "range": (
        models.Filter(
            must=[models.FieldCondition(key="share", range=models.Range(gte=3.5, lt=21))]
        ),
        lambda p: 3.5 <= p["share"] < 21,
    ),
    "datetime range": (
        models.Filter(
            must=[
                models.FieldCondition(
                    key="at",
                    range=models.DatetimeRange(
                        gt=datetime(2026, 1, 3, tzinfo=UTC), lte=date(2026, 1, 9)
                    ),
                )
            ]
        ),
        lambda p: "2026-01-03T00:00:00Z" < p["at"] <= "2026-01-09T00:00:00Z",
    ),
    "should and must_not": (
        models.Filter(should=[match(group=1), match(group=2)], must_not=[match(even=True)]),
        lambda p: p["group"] in (1, 2) and not p["even"],
    ),
    "min_should": (
        models.Filter(
            min_should=models.MinShould(
                conditions=[match(group=1), match(even=True), match(city="Oslo")], min_count=2
            )
        ),
        lambda p: (p["group"] == 1) + p["even"] + (p["city"] == "Oslo") >= 2,
    ),
    "has_id": (
        models.Filter(must=[models.HasIdCondition(has_id=[0, 1, 2, 333])]),
        lambda p: p["n"] in (0, 1, 2, 333),
    ),
    "is_empty": (
        models.Filter(must=[models.IsEmptyCondition(is_empty=models.PayloadField(key="tags"))]),
        lambda p: not p.get("tags"),
    ),
    "is_null": (
        models.Filter(must=[models.IsNullCondition(is_null=models.PayloadField(key="note"))]),
        lambda p: "note" in p,
    ),
    "nested": (
        models.Filter(
            must=[
                models.NestedCondition(
                    nested=models.Nested(
                        key="parts",
                        filter=models.Filter(must=[match(kind="a"), match(size=4)]),
                    )
                )
            ]
        ),
        lambda p: any(part == {"kind": "a", "size": 4} for part in p["parts"]),
    ),
    "values_count": (
        models.Filter(
            must=[models.FieldCondition(key="tags", values_count=models.ValuesCount(gte=2))]
        ),
        lambda p: len(p.get("tags", [])) >= 2,
    ),
    "one condition in place of a list": (
        models.Filter(must=match(group=3)),
        lambda p: p["group"] == 3,
    ),
    "filter in a filter": (
        models.Filter(must=[models.Filter(must_not=[match(group=3)])]),
        lambda p: p["group"] != 3,
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_select_what_python_selects(
    client: QdrantClient, points: dict[int, Any], name: str
) -> None:
    condition, predicate = FILTERS[name]
    expected = sorted(n for n, payload in points.items() if predicate(payload))
    assert expected, "the filter must select something"
    assert client.count("read", condition).count == len(expected)
    found, _ = client.scroll("read", condition, limit=1000)
    assert [record.id for record in found] == expected
    hits = client.query_points(
        "read", vectors_of(1)[0].tolist(), query_filter=condition, limit=1000
    ).points
    assert sorted(hit.id for hit in hits) == expected


def test_it_says_that_it_is_not_the_server(server: EdgeServer, client: QdrantClient) -> None:
    info = client.info()
    assert "embedded (qdrant-edge-py" in info.title
    assert info.version.endswith("+qdrant-edge-py.0.9.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QdrantRemote._check_compatibility(server.url, {}, None, 60)


@pytest.mark.parametrize("path", ["healthz", "livez", "readyz"])
def test_health_checks(server: EdgeServer, path: str) -> None:
    with urllib.request.urlopen(f"{server.url}/{path}", timeout=60) as answer:
        assert answer.read().decode() == f"{path} check passed"


def test_collections_are_created_listed_and_deleted(client: QdrantClient) -> None:
    odd = "a name, with ünusual % signs and spaces"
    assert not client.collection_exists(odd)
    assert client.create_collection(
        odd, {"dense": models.VectorParams(size=4, distance=models.Distance.DOT)}
    )
    assert client.collection_exists(odd)
    assert odd in [found.name for found in client.get_collections().collections]
    config = client.get_collection(odd).config
    assert config.params.vectors["dense"].distance == models.Distance.DOT  # type: ignore[index]
    assert config.optimizer_config.indexing_threshold == 10_000
    assert client.delete_collection(odd)
    assert not client.delete_collection(odd)
    assert not client.collection_exists(odd)


def test_both_upsert_forms_and_both_kinds_of_ids(client: QdrantClient) -> None:
    uuid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    client.create_collection(
        "forms", {"v": models.VectorParams(size=2, distance=models.Distance.DOT)}
    )
    client.upsert(
        "forms", [models.PointStruct(id=uuid, vector={"v": [1.0, 2.0]}, payload={"a": 1})]
    )
    client.upsert(
        "forms",
        models.Batch(ids=[7, 8], vectors={"v": [[3.0, 4.0], [5.0, 6.0]]}, payloads=[{}, {"a": 2}]),
    )
    found = client.retrieve("forms", [8, uuid, 99, 7], with_vectors=True)
    assert [(r.id, r.payload, r.vector) for r in found] == [
        (8, {"a": 2}, {"v": [5, 6]}),
        (uuid, {"a": 1}, {"v": [1, 2]}),
        (7, {}, {"v": [3, 4]}),
    ]
    # Numbers come before UUIDs, and one point under two spellings is one point.
    client.upsert("forms", [models.PointStruct(id=UUID(uuid).hex, vector={"v": [0.0, 1.0]})])
    records, _ = client.scroll("forms")
    assert [record.id for record in records] == [7, 8, uuid]
    # The last of several points with one id counts.
    client.upsert(
        "forms",
        [
            models.PointStruct(id=7, vector={"v": [float(n), 1.0]}, payload={"a": n})
            for n in (1, 2, 3)
        ],
    )
    assert client.retrieve("forms", [7])[0].payload == {"a": 3}


@pytest.mark.parametrize("distance", list(models.Distance))
def test_search_over_several_layers_is_exact(
    server: EdgeServer, client: QdrantClient, distance: models.Distance
) -> None:
    name = f"search-{distance.value}"
    client.create_collection(
        name, models.VectorParams(size=SIZE, distance=distance), optimizers_config=SMALL
    )
    data, query = vectors_of(300), vectors_of(1, seed=2)[0]
    client.upsert(name, models.Batch(ids=list(range(300)), vectors=data.tolist()))
    server.wait_green(name)
    scores = {
        models.Distance.COSINE: data @ query / np.linalg.norm(data, axis=1) / np.linalg.norm(query),
        models.Distance.DOT: data @ query,
        models.Distance.EUCLID: np.linalg.norm(data - query, axis=1),
        models.Distance.MANHATTAN: np.abs(data - query).sum(axis=1),
    }[distance]
    better = scores if distance in (models.Distance.EUCLID, models.Distance.MANHATTAN) else -scores
    order = np.argsort(better, kind="stable")
    exact = models.SearchParams(exact=True)
    hits = client.query_points(name, query.tolist(), limit=20, search_params=exact).points
    assert [hit.id for hit in hits] == order[:20].tolist()
    assert np.allclose([hit.score for hit in hits], scores[order[:20]], atol=1e-5)
    page = client.query_points(
        name, query.tolist(), limit=5, offset=10, search_params=exact, with_vectors=True
    ).points
    assert [hit.id for hit in page] == order[10:15].tolist()
    assert all(hit.vector is not None for hit in page)
    best = client.query_points(
        name,
        query.tolist(),
        limit=300,
        search_params=exact,
        score_threshold=float(scores[order[9]]),
    ).points
    assert 9 <= len(best) <= 10
    approximate = client.query_points(
        name, query.tolist(), limit=20, search_params=models.SearchParams(hnsw_ef=256)
    ).points
    assert len({hit.id for hit in approximate} & set(order[:20].tolist())) >= 18


def test_search_by_id_leaves_the_point_out(client: QdrantClient, points: dict[int, Any]) -> None:
    assert points
    vector = client.retrieve("read", [5], with_vectors=True)[0].vector
    by_vector = client.query_points("read", vector, limit=6).points  # type: ignore[arg-type]
    by_id = client.query_points("read", 5, limit=5).points
    assert by_vector[0].id == 5
    assert [hit.id for hit in by_id] == [hit.id for hit in by_vector[1:]]


def test_batch_answers_like_single_searches(client: QdrantClient, points: dict[int, Any]) -> None:
    assert points
    requests = [
        models.QueryRequest(
            query=vector.tolist(),
            limit=4 + n,
            offset=n,
            with_payload=True,
            filter=models.Filter(must=[match(group=n)]) if n else None,
        )
        for n, vector in enumerate(vectors_of(3, seed=5))
    ]
    requests.append(models.QueryRequest(query=models.OrderByQuery(order_by="n"), limit=3))
    answers = client.query_batch_points("read", requests)
    for request, answer in zip(requests, answers, strict=True):
        single = client.query_points(
            "read",
            request.query,
            limit=request.limit or 10,
            offset=request.offset,
            query_filter=request.filter,
            with_payload=bool(request.with_payload),
        )
        assert answer.points == single.points
    assert [hit.payload for hit in answers[0].points] == [
        points[int(h.id)] for h in answers[0].points
    ]


def test_payload_selectors(client: QdrantClient, points: dict[int, Any]) -> None:
    query = vectors_of(1)[0].tolist()
    for selector, expected in (
        (["n", "city"], {"n", "city"}),
        (models.PayloadSelectorInclude(include=["n"]), {"n"}),
        (models.PayloadSelectorExclude(exclude=["parts", "at"]), None),
        (False, set()),
    ):
        hit = client.query_points("read", query, limit=1, with_payload=selector).points[0]
        keys = set(points[int(hit.id)]) - {"parts", "at"} if expected is None else expected
        assert set(hit.payload or {}) == keys


def test_scroll_pages_through_everything(client: QdrantClient, points: dict[int, Any]) -> None:
    seen: list[Any] = []
    offset = None
    while True:
        page, offset = client.scroll("read", limit=37, offset=offset, with_payload=["n"])
        seen.extend(record.id for record in page)
        if offset is None:
            break
    assert seen == sorted(points)


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_scroll_in_order_pages_through_ties(
    client: QdrantClient, points: dict[int, Any], direction: str
) -> None:
    """Paging as the gateway does it: from the last value on, without the ids seen at it."""
    seen: list[Any] = []
    at_value: list[Any] = []
    start = None
    while True:
        page, _ = client.scroll(
            "read",
            models.Filter(must_not=[models.HasIdCondition(has_id=at_value)]),
            limit=23,
            order_by=models.OrderBy(
                key="group", direction=models.Direction(direction), start_from=start
            ),
        )
        if not page:
            break
        seen.extend(record.id for record in page)
        last = page[-1].payload["group"]  # type: ignore[index]
        at_value = [found for found in seen if points[found]["group"] == last]
        start = last
    assert sorted(seen) == sorted(points)
    groups = [points[found]["group"] for found in seen]
    assert groups == sorted(groups, reverse=direction == "desc")


def test_order_by_query_and_datetime_start(client: QdrantClient, points: dict[int, Any]) -> None:
    hits = client.query_points(
        "read", models.OrderByQuery(order_by="n"), limit=5, offset=3, with_payload=True
    ).points
    assert [hit.id for hit in hits] == sorted(points)[3:8]
    page, _ = client.scroll(
        "read",
        limit=1000,
        order_by=models.OrderBy(key="at", start_from="2026-01-20T00:00:00Z"),  # type: ignore[arg-type]
    )
    expected = sorted(n for n, p in points.items() if p["at"] >= "2026-01-20T00:00:00Z")
    assert sorted(record.id for record in page) == expected


def test_facets_are_exact_over_layers(client: QdrantClient, points: dict[int, Any]) -> None:
    for key in ("city", "group", "even"):
        expected = Counter(payload[key] for payload in points.values())
        hits = client.facet("read", key, exact=True).hits
        assert {hit.value: hit.count for hit in hits} == expected
        assert [hit.count for hit in hits] == sorted(expected.values(), reverse=True)
    top = client.facet("read", "city", limit=1, exact=True).hits
    assert [(hit.value, hit.count) for hit in top] == [
        max(Counter(p["city"] for p in points.values()).items(), key=lambda entry: entry[1])
    ]
    some = client.facet("read", "city", facet_filter=models.Filter(must=[match(group=6)]))
    assert (
        sum(hit.count for hit in some.hits)
        == client.count("read", models.Filter(must=[match(group=6)])).count
    )


def test_info_counts_points_and_indexes(client: QdrantClient, points: dict[int, Any]) -> None:
    info = client.get_collection("read")
    assert info.points_count == len(points)
    assert info.indexed_vectors_count is not None
    assert 0 < info.indexed_vectors_count <= len(points)
    assert info.segments_count >= 2
    assert info.payload_schema["group"].data_type == models.PayloadSchemaType.INTEGER
    assert info.payload_schema["group"].points == len(points)
    assert info.update_queue is not None
    assert info.update_queue.length == 0


def test_payload_changes_reach_points_in_every_layer(
    server: EdgeServer, client: QdrantClient
) -> None:
    client.create_collection(
        "change",
        models.VectorParams(size=SIZE, distance=models.Distance.DOT),
        optimizers_config=SMALL,
    )
    client.create_payload_index("change", "a", models.PayloadSchemaType.INTEGER)
    data = vectors_of(200)
    model: dict[int, dict[str, Any]] = {n: {"a": n % 4, "b": {"c": 1}} for n in range(200)}
    client.upsert(
        "change",
        models.Batch(ids=list(model), vectors=data.tolist(), payloads=list(model.values())),
    )
    server.wait_green("change")
    client.set_payload("change", {"a": 9}, points=[0, 150, 199])
    client.set_payload("change", {"c": 2}, points=[1], key="b")
    client.overwrite_payload("change", {"z": 1}, points=[2, 160])
    client.delete_payload("change", ["b"], points=models.Filter(must=[match(a=3)]))
    client.clear_payload("change", points_selector=[4])
    for n in (0, 150, 199):
        model[n]["a"] = 9
    model[1]["b"] = {"c": 2}
    model[2] = model[160] = {"z": 1}
    for payload in model.values():
        if payload.get("a") == 3:
            del payload["b"]
    model[4] = {}
    found, _ = client.scroll("change", limit=1000, with_vectors=True)
    assert {record.id: record.payload for record in found} == model
    assert np.allclose(np.array([record.vector for record in found]), data)
    assert client.count("change", models.Filter(must=[match(a=9)])).count == 3


def test_vectors_of_points_can_be_replaced_and_deleted(client: QdrantClient) -> None:
    params = models.VectorParams(size=2, distance=models.Distance.DOT)
    client.create_collection("vectors", {"one": params, "two": params})
    client.upsert(
        "vectors",
        [
            models.PointStruct(id=n, vector={"one": [float(n), 1.0], "two": [1.0, float(n)]})
            for n in range(5)
        ],
    )
    client.update_vectors("vectors", [models.PointVectors(id=3, vector={"one": [9.0, 9.0]})])
    client.delete_vectors("vectors", ["two"], points=[4])
    found = client.retrieve("vectors", [3, 4], with_vectors=True)
    assert [record.vector for record in found] == [{"one": [9, 9], "two": [1, 3]}, {"one": [4, 1]}]


def test_points_are_deleted_by_id_and_by_filter(server: EdgeServer, client: QdrantClient) -> None:
    client.create_collection(
        "delete",
        models.VectorParams(size=SIZE, distance=models.Distance.DOT),
        optimizers_config=SMALL,
    )
    client.upsert(
        "delete",
        models.Batch(
            ids=list(range(300)),
            vectors=vectors_of(300).tolist(),
            payloads=[{"k": n % 3} for n in range(300)],
        ),
    )
    client.delete("delete", [0, 1, 2, 250, 99999])
    client.delete("delete", models.FilterSelector(filter=models.Filter(must=[match(k=1)])))
    left = [n for n in range(300) if n % 3 != 1 and n not in (0, 2, 250)]
    assert [record.id for record in client.scroll("delete", limit=1000)[0]] == left
    server.wait_green("delete")
    assert [record.id for record in client.scroll("delete", limit=1000)[0]] == left
    assert client.get_collection("delete").points_count == len(left)


def test_an_index_can_be_added_to_and_removed_from_old_layers(
    server: EdgeServer, client: QdrantClient
) -> None:
    client.create_collection(
        "index",
        models.VectorParams(size=SIZE, distance=models.Distance.DOT),
        optimizers_config=SMALL,
    )
    client.upsert(
        "index",
        models.Batch(
            ids=list(range(300)),
            vectors=vectors_of(300).tolist(),
            payloads=[{"k": n % 3, "t": f"word{n % 5} other"} for n in range(300)],
        ),
    )
    client.create_payload_index(
        "index", "k", models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, range=True)
    )
    client.create_payload_index(
        "index",
        "t",
        models.TextIndexParams(type=models.TextIndexType.TEXT, tokenizer=models.TokenizerType.WORD),
    )
    server.wait_green("index")
    schema = client.get_collection("index").payload_schema
    assert schema["k"].points == 300
    assert schema["k"].params is not None
    condition = models.FieldCondition(key="t", match=models.MatchText(text="word3"))
    assert client.count("index", models.Filter(must=[condition])).count == 60
    client.delete_payload_index("index", "t")
    assert set(client.get_collection("index").payload_schema) == {"k"}


def test_sparse_multi_and_quantized_vectors(server: EdgeServer, client: QdrantClient) -> None:
    client.create_collection(
        "kinds",
        {
            "multi": models.VectorParams(
                size=2,
                distance=models.Distance.DOT,
                multivector_config=models.MultiVectorConfig(
                    comparator=models.MultiVectorComparator.MAX_SIM
                ),
            ),
            "small": models.VectorParams(
                size=SIZE,
                distance=models.Distance.COSINE,
                quantization_config=models.ScalarQuantization(
                    scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8)
                ),
            ),
        },
        sparse_vectors_config={"sparse": models.SparseVectorParams()},
        optimizers_config=SMALL,
    )
    data = vectors_of(300)
    client.upsert(
        "kinds",
        [
            models.PointStruct(
                id=n,
                vector={
                    "multi": [[float(n), 0.0], [0.0, 1.0]],
                    "small": data[n].tolist(),
                    "sparse": models.SparseVector(indices=[n % 50, 100], values=[n, 1.0]),
                },
            )
            for n in range(300)
        ],
    )
    server.wait_green("kinds")
    sparse = models.SparseVector(indices=[7], values=[2.0])
    hits = client.query_points("kinds", sparse, using="sparse", limit=2, with_vectors=True).points
    assert [(hit.id, hit.score) for hit in hits] == [(257, 514.0), (207, 414.0)]
    multi = client.query_points("kinds", [[1.0, 0.0]], using="multi", limit=1).points
    assert multi[0].id == 299
    small = client.query_points("kinds", data[42].tolist(), using="small", limit=1).points
    assert small[0].id == 42

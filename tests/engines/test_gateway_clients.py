"""The official clients, unmodified, against the gateway: each does what an application does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import elasticsearch
import opensearchpy
import pytest
from elasticsearch.helpers import bulk as elastic_bulk
from elasticsearch.helpers import streaming_bulk
from engines.gateway_server import Parts, running
from opensearchpy.helpers import bulk as open_bulk

MAPPINGS = {
    "properties": {
        "carrier": {"type": "keyword"},
        "delay": {"type": "double"},
        "seats": {"type": "integer"},
        "day": {"type": "date"},
    }
}
FLIGHTS: dict[str, dict[str, Any]] = {
    str(number): {
        "carrier": ["AA", "UA", "DL"][number % 3],
        "delay": None if number % 5 == 0 else number / 4 - 3,
        "seats": number % 4,
        "day": f"2013-01-{number % 9 + 1:02d}",
    }
    for number in range(60)
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with running(tmp_path_factory.mktemp("clients")) as parts:
        yield parts


@pytest.fixture
def elastic(parts: Parts) -> Iterator[elasticsearch.Elasticsearch]:
    with elasticsearch.Elasticsearch(f"http://127.0.0.1:{parts.gateway.port}") as client:
        client.options(ignore_status=404).indices.delete(index="flights")
        yield client


@pytest.fixture
def opensearch(parts: Parts) -> Iterator[Any]:
    client = opensearchpy.OpenSearch(f"http://127.0.0.1:{parts.gateway.port}")
    client.indices.delete(index="flights", params={}, ignore=404)
    yield client
    client.close()


def test_elasticsearch_indices(elastic: elasticsearch.Elasticsearch) -> None:
    assert elastic.info()["version"]["number"] == "8.15.0"
    assert elastic.ping()
    assert elastic.cluster.health()["status"] == "green"
    assert not elastic.indices.exists(index="flights")
    created = elastic.indices.create(index="flights", mappings=MAPPINGS)
    assert created["acknowledged"]
    assert elastic.indices.exists(index="flights")
    assert elastic.indices.get_mapping(index="flights")["flights"]["mappings"] == MAPPINGS
    assert "flights" in elastic.indices.get(index="flights")
    with pytest.raises(elasticsearch.BadRequestError, match="resource_already_exists"):
        elastic.indices.create(index="flights")
    assert elastic.indices.delete(index="flights")["acknowledged"]
    with pytest.raises(elasticsearch.NotFoundError, match="index_not_found"):
        elastic.indices.delete(index="flights")


def test_elasticsearch_documents(elastic: elasticsearch.Elasticsearch) -> None:
    elastic.indices.create(index="flights", mappings=MAPPINGS)
    made = elastic.index(index="flights", id="a/b é", document={"carrier": "AA"}, refresh=True)
    assert (made["result"], made["_version"], made["forced_refresh"]) == ("created", 1, True)
    made = elastic.index(index="flights", id="a/b é", document={"carrier": "UA"})
    assert (made["result"], made["_version"]) == ("updated", 2)
    assert elastic.get(index="flights", id="a/b é")["_source"] == {"carrier": "UA"}
    assert elastic.get_source(index="flights", id="a/b é").body == {"carrier": "UA"}
    assert elastic.exists(index="flights", id="a/b é")
    with pytest.raises(elasticsearch.ConflictError, match="document already exists"):
        elastic.create(index="flights", id="a/b é", document={})
    assert elastic.create(index="flights", id="new", document={"seats": 3})["result"] == "created"
    changed = elastic.update(index="flights", id="new", doc={"delay": 1.5})
    assert (changed["result"], changed["_version"]) == ("updated", 2)
    assert elastic.update(index="flights", id="new", doc={"delay": 1.5})["result"] == "noop"
    assert elastic.get(index="flights", id="new")["_source"] == {"seats": 3, "delay": 1.5}
    with pytest.raises(elasticsearch.NotFoundError, match="document_missing"):
        elastic.update(index="flights", id="none", doc={"seats": 1})
    upserted = elastic.update(index="flights", id="up", doc={"seats": 1}, doc_as_upsert=True)
    assert upserted["result"] == "created"
    assert elastic.delete(index="flights", id="up")["result"] == "deleted"
    assert not elastic.exists(index="flights", id="up")
    with pytest.raises(elasticsearch.NotFoundError):
        elastic.get(index="flights", id="up")
    with pytest.raises(elasticsearch.NotFoundError):
        elastic.delete(index="flights", id="up")
    auto = elastic.index(index="flights", document={"carrier": "B6"})
    assert elastic.get(index="flights", id=auto["_id"])["_source"] == {"carrier": "B6"}


def test_elasticsearch_bulk_and_search(elastic: elasticsearch.Elasticsearch) -> None:
    elastic.indices.create(index="flights", mappings=MAPPINGS)
    actions = ({"_index": "flights", "_id": id_, **doc} for id_, doc in FLIGHTS.items())
    assert elastic_bulk(elastic, actions, refresh="wait_for")[0] == len(FLIGHTS)
    outcomes = list(
        streaming_bulk(
            elastic,
            [
                {"_op_type": "create", "_index": "flights", "_id": "1", "seats": 1},
                {"_op_type": "update", "_index": "flights", "_id": "2", "doc": {"seats": 99}},
                {"_op_type": "delete", "_index": "flights", "_id": "3"},
                {"_op_type": "delete", "_index": "flights", "_id": "3"},
                {"_op_type": "index", "_index": "flights", "_id": "4", "seats": "many"},
            ],
            raise_on_error=False,
        )
    )
    assert [next(iter(item.values()))["status"] for _, item in outcomes] == [
        409,
        200,
        200,
        404,
        400,
    ]
    assert elastic.count(index="flights")["count"] == len(FLIGHTS) - 1
    elastic.indices.refresh(index="flights")
    found: list[str] = []
    after = None
    while True:
        answer = elastic.search(
            index="flights",
            query={"bool": {"filter": [{"terms": {"carrier": ["AA", "UA"]}}]}},
            sort=[{"seats": "asc"}, {"delay": {"order": "desc", "missing": "_last"}}],
            size=7,
            search_after=after,
        )
        if not answer["hits"]["hits"]:
            break
        found += [hit["_id"] for hit in answer["hits"]["hits"]]
        after = answer["hits"]["hits"][-1]["sort"]
        assert answer["hits"]["total"] == {"value": len(FLIGHTS) // 3 * 2 - 1, "relation": "eq"}
    assert len(found) == len(set(found)) == len(FLIGHTS) // 3 * 2 - 1
    answer = elastic.search(
        index="flights",
        size=0,
        aggs={
            "carriers": {"terms": {"field": "carrier"}},
            "late": {"filters": {"filters": {"yes": {"range": {"delay": {"gt": 0}}}}}},
        },
    )
    buckets = answer["aggregations"]["carriers"]["buckets"]
    assert [(b["key"], b["doc_count"]) for b in buckets] == [("DL", 20), ("UA", 20), ("AA", 19)]
    late = sum((doc["delay"] or 0) > 0 for doc in FLIGHTS.values())
    assert answer["aggregations"]["late"]["buckets"]["yes"]["doc_count"] == late
    several = elastic.msearch(
        searches=[{"index": "flights"}, {"size": 1}, {"index": "none"}, {"size": 1}]
    )
    assert [part["status"] for part in several["responses"]] == [200, 404]
    with pytest.raises(elasticsearch.BadRequestError, match=r"\[match query\] is not supported"):
        elastic.search(index="flights", query={"match": {"carrier": "AA"}})


def test_elasticsearch_compression_and_opaque_id(parts: Parts) -> None:
    """Compressed bodies and an opaque id, as applications set them on the client."""
    url = f"http://127.0.0.1:{parts.gateway.port}"
    with elasticsearch.Elasticsearch(url, http_compress=True, opaque_id="app-7") as client:
        client.options(ignore_status=404).indices.delete(index="flights")
        answer = client.index(index="flights", id="1", document={"note": "x" * 5000})
        assert answer.meta.headers["x-opaque-id"] == "app-7"
        assert answer.meta.headers["x-elastic-product"] == "Elasticsearch"
        assert client.get(index="flights", id="1")["_source"] == {"note": "x" * 5000}


def test_opensearch(opensearch: Any) -> None:
    assert opensearch.info()["version"]["number"] == "8.15.0"
    assert opensearch.cluster.health()["status"] == "green"
    assert not opensearch.indices.exists(index="flights")
    opensearch.indices.create(index="flights", body={"mappings": MAPPINGS})
    assert opensearch.indices.get_mapping(index="flights")["flights"]["mappings"] == MAPPINGS
    actions = ({"_index": "flights", "_id": id_, "_source": doc} for id_, doc in FLIGHTS.items())
    assert open_bulk(opensearch, actions, refresh=True)[0] == len(FLIGHTS)
    assert opensearch.count(index="flights")["count"] == len(FLIGHTS)
    assert opensearch.get(index="flights", id="7")["_source"] == FLIGHTS["7"]
    assert opensearch.exists(index="flights", id="7")
    assert opensearch.update(index="flights", id="7", body={"doc": {"seats": 8}})["_version"] == 2
    assert opensearch.index(index="flights", id="8", body={"seats": 9})["result"] == "updated"
    with pytest.raises(opensearchpy.ConflictError):
        opensearch.create(index="flights", id="8", body={})
    assert opensearch.delete(index="flights", id="9")["result"] == "deleted"
    with pytest.raises(opensearchpy.NotFoundError):
        opensearch.get(index="flights", id="9")
    answer = opensearch.search(
        index="flights",
        body={"query": {"range": {"seats": {"gte": 8}}}, "sort": [{"seats": "desc"}]},
    )
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["8", "7"]
    several = opensearch.msearch(body=[{"index": "flights"}, {"size": 0}])
    assert several["responses"][0]["hits"]["total"]["value"] == len(FLIGHTS) - 1
    with pytest.raises(opensearchpy.RequestError, match="is not supported"):
        opensearch.search(index="flights", body={"query": {"wildcard": {"carrier": "A*"}}})
    opensearch.indices.refresh(index="flights")
    assert opensearch.indices.delete(index="flights")["acknowledged"]

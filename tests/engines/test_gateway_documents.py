"""Documents and mappings: versions, bulk order, dynamic mapping, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from engines.gateway_server import Gateway, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("documents")) as parts:
        yield parts.gateway


@pytest.fixture
def index(gateway: Gateway, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("[", "-").replace("]", "")[:60].lower()
    yield name
    gateway.call("DELETE", f"/{name}")


def bulk(gateway: Gateway, index: str, *lines: Any) -> list[Any]:
    body = "".join(f"{json.dumps(line)}\n" for line in lines)
    answer = gateway.ok("POST", f"/{index}/_bulk", body)
    return [next(iter(item.values())) for item in answer["items"]]


def total(gateway: Gateway, index: str, query: Any) -> int:
    found: int = gateway.ok("POST", f"/{index}/_count", {"query": query})["count"]
    return found


def test_a_bulk_request_is_in_order_for_each_document(gateway: Gateway, index: str) -> None:
    items = bulk(
        gateway,
        index,
        {"create": {"_id": "a"}},
        {"n": 1},
        {"create": {"_id": "a"}},
        {"n": 2},
        {"update": {"_id": "a"}},
        {"doc": {"m": 3}},
        {"update": {"_id": "a"}},
        {"doc": {"m": 3}},
        {"index": {"_id": "b"}},
        {"n": 4},
        {"delete": {"_id": "b"}},
        {"delete": {"_id": "b"}},
        {"index": {"_id": "c"}},
        {"n": 5},
        {"delete": {"_id": "c"}},
        {"index": {"_id": "c"}},
        {"n": 6},
        {"update": {"_id": "none"}},
        {"doc": {"n": 7}},
    )
    assert [item.get("result", item["status"]) for item in items] == [
        "created", 409, "updated", "noop", "created", "deleted", "not_found", "created", "deleted",
        "created", 404,
    ]  # fmt: skip
    assert items[2]["_version"] == 2
    assert items[2]["_seq_no"] > items[0]["_seq_no"]
    assert items[3]["_seq_no"] == items[2]["_seq_no"]
    assert gateway.ok("GET", f"/{index}/_doc/a")["_source"] == {"n": 1, "m": 3}
    assert gateway.call("GET", f"/{index}/_doc/b")[0] == 404
    assert gateway.ok("GET", f"/{index}/_doc/c")["_source"] == {"n": 6}
    assert total(gateway, index, {"match_all": {}}) == 2
    assert bulk(gateway, index, {"delete": {"_id": "a"}})[0]["_version"] == 3


def test_a_bulk_request_of_many_chunks(gateway: Gateway, index: str) -> None:
    lines: list[Any] = []
    for number in range(2500):
        lines += [{"index": {"_id": str(number)}}, {"n": number}]
    items = bulk(gateway, index, *lines)
    assert {item["status"] for item in items} == {201}
    assert [item["_seq_no"] for item in items] == list(range(2500))
    assert total(gateway, index, {"range": {"n": {"gte": 1000}}}) == 1500


def test_the_source_is_given_back_byte_for_byte(gateway: Gateway, index: str) -> None:
    source = '{"z": 1.0, "a":[1e3, 12345678901234567890],"u":"\\u00e9\\ud83d\\ude00" , "n":null}'
    gateway.ok("PUT", f"/{index}", {"mappings": {"dynamic": False}})
    gateway.ok("PUT", f"/{index}/_doc/1", source)
    connection_answer = gateway.call("GET", f"/{index}/_source/1")
    assert connection_answer[1] == json.loads(source)


def test_dynamic_mapping_adds_fields_and_searches_them(gateway: Gateway, index: str) -> None:
    document = {
        "name": "A name",
        "flag": True,
        "part": 0.5,
        "day": "2013-01-02",
        "in": {"deep.er": {"x": "y"}},
        "many": [1, 2, 3],
        "@time stamp": "2013-01-02T03:04:05Z",
        "nothing": None,
        "empty": [],
        "under_score": 1,
    }
    gateway.ok("PUT", f"/{index}/_doc/1", document)
    text = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    assert gateway.ok("GET", f"/{index}/_mapping")[index]["mappings"]["properties"] == {
        "name": text,
        "flag": {"type": "boolean"},
        "part": {"type": "float"},
        "day": {"type": "date"},
        "in": {"properties": {"deep": {"properties": {"er": {"properties": {"x": text}}}}}},
        "many": {"type": "long"},
        "@time stamp": {"type": "date"},
        "under_score": {"type": "long"},
    }
    for query in (
        {"term": {"name.keyword": "A name"}},
        {"term": {"flag": True}},
        {"term": {"many": 2}},
        {"range": {"part": {"gt": 0.4}}},
        {"range": {"day": {"gte": "2013"}}},
        {"range": {"@time stamp": {"gte": "2013-01-02T03"}}},
        {"term": {"in.deep.er.x.keyword": "y"}},
        {"exists": {"field": "name"}},
        {"term": {"under_score": 1}},
    ):
        assert total(gateway, index, query) == 1, query
    assert total(gateway, index, {"exists": {"field": "nothing"}}) == 0
    gateway.ok("PUT", f"/{index}/_doc/2", {"name": ["x" * 300, "short"], "later": 1})
    assert total(gateway, index, {"term": {"name.keyword": "short"}}) == 1
    assert total(gateway, index, {"term": {"name.keyword": "x" * 300}}) == 0
    answer = gateway.ok(
        "POST", f"/{index}/_search", {"sort": [{"later": {"order": "asc", "missing": "_first"}}]}
    )
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["1", "2"]


def test_a_document_that_does_not_fit_changes_nothing(gateway: Gateway, index: str) -> None:
    properties = {"n": {"type": "integer"}, "o": {"properties": {"x": {"type": "keyword"}}}}
    gateway.ok("PUT", f"/{index}", {"mappings": {"properties": properties}})
    before = gateway.stats()["writes"]
    for document in (
        {"n": "many", "new": 1},
        {"n": 2**31},
        {"n": {"x": 1}},
        {"o": 5},
        {"n": True},
        {"a": {"b": 1}, "a.b": {"c": 2}},
        {" ": 1},
        {"new": 2**60},
    ):
        status, answer = gateway.call("PUT", f"/{index}/_doc/1", document)
        assert (status, answer["error"]["type"]) == (400, "document_parsing_exception"), document
    assert gateway.stats()["writes"] == before
    mapping = gateway.ok("GET", f"/{index}/_mapping")[index]["mappings"]
    assert mapping == {"properties": properties}
    assert total(gateway, index, {"match_all": {}}) == 0


def test_values_are_coerced_as_elasticsearch_does(gateway: Gateway, index: str) -> None:
    properties = {
        "n": {"type": "integer", "null_value": 7},
        "k": {"type": "keyword"},
        "b": {"type": "boolean"},
        "d": {"type": "date", "format": "epoch_second||yyyy-MM-dd HH:mm:ss"},
    }
    gateway.ok("PUT", f"/{index}", {"mappings": {"properties": properties}})
    gateway.ok("PUT", f"/{index}/_doc/1", {"n": "5", "k": 12, "b": "true", "d": 60})
    gateway.ok(
        "PUT", f"/{index}/_doc/2", {"n": 5.9, "k": True, "b": "", "d": "1970-01-01 00:01:00"}
    )
    gateway.ok("PUT", f"/{index}/_doc/3", {"n": None})
    assert total(gateway, index, {"term": {"n": 5}}) == 2
    assert total(gateway, index, {"term": {"n": 7}}) == 1
    assert total(gateway, index, {"terms": {"k": [12, True]}}) == 2
    assert total(gateway, index, {"term": {"b": False}}) == 1
    assert total(gateway, index, {"term": {"d": 60}}) == 2


@pytest.mark.parametrize("dynamic", ["strict", False])
def test_other_kinds_of_dynamic(gateway: Gateway, index: str, dynamic: Any) -> None:
    body = {"mappings": {"dynamic": dynamic, "properties": {"n": {"type": "long"}}}}
    gateway.ok("PUT", f"/{index}", body)
    status, answer = gateway.call("PUT", f"/{index}/_doc/1", {"n": 1, "o": {"p": 2}})
    if dynamic == "strict":
        assert (status, answer["error"]["type"]) == (400, "strict_dynamic_mapping_exception")
        return
    assert status == 201
    assert total(gateway, index, {"exists": {"field": "o"}}) == 0
    assert gateway.ok("GET", f"/{index}/_doc/1")["_source"] == {"n": 1, "o": {"p": 2}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"mappings": {"properties": {"a": {"type": "nested"}}}}, "field type nested"),
        ({"mappings": {"properties": {"a": {"type": "geo_point"}}}}, "field type geo_point"),
        ({"mappings": {"properties": {"a": {"type": "what"}}}}, "No handler for type [what]"),
        ({"mappings": {"properties": {"a": {}, "b": {"x": 1}}}}, "No type specified for field [b]"),
        ({"mappings": {"properties": {"a": {"type": "keyword", "what": 1}}}}, "unknown parameter"),
        ({"mappings": {"properties": {"a": {"type": "keyword", "copy_to": "b"}}}}, "copy_to"),
        ({"mappings": {"properties": {"a": {"type": "date", "format": "dd/MM"}}}}, "date format"),
        ({"mappings": {"properties": {"a": {"type": "integer", "null_value": "x"}}}}, "[a]"),
        ({"mappings": {"dynamic": "runtime"}}, "dynamic: runtime"),
        ({"mappings": {"dynamic_templates": []}}, "dynamic_templates"),
        ({"mappings": {"_source": {"enabled": False}}}, "_source"),
        ({"mappings": {"what": 1}}, "unsupported parameters"),
        ({"settings": {"analysis": {"analyzer": {}}}}, "index setting analysis.analyzer"),
        ({"settings": {"number_of_shards": 5}}, "number_of_shards: 5"),
        ({"aliases": {"x": {}}}, "aliases"),
        ({"what": 1}, "unknown key [what]"),
        ([], "must be an object"),
    ],
)
def test_what_an_index_cannot_have_is_named(gateway: Gateway, body: Any, words: str) -> None:
    status, answer = gateway.call("PUT", "/refused", body)
    assert status == 400
    assert words in answer["error"]["reason"]
    assert gateway.call("HEAD", "/refused")[0] == 404


@pytest.mark.parametrize(
    "name", ["Upper", "_x", "-x", "+x", "a%22b", "a%20b", "a%23b", "x" * 256, "..", "a:b"]
)
def test_names_of_indices_are_checked(gateway: Gateway, name: str) -> None:
    status, answer = gateway.call("PUT", f"/{name}")
    assert status == 400
    assert answer["error"]["type"] in ("invalid_index_name_exception", "illegal_argument_exception")


def test_an_index_with_settings_and_meta(gateway: Gateway, index: str) -> None:
    body = {
        "settings": {"index": {"number_of_shards": 1, "refresh_interval": "1s"}},
        "mappings": {"_meta": {"owner": "us"}, "properties": {"k": {"type": "keyword"}}},
    }
    gateway.ok("PUT", f"/{index}", body)
    found = gateway.ok("GET", f"/{index}")[index]
    assert found["mappings"] == body["mappings"]
    assert found["settings"]["index"]["refresh_interval"] == "1s"

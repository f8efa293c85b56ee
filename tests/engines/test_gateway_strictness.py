"""What an answer would get silently wrong: said twice, said inexactly, or shown in another form."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from engines.gateway_server import JSON, Gateway, running

MAPPING = {
    "properties": {
        "k": {"type": "keyword"},
        "i": {"type": "integer"},
        "many": {"type": "integer"},
        "day": {"type": "date", "format": "yyyy-MM-dd"},
        "clock": {"type": "date", "format": "yyyy-MM-dd HH:mm:ss"},
        "seconds": {"type": "date", "format": "epoch_second"},
        "millis": {"type": "date", "format": "epoch_millis"},
        "d": {"type": "date"},
    }
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("strict"), edge=None) as parts:
        parts.gateway.ok("PUT", "/i", {"mappings": MAPPING})
        for n in range(6):
            document = {"k": f"k{n}", "i": n, "many": [n, n + 10]}
            parts.gateway.ok("PUT", f"/i/_doc/{n}", document)
        yield parts.gateway


def raw(gateway: Gateway, method: str, path: str, text: str) -> tuple[int, Any]:
    return gateway.call(method, path, text.encode(), JSON)


def found(gateway: Gateway, query: Any, **more: Any) -> list[str]:
    body = {"query": query, "sort": ["i"], "size": 100, **more}
    answer = gateway.ok("POST", "/i/_search", body)
    assert answer["hits"]["total"]["value"] == len(answer["hits"]["hits"])
    return [hit["_id"] for hit in answer["hits"]["hits"]]


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("POST", "/i/_search", '{"query": {"match_all": {}}, "query": {"term": {"k": "k1"}}}'),
        ("POST", "/i/_count", '{"query": {"bool": {"must": [], "must": []}}}'),
        ("POST", "/i/_search", '{"query": {"term": {"k": "k1", "k": "k2"}}}'),
        ("POST", "/i/_search", '{"query": {"term": {"k": "a", "\\u006b": "b"}}}'),
        ("PUT", "/i/_doc/9", '{"k": "one", "k": "two"}'),
        ("PUT", "/i/_doc/9", '{"o": {"x": [{"y": 1, "y": 2}]}}'),
        ("POST", "/i/_update/1", '{"doc": {"k": "a"}, "doc": {"k": "b"}}'),
        ("PUT", "/twice", '{"mappings": {"properties": {"a": {}, "a": {}}}}'),
        ("POST", "/i/_bulk", '{"index": {"_id": "9"}, "index": {"_id": "8"}}\n{}\n'),
        ("POST", "/i/_search", '{"aggs": {}, "aggregations": {}}'),
        (
            "POST",
            "/i/_search",
            '{"aggs": {"a": {"terms": {"field": "k"}, "aggs": {}, "aggregations": {}}}}',
        ),
    ],
)
def test_what_is_said_twice_is_refused(gateway: Gateway, method: str, path: str, text: str) -> None:
    status, answer = raw(gateway, method, path, text)
    assert status == 400, answer
    assert "error" in answer
    assert raw(gateway, "GET", "/i/_doc/9", "")[0] == 404


def test_a_doubled_key_of_a_document_in_bulk_is_that_items_error(gateway: Gateway) -> None:
    lines = '{"index": {"_id": "7"}}\n{"k": "a", "k": "b"}\n{"index": {"_id": "6"}}\n{"k": "c"}\n'
    status, answer = raw(gateway, "POST", "/i/_bulk", lines)
    assert status == 200
    assert [item["index"]["status"] for item in answer["items"]] == [400, 201]
    gateway.ok("DELETE", "/i/_doc/6")


@pytest.mark.parametrize("number", ["12345678901234567890123", "18446744073709551616", "1" * 300])
def test_whole_numbers_beyond_64_bits_are_refused(gateway: Gateway, number: str) -> None:
    for path, text in (
        ("/i/_doc/9", f'{{"other": {number}}}'),
        ("/i/_doc/9", f'{{"other": -{number}}}'),
        ("/i/_doc/9", f'{{"o": [[{number}]]}}'),
    ):
        status, answer = raw(gateway, "PUT", path, text)
        assert (status, answer["error"]["type"]) == (400, "document_parsing_exception")
        assert "64 bits" in answer["error"]["reason"]
    text = f'{{"query": {{"range": {{"i": {{"lt": {number}}}}}}}}}'
    assert raw(gateway, "POST", "/i/_search", text)[0] == 400


def test_whole_numbers_of_64_bits_come_back_as_they_were(gateway: Gateway) -> None:
    text = '{"off": [18446744073709551615, -9223372036854775808], "x": "a"}'
    gateway.ok("PUT", "/exact", {"mappings": {"dynamic": False}})
    assert raw(gateway, "PUT", "/exact/_doc/1", text)[0] == 201
    gateway.ok("POST", "/exact/_update/1", {"doc": {"x": "b"}})
    for path in ("/exact/_source/1", "/exact/_source/1?_source_includes=off"):
        assert gateway.ok("GET", path)["off"] == [18446744073709551615, -9223372036854775808]


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ('"gt": 1, "gte": 4', ["4", "5"]),
        ('"gte": 4, "gt": 1', ["2", "3", "4", "5"]),
        ('"lt": 3, "lte": 1', ["0", "1"]),
        ('"lte": 4, "lt": 2, "gte": 1', ["1"]),
        ('"gt": 3, "gte": null', ["0", "1", "2", "3", "4", "5"]),
    ],
)
def test_the_last_bound_of_a_side_holds(gateway: Gateway, bounds: str, wanted: list[str]) -> None:
    # `many` holds n and n + 10: its second value is never below 10.
    assert found(gateway, {"range": {"i": json.loads(f"{{{bounds}}}")}}) == wanted
    above = {"range": {"many": {"gte": 100, "gt": 14}}}
    assert found(gateway, above) == ["5"]


def test_an_update_that_changes_a_type_is_a_change(gateway: Gateway) -> None:
    gateway.ok("PUT", "/types", {"mappings": {"dynamic": False}})
    gateway.ok("PUT", "/types/_doc/1", {"v": 1})
    for value in ("true", "1.0", "1", '{"a": 1}', '{"a": 1.0}', "[1]", "[true]"):
        text = f'{{"doc": {{"v": {value}}}}}'
        assert raw(gateway, "POST", "/types/_update/1", text)[1]["result"] == "updated"
        assert raw(gateway, "POST", "/types/_update/1", text)[1]["result"] == "noop"
        source = gateway.ok("GET", "/types/_source/1")
        assert json.dumps(source["v"]) == json.dumps(json.loads(value))


def test_source_filters_see_a_dotted_name_as_a_path(gateway: Gateway) -> None:
    gateway.ok("PUT", "/dots", {"mappings": {"dynamic": False}})
    gateway.ok("PUT", "/dots/_doc/1", {"o.a": 1, "o": {"b": 2, "c.d": 3}, "oo": 4})

    def kept(**source: list[str]) -> Any:
        body = {"_source": source}
        return gateway.ok("POST", "/dots/_search", body)["hits"]["hits"][0]["_source"]

    assert kept(includes=["o"]) == {"o.a": 1, "o": {"b": 2, "c.d": 3}}
    assert kept(excludes=["o"]) == {"oo": 4}
    assert kept(includes=["o.c"]) == {"o": {"c.d": 3}}
    assert kept(excludes=["o.a", "o.c"]) == {"o": {"b": 2}, "oo": 4}


def test_dates_are_shown_in_their_fields_format(gateway: Gateway) -> None:
    texts = {
        "day": "2024-02-29",
        "clock": "0099-01-01 05:06:07",
        "seconds": "1733000000",
        "millis": "1733000000123",
    }
    gateway.ok("PUT", "/i/_doc/date", {"i": 100, **texts})
    for field, text in texts.items():
        body = {
            "size": 0,
            "aggs": {
                "each": {"terms": {"field": field}},
                "least": {"min": {"field": field}},
            },
        }
        answer = gateway.ok("POST", "/i/_search", body)["aggregations"]
        assert answer["each"]["buckets"][0]["key_as_string"] == text
        assert answer["least"]["value_as_string"] == text
    gateway.ok("DELETE", "/i/_doc/date")


@pytest.mark.parametrize("value", [1733000000000000, -99999999999999, "-1733000000000000"])
def test_dates_beyond_four_digit_years_are_refused(gateway: Gateway, value: Any) -> None:
    status, answer = gateway.call("PUT", "/i/_doc/9", json.dumps({"d": value}).encode(), JSON)
    assert (status, answer["error"]["type"]) == (400, "document_parsing_exception")
    assert "9999" in answer["error"]["caused_by"]["reason"]
    for edge in ("0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"):
        gateway.ok("PUT", "/i/_doc/edge", {"i": 50, "d": edge})
        body = {"size": 0, "aggs": {"a": {"terms": {"field": "d"}}, "b": {"max": {"field": "d"}}}}
        answer = gateway.ok("POST", "/i/_search", body)["aggregations"]
        assert answer["a"]["buckets"][0]["key_as_string"] == edge
        assert answer["b"]["value_as_string"] == edge
    gateway.ok("DELETE", "/i/_doc/edge")
    # As a bound it is exact: every date lies below or above it.
    assert found(gateway, {"range": {"d": {"lt": 1733000000000000}}}) == []


@pytest.mark.parametrize("name", ["_id", "_index", "_source", "_seq_no", "_routing"])
def test_metadata_is_no_field(gateway: Gateway, name: str) -> None:
    status, answer = gateway.call("PUT", "/i/_doc/9", json.dumps({name: 7}).encode(), JSON)
    assert (status, "metadata field" in answer["error"]["reason"]) == (400, True)
    mapping = {"mappings": {"properties": {name: {"type": "keyword"}}}}
    assert gateway.call("PUT", "/meta", json.dumps(mapping).encode(), JSON)[0] == 400
    # Below the root the name is a field's like any other.
    gateway.ok("PUT", "/below/_doc/1", {"o": {name: 7}})
    gateway.ok("DELETE", "/below")


def test_aggregations_below_no_bucket_are_checked_too(gateway: Gateway) -> None:
    for inner in (
        {"x": {"percentiles": {"field": "i"}}},
        {"x": {"terms": {"field": "k"}, "aggs": {"y": {"cardinality": {"field": "i"}}}}},
    ):
        body = {
            "size": 0,
            "query": {"term": {"k": "nobody"}},
            "aggs": {"none": {"terms": {"field": "k"}, "aggs": inner}},
        }
        status, answer = gateway.call("POST", "/i/_search", json.dumps(body).encode(), JSON)
        assert (status, "not supported" in answer["error"]["reason"]) == (400, True)


def test_paths_and_parameters_that_would_change_the_answer(gateway: Gateway) -> None:
    assert gateway.call("DELETE", "/")[0] == 400
    assert gateway.ok("GET", "/i/_doc/1/")["found"] is True
    assert gateway.call("GET", "/no/_search?ignore_unavailable=true")[0] == 400
    assert gateway.call("GET", "/i/_search?ignore_unavailable=false")[0] == 200
    header = b'{"index": "no", "ignore_unavailable": true}\n{}\n'
    answer = gateway.call("POST", "/_msearch", header, JSON)[1]["responses"][0]
    assert (answer["status"], "ignore_unavailable" in answer["error"]["reason"]) == (400, True)
    mapping = {"mappings": {"properties": {"n": {"type": "keyword", "normalizer": "lower"}}}}
    status, answer = gateway.call("PUT", "/normal", json.dumps(mapping).encode(), JSON)
    assert (status, "not supported" in answer["error"]["reason"]) == (400, True)


def test_the_absolute_form_of_a_url_is_read(gateway: Gateway) -> None:
    request = b"GET http://somewhere:1/i/_doc/1?realtime=true HTTP/1.1\r\nHost: x\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(request + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"_id":"1"' in answer

"""What the gateway refuses: unsupported features by name, and requests beyond its bounds."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.gateway_server import JSON, Gateway, assemble, running

MAPPING = {
    "properties": {
        "k": {"type": "keyword"},
        "i": {"type": "integer"},
        "x": {"type": "double"},
        "d": {"type": "date"},
        "b": {"type": "boolean"},
        "t": {"type": "text"},
        "h": {"type": "keyword", "index": False},
    }
}
LIMITS = {
    "MAX_BODY_BYTES": "20000",
    "MAX_BULK_ITEMS": "50",
    "MAX_BULK_LINE_BYTES": "2000",
    "MAX_DEPTH": "6",
    "MAX_CLAUSES": "30",
    "MAX_TERMS": "20",
    "MAX_AGGREGATIONS": "12",
    "MAX_DISTINCT_VALUES": "25",
    "MAX_SEARCHES": "5",
    "MAX_FIELDS": "15",
    "MAX_INDICES": "3",
    "MAX_RESULT_WINDOW": "1000",
    "REQUEST_TIMEOUT_S": "2",
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("limits"), edge=None, **LIMITS) as parts:
        gateway = parts.gateway
        gateway.ok("PUT", "/i", {"mappings": MAPPING})
        for start in (0, 20):
            documents = {str(n): {"k": f"k{n}", "i": n} for n in range(start, start + 20)}
            gateway.bulk("i", documents)
        yield gateway


def nested(depth: int) -> Any:
    query: Any = {"match_all": {}}
    for _ in range(depth):
        query = {"bool": {"filter": query}}
    return query


def refused(gateway: Gateway, body: Any, path: str = "/i/_search", status: int = 400) -> str:
    found, answer = gateway.call("POST", path, body)
    assert found == status, answer
    assert answer["status"] == status
    error = answer["error"]
    assert error["root_cause"][0]["type"] == error["type"]
    assert error["root_cause"][0]["reason"] == error["reason"]
    reason: str = error["reason"]
    return reason


@pytest.mark.parametrize(
    ("body", "words"),
    [
        *[
            ({"query": {name: {"k": "x"}}}, f"[{name} query] is not supported")
            for name in ("match", "match_phrase", "prefix", "wildcard", "regexp", "fuzzy", "knn",
                         "multi_match", "query_string", "nested", "function_score", "geo_distance")
        ],
        ({"query": {"what": {}}}, "unknown query [what]"),
        ({"query": {}}, "empty clause"),
        ({"query": []}, "malformed"),
        ({"query": {"term": {"k": 1}, "terms": {"k": [1]}}}, "expected one query"),
        ({"query": {"term": {"k": "a", "i": 1}}}, "multiple fields"),
        ({"query": {"term": {"k": None}}}, "cannot be null"),
        ({"query": {"term": {"k": ["a"]}}}, "does not support arrays"),
        ({"query": {"term": {"k": {"value": "a", "case_insensitive": True}}}}, "case_insensitive"),
        ({"query": {"term": {"k": {"value": "a", "boost": 2}}}}, "boost"),
        ({"query": {"term": {"t": "a"}}}, "text field t"),
        ({"query": {"term": {"h": "a"}}}, "not indexed"),
        ({"query": {"term": {"i": "a"}}}, "failed to create query"),
        ({"query": {"term": {"b": "yes"}}}, "only [true] or [false]"),
        ({"query": {"term": {"d": "soon"}}}, "failed to parse date"),
        ({"query": {"terms": {"k": "a"}}}, "give an array"),
        ({"query": {"terms": {"k": {"index": "x"}}}}, "terms lookup"),
        ({"query": {"range": {"k": {"gt": "a"}}}}, "range query on the keyword field k"),
        ({"query": {"range": {"d": {"gt": "now-1d"}}}}, "failed to parse date"),
        ({"query": {"range": {"d": {"gt": "2013", "time_zone": "+01:00"}}}}, "time_zone"),
        ({"query": {"range": {"i": {"above": 1}}}}, "does not support [above]"),
        ({"query": {"range": {"i": {"gt": 1, "format": "yyyy"}}}}, "custom formats"),
        ({"query": {"exists": {}}}, "must be provided"),
        ({"query": {"exists": {"field": "k*"}}}, "wildcard"),
        ({"query": {"ids": {"values": [{}]}}}, "failed to parse field [values]"),
        ({"query": {"bool": {"what": []}}}, "does not support [what]"),
        ({"query": {"bool": {"should": [], "minimum_should_match": "75%"}}},
         "minimum_should_match"),
        ({"query": {"bool": {"should": [{"term": {"k": "a"}}, {"term": {"k": "b"}}]}}},
         "ranking by relevance"),
        ({"sort": "nowhere"}, "No mapping found for [nowhere]"),
        ({"sort": "t"}, "cannot be sorted by"),
        ({"sort": {"k": {"mode": "avg"}}}, "sort mode avg"),
        ({"sort": {"k": {"missing": "x"}}}, "missing: x"),
        ({"sort": {"k": {"order": "up"}}}, "Unknown SortOrder"),
        ({"sort": ["_score", "k"]}, "sort by _score"),
        ({"sort": {"_script": {}}}, "sort by _script"),
        ({"sort": {"_geo_distance": {}}}, "sort by _geo_distance"),
        ({"search_after": [1]}, "at least one field"),
        ({"sort": "i", "search_after": [1, 2, 3]}, "has 3 value(s) but sort has 1"),
        ({"sort": "i", "search_after": ["x"]}, "Failed to parse search_after"),
        ({"sort": "i", "search_after": [1], "from": 1}, "must be set to 0"),
        ({"size": -1}, "cannot be negative"),
        ({"size": "ten"}, "no number"),
        ({"highlight": {}}, "search with highlight"),
        ({"knn": {}}, "search with knn"),
        ({"pit": {"id": "x"}}, "search with pit"),
        ({"fields": ["k"]}, "search with fields"),
        ({"explain": True}, "search with explain"),
        ({"what": 1}, "unknown key [what]"),
        ({"_source": 5}, "[_source] must be"),
        ({"track_total_hits": "all"}, "track_total_hits"),
        *[
            ({"aggs": {"a": {name: {"field": "i"}}}}, f"[{name} aggregation] is not supported")
            for name in ("avg", "sum", "cardinality", "date_histogram", "percentiles")
        ],
        ({"aggs": {"a": {"terms": {"field": "i", "missing": 1}}}}, "aggregation with missing"),
        ({"aggs": {"a": {"terms": {"field": "k", "include": "a.*"}}}}, "with include"),
        ({"aggs": {"a": {"terms": {"field": "x"}}}}, "terms aggregation on the double field"),
        ({"aggs": {"a": {"terms": {"field": "t"}}}}, "cannot be aggregated"),
        ({"aggs": {"a": {"terms": {"field": "i", "min_doc_count": 0}}}}, "min_doc_count 0"),
        ({"aggs": {"a": {"terms": {"field": "i", "order": {"x": "asc"}}}}}, "ordered by x"),
        ({"aggs": {"a": {"max": {"field": "k"}}}}, "not supported for aggregation [max]"),
        ({"aggs": {"a": {"max": {"field": "i"}, "aggs": {}}}}, "cannot accept sub-aggregations"),
        ({"aggs": {"a": {}}}, "Expected one aggregation type"),
        ({"aggs": {"a[": {"max": {"field": "i"}}}}, "Invalid aggregation name"),
        ({"aggs": {"a": {"filters": {"filters": {}, "other_bucket": True}}}}, "other_bucket"),
        ([], "must be an object"),
        ("{", "not JSON"),
        # The bounds.
        ({"query": nested(7)}, "nested depth"),
        ({"query": {"bool": {"filter": [{"match_all": {}}] * 31}}}, "maxClauseCount is set to 30"),
        ({"query": {"terms": {"k": [str(n) for n in range(21)]}}}, "allowed maximum of [20]"),
        ({"query": {"ids": {"values": [str(n) for n in range(21)]}}}, "at most [20]"),
        ({"size": 1001}, "Result window is too large"),
        ({"from": 995, "size": 6}, "Result window is too large"),
        ({"aggs": {f"a{n}": {"max": {"field": "i"}} for n in range(13)}}, "more than [12]"),
        ({"aggs": {"a": {"terms": {"field": "k"}}}}, "more than [25] distinct"),
        ({"sort": "k"}, "more than [25] distinct"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_searches_are_refused_by_name(gateway: Gateway, body: Any, words: str) -> None:
    assert words in refused(gateway, body)


def test_bounds_leave_room_up_to_them(gateway: Gateway) -> None:
    bodies: list[Any] = [
        {"query": nested(6)},
        {"query": {"bool": {"filter": [{"match_all": {}}] * 29}}},
        {"query": {"terms": {"k": [str(n) for n in range(20)]}}},
        {"size": 1000},
        {"aggs": {f"a{n}": {"max": {"field": "i"}} for n in range(12)}},
        {"query": {"range": {"i": {"lt": 25}}}, "sort": "k"},
    ]
    for body in bodies:
        gateway.ok("POST", "/i/_search", body)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/_search", "without an index"),
        ("GET", "/a,b/_search", "several indices"),
        ("GET", "/i*/_search", "several indices"),
        ("GET", "/_all/_search", "several indices"),
        ("DELETE", "/*", "several indices"),
        ("GET", "/i/_search?q=k:a", "parameter q"),
        ("GET", "/i/_search?scroll=1m", "parameter scroll"),
        ("GET", "/i/_search?what=1", "unrecognized parameter: [what]"),
        ("GET", "/i/_search?size=x", "Failed to parse int"),
        ("GET", "/i/_search?size=1&size=2", "given twice"),
        ("GET", "/i/_search?filter_path=hits", "filter_path"),
        ("GET", "/i/_doc/1?routing=x", "routing"),
        ("GET", "/i/_doc/1?version=3", "version"),
        ("PUT", "/i/_doc/1?if_seq_no=3", "if_seq_no"),
        ("PUT", "/i/_doc/1?pipeline=p", "pipeline"),
        ("PUT", "/i/_doc/1?refresh=maybe", "Unknown value for refresh"),
        ("PUT", "/i/_doc/" + "x" * 513, "too long"),
        ("PUT", "/i/_doc/%FF", "not UTF-8"),
        ("GET", "/_cat/indices", "no handler found"),
        ("POST", "/i/_delete_by_query", "no handler found"),
        ("GET", "/i/_mget", "no handler found"),
        ("PATCH", "/i", "no handler found"),
        ("GET", "/a/b/c/d", "no handler found"),
    ],
)
def test_paths_and_parameters_are_refused_by_name(
    gateway: Gateway, method: str, path: str, words: str
) -> None:
    status, answer = gateway.call(method, path, {} if method == "PUT" else None)
    assert status == 400, answer
    assert words in answer["error"]["reason"]


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        (["{}"], 400, "Malformed action/metadata line [1]"),
        (['{"what":{}}', "{}"], 400, "line [1]"),
        (['{"index":{"_id":"1"}}'], 400, "source of this [index] is missing"),
        (['{"index":{"routing":"1"}}', "{}"], 400, "routing"),
        (['{"index":{"what":"1"}}', "{}"], 400, "unknown parameter [what]"),
        (["nonsense"], 400, "line [1] is not JSON"),
        (["", ""], 400, "request body is required"),
        (['{"delete":{"_id":"1"}}'] * 51, 413, "more than [50] actions"),
        (['{"index":{"_id":"1"}}', '{"x":"' + "y" * 2000 + '"}'], 413, "line [2] is longer"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bulk_requests_are_refused_whole(
    gateway: Gateway, lines: list[str], status: int, words: str
) -> None:
    body = "\n".join(lines) + "\n"
    assert words in refused(gateway, body, "/i/_bulk", status)


def test_a_bulk_request_ends_with_a_newline(gateway: Gateway) -> None:
    assert "terminated by a newline" in refused(gateway, '{"delete":{"_id":"1"}}', "/i/_bulk")


def test_bad_items_of_a_bulk_request_fail_alone(gateway: Gateway) -> None:
    lines = [
        '{"index":{"_id":"good"}}', '{"i":1}', '{"index":{"_id":""}}', "{}",
        '{"index":{"_id":"bad"}}', "[]", '{"update":{"_id":"good"}}', '{"script":"x"}',
        '{"update":{"_id":"good"}}', '{"doc":{"i":2}}',
    ]  # fmt: skip
    answer = gateway.ok("POST", "/i/_bulk", "\n".join(lines) + "\n")
    assert answer["errors"]
    assert [next(iter(item.values()))["status"] for item in answer["items"]] == [
        201, 400, 400, 400, 200,
    ]  # fmt: skip
    gateway.ok("DELETE", "/i/_doc/good")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"script": {}}, "update with script"),
        ({"doc": 5}, "needs a [doc]"),
        ({"doc": {}, "what": 1}, "unknown field [what]"),
        ({"doc": {}, "doc_as_upsert": "yes"}, "must be a boolean"),
        ([], "no JSON object"),
    ],
)
def test_updates_are_refused_by_name(gateway: Gateway, body: Any, words: str) -> None:
    assert words in refused(gateway, body, "/i/_update/1")


def test_the_searches_of_one_request_are_bounded(gateway: Gateway) -> None:
    assert "more than [5] searches" in refused(gateway, "{}\n{}\n" * 6, "/i/_msearch")
    assert "pairs of lines" in refused(gateway, "{}\n", "/i/_msearch")


def test_fields_and_indices_are_bounded(gateway: Gateway) -> None:
    document = {f"f{n}": n for n in range(20)}
    assert "Limit of total fields [15]" in refused(gateway, document, "/i/_doc")
    gateway.ok("PUT", "/i2")
    gateway.ok("PUT", "/i3")
    status, answer = gateway.call("PUT", "/i4")
    assert (status, "there are [3] indices" in answer["error"]["reason"]) == (400, True)
    gateway.ok("DELETE", "/i2")
    gateway.ok("DELETE", "/i3")


def test_depth_of_documents_is_bounded(gateway: Gateway) -> None:
    deep: Any = 1
    for _ in range(8):
        deep = {"a": deep}
    assert "depth of the document" in refused(gateway, deep, "/i/_doc")
    deep = 1
    for _ in range(8):
        deep = [deep]
    assert "depth of the document" in refused(gateway, {"i": deep}, "/i/_doc")
    status, _ = gateway.call("POST", "/i/_search", "[" * 5000)
    assert status == 400


def test_large_bodies_are_refused_before_they_are_read(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
        connection.sendall(
            b"POST /i/_search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000\r\n\r\n"
        )
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
        assert json.loads(answer.read())["status"] == 413


def test_large_chunked_and_compressed_bodies_are_refused(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    chunks = (b"x" * 1000 for _ in range(21))
    connection.request("POST", "/i/_search", chunks, JSON, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    packed = gzip.compress(b" " * 1_000_000)
    headers = {**JSON, "Content-Encoding": "gzip"}
    assert gateway.call("POST", "/i/_search", packed, headers)[0] == 413
    assert gateway.call("POST", "/i/_search", gzip.compress(b"{}"), headers)[0] == 200
    assert gateway.call("POST", "/i/_search", gzip.compress(b"{}" * 99)[:-5], headers)[0] == 400
    assert gateway.call("POST", "/i/_search", b"{}", headers)[0] == 400
    headers["Content-Encoding"] = "br"
    assert gateway.call("POST", "/i/_search", b"{}", headers)[0] == 415


def test_a_compressed_body_of_several_members_is_read_whole(gateway: Gateway) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    lines = [b'{"delete": {"_id": "%d"}}\n' % n for n in (7001, 7002, 7003)]
    status, answer = gateway.call("POST", "/i/_bulk", b"".join(map(gzip.compress, lines)), headers)
    assert (status, [i["delete"]["_id"] for i in answer["items"]]) == (
        200,
        ["7001", "7002", "7003"],
    )
    for behind in (b"trailing", gzip.compress(lines[0])[:-5]):
        body = gzip.compress(lines[0]) + behind
        assert gateway.call("POST", "/i/_bulk", body, headers)[0] == 400
    many = gzip.compress(b"") * 500
    assert gateway.call("POST", "/i/_search", many, headers)[0] == 400
    large = gzip.compress(b" " * 19_000) * 2
    assert gateway.call("POST", "/i/_search", large, headers)[0] == 413


def test_many_pipelined_requests_are_all_answered(gateway: Gateway) -> None:
    refused = b"GET /a,b/_search HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    first = b"GET /i/_count HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(first + refused * 3000 + last)
        answers = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert answers.count(b"HTTP/1.1 400 ") == 3000
    assert answers.count(b"HTTP/1.1 200 ") == 2


def test_a_request_that_does_not_come_whole_is_given_up(gateway: Gateway) -> None:
    head = b"POST /i/_search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    body = head + b"Content-Length: 10\r\n\r\n"
    idle = socket.create_connection(("127.0.0.1", gateway.port), 30)
    for part in (b"PO", head, body, body + b'{"si'):
        with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
            connection.sendall(part)
            answer = b"".join(iter(lambda c=connection: c.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 408 "), part
    # A kept connection without a request on it stays.
    with idle:
        idle.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_body_needs_a_json_type(gateway: Gateway) -> None:
    status, answer = gateway.call("POST", "/i/_search", b"{}", {"Content-Type": "text/plain"})
    assert (status, answer["error"]["type"]) == (406, "media_type_header_exception")


def test_what_is_no_http_is_refused_and_closed(gateway: Gateway) -> None:
    many = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20000 + b"\r\n"
    endless = b"GET / HTTP/1.1\r\na: " + b"b" * 500_000
    for data, wanted in ((b"what is this\r\n\r\n", b"400"), (many, b"431"), (endless, b"431")):
        with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
            connection.sendall(data)
            answer = connection.recv(1 << 16)
            assert answer.split()[1] == wanted
    assert gateway.ok("GET", "/")


def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    """Some of them at once, some after a trip to Qdrant."""
    paths = ["/i/_doc/1", "/", "/i/_doc/nothing", "/i/_count", "/i/_search?size=1", "/_what"] * 30
    data = "".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n" for path in paths).encode()
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        connection.sendall(data)
        reader = connection.makefile("rb")
        for path in paths:
            status = int(reader.readline().split()[1])
            size = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            answer = json.loads(reader.read(size))
            wanted = {"/i/_doc/nothing": 404, "/_what": 400}.get(path, 200)
            assert status == wanted, (path, answer)
            if path == "/i/_doc/1":
                assert answer["_id"] == "1"
            if path == "/i/_count":
                assert answer["count"] == 40


def test_a_client_that_does_not_read_is_not_answered_without_end(gateway: Gateway) -> None:
    """Its requests wait, in its own socket in the end, and are answered when it reads."""
    number, request = 3000, b"GET /i/_search?size=40 HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 30) as connection:
        sending = threading.Thread(target=connection.sendall, args=(request * number,), daemon=True)
        sending.start()
        hits = -1
        while hits != (hits := gateway.stats()["hits"]):
            time.sleep(0.2)
        assert hits < number
        reader = connection.makefile("rb")
        for _ in range(number):
            assert reader.readline().startswith(b"HTTP/1.1 200")
            size = 0
            while (line := reader.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            assert len(reader.read(size)) == size
        sending.join(30)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PORT", "x", "whole number"),
        ("SERVING", "yes", "on or off"),
        ("TTL_S", "-1", "seconds"),
        ("QDRANT_URL", "https://x", "http://host:port"),
        ("VALKEY", "here:there", "host:port"),
        ("NAMESPACE", "a:b", "letters and digits"),
        ("WHAT", "1", "no such setting"),
        ("MAX_TERMS", "0", "whole number"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, name: str, value: str, words: str) -> None:
    tree = assemble(tmp_path, "new")
    done = subprocess.run(
        [sys.executable, str(tree)],
        env={**os.environ, f"REFILL_GATEWAY_{name}": value},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert f"REFILL_GATEWAY_{name}" in done.stderr
    assert words in done.stderr

"""Right answers against plain Python, and a judge that lets no difference pass."""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from documents_fixture import CARRIERS, DESTINATIONS, FIRST_HOUR_MS, documents, rows
from refill.operations import RequestSet, load_operations
from refill.oracle.columns import LONG_MAX, LONG_MIN, OracleError
from refill.oracle.documents import DocumentOracle, Expected, Some, judge

MADE = rows(400)
Json = dict[str, Any]


@pytest.fixture(scope="module")
def oracle() -> DocumentOracle:
    return DocumentOracle(documents(MADE), "flights")


@dataclass
class Asked:
    expected: Expected
    method: str = "POST"
    path: str = "/flights/_search"
    body: bytes = b"{}"


def matches(row: Json, query: Json) -> bool:
    """Whether a row matches, one row at a time."""
    ((name, body),) = query.items()
    if name == "match_all":
        return True
    if name == "bool":
        must = [*body.get("filter", []), *body.get("must", [])]
        should = body.get("should", [])
        return (
            all(matches(row, q) for q in must)
            and not any(matches(row, q) for q in body.get("must_not", []))
            and (bool(must) or not should or any(matches(row, q) for q in should))
        )
    if name == "exists":
        return row[body["field"]] is not None
    ((field, value),) = body.items()
    have = row[field]
    if have is None:
        return False
    if name == "term":
        return bool(have == value)
    if name == "terms":
        return bool(have in value)
    bounds = {
        key: datetime.fromisoformat(v).timestamp() * 1000 if isinstance(v, str) else v
        for key, v in value.items()
    }
    return (
        have > bounds.get("gt", -math.inf)
        and have >= bounds.get("gte", -math.inf)
        and have < bounds.get("lt", math.inf)
        and have <= bounds.get("lte", math.inf)
    )


def in_order(found: list[Json], sort: list[Json]) -> list[Json]:
    """Sort rows by one key after the other; those without a value stand last."""
    for item in reversed(sort):
        ((field, options),) = item.items()
        having = [row for row in found if row[field] is not None]
        without = [row for row in found if row[field] is None]
        having.sort(key=lambda row: row[field], reverse=options["order"] == "desc")
        found = having + without
    return found


def draw_query(rng: random.Random, depth: int = 0) -> Json:
    if depth < 2 and rng.random() < 0.6:
        clauses = rng.sample(["filter", "must", "must_not", "should"], rng.randrange(1, 3))
        return {
            "bool": {
                name: [draw_query(rng, depth + 1) for _ in range(rng.randrange(1, 3))]
                for name in clauses
            }
        }
    bound = rng.choice(["gt", "gte", "lt", "lte"])
    return rng.choice(
        [
            {"match_all": {}},
            {"term": {"carrier": rng.choice([*CARRIERS, "none"])}},
            {"term": {"flight": rng.randrange(1, 45)}},
            {"terms": {"dest": rng.sample([*DESTINATIONS, "none"], 4)}},
            {"terms": {"dest": []}},
            {"exists": {"field": rng.choice(["tailnum", "dep_delay", "carrier"])}},
            {"range": {"dep_delay": {bound: rng.choice([-1, 0, 3, 2.5])}}},
            {"range": {"flight": {"gte": 4.5, bound: rng.randrange(5, 30)}}},
            {"range": {"time_hour": {bound: "2013-05-01T10:00:00Z"}}},
            {"range": {"time_hour": {"gte": FIRST_HOUR_MS, "lt": FIRST_HOUR_MS + 10**10}}},
        ]
    )


def draw_sort(rng: random.Random) -> list[Json]:
    fields = rng.sample(
        ["carrier", "tailnum", "dep_delay", "air_time", "flight", "time_hour"], rng.randrange(3)
    )
    return [{field: {"order": rng.choice(["asc", "desc"])}} for field in [*fields, "flight_id"]]


@pytest.mark.parametrize("seed", range(60))
def test_searches_against_plain_python(oracle: DocumentOracle, seed: int) -> None:
    rng = random.Random(seed)
    body: Json = {
        "query": draw_query(rng),
        "sort": draw_sort(rng),
        "size": rng.choice([1, 7, 500]),
        "track_total_hits": True,
        "aggs": {
            "top": {"terms": {"field": rng.choice(["dest", "tailnum"]), "size": 4}},
            "two": {"filters": {"filters": {"a": draw_query(rng, 1), "b": draw_query(rng, 1)}}},
        },
    }
    found = in_order([row for row in MADE if matches(row, body["query"])], body["sort"])
    counts = Counter(
        row[field] for field in [body["aggs"]["top"]["terms"]["field"]]
        for row in found if row[field] is not None
    )  # fmt: skip
    buckets = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    answer = oracle.expected("POST", "/flights/_search", body).answer
    assert answer["hits"]["total"] == {"value": len(found), "relation": "eq"}
    assert [h["_id"] for h in answer["hits"]["hits"]] == [r["_id"] for r in found[: body["size"]]]
    assert answer["aggregations"]["top"] == {
        "doc_count_error_upper_bound": 0,
        "sum_other_doc_count": sum(count for _, count in buckets[4:]),
        "buckets": [{"key": key, "doc_count": count} for key, count in buckets[:4]],
    }
    for name, query in body["aggs"]["two"]["filters"]["filters"].items():
        expected = sum(matches(row, query) for row in found)
        assert answer["aggregations"]["two"]["buckets"][name] == {"doc_count": expected}


@pytest.mark.parametrize("seed", range(20))
def test_pages_behind_cursors_lose_and_repeat_nothing(oracle: DocumentOracle, seed: int) -> None:
    rng = random.Random(seed)
    # Only fields that every flight has: where a cursor is missing no engine agrees with another.
    first = rng.choice(["carrier", "flight", "time_hour", "distance"])
    sort = [{f: {"order": rng.choice(["asc", "desc"])}} for f in (first, "flight_id")]
    body: Json = {"query": draw_query(rng), "sort": sort, "track_total_hits": True}
    whole = [row for row, _ in oracle.page(body | {"size": 1000})]
    seen: list[int] = []
    after: Json = {}
    while page := oracle.page(body | {"size": 37} | after):
        seen += [row for row, _ in page]
        assert len(seen) <= len(whole)
        after = {"search_after": page[-1][1]}
    assert seen == whole


def test_sort_values_of_what_is_missing(oracle: DocumentOracle) -> None:
    cases = [
        ("dep_delay", "asc", "Infinity"),
        ("dep_delay", "desc", "-Infinity"),
        ("tailnum", "asc", None),
    ]
    for field, order, shown in cases:
        sort = [{field: {"order": order}}, {"flight_id": {"order": "asc"}}]
        query = {"bool": {"must_not": [{"exists": {"field": field}}]}}
        pages = oracle.page({"query": query, "sort": sort})
        assert {values[0] for _, values in pages} == {shown}
    assert (LONG_MAX, LONG_MIN) == (9223372036854775807, -9223372036854775808)


SORT = [{"flight_id": {"order": "asc"}}]
ALL: Json = {"match_all": {}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": {"match": {"dest": "x"}}}, "does not know the query 'match'"),
        ({"query": {"term": {"nothing": 1}}}, "no field 'nothing'"),
        ({"query": {"term": {"carrier": 1}}}, "is a keyword"),
        ({"query": {"term": {"flight": "1"}}}, "is a number or a date"),
        ({"query": {"term": {"flight": True}}}, "is a number or a date"),
        ({"query": {"range": {"carrier": {"gt": "A"}}}}, "range on the keyword field"),
        ({"query": {"range": {"flight": {"from": 1}}}}, "range on the integer field"),
        ({"query": {"range": {"time_hour": {"gt": "2013-01-01T00:00:00"}}}}, "no time zone"),
        ({"query": {"bool": {"minimum_should_match": 1}}}, "minimum_should_match"),
        ({"query": {"term": {"a": 1, "b": 2}}}, "an object with one key"),
        ({"sort": [{"carrier": {"order": "asc"}}]}, "have the same place"),
        ({"sort": []}, "must be a list of keys"),
        ({"sort": [{"flight_id": {"order": "up"}}]}, "neither asc nor desc"),
        ({"sort": ["flight_id"]}, "an object with one key"),
        ({"search_after": [1, 2]}, "one value for each key"),
        ({"search_after": ["x"]}, "is a number or a date"),
        ({"track_total_hits": False}, "must be true"),
        ({"from": 1}, "does not know ['from']"),
        ({"aggs": {"a": {"terms": {"field": "flight"}}}}, "give a keyword"),
        ({"aggs": {"a": {"terms": {"field": "dest", "order": {}}}}}, "does not know the aggreg"),
        ({"aggs": {"a": {"max": {"field": "flight"}}}}, "does not know the aggregation"),
    ],
)
def test_what_the_oracle_does_not_know_it_refuses(
    oracle: DocumentOracle, change: Json, words: str
) -> None:
    body = {"query": ALL, "sort": SORT, "track_total_hits": True} | change
    with pytest.raises(OracleError) as caught:
        oracle.expected("POST", "/flights/_search", body)
    assert words in str(caught.value)


def test_other_requests_are_refused(oracle: DocumentOracle) -> None:
    for method, path in (("GET", "/other/_doc/1"), ("POST", "/flights/_count")):
        with pytest.raises(OracleError, match="the oracle knows"):
            oracle.expected(method, path, None)
    with pytest.raises(OracleError, match="no document has the _id '400'"):
        oracle.expected("GET", "/flights/_doc/400", None)


def right(value: Any) -> Any:
    """Give a right answer of an engine: something real in the place of each `Some`."""
    if isinstance(value, Some):
        shards = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
        return next(v for v in (7, shards) if value.accepts(v))
    if isinstance(value, dict):
        return {key: right(part) for key, part in value.items()}
    if isinstance(value, list):
        return [right(part) for part in value]
    return value


@pytest.fixture(scope="module")
def asked() -> list[Any]:
    """One request of each operation."""
    requests = RequestSet.build(load_operations(), documents(rows(1500)), 1, "flights", "r")
    warm = [requests.warm(operation.id)[0] for operation in load_operations().warm]
    return [*warm, requests.cold(1, 0, 1, "cold")[0]]


def test_right_answers_are_ok(asked: list[Any]) -> None:
    for request in asked:
        answer = right(request.expected.answer)
        verdict = judge(request, 200, json.dumps(answer).encode())
        assert (verdict.status, verdict.detail) == ("ok", "")
        assert verdict.hits == request.expected.hits
        assert math.isnan(verdict.recall)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Give the place of every part of an answer."""
    parts: Any = ()
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    inner = [found for key, part in parts for found in places(part, (*place, key))]
    return [place, *inner] if place else inner


def broken(value: Any) -> list[Any]:
    """Give wrong values in the place of a right one."""
    if isinstance(value, bool):
        return [not value, int(value), None]
    if isinstance(value, int | float):
        return [-value - 1, str(value), None, [value], True]
    if isinstance(value, str):
        return [value + "x", "", None, 1]
    if isinstance(value, dict):
        return [value | {"more": 1}, [], None]
    if isinstance(value, list):
        return [value[:-1], [*value, value[-1] if value else 1], value[::-1], {}]
    return [0, "", False]


GONE = object()


def changed(answer: Any, place: tuple[Any, ...], value: Any) -> bytes:
    """Give an answer with another value in one place, or without what stands there."""
    whole = copy.deepcopy(answer)
    part = whole
    for key in place[:-1]:
        part = part[key]
    if value is GONE:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return json.dumps(whole).encode()


def test_no_difference_passes(asked: list[Any]) -> None:
    rng = random.Random(1)
    tried = 0
    for request in asked:
        answer = right(request.expected.answer)
        every = places(answer)
        for place in rng.sample(every, min(len(every), 120)):
            was = functools.reduce(lambda part, key: part[key], place, answer)
            wrong = [v for v in broken(was) if v != was or type(v) is not type(was)]
            for value in [*wrong, GONE]:
                verdict = judge(request, 200, changed(answer, place, value))
                assert verdict.status == "wrong", (place, value)
                tried += 1
    assert tried > 1000


def test_a_wrong_answer_is_shown_with_request_expected_and_got(asked: list[Any]) -> None:
    request = asked[1]
    answer = right(request.expected.answer)
    answer["hits"]["hits"][3]["_id"] = "999999"
    verdict = judge(request, 200, json.dumps(answer).encode())
    expected = request.expected.answer["hits"]["hits"][3]["_id"]
    start = (
        f'hits.hits[3]._id: expected "{expected}", got "999999" | request: POST /flights/_search'
    )
    assert verdict.detail.startswith(start)
    assert request.body.decode() in verdict.detail
    assert f"expected: {request.expected.summary}" in verdict.detail
    assert f"got {len(json.dumps(answer))} bytes: " in verdict.detail


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff" * 5000,
        b"[" * 5000,
        b'{"took": 1e999}',
        b'{"took": 1' + b"0" * 5000 + b"}",
        b'{"' + b"\xc3\xa4" * 3000 + b'": 1}',
        b'{"took": 1, "took": 2}',
        b" " * ((1 << 20) + 1),
        json.dumps({"error": "x" * 9000}).encode(),
    ],
)
def test_any_body_is_judged_in_bounded_words(asked: list[Any], body: bytes) -> None:
    for request in asked:
        for http in (200, 503):
            verdict = judge(request, http, body)
            assert verdict.status == ("wrong" if http == 200 else "error")
            assert 0 < len(verdict.detail.encode()) <= 2000


def test_more_bytes_than_any_answer_has_are_wrong_unread(asked: list[Any]) -> None:
    answer = json.dumps(right(asked[0].expected.answer)).encode()
    assert judge(asked[0], 200, answer + b" " * 1000).status == "ok"
    verdict = judge(asked[0], 200, answer + b" " * (1 << 20))
    assert verdict.status == "wrong"
    assert verdict.detail.startswith(f"{len(answer) + (1 << 20)} bytes, no answer here has more")


def test_a_status_other_than_200_is_an_error(asked: list[Any]) -> None:
    answer = json.dumps(right(asked[0].expected.answer)).encode()
    verdict = judge(asked[0], 503, answer)
    assert verdict.status == "error"
    assert verdict.detail.startswith("status 503 | request: GET /flights/_doc/")

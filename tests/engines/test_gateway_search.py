"""Searches of the gateway against a small reference in plain Python, on the embedded Qdrant."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from engines.gateway_server import Gateway, running

Document = dict[str, Any]
Test = Callable[[Document], bool]

INDEX = "things"
MAPPING = {
    "properties": {
        "k": {"type": "keyword"},
        "i": {"type": "integer"},
        "x": {"type": "double"},
        "f": {"type": "float"},
        "d": {"type": "date"},
        "b": {"type": "boolean"},
        "mk": {"type": "keyword"},
        "mi": {"type": "long"},
        "o": {"properties": {"under_score": {"type": "keyword"}}},
        "t": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "u": {"type": "integer"},
    }
}
DAY = datetime(2013, 1, 1, tzinfo=UTC)
NUMBER = 300


def corpus() -> dict[str, Document]:
    draw = random.Random(7)
    documents: dict[str, Document] = {}
    for number in range(NUMBER):
        document: Document = {
            "k": draw.choice(["AA", "B6", "UA", "é", "a_b"]),
            "i": draw.randrange(6),
            "x": draw.choice([-1.5, 0.0, 0.1, 2.25, 1e9]),
            "f": draw.choice([0.1, 0.5]),
            "d": (DAY + timedelta(hours=draw.randrange(0, 600))).isoformat()[:19] + "Z",
            "b": draw.random() < 0.4,
            "mk": draw.sample(["p", "q", "r", "s"], draw.randrange(0, 4)),
            "mi": [draw.randrange(8) for _ in range(draw.randrange(0, 4))],
            "o": {"under_score": draw.choice(["v", "w"])},
            "t": f"Text {number % 3}",
            "u": number,
        }
        for field in ("k", "i", "x", "d", "b"):
            if draw.random() < 0.15:
                if draw.random() < 0.5:
                    document[field] = None
                else:
                    del document[field]
        documents[f"id-{number}"] = document
    return documents


CORPUS = corpus()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("search")) as parts:
        parts.gateway.ok("PUT", f"/{INDEX}", {"mappings": MAPPING})
        parts.gateway.bulk(INDEX, CORPUS)
        yield parts.gateway


def values(document: Document, path: str) -> list[Any]:
    """A field's values as they are compared."""
    value: Any = document
    for part in path.removesuffix(".raw").split("."):
        value = value.get(part)
    found = value if isinstance(value, list) else [] if value is None else [value]
    if path == "d":
        return [int(datetime.fromisoformat(v).timestamp() * 1000) for v in found]
    return [int(v) if isinstance(v, bool) else v for v in found]


def search(gateway: Gateway, body: Document) -> Any:
    return gateway.ok("POST", f"/{INDEX}/_search", body)


def ids(answer: Any) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


def has(path: str, test: Callable[[Any], bool]) -> Test:
    return lambda document: any(test(value) for value in values(document, path))


def millis(year: int, month: int, day: int, hour: int = 0) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp() * 1000)


LEAVES: list[tuple[Document, Test]] = [
    ({"match_all": {}}, lambda _: True),
    ({"term": {"k": "AA"}}, has("k", lambda v: v == "AA")),
    ({"term": {"k": {"value": "é"}}}, has("k", lambda v: v == "é")),
    ({"term": {"i": 3}}, has("i", lambda v: v == 3)),
    ({"term": {"i": "3"}}, has("i", lambda v: v == 3)),
    ({"term": {"i": 3.5}}, lambda _: False),
    ({"term": {"i": 2**40}}, lambda _: False),
    ({"term": {"x": 0.1}}, has("x", lambda v: v == 0.1)),
    ({"term": {"f": 0.1}}, has("f", lambda v: v == 0.1)),
    ({"term": {"b": True}}, has("b", lambda v: v == 1)),
    ({"term": {"b": "false"}}, has("b", lambda v: v == 0)),
    ({"term": {"d": "2013-01-05"}}, has("d", lambda v: 0 <= v - millis(2013, 1, 5) < 86400000)),
    ({"term": {"o.under_score": "v"}}, has("o.under_score", lambda v: v == "v")),
    ({"term": {"t.raw": "Text 1"}}, has("t", lambda v: v == "Text 1")),
    ({"term": {"nowhere": 1}}, lambda _: False),
    ({"terms": {"k": ["AA", "UA", "AA"]}}, has("k", lambda v: v in ("AA", "UA"))),
    ({"terms": {"i": [1, 2, 77]}}, has("i", lambda v: v in (1, 2))),
    ({"terms": {"x": [0.1, -1.5]}}, has("x", lambda v: v in (0.1, -1.5))),
    ({"terms": {"k": []}}, lambda _: False),
    ({"terms": {"mk": ["p", "s"]}}, has("mk", lambda v: v in ("p", "s"))),
    ({"range": {"i": {"gte": 2, "lt": 4}}}, has("i", lambda v: 2 <= v < 4)),
    ({"range": {"i": {"gt": 2.5}}}, has("i", lambda v: v > 2.5)),
    ({"range": {"x": {"lte": 0.1}}}, has("x", lambda v: v <= 0.1)),
    ({"range": {"i": {}}}, has("i", lambda _: True)),
    (
        {"range": {"d": {"gt": "2013-01-02", "lte": "2013-01-05"}}},
        has("d", lambda v: millis(2013, 1, 3) <= v < millis(2013, 1, 6)),
    ),
    (
        {"range": {"d": {"gte": millis(2013, 1, 4), "format": "epoch_millis"}}},
        has("d", lambda v: v >= millis(2013, 1, 4)),
    ),
    ({"range": {"d": {"lt": "2013-01-04T12:00:00+02:00"}}},
     has("d", lambda v: v < millis(2013, 1, 4, 10))),
    ({"exists": {"field": "k"}}, has("k", lambda _: True)),
    ({"exists": {"field": "mk"}}, has("mk", lambda _: True)),
    ({"exists": {"field": "t"}}, has("t", lambda _: True)),
    ({"exists": {"field": "o"}}, lambda _: True),
    ({"exists": {"field": "nowhere"}}, lambda _: False),
    ({"constant_score": {"filter": {"term": {"k": "UA"}}}}, has("k", lambda v: v == "UA")),
]  # fmt: skip


def draw_query(draw: random.Random, depth: int = 0) -> tuple[Document, Test]:
    if depth == 3 or draw.random() < 0.4:
        return draw.choice(LEAVES)
    parts = {
        name: [draw_query(draw, depth + 1) for _ in range(draw.randrange(0, 3))]
        for name in ("must", "filter", "should", "must_not")
    }
    body: Document = {name: [q for q, _ in found] for name, found in parts.items() if found}
    minimum = int(bool(parts["should"]) and not (parts["must"] or parts["filter"]))
    if parts["should"] and draw.random() < 0.3:
        minimum = draw.randrange(0, len(parts["should"]) + 1)
        body["minimum_should_match"] = minimum

    def matches(document: Document) -> bool:
        return (
            all(test(document) for _, test in parts["must"] + parts["filter"])
            and not any(test(document) for _, test in parts["must_not"])
            and sum(test(document) for _, test in parts["should"]) >= minimum
        )

    return {"bool": body}, matches


def test_every_leaf_matches_what_the_reference_matches(gateway: Gateway) -> None:
    for query, matches in LEAVES:
        wanted = {id_ for id_, document in CORPUS.items() if matches(document)}
        answer = search(
            gateway, {"query": {"bool": {"filter": query}}, "size": NUMBER, "_source": False}
        )
        assert set(ids(answer)) == wanted, query
        assert answer["hits"]["total"] == {"value": len(wanted), "relation": "eq"}, query
        count = gateway.ok("POST", f"/{INDEX}/_count", {"query": query})
        assert count["count"] == len(wanted), query


def test_nested_bool_queries_match_what_the_reference_matches(gateway: Gateway) -> None:
    draw = random.Random(11)
    for _ in range(80):
        query, matches = draw_query(draw)
        wanted = {id_ for id_, document in CORPUS.items() if matches(document)}
        answer = search(gateway, {"query": query, "size": NUMBER, "sort": "u", "_source": False})
        assert ids(answer) == sorted(wanted, key=lambda id_: int(id_[3:])), query


def test_ids_queries(gateway: Gateway) -> None:
    for query in (
        {"ids": {"values": ["id-3", "id-5", "no"]}},
        {"terms": {"_id": ["id-5", "id-3"]}},
        {"bool": {"should": [{"term": {"_id": "id-3"}}, {"ids": {"values": ["id-5"]}}]}},
    ):
        answer = search(gateway, {"query": {"bool": {"filter": query}}})
        assert ids(answer) == ["id-3", "id-5"]


SORTS: list[list[Any]] = [
    ["i"],
    [{"i": "desc"}],
    [{"i": {"order": "desc", "missing": "_first"}}, "k"],
    [{"i": {"order": "asc", "missing": "_first"}}, {"x": "desc"}, "d"],
    [{"i": {"missing": 3}}, {"x": {"order": "desc", "missing": 2}}],
    [{"i": {"order": "desc", "missing": 3}}, {"u": "desc"}],
    [{"x": "asc"}, {"k": "desc"}, {"i": "asc"}],
    ["k", "x"],
    [{"k": {"order": "desc", "missing": "_first"}}, {"d": "desc"}],
    [{"k": {"order": "asc", "missing": "_first"}}, "b"],
    [{"b": "desc"}, {"d": "asc"}],
    ["mi", {"u": "desc"}],
    [{"mi": "desc"}, "k"],
    ["mk"],
    [{"mk": "desc"}, "mi"],
    [{"i": "asc"}, "mk", {"mi": "desc"}],
    ["_doc"],
    [{"f": "desc"}, {"_doc": "desc"}],
    [{"o.under_score": "asc"}, {"i": "desc"}],
]


def reference_key(sort: list[Any]) -> Callable[[tuple[int, Document]], Any]:
    """The order of Elasticsearch; documents equal in all keys in the order of their writing."""

    def key(entry: tuple[int, Document]) -> Any:
        number, document = entry
        out: list[Any] = []
        for item in sort:
            ((path, options),) = ({item: {}} if isinstance(item, str) else item).items()
            options = {"order": options} if isinstance(options, str) else options
            descending = options.get("order", "asc") == "desc"
            missing = options.get("missing", "_last")
            if path == "_doc":
                out.append(-number if descending else number)
                continue
            found = values(document, path)
            value = (max(found) if descending else min(found)) if found else None
            if value is None and not isinstance(missing, str):
                value = missing
            if value is None:
                out.append((0 if missing == "_first" else 2, 0))
            elif isinstance(value, str):
                points = [ord(sign) for sign in value]
                ended = [*(-p for p in points), 1] if descending else [*points, -1]
                out.append((1, ended))
            else:
                out.append((1, -value if descending else value))
        return [*out, number]

    return key


def in_order(sort: list[Any], matches: Test) -> list[str]:
    entries = [(n, d) for n, d in enumerate(CORPUS.values()) if matches(d)]
    names = list(CORPUS)
    return [names[number] for number, _ in sorted(entries, key=reference_key(sort))]


@pytest.mark.parametrize("sort", SORTS, ids=str)
def test_pages_by_cursor_hold_every_document_once_and_in_order(
    gateway: Gateway, sort: list[Any]
) -> None:
    query: Document = {"range": {"u": {"lt": 130}}}
    wanted = in_order(sort, has("u", lambda v: v < 130))
    for size in (9, 40):
        found: list[str] = []
        body: Document = {"query": query, "sort": sort, "size": size, "_source": False}
        for _ in range(NUMBER):
            answer = search(gateway, body)
            assert answer["hits"]["total"]["value"] == len(wanted)
            if not answer["hits"]["hits"]:
                break
            found += ids(answer)
            body["search_after"] = answer["hits"]["hits"][-1]["sort"]
        assert found == wanted


@pytest.mark.parametrize("sort", SORTS, ids=str)
def test_pages_by_offset_hold_every_document_once_and_in_order(
    gateway: Gateway, sort: list[Any]
) -> None:
    wanted = in_order(sort, lambda _: True)
    for start, size in ((0, 13), (13, 40), (100, 60), (280, 40), (299, 1), (400, 5)):
        answer = search(gateway, {"sort": sort, "from": start, "size": size})
        assert ids(answer) == wanted[start : start + size]
        for hit in answer["hits"]["hits"]:
            assert hit["_source"] == CORPUS[hit["_id"]]


def test_a_cursor_without_its_tiebreak_stands_behind_all_equals(gateway: Gateway) -> None:
    """As in Elasticsearch: a cursor of the sort's own values skips what is equal to it."""
    answer = search(gateway, {"sort": ["i"], "size": NUMBER, "search_after": [2]})
    assert ids(answer) == [
        id_
        for id_ in in_order(["i"], lambda _: True)
        if not values(CORPUS[id_], "i") or values(CORPUS[id_], "i")[0] > 2
    ]
    answer = search(gateway, {"sort": ["k"], "size": NUMBER, "search_after": ["AB"]})
    assert ids(answer) == [
        id_
        for id_ in in_order(["k"], lambda _: True)
        if not values(CORPUS[id_], "k") or values(CORPUS[id_], "k")[0] > "AB"
    ]


def test_only_tied_hits_carry_a_tiebreak(gateway: Gateway) -> None:
    answer = search(gateway, {"sort": ["u"], "size": 20})
    assert [hit["sort"] for hit in answer["hits"]["hits"]] == [[n] for n in range(20)]
    answer = search(gateway, {"sort": ["i"], "size": 2})
    first = answer["hits"]["hits"][0]
    assert first["sort"] == [0, int(first["_id"][3:])]


def test_sort_values_read_as_elasticsearchs(gateway: Gateway) -> None:
    def first(sort: Document, filter_: Document) -> Any:
        body = {"sort": [sort, "u"], "size": 1, "query": {"bool": filter_}}
        return search(gateway, body)["hits"]["hits"][0]["sort"][0]

    def without(path: str) -> Document:
        return {"must_not": {"exists": {"field": path}}}

    assert first({"i": "asc"}, without("i")) == 2**63 - 1
    assert first({"i": "desc"}, without("i")) == -(2**63)
    assert first({"i": {"order": "asc", "missing": "_first"}}, without("i")) == -(2**63)
    assert first({"x": "asc"}, without("x")) == "Infinity"
    assert first({"k": "asc"}, without("k")) is None
    assert first({"i": {"missing": 4}}, without("i")) == 4
    assert first({"f": "asc"}, {"filter": {"term": {"f": 0.1}}}) == 0.1
    assert first({"d": "asc"}, {"filter": {"exists": {"field": "d"}}}) == min(
        v for d in CORPUS.values() for v in values(d, "d")
    )


def test_without_a_sort_hits_stand_as_written_and_scores_are_constants(
    gateway: Gateway,
) -> None:
    def hits(query: Document) -> Any:
        answer = search(gateway, {"query": query, "size": 3})["hits"]
        assert [hit["_id"] for hit in answer["hits"]] == sorted(
            (hit["_id"] for hit in answer["hits"]), key=lambda id_: int(id_[3:])
        )
        return {hit["_score"] for hit in answer["hits"]} | {answer["max_score"]}

    assert hits({"match_all": {}}) == {1.0}
    assert hits({"bool": {"filter": {"term": {"k": "AA"}}}}) == {0.0}
    assert hits({"terms": {"k": ["AA"]}}) == {1.0}
    assert hits({"bool": {"must": [{"term": {"i": 1}}, {"exists": {"field": "k"}}]}}) == {2.0}
    assert hits({"term": {"k": "AA"}}) == {None}


def test_terms_aggregations_count_exactly(gateway: Gateway) -> None:
    for path in ("k", "i", "b", "mk", "mi", "t.raw"):
        counts = Counter(v for d in CORPUS.values() for v in set(values(d, path)))
        for order, key in (
            (None, lambda e: (-e[1], e[0])),
            ({"_count": "asc"}, lambda e: (e[1], e[0])),
            ({"_key": "asc"}, lambda e: e[0]),
        ):
            terms: Document = {"field": path, "size": 3}
            if order is not None:
                terms["order"] = order
            answer = search(gateway, {"size": 0, "aggs": {"a": {"terms": terms}}})
            found = answer["aggregations"]["a"]
            wanted = sorted(counts.items(), key=key)
            assert [(b["key"], b["doc_count"]) for b in found["buckets"]] == wanted[:3]
            assert found["sum_other_doc_count"] == sum(count for _, count in wanted[3:])
            assert found["doc_count_error_upper_bound"] == 0
    answer = search(gateway, {"size": 0, "aggs": {"a": {"terms": {"field": "b"}}}})
    assert {b["key_as_string"] for b in answer["aggregations"]["a"]["buckets"]} == {
        "true",
        "false",
    }


def test_metric_and_filter_aggregations(gateway: Gateway) -> None:
    body = {
        "size": 0,
        "query": {"range": {"u": {"gte": 50}}},
        "aggs": {
            "low": {"min": {"field": "x"}},
            "high": {"max": {"field": "mi"}},
            "least": {"min": {"field": "mi"}},
            "last": {"max": {"field": "d"}},
            "values": {"value_count": {"field": "mi"}},
            "keys": {"value_count": {"field": "mk"}},
            "none": {"max": {"field": "nowhere"}},
            "one": {
                "filter": {"term": {"k": "AA"}},
                "aggs": {"i": {"terms": {"field": "i"}, "aggs": {"x": {"min": {"field": "x"}}}}},
            },
            "two": {
                "filters": {"filters": {"z": {"term": {"i": 1}}, "a": {"exists": {"field": "k"}}}}
            },
            "list": {"filters": {"filters": [{"term": {"i": 1}}, {"match_all": {}}]}},
        },
    }
    found = search(gateway, body)["aggregations"]
    chosen = [d for d in CORPUS.values() if d["u"] >= 50]

    def all_values(path: str) -> list[Any]:
        return [v for d in chosen for v in values(d, path)]

    assert found["low"]["value"] == min(all_values("x"))
    assert found["high"]["value"] == max(all_values("mi"))
    assert found["least"]["value"] == min(all_values("mi"))
    assert found["last"]["value"] == max(all_values("d"))
    moment = datetime.fromtimestamp(max(all_values("d")) / 1000, UTC)
    assert found["last"]["value_as_string"] == f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"
    assert found["values"]["value"] == len(all_values("mi"))
    assert found["keys"]["value"] == len(all_values("mk"))
    assert found["none"] == {"value": None}
    aa = [d for d in chosen if d.get("k") == "AA"]
    assert found["one"]["doc_count"] == len(aa)
    for bucket in found["one"]["i"]["buckets"]:
        inside = [d for d in aa if d.get("i") == bucket["key"]]
        assert bucket["doc_count"] == len(inside)
        least = min((v for d in inside for v in values(d, "x")), default=math.nan)
        assert bucket["x"]["value"] == (None if math.isnan(least) else least)
    one = sum(d.get("i") == 1 for d in chosen)
    keyed = sum(d.get("k") is not None for d in chosen)
    assert list(found["two"]["buckets"].items()) == [
        ("a", {"doc_count": keyed}),
        ("z", {"doc_count": one}),
    ]
    assert found["list"]["buckets"] == [{"doc_count": one}, {"doc_count": len(chosen)}]


def test_source_filters(gateway: Gateway) -> None:
    def source(value: Any) -> Any:
        body = {"query": {"ids": {"values": ["id-7"]}}, "_source": value}
        return search(gateway, body)["hits"]["hits"][0].get("_source")

    whole = CORPUS["id-7"]
    assert source(True) == whole
    assert source(False) is None
    assert source("u") == {"u": 7}
    assert source(["o.*", "t"]) == {"o": whole["o"], "t": whole["t"]}
    assert source("o") == {"o": whole["o"]}
    assert source({"excludes": ["m*", "o.under_score"]}) == {
        name: {} if name == "o" else value for name, value in whole.items() if name[0] != "m"
    }
    answer = gateway.ok("GET", f"/{INDEX}/_doc/id-7?_source_includes=u,t")
    assert answer["_source"] == {"u": 7, "t": whole["t"]}
    assert "_source" not in gateway.ok("GET", f"/{INDEX}/_doc/id-7?_source=false")


def test_parameters_in_the_url_win(gateway: Gateway) -> None:
    path = f"/{INDEX}/_search?size=2&sort=u:desc&from=1&_source=u&track_total_hits=false"
    answer = gateway.ok("POST", path, {"size": 5, "sort": "k"})
    assert ids(answer) == ["id-298", "id-297"]
    assert answer["hits"]["hits"][0]["_source"] == {"u": 298}
    assert "total" not in answer["hits"]


def test_multi_search_gives_each_search_its_own_answer(gateway: Gateway) -> None:
    lines = [
        '{"index":"things"}', '{"query":{"term":{"i":2}},"size":0}',
        '{"index":"missing"}', "{}",
        "{}", '{"query":{"match":{"t":"x"}}}',
        '{"index":["things"]}', '{"sort":"u","size":1}',
    ]  # fmt: skip
    found = gateway.ok("POST", f"/{INDEX}/_msearch", "\n".join(lines) + "\n")["responses"]
    assert [answer["status"] for answer in found] == [200, 404, 400, 200]
    assert found[0]["hits"]["total"]["value"] == sum(d.get("i") == 2 for d in CORPUS.values())
    assert found[1]["error"]["type"] == "index_not_found_exception"
    assert "match query" in found[2]["error"]["reason"]
    assert ids(found[3]) == ["id-0"]

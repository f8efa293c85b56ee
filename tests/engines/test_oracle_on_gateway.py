"""The oracle and the gateway, written apart from each other, agree on real servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from documents_fixture import CARRIERS, DESTINATIONS, documents, rows
from gateway_server import Parts, running
from refill.corpora.documents import Documents
from refill.load.wire import Address, Connection, prepare
from refill.operations import Request, RequestSet, load_operations
from refill.oracle.documents import DocumentOracle, Expected, judge

INDEX = "flights"


@dataclass
class Asked:
    method: str
    path: str
    body: bytes
    expected: Expected


@pytest.fixture(scope="module")
def corpus() -> Documents:
    return documents(rows(1200, seed=8))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, corpus: Documents) -> Iterator[Parts]:
    with running(tmp_path_factory.mktemp("gateway")) as parts:
        parts.gateway.ok("PUT", f"/{INDEX}", corpus.index_body())
        for body in corpus.bulk(INDEX, batch=500):
            answer = parts.gateway.ok("POST", f"/{INDEX}/_bulk", body)
            assert not answer["errors"]
        yield parts


def check(parts: Parts, requests: list[Any]) -> None:
    address = Address("127.0.0.1", parts.gateway.port)
    connection = Connection(address, 30)
    for request in requests:
        data = prepare(address, request.method, request.path, request.body or None)
        verdict = judge(request, *connection.request(data))
        assert verdict.status == "ok", verdict.detail
    connection.close()


def test_every_operation_is_answered_rightly_from_qdrant_and_from_the_cache(
    parts: Parts, corpus: Documents
) -> None:
    requests = RequestSet.build(load_operations(), corpus, 1, INDEX, "round")
    warm: list[Request] = [
        r for operation in load_operations().warm for r in requests.warm(operation.id)
    ]
    before = parts.gateway.stats()
    check(parts, warm)
    check(parts, warm)
    check(parts, requests.cold(60, 0, 1, "cold"))
    after = parts.gateway.stats()
    assert after["hits"] - before["hits"] == len(warm)
    assert after["misses"] - before["misses"] == len(warm) + 60
    assert after["fills"] - before["fills"] == len(warm) + 60


def test_a_document_that_was_written_twice_is_found(parts: Parts, corpus: Documents) -> None:
    oracle = DocumentOracle(corpus, INDEX)
    paths = [f"/{INDEX}/_doc/{row}" for row in (0, 8, corpus.count - 1)]
    requests = [Asked("GET", path, b"", oracle.expected("GET", path, None)) for path in paths]
    check(parts, requests)
    parts.gateway.ok("PUT", paths[1], corpus.sources[8])
    with pytest.raises(AssertionError, match="_version: expected 1, got 2"):
        check(parts, [requests[1]])
    # Deleted and loaded again it is version 1, and not what was loaded first.
    for method, body in (("DELETE", None), ("PUT", corpus.sources[8])):
        parts.gateway.ok(method, paths[1], body)
    with pytest.raises(AssertionError, match=r"_version: expected 1|_seq_no: expected 8"):
        check(parts, [requests[1]])


def test_a_wrong_document_is_found(parts: Parts, corpus: Documents) -> None:
    oracle = DocumentOracle(corpus, INDEX)
    path = f"/{INDEX}/_doc/7"
    request = Asked("GET", path, b"", oracle.expected("GET", path, None))
    check(parts, [request])
    try:
        parts.gateway.ok("PUT", path, corpus.sources[7] | {"distance": 1.0})
        with pytest.raises(AssertionError, match=r"_source\.distance: expected"):
            check(parts, [request])
    finally:
        parts.gateway.ok("PUT", path, corpus.sources[7])
    # Only that it was written since tells it from the first one.
    with pytest.raises(AssertionError, match="_version: expected 1, got 3"):
        check(parts, [request])


def draw_leaf(rng: random.Random) -> dict[str, Any]:
    number = rng.choice(["dep_delay", "arr_delay", "air_time", "distance", "flight", "flight_id"])
    # Whole-number fields too: a bound between two whole numbers must not be cut to one of them.
    bound = {rng.choice(["gt", "gte", "lt", "lte"]): rng.choice([-1, 3, 4.5, 20.25, 150, 700.5])}
    return rng.choice(
        [
            {"match_all": {}},
            {"term": {"carrier": rng.choice([*CARRIERS, "none"])}},
            {"term": {"flight": rng.randrange(1, 45)}},
            {"terms": {"dest": rng.sample(DESTINATIONS, 3)}},
            {"exists": {"field": rng.choice(["tailnum", "dep_delay"])}},
            {"range": {number: bound}},
            {"range": {"time_hour": {"gte": "2013-03-01T10:00:00Z", "lt": "2013-09-01T00:00:00Z"}}},
        ]
    )


def draw_query(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    if depth == 2 or rng.random() < 0.4:
        return draw_leaf(rng)
    clauses = rng.sample(["filter", "must", "must_not", "should"], rng.randrange(1, 3))
    parts = {name: [draw_query(rng, depth + 1) for _ in range(2)] for name in clauses}
    return {"bool": parts}


def test_drawn_searches_have_the_same_answers(parts: Parts, corpus: Documents) -> None:
    rng = random.Random(11)
    oracle = DocumentOracle(corpus, INDEX)
    requests = []
    for _ in range(120):
        fields = rng.sample(["carrier", "tailnum", "dep_delay", "flight", "time_hour"], 2)
        body: dict[str, Any] = {
            "query": draw_query(rng),
            "sort": [{f: {"order": rng.choice(["asc", "desc"])}} for f in [*fields, "flight_id"]],
            "size": rng.choice([1, 8, 40]),
            "track_total_hits": True,
        }
        if rng.random() < 0.5:
            body["aggs"] = {
                "top": {"terms": {"field": "dest", "size": 5}},
                "two": {"filters": {"filters": {name: draw_query(rng, 1) for name in "ab"}}},
            }
        # A cursor at a hit that has a value of every key.
        hits = oracle.page(body | {"size": 60})
        whole = [v for row, v in hits if all(f in corpus.sources[row] for f in fields)]
        if whole and rng.random() < 0.5:
            body["search_after"] = rng.choice(whole)
        path = f"/{INDEX}/_search"
        expected = oracle.expected("POST", path, body)
        requests.append(Asked("POST", path, orjson.dumps(body), expected))
    assert sum(request.expected.hits > 0 for request in requests) > 60
    check(parts, requests)

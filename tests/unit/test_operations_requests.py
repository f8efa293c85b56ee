"""Requests of a round: by seed, never twice where they are cold, and right answers that vary."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

import pytest
from documents_fixture import documents, rows
from refill.corpora.documents import Documents
from refill.operations import Operations, Request, RequestSet, load_operations
from refill.operations import requests as making
from refill.operations.requests import RequestError
from refill.oracle.columns import OracleError

PLACES = [(trial, clients) for clients in (1, 8) for trial in range(3)]


@pytest.fixture(scope="module")
def corpus() -> Documents:
    return documents(rows(1500))


@pytest.fixture(scope="module")
def operations() -> Operations:
    return load_operations()


def build(
    operations: Operations, corpus: Documents, seed: int = 1, round_id: str = "on-main/old-1"
) -> RequestSet:
    return RequestSet.build(operations, corpus, seed, "flights", round_id)


def sent(requests: list[Request]) -> list[tuple[str, str, bytes]]:
    return [(r.method, r.path, r.body) for r in requests]


def all_cold(requests: RequestSet, n: int = 200) -> list[Request]:
    return [r for trial, clients in PLACES for r in requests.cold(n, trial, clients, "cold")]


def test_warm_requests_are_few_distinct_and_the_same_in_every_round(
    operations: Operations, corpus: Documents
) -> None:
    one = build(operations, corpus)
    other = build(operations, corpus, round_id="on-main/new-2")
    for operation in operations.warm:
        requests = one.warm(operation.id)
        assert len(set(sent(requests))) == len(requests) == operations.bodies
        assert {r.operation for r in requests} == {operation.id}
        assert sent(other.warm(operation.id)) == sent(requests)
        assert sent(build(operations, corpus, seed=2).warm(operation.id)) != sent(requests)


def test_no_cold_request_is_made_twice_in_a_round(
    operations: Operations, corpus: Documents
) -> None:
    requests = build(operations, corpus)
    cold = all_cold(requests) + requests.cold(40, 0, 1, "warm-up")
    warm = [r for operation in operations.warm for r in requests.warm(operation.id)]
    bodies = Counter(sent(cold + warm))
    assert max(bodies.values()) == 1
    assert len(bodies) == 1240 + 5 * operations.bodies
    assert sorted(requests.by_key) == list(range(len(bodies)))
    assert all(requests.by_key[r.key] is r for r in cold + warm)


def test_the_requests_of_a_trial_are_not_given_twice(
    operations: Operations, corpus: Documents
) -> None:
    requests = build(operations, corpus)
    requests.cold(5, 0, 8, "cold")
    requests.cold(5, 1, 8, "cold")
    with pytest.raises(RequestError, match="cold, 8 clients, trial 0 were made already"):
        requests.cold(5, 0, 8, "cold")
    with pytest.raises(RequestError, match="no warm operation 'cold-filtered-page'"):
        requests.warm("cold-filtered-page")


def test_cold_requests_of_two_rounds_have_the_same_answers_under_other_keys(
    operations: Operations, corpus: Documents
) -> None:
    one = all_cold(build(operations, corpus))
    other = all_cold(build(operations, corpus, round_id="on-main/new-1"))
    assert not set(sent(one)) & set(sent(other))
    assert [r.expected.summary for r in one] == [r.expected.summary for r in other]
    # And the same round again is the same, byte for byte.
    assert sent(all_cold(build(operations, corpus))) == sent(one)


def test_answers_vary_and_pages_are_full(operations: Operations, corpus: Documents) -> None:
    cold = all_cold(build(operations, corpus), n=50)
    totals = {r.expected.answer["hits"]["total"]["value"] for r in cold}
    firsts = {r.expected.answer["hits"]["hits"][0]["_id"] for r in cold}
    assert len(totals) > 10
    assert len(firsts) >= 4
    assert {r.expected.hits for r in cold} == {25}


def test_the_fraction_that_makes_a_request_new_changes_no_answer(
    operations: Operations, corpus: Documents
) -> None:
    for request in build(operations, corpus).cold(100, 0, 1, "cold"):
        body: dict[str, Any] = json.loads(request.body)
        bound = body["query"]["bool"]["filter"][1]["range"]["distance"]["gte"]
        whole = int(bound)
        assert 200 <= whole <= 700
        assert whole < bound < whole + 1
        distances = corpus.frame()["distance"]
        assert ((distances >= bound) == (distances >= whole + 1)).all()


def test_a_cursor_is_the_place_of_a_hit_of_the_same_search(
    operations: Operations, corpus: Documents
) -> None:
    for request in build(operations, corpus).warm("page-after-cursor"):
        body = json.loads(request.body)
        delay, number = body["search_after"]
        source = corpus.sources[number]
        assert source["dep_delay"] == delay
        assert source["carrier"] == body["query"]["bool"]["filter"][0]["term"]["carrier"]
        found = [h["sort"] for h in request.expected.answer["hits"]["hits"]]
        assert len(found) == 25
        assert all((-d, n) > (-delay, number) for d, n in found)


def test_too_few_distinct_requests_or_hits_are_an_error(
    operations: Operations, corpus: Documents
) -> None:
    many = dataclasses.replace(operations, bodies=2000)
    with pytest.raises(RequestError, match=r"operations\.read-document: only 1\d\d\d distinct"):
        build(many, corpus)
    with pytest.raises(OracleError, match="too few for a cursor at hit 75"):
        build(operations, documents(rows(120)))


def test_a_round_has_a_bounded_number_of_cold_requests(
    operations: Operations, corpus: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "FRACTIONS", 10)
    requests = build(operations, corpus)
    requests.cold(10, 0, 1, "cold")
    with pytest.raises(RequestError, match="more than 10 cold requests"):
        requests.cold(1, 1, 1, "cold")

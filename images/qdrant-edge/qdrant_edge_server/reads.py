"""Reads over the visible layers of a collection: ask each, merge.

An id is live in one layer at most, so results are merged without looking for duplicates.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import UUID

import qdrant_edge as edge

from .checks import Json
from .errors import missing_point
from .filters import PointId, excluding
from .points import record_json, scored_json
from .search_requests import Facet, Scroll, Search
from .stack import LayerStack

# Distances where the smaller score is the better one.
_ASCENDING = frozenset(("Euclid", "Manhattan"))


def search(stack: LayerStack, request: Search) -> list[Json]:
    """The hits of one search, best first."""
    request = _resolved(stack, request)
    visible = stack.visible() or [stack.active]
    if len(visible) == 1:
        hits = visible[0].shard.query(request.request(request.limit, request.offset))
    else:
        wanted = request.limit + request.offset
        query = request.request(wanted, 0)
        hits = _merged(stack, request, [layer.shard.query(query) for layer in visible])
    return [scored_json(hit) for hit in hits]


def search_batch(stack: LayerStack, requests: list[Search]) -> list[list[Json]]:
    """The hits of several searches, planned as one batch in each layer."""
    if not requests:
        return []
    resolved = [_resolved(stack, request) for request in requests]
    batch = edge.QueryBatchRequest(
        [request.request(request.limit + request.offset, 0) for request in resolved]
    )
    visible = stack.visible() or [stack.active]
    answers = [layer.shard.query_batch(batch) for layer in visible]
    return [
        [scored_json(hit) for hit in _merged(stack, request, [answer[n] for answer in answers])]
        for n, request in enumerate(resolved)
    ]


def scroll(stack: LayerStack, request: Scroll) -> Json:
    """One page of points: `{"points": [...], "next_page_offset": id or null}`."""
    visible = stack.visible() or [stack.active]
    if len(visible) == 1:
        # As the engine gives them: in order already, and without an offset where that is by a key.
        records, offset = visible[0].shard.scroll(request.request(request.limit))
        return {"points": [record_json(record) for record in records], "next_page_offset": offset}
    if request.order_by is not None:
        query = request.request(request.limit)
        pages = [layer.shard.scroll(query)[0] for layer in visible]
        records = _by_order_value(pages, request.descending)[: request.limit]
        return {"points": [record_json(record) for record in records], "next_page_offset": None}
    query = request.request(request.limit + 1)
    pages = [layer.shard.scroll(query)[0] for layer in visible]
    merged = heapq.merge(*pages, key=lambda record: id_order(record.id))
    page = list(islice(merged, request.limit + 1))
    return {
        "points": [record_json(record) for record in page[: request.limit]],
        "next_page_offset": page[request.limit].id if len(page) > request.limit else None,
    }


def count(stack: LayerStack, request: edge.CountRequest) -> int:
    """Points that match."""
    return sum(layer.shard.count(request) for layer in stack.visible())


def facet(stack: LayerStack, request: Facet) -> list[Json]:
    """Values of a payload field with their counts: most frequent first, then by value."""
    visible = stack.visible() or [stack.active]
    # A value may be rare in one layer and frequent in another: ask for all values, then cut.
    limit = request.limit if len(visible) == 1 else max(layer.points() for layer in visible) + 1
    counts: dict[tuple[str, Any], int] = defaultdict(int)
    for layer in visible:
        for hit in layer.shard.facet(request.request(max(limit, request.limit))):
            # True and 1 are equal in Python and different values in Qdrant.
            counts[type(hit.value).__name__, hit.value] += hit.count
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return [{"value": value, "count": number} for (_, value), number in ordered[: request.limit]]


def retrieve(
    stack: LayerStack, ids: list[PointId], with_payload: Any, with_vector: Any
) -> list[Json]:
    """The points with these ids, in the order asked for; missing ones are left out."""
    found: dict[PointId, Json] = {}
    for layer in stack.visible():
        for record in layer.shard.retrieve(ids, with_payload, with_vector):
            found[record.id] = record_json(record)
    return [found[wanted] for wanted in dict.fromkeys(ids) if wanted in found]


def id_order(point_id: Any) -> tuple[int, int]:
    """Qdrant's order of ids: numbers first, then UUIDs."""
    return (1, point_id.int) if isinstance(point_id, UUID) else (0, point_id)


def _resolved(stack: LayerStack, request: Search) -> Search:
    """A search by a point's id as a search by its vector that leaves out the point."""
    if request.by_id is None:
        return request
    name = request.using
    points = retrieve(stack, [request.by_id], False, [name] if name else True)
    if not points:
        raise missing_point(request.by_id)
    vector: Any = points[0].get("vector")
    if isinstance(vector, dict):
        vector = vector.get(name)
    if vector is None:
        raise missing_point(f"{request.by_id} and vector `{name}`")
    if isinstance(vector, dict):
        vector = edge.SparseVector(vector["indices"], vector["values"])
    return replace(
        request, by_id=None, vector=vector, filter=excluding(request.filter, request.by_id)
    )


def _merged(
    stack: LayerStack, request: Search, answers: list[list[edge.ScoredPoint]]
) -> list[edge.ScoredPoint]:
    end = request.offset + request.limit
    if len(answers) == 1:
        hits = answers[0]
    elif request.order_by is not None:
        hits = _by_order_value(answers, request.descending)
    elif request.vector is None:
        hits = list(heapq.merge(*answers, key=lambda hit: id_order(hit.id)))
    else:
        params = stack.config.vectors.get(request.using)
        ascending = params is not None and params["distance"] in _ASCENDING
        hits = list(heapq.merge(*answers, key=lambda hit: hit.score, reverse=not ascending))
    return hits[request.offset : end]


def _by_order_value(pages: list[list[Any]], descending: bool) -> list[Any]:
    return sorted(
        (record for page in pages for record in page),
        key=lambda record: (record.order_value, id_order(record.id)),
        reverse=descending,
    )

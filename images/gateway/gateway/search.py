"""Searches: what a request asks for, and its answer from Qdrant."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.aggregations import Aggregator, inner_of
from gateway.errors import ApiError, illegal, parsing, unsupported
from gateway.identity import point_id
from gateway.mapping import IndexMapping
from gateway.paging import Cursor, Pager
from gateway.qdrant import Json, Qdrant
from gateway.query import QueryReader, uniform_score
from gateway.settings import Limits
from gateway.sorting import SEQUENCE, SortKey, read_sort, shown_values
from gateway.source_filter import SourceFilter, read_source, read_source_parameters

_BODY = frozenset((
    "query", "sort", "from", "size", "search_after", "_source", "aggs", "aggregations",
    "track_total_hits", "track_scores", "timeout", "explain", "profile", "version",
    "seq_no_primary_term",
))  # fmt: skip
_UNSUPPORTED = frozenset((
    "highlight", "fields", "docvalue_fields", "stored_fields", "script_fields", "runtime_mappings",
    "post_filter", "collapse", "suggest", "rescore", "pit", "knn", "min_score", "indices_boost",
    "slice", "terminate_after", "retriever", "rank", "ext", "stats", "sub_searches",
))  # fmt: skip
# Parameters that choose how Elasticsearch works, not what it answers.
NEUTRAL = frozenset((
    "pretty", "human", "error_trace", "preference", "request_cache", "ignore_unavailable",
    "allow_no_indices", "expand_wildcards", "ccs_minimize_roundtrips", "batched_reduce_size",
    "max_concurrent_shard_requests", "pre_filter_shard_size", "timeout", "ignore_throttled",
    "allow_partial_search_results", "max_concurrent_searches", "master_timeout",
    "wait_for_active_shards",
    "cluster_manager_timeout", "local", "realtime", "refresh",
))  # fmt: skip
_PARAMETERS = (
    "from", "size", "sort", "_source", "_source_includes", "_source_excludes", "track_total_hits",
    "search_type", "typed_keys", "rest_total_hits_as_int",
)  # fmt: skip
_SHARDS = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}


@dataclass
class Search:
    """A search, read and checked.

    Attributes:
        conditions: Qdrant's filter.
        score: of every hit, when there is no sort.
        keys: the sort; empty for the order in which documents were written.
    """

    conditions: Json
    sorted: bool
    keys: list[SortKey]
    score: float | None
    after: Cursor | None
    start: int
    size: int
    source: SourceFilter
    total: bool
    aggregations: Any


class Searcher:
    """Searches in one index.

    Attributes:
        calls: how many calls to Qdrant the answer took; an answer of one call is one state.
    """

    def __init__(
        self, qdrant: Qdrant, index: str, collection: str, mapping: IndexMapping, limits: Limits
    ) -> None:
        self._qdrant = qdrant
        self._index = index
        self._collection = collection
        self._mapping = mapping
        self._limits = limits
        self._reader = QueryReader(mapping, collection, limits)

    def read(self, body: Any, parameters: dict[str, str]) -> Search:
        """Read a search request.

        Raises:
            ApiError: 400, it is wrong, too large or not supported.
        """
        body = _merged(body, parameters)
        for name, value in body.items():
            if name in _UNSUPPORTED:
                raise unsupported(f"search with {name}")
            if name not in _BODY:
                raise parsing(f"unknown key [{name}] in the search request")
            if name in ("explain", "profile", "version", "seq_no_primary_term") and value:
                raise unsupported(f"search with {name}")
        query = body.get("query")
        if query is None:
            query = {"match_all": {}}
        conditions = self._reader.filter(query)
        keys = read_sort(body.get("sort"), self._mapping)
        if keys is not None and body.get("track_scores"):
            raise unsupported("track_scores with a sort")
        start, size = self._window(body)
        score = None
        if keys is None and size:
            score = uniform_score(query, self._mapping)
        total = body.get("track_total_hits", True)
        if total is not False and total is not True and (type(total) is not int or total < -1):
            raise parsing("[track_total_hits] must be a boolean or a whole number")
        source = read_source_parameters(parameters) or read_source(body.get("_source"))
        aggregations = inner_of(body)
        return Search(
            conditions=conditions,
            sorted=keys is not None,
            keys=keys or [],
            score=score,
            after=_cursor(body.get("search_after"), keys, start),
            start=start,
            size=size,
            source=source,
            total=total is not False,
            aggregations=aggregations,
        )

    def _window(self, body: Json) -> tuple[int, int]:
        start, size = body.get("from", 0), body.get("size", 10)
        for name, value in (("from", start), ("size", size)):
            if type(value) is not int or value < 0:
                raise illegal(f"[{name}] parameter cannot be negative, or is no number: [{value}]")
        if start + size > self._limits.window:
            raise illegal(
                "Result window is too large, from + size must be less than or equal to: "
                f"[{self._limits.window}] but was [{start + size}]. Use search_after for more."
            )
        return start, size

    async def search(self, search: Search) -> Json:
        """Answer a search."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        beside: list[asyncio.Task[Any]] = []
        if search.total:
            counting = self._qdrant.count(self._collection, search.conditions)
            beside.append(loop.create_task(counting))
        if search.aggregations is not None:
            beside.append(loop.create_task(self._aggregations(search)))
        try:
            # Those tasks begin when this one waits, so the page, which is the longest, is asked for
            # first; and it is made ready to be sent while Qdrant is still at the others.
            page = self._hits(search, await self._page(search)) if search.size else []
            shown = orjson.Fragment(orjson.dumps(page))
            found = iter([await task for task in beside])
        except BaseException:
            _give_up(beside)
            raise
        hits: Json = {}
        if search.total:
            hits["total"] = {"value": next(found), "relation": "eq"}
        hits["max_score"] = None if search.sorted or not page else search.score
        hits["hits"] = shown
        out: Json = {
            "took": int((time.monotonic() - began) * 1000),
            "timed_out": False,
            "_shards": _SHARDS,
            "hits": hits,
        }
        if search.aggregations is not None:
            out["aggregations"] = next(found)
        return out

    async def count(self, body: Any) -> Json:
        """Answer a count."""
        body = {} if body is None else body
        if not isinstance(body, dict):
            raise parsing("the body of _count must be an object")
        for name in body:
            if name != "query":
                raise parsing(f"request does not support [{name}]")
        query = body.get("query")
        conditions = {} if query is None else self._reader.filter(query)
        count = await self._qdrant.count(self._collection, conditions)
        return {"count": count, "_shards": _SHARDS}

    async def _page(self, search: Search) -> list[Json]:
        """The documents in front of a page, of the page, and the one behind it."""
        # The one behind tells whether the last hit is tied with the next.
        need = search.start + search.size + 1
        payload = ["id", "seq", *dict.fromkeys(k.payload_key for k in search.keys if k.field)]
        lean = search.start > search.size + 50
        if search.source.wanted and not lean:
            payload.append("src")
        distinct = self._limits.distinct
        pager = Pager(self._qdrant, self._collection, search.keys, payload, distinct)
        documents = await pager.page(search.conditions, need, search.after)
        if search.source.wanted and lean:
            await self._add_sources(documents[search.start : search.start + search.size])
        return documents

    async def _add_sources(self, documents: list[Json]) -> None:
        if not documents:
            return
        ids = [point_id(self._collection, document["id"]) for document in documents]
        points = await self._qdrant.retrieve(self._collection, ids, ["id", "src"])
        found = {point["payload"]["id"]: point["payload"]["src"] for point in points}
        for document in documents:
            if document["id"] not in found:
                raise ApiError(
                    503,
                    "search_phase_execution_exception",
                    "the index was written to while it was read; try again",
                )
            document["src"] = found[document["id"]]

    async def _aggregations(self, search: Search) -> Json:
        aggregator = Aggregator(
            self._qdrant, self._collection, self._reader, self._mapping.get, self._limits
        )
        return await aggregator.compute(search.aggregations, search.conditions)

    def _hits(self, search: Search, documents: list[Json]) -> list[Json]:
        index, source = self._index, search.source
        score = None if search.sorted else search.score
        end = search.start + search.size
        hits: list[Json] = []
        for document in documents[search.start : end]:
            hit: Json = {"_index": index, "_id": document["id"], "_score": score}
            if source.wanted:
                hit["_source"] = source.apply(document["src"])
            hits.append(hit)
        if search.sorted:
            # The document behind the page tells of the page's last.
            shown = shown_values(documents[search.start : end + 1], search.keys)
            for n, hit in enumerate(hits):
                hit["sort"] = values = shown[n]
                if values in shown[n + 1 : n + 2]:
                    # So that it can be a cursor without loss: which of the equals it is.
                    hit["sort"] = [*values, documents[search.start + n]["seq"]]
        return hits


def _give_up(tasks: list[asyncio.Task[Any]]) -> None:
    """End tasks whose results are not wanted any more."""
    for task in tasks:
        # One that has failed by now would be reported if nobody looked at its error.
        if not task.cancel() and not task.cancelled():
            task.exception()


def _merged(body: Any, parameters: dict[str, str]) -> Json:
    """A search's body with what its URL says; the URL wins, as in Elasticsearch."""
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise parsing("the body of a search must be an object")
    out = dict(body)
    for name, value in parameters.items():
        if name in NEUTRAL:
            continue
        if name in ("q", "df", "analyzer", "scroll", "suggest_field", "filter_path", "routing"):
            raise unsupported(f"the parameter {name}")
        if name not in _PARAMETERS:
            raise illegal(f"request contains unrecognized parameter: [{name}]")
        if name in ("from", "size"):
            if not (value.isascii() and value.isdigit()):
                raise illegal(f"Failed to parse int parameter [{name}] with value [{value}]")
            out[name] = int(value)
        elif name == "sort":
            out[name] = [_sort_parameter(part) for part in value.split(",") if part]
        elif name == "track_total_hits":
            out[name] = {"true": True, "false": False}.get(value, value)
            if isinstance(out[name], str) and value.lstrip("-").isdecimal():
                out[name] = int(value)
        elif name == "search_type":
            if value != "query_then_fetch":
                raise unsupported(f"search_type {value}")
        elif name in ("typed_keys", "rest_total_hits_as_int") and value != "false":
            raise unsupported(f"the parameter {name}")
    return out


def _sort_parameter(text: str) -> Any:
    path, colon, order = text.rpartition(":")
    return {path: {"order": order}} if colon else text


def _cursor(value: Any, keys: list[SortKey] | None, start: int) -> Cursor | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise parsing("[search_after] must be an array")
    if keys is None:
        raise illegal("Sort must contain at least one field.")
    if start:
        raise illegal("`from` parameter must be set to 0 when `search_after` is used")
    # One more value than keys: the place among documents that are equal in all of them.
    if len(value) not in (len(keys), len(keys) + 1):
        raise illegal(f"search_after has {len(value)} value(s) but sort has {len(keys)}.")
    every = [*keys, SEQUENCE]
    return tuple(key.cursor(item) for key, item in zip(every, value, strict=False))

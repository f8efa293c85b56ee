"""Bodies of the read requests: query, scroll, count, facet, retrieve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import qdrant_edge as edge

from .checks import Json, as_object, boolean, choice, integer, kind, number, only, required, text
from .errors import bad_body, unsupported
from .filters import PointId, parse_filter, point_id
from .points import sparse_vector

_DIRECTIONS = {"asc": edge.Direction.Asc, "desc": edge.Direction.Desc}
_OTHER_QUERIES = (
    "recommend",
    "discover",
    "context",
    "fusion",
    "rrf",
    "formula",
    "sample",
    "mmr",
    "relevance_feedback",
    "text",
)
_QUERY_FIELDS = frozenset((
    "shard_key", "prefetch", "query", "using", "filter", "params", "score_threshold", "limit",
    "offset", "with_vector", "with_payload", "lookup_from",
))  # fmt: skip
_SCROLL_FIELDS = frozenset((
    "offset", "limit", "filter", "with_payload", "with_vector", "order_by", "shard_key",
))  # fmt: skip
_COUNT_FIELDS = frozenset(("filter", "exact", "shard_key"))
_ORDER_FIELDS = frozenset(("key", "direction", "start_from"))


@dataclass
class Search:
    """A parsed `points/query` body. Exactly one of `vector`, `by_id`, `order_by` is set, or none
    of them for a listing by id."""

    vector: Any
    by_id: PointId | None
    order_by: edge.OrderBy | None
    descending: bool
    using: str
    filter: edge.Filter | None
    params: edge.SearchParams | None
    score_threshold: float | None
    limit: int
    offset: int
    with_payload: Any
    with_vector: Any

    def request(self, limit: int, offset: int) -> edge.QueryRequest:
        """The wheel's request for one layer. A `by_id` search has got its `vector` before."""
        query: Any = self.order_by
        if self.vector is not None:
            query = edge.Query.Nearest(self.vector, using=self.using or None)
        return edge.QueryRequest(
            limit=limit,
            offset=offset,
            query=query,
            with_vector=self.with_vector,
            with_payload=self.with_payload,
            filter=self.filter,
            score_threshold=self.score_threshold,
            params=self.params,
        )


@dataclass(slots=True)
class Scroll:
    """A parsed `points/scroll` body."""

    offset: PointId | None
    limit: int
    filter: edge.Filter | None
    order_by: edge.OrderBy | None
    descending: bool
    with_payload: Any
    with_vector: Any

    def request(self, limit: int) -> edge.ScrollRequest:
        """The wheel's request for one layer."""
        return edge.ScrollRequest(
            offset=self.offset,
            limit=limit,
            filter=self.filter,
            with_payload=self.with_payload,
            with_vector=self.with_vector,
            order_by=self.order_by,
        )


@dataclass
class Facet:
    """A parsed `facet` body."""

    key: str
    limit: int
    filter: edge.Filter | None
    exact: bool

    def request(self, limit: int) -> edge.FacetRequest:
        """The wheel's request for one layer."""
        return edge.FacetRequest(self.key, limit=limit, exact=self.exact, filter=self.filter)


def parse_search(body: Any, where: str = "body") -> Search:
    """One search of `points/query`; a 400 names an unknown field or an unsupported query."""
    fields = only(body, _QUERY_FIELDS, where)
    for feature in ("prefetch", "lookup_from", "shard_key"):
        if fields.get(feature) not in (None, []):
            raise unsupported(feature)
    search = Search(
        vector=None,
        by_id=None,
        order_by=None,
        descending=False,
        using=text(fields, "using", where) or "",
        filter=parse_filter(fields.get("filter")),
        params=_search_params(fields.get("params")),
        score_threshold=number(fields, "score_threshold", where),
        limit=_limit(fields, where),
        offset=integer(fields, "offset", where) or 0,
        with_payload=_with_payload(fields.get("with_payload"), default=False),
        with_vector=_with_vector(fields.get("with_vector")),
    )
    _read_query(search, fields.get("query"))
    return search


def parse_scroll(body: Any) -> Scroll:
    """The body of `points/scroll`."""
    fields = only(body, _SCROLL_FIELDS)
    if fields.get("shard_key") is not None:
        raise unsupported("shard_key")
    offset = fields.get("offset")
    order_by, descending = None, False
    if fields.get("order_by") is not None:
        if offset is not None:
            raise bad_body(
                "Cannot use an `offset` when using `order_by`. The alternative for "
                "paging is to use `order_by.start_from` and a filter to exclude the "
                "IDs that you've already seen for the `order_by.start_from` value"
            )
        order_by, descending = _order_by(fields["order_by"])
    return Scroll(
        offset=None if offset is None else point_id(offset, "offset"),
        limit=_limit(fields, "body"),
        filter=parse_filter(fields.get("filter")),
        order_by=order_by,
        descending=descending,
        with_payload=_with_payload(fields.get("with_payload"), default=True),
        with_vector=_with_vector(fields.get("with_vector")),
    )


def parse_count(body: Any) -> edge.CountRequest:
    """The body of `points/count`."""
    fields = only(body, _COUNT_FIELDS)
    if fields.get("shard_key") is not None:
        raise unsupported("shard_key")
    exact = boolean(fields, "exact")
    return edge.CountRequest(exact is not False, parse_filter(fields.get("filter")))


def parse_facet(body: Any) -> Facet:
    """The body of `facet`."""
    fields = only(body, ("key", "limit", "filter", "exact", "shard_key"))
    if fields.get("shard_key") is not None:
        raise unsupported("shard_key")
    required(fields, "key")
    return Facet(
        key=text(fields, "key") or "",
        limit=_limit(fields, "body"),
        filter=parse_filter(fields.get("filter")),
        exact=boolean(fields, "exact") or False,
    )


def parse_retrieve(body: Any) -> tuple[Any, Any, Any]:
    """The body of `POST points`: ids (unread), with_payload, with_vector."""
    fields = only(body, ("ids", "with_payload", "with_vector", "shard_key"))
    if fields.get("shard_key") is not None:
        raise unsupported("shard_key")
    return (
        required(fields, "ids"),
        _with_payload(fields.get("with_payload"), default=True),
        _with_vector(fields.get("with_vector")),
    )


def _read_query(search: Search, query: Any) -> None:
    if query is None:
        return
    if isinstance(query, dict):
        for name in _OTHER_QUERIES:
            if name in query:
                raise unsupported(f"{name} query")
        if "order_by" in query:
            only(query, ("order_by",), "query")
            search.order_by, search.descending = _order_by(query["order_by"])
            return
        if "nearest" in query:
            if query.get("mmr") is not None:
                raise unsupported("mmr query")
            query = only(query, ("nearest", "mmr"), "query")["nearest"]
    if isinstance(query, dict):
        search.vector = sparse_vector(query, "query")
    elif isinstance(query, list):
        if not query:
            raise bad_body("query: expected a vector, got an empty array")
        rows = query if isinstance(query[0], list) else [query]
        for row in rows:
            if not isinstance(row, list) or not {int, float}.issuperset(map(type, row)):
                raise bad_body("query: expected an array of numbers")
        search.vector = query
    else:
        search.by_id = point_id(query, "query")


def _order_by(value: Any) -> tuple[edge.OrderBy, bool]:
    where = "order_by"
    fields: Json = {"key": value} if isinstance(value, str) else as_object(value, where)
    only(fields, _ORDER_FIELDS, where)
    required(fields, "key", where)
    direction = fields.get("direction")
    if direction is not None:
        direction = choice(direction, _DIRECTIONS, f"{where}.direction")
    start_from = fields.get("start_from")
    if start_from is not None and type(start_from) not in (int, float, str):
        raise bad_body(
            f"{where}.start_from: expected a number or a date and time, got {kind(start_from)}"
        )
    try:
        order_by = edge.OrderBy(text(fields, "key", where) or "", direction, start_from)
    except (TypeError, ValueError) as error:
        raise bad_body(f"{where}.start_from: not a number or a date and time: {error}") from error
    return order_by, direction is edge.Direction.Desc or direction == edge.Direction.Desc


def _search_params(value: Any) -> edge.SearchParams | None:
    if value is None:
        return None
    where = "params"
    fields = only(
        value, ("hnsw_ef", "exact", "quantization", "indexed_only", "acorn", "idf"), where
    )
    if fields.get("idf") is not None:
        raise unsupported("idf search parameters")
    quantization = acorn = None
    if fields.get("quantization") is not None:
        place = f"{where}.quantization"
        inner = only(fields["quantization"], ("ignore", "rescore", "oversampling"), place)
        quantization = edge.QuantizationSearchParams(
            boolean(inner, "ignore", place) or False,
            boolean(inner, "rescore", place),
            number(inner, "oversampling", place),
        )
    if fields.get("acorn") is not None:
        place = f"{where}.acorn"
        inner = only(fields["acorn"], ("enable", "max_selectivity"), place)
        acorn = edge.AcornSearchParams(
            boolean(inner, "enable", place) or False, number(inner, "max_selectivity", place)
        )
    return edge.SearchParams(
        hnsw_ef=integer(fields, "hnsw_ef", where),
        exact=boolean(fields, "exact", where) or False,
        quantization=quantization,
        indexed_only=boolean(fields, "indexed_only", where) or False,
        acorn=acorn,
    )


def _limit(fields: Json, where: str) -> int:
    limit = integer(fields, "limit", where, least=1)
    return 10 if limit is None else limit


def _with_payload(value: Any, default: bool) -> Any:
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return edge.PayloadSelector.Include(_names(value, "with_payload"))
    fields = only(value, ("include", "exclude"), "with_payload")
    if len(fields) != 1:
        raise bad_body("with_payload: exactly one of `include` and `exclude` must be given")
    if "include" in fields:
        return edge.PayloadSelector.Include(_names(fields["include"], "with_payload.include"))
    return edge.PayloadSelector.Exclude(_names(fields["exclude"], "with_payload.exclude"))


def _with_vector(value: Any) -> Any:
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    return _names(value, "with_vector")


def _names(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or any(not isinstance(name, str) for name in value):
        raise bad_body(f"{where}: expected an array of strings")
    return value

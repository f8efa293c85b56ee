"""Aggregations, by exact facets and counts."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.errors import illegal, parsing, unsupported
from gateway.fields import Field, Value
from gateway.qdrant import Json, Qdrant
from gateway.query import QueryReader, conjunction, equal, exists
from gateway.settings import Limits

_SUPPORTED = ("terms", "filter", "filters", "min", "max", "value_count")
_METRICS = ("min", "max", "value_count")
# Of a document with very many values, Qdrant is asked once for each number of values.
_MOST_VALUES = 64


def inner_of(body: Json) -> Any:
    """The aggregations in a body, by either of their names; None without any.

    Raises:
        ApiError: 400, both names are there.
    """
    if "aggs" in body and "aggregations" in body:
        raise parsing("[aggs] and [aggregations] are two names of one thing: give one of them")
    return body.get("aggs", body.get("aggregations"))


class Aggregator:
    """Computes the aggregations of one request.

    Raises:
        ApiError: 400, from every method: wrong, too large or not supported.
    """

    def __init__(
        self,
        qdrant: Qdrant,
        collection: str,
        reader: QueryReader,
        field: Any,
        limits: Limits,
    ) -> None:
        self._qdrant = qdrant
        self._collection = collection
        self._reader = reader
        self._field_of = field
        self._limits = limits
        self._computed = 0

    async def compute(self, aggregations: Any, conditions: Json, depth: int = 0) -> Json:
        """Compute aggregations by name over the documents that match."""
        if depth == 0:
            # All of it, as the aggregations below a terms without buckets are never computed.
            self._check(aggregations, 0)
        # One after the other: a bucket's bound counts all that were computed before it.
        return {
            name: await self._one(body, conditions, depth) for name, body in aggregations.items()
        }

    def _check(self, aggregations: Any, depth: int) -> None:
        if not isinstance(aggregations, dict):
            raise parsing("[aggs] must be an object of aggregations by name")
        if depth > self._limits.depth:
            raise illegal(f"aggregations nest deeper than [{self._limits.depth}]")
        for name, body in aggregations.items():
            self._check_one(name, body)
            self._check(inner_of(body) or {}, depth + 1)

    def _check_one(self, name: str, body: Any) -> None:
        if not name or any(sign in name for sign in "[]>"):
            raise parsing(
                f"Invalid aggregation name [{name}]. Aggregation names can contain any character "
                "except '[', ']', and '>'"
            )
        if not isinstance(body, dict):
            raise parsing(f"Aggregation definition for [{name}] must be an object")
        kinds = [kind for kind in body if kind not in ("aggs", "aggregations", "meta")]
        if len(kinds) != 1:
            raise parsing(f"Expected one aggregation type in [{name}], found {sorted(kinds)}")
        if kinds[0] not in _SUPPORTED:
            raise unsupported(f"{kinds[0]} aggregation")
        if "meta" in body:
            raise unsupported("meta of an aggregation")
        if kinds[0] in _METRICS and ("aggs" in body or "aggregations" in body):
            raise parsing(
                f"Aggregator [{name}] of type [{kinds[0]}] cannot accept sub-aggregations"
            )

    async def _one(self, body: Json, conditions: Json, depth: int) -> Json:
        self._computed += 1
        if self._computed > self._limits.aggregations:
            raise illegal(
                f"the request needs more than [{self._limits.aggregations}] aggregations, one for "
                "each bucket that has sub-aggregations; ask for fewer buckets"
            )
        inner = inner_of(body)
        kind = next(kind for kind in body if kind in _SUPPORTED)
        options = body[kind]
        if kind == "filter":
            return await self._bucket(self._reader.filter(options), conditions, inner, depth)
        if not isinstance(options, dict):
            raise parsing(f"[{kind}] aggregation must be an object")
        if kind == "filters":
            return await self._filters(options, conditions, inner, depth)
        if kind == "terms":
            return await self._terms(options, conditions, inner, depth)
        return await self._metric(kind, options, conditions)

    async def _bucket(self, own: Json, conditions: Json, inner: Any, depth: int) -> Json:
        matching = conjunction(conditions, own)
        out: Json = {"doc_count": await self._qdrant.count(self._collection, matching)}
        if inner:
            out.update(await self.compute(inner, matching, depth + 1))
        return out

    async def _filters(self, options: Json, conditions: Json, inner: Any, depth: int) -> Json:
        for name in options:
            if name in ("other_bucket", "other_bucket_key", "keyed"):
                raise unsupported(f"filters aggregation with {name}")
            if name != "filters":
                raise parsing(f"[filters] unknown field [{name}]")
        filters = options.get("filters")
        if not isinstance(filters, dict | list) or not filters:
            raise parsing("[filters] must be a non-empty object or array of queries")
        if len(filters) > self._limits.aggregations:
            raise illegal(f"[filters] takes at most [{self._limits.aggregations}] filters")
        named = isinstance(filters, dict)
        queries = list(filters.values()) if isinstance(filters, dict) else filters
        own = [self._reader.filter(query) for query in queries]
        if inner:
            buckets = [await self._bucket(part, conditions, inner, depth) for part in own]
        else:
            counts = await asyncio.gather(
                *(self._bucket(part, conditions, inner, depth) for part in own)
            )
            buckets = list(counts)
        if named:
            # Elasticsearch gives named buckets in the order of their names.
            return {"buckets": dict(sorted(zip(filters, buckets, strict=True)))}
        return {"buckets": buckets}

    def _field(self, kind: str, options: Json, allowed: tuple[str, ...]) -> Field | None:
        for name in options:
            if name in _KNOWN.get(kind, ()):
                raise unsupported(f"{kind} aggregation with {name}")
            if name not in allowed:
                raise parsing(f"[{kind}] unknown field [{name}]")
        path = options.get("field")
        if not isinstance(path, str):
            raise parsing(f"[{kind}] aggregation needs a [field]")
        field: Field | None = self._field_of(path)
        if field is None:
            if path.startswith("_"):
                raise unsupported(f"{kind} aggregation on {path}")
            return None
        if not field.indexed:
            raise illegal(
                f"Field [{path}] of type [{field.kind}] cannot be aggregated: it has no values in "
                "an index; use a keyword field or subfield"
            )
        return field

    async def _terms(self, options: Json, conditions: Json, inner: Any, depth: int) -> Json:
        allowed = ("field", "size", "order", "min_doc_count", "shard_size")
        field = self._field("terms", options, allowed)
        size = _whole("size", options.get("size", 10), 1, self._limits.distinct)
        _whole("shard_size", options.get("shard_size", size), 1, 2**31)
        least = _whole("min_doc_count", options.get("min_doc_count", 1), 0, 2**31)
        if least == 0:
            raise unsupported("terms aggregation with min_doc_count 0")
        orders = _orders(options.get("order"))
        out: Json = {"doc_count_error_upper_bound": 0, "sum_other_doc_count": 0, "buckets": []}
        if field is None:
            return out
        if field.index_kind == "float":
            raise unsupported(f"terms aggregation on the {field.kind} field [{field.path}]")
        counts = await self._qdrant.facet(
            self._collection, conditions, field.key, self._limits.distinct + 1
        )
        if len(counts) > self._limits.distinct:
            raise illegal(
                f"terms aggregation on [{field.path}]: more than [{self._limits.distinct}] "
                "distinct values; narrow the query"
            )
        kept = [entry for entry in counts if entry[1] >= least]
        for by_count, descending in reversed(orders):
            kept.sort(
                key=(lambda entry: entry[1]) if by_count else (lambda entry: entry[0]),
                reverse=descending,
            )
        out["sum_other_doc_count"] = sum(count for _, count in kept[size:])
        for value, count in kept[:size]:
            bucket: Json = {"key": field.shown(value)}
            shown = field.as_string(value)
            if shown is not None:
                bucket["key_as_string"] = shown
            bucket["doc_count"] = count
            if inner:
                own = conjunction(conditions, {"must": [equal(field, value)]})
                bucket.update(await self.compute(inner, own, depth + 1))
            out["buckets"].append(bucket)
        return out

    async def _metric(self, kind: str, options: Json, conditions: Json) -> Json:
        field = self._field(kind, options, ("field",))
        if kind == "value_count":
            return {"value": 0 if field is None else await self._value_count(field, conditions)}
        if field is None:
            return {"value": None}
        if field.kind == "keyword":
            raise illegal(
                f"Field [{field.path}] of type [keyword] is not supported for aggregation [{kind}]"
            )
        order = {"key": field.key, "direction": "asc" if kind == "min" else "desc"}
        found = await self._qdrant.scroll(self._collection, conditions, 1, [field.key], order)
        if not found:
            return {"value": None}
        value: Any = found[0]["payload"]["f"][field.payload]
        if isinstance(value, list):
            value = min(value) if kind == "min" else max(value)
        return _metric_value(field, value)

    async def _value_count(self, field: Field, conditions: Json) -> int:
        matching = conjunction(conditions, exists(field))
        total = await self._qdrant.count(self._collection, matching)
        if not field.multi:
            return total
        at_least, number = total, 1
        while at_least:
            number += 1
            if number > _MOST_VALUES:
                raise illegal(
                    f"value_count on [{field.path}]: a document has more than [{_MOST_VALUES}] "
                    "values"
                )
            wanted: Json = {"must": [{"key": field.key, "values_count": {"gte": number}}]}
            at_least = await self._qdrant.count(self._collection, conjunction(conditions, wanted))
            total += at_least
        return total


_KNOWN = {
    "terms": (
        "missing", "include", "exclude", "script", "collect_mode", "execution_hint", "format",
        "value_type", "show_term_doc_count_error", "shard_min_doc_count",
    ),
    "min": ("missing", "script", "format"),
    "max": ("missing", "script", "format"),
    "value_count": ("missing", "script", "format"),
}  # fmt: skip


def _metric_value(field: Field, value: Value) -> Json:
    # Elasticsearch computes min and max as doubles; those of a float32 show all their digits.
    out: Json = {"value": float(value)}
    shown = field.as_string(value)
    if shown is not None:
        out["value_as_string"] = shown
    return out


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise illegal(f"[{name}] must be a whole number from {least} to {most}, found [{value}]")
    return value


def _orders(value: Any) -> list[tuple[bool, bool]]:
    """Read `order` as (by count, descending) pairs; the key ends it, so that it is total."""
    if value is None:
        value = {"_count": "desc"}
    orders: list[tuple[bool, bool]] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or len(item) != 1:
            raise parsing("[order] of a terms aggregation must be objects of one key each")
        ((name, direction),) = item.items()
        if name not in ("_count", "_key"):
            raise unsupported(f"terms aggregation ordered by {name}", "use _count or _key")
        if direction not in ("asc", "desc"):
            raise parsing(f"Unknown terms order direction [{direction}]")
        orders.append((name == "_count", direction == "desc"))
    return [*orders, (False, False)]

"""Elasticsearch's query DSL as Qdrant's filters, exactly or not at all."""

from __future__ import annotations

from typing import Any

from gateway.dates import parse_formats, read_date
from gateway.errors import ApiError, illegal, parsing, unsupported
from gateway.fields import EXACT, FLOATS, Field, as_boolean, as_number, as_text
from gateway.identity import point_id
from gateway.mapping import IndexMapping
from gateway.qdrant import Condition, Json
from gateway.settings import Limits

NEVER: Condition = {"has_id": []}

_UNSUPPORTED = frozenset((
    "match", "match_phrase", "match_phrase_prefix", "match_bool_prefix", "multi_match",
    "query_string", "simple_query_string", "combined_fields", "intervals", "fuzzy", "prefix",
    "regexp", "wildcard", "terms_set", "nested", "has_child", "has_parent", "parent_id",
    "function_score", "script_score", "script", "boosting", "dis_max", "knn", "more_like_this",
    "percolate", "rank_feature", "distance_feature", "pinned", "geo_bounding_box", "geo_distance",
    "geo_polygon", "geo_shape", "shape", "span_term", "span_near", "span_or", "span_not",
    "span_first", "span_multi", "wrapper", "semantic", "sparse_vector", "text_expansion", "rule",
    "weighted_tokens",
))  # fmt: skip


class QueryReader:
    """Translates the queries of one request; counts their clauses.

    Args:
        mapping: of the index.
        collection: of the index; a document's point id depends on it.
        limits: depth, clauses and terms.
    """

    def __init__(self, mapping: IndexMapping, collection: str, limits: Limits) -> None:
        self._mapping = mapping
        self._collection = collection
        self._limits = limits
        self._clauses = 0

    def filter(self, query: Any) -> Json:
        """A query as a whole filter; `{}` matches everything.

        Raises:
            ApiError: 400, it is wrong, too large, or not supported.
        """
        condition = self._read(query, 0)
        if condition is None:
            return {}
        is_filter = condition.keys() <= {"must", "should", "must_not", "min_should"}
        return condition if is_filter else {"must": [condition]}

    def _read(self, query: Any, depth: int) -> Condition | None:
        """A query as a condition; None matches everything."""
        if depth > self._limits.depth:
            raise illegal(
                f"The nested depth of the query exceeds the maximum of [{self._limits.depth}]"
            )
        self._clauses += 1
        if self._clauses > self._limits.clauses:
            raise ApiError(
                400,
                "too_many_nested_clauses",
                f"Query contains too many nested clauses; maxClauseCount is set to "
                f"{self._limits.clauses}",
            )
        if not isinstance(query, dict):
            raise parsing("[_na] query malformed, must start with start_object")
        if len(query) != 1:
            raise parsing(
                "query malformed, empty clause found"
                if not query
                else f"[{next(iter(query))}] malformed query, expected one query, found several: "
                f"{sorted(query)}"
            )
        ((name, body),) = query.items()
        if name in _UNSUPPORTED:
            raise unsupported(f"{name} query")
        if name == "bool":
            return self._bool(body, depth)
        if name not in _LEAVES and name != "constant_score":
            raise parsing(f"unknown query [{name}]")
        if not isinstance(body, dict):
            raise parsing(f"[{name}] query malformed, no start_object after query name")
        body = dict(body)
        _no_boost(name, body)
        if name == "constant_score":
            _only(name, body, ("filter",))
            return self._read(body.get("filter"), depth + 1)
        if name == "match_all":
            _only(name, body, ())
            return None
        if name == "exists":
            return self._exists(body)
        if name == "ids":
            return self._ids(body)
        if len(body) != 1:
            raise parsing(
                f"[{name}] query doesn't support multiple fields, found {sorted(body)}"
                if body
                else f"[{name}] query requires a field"
            )
        ((path, value),) = body.items()
        if name == "term":
            return self._term(path, value)
        if name == "terms":
            return self._terms(path, value)
        return self._range(path, value)

    def _bool(self, body: Any, depth: int) -> Condition | None:
        if not isinstance(body, dict):
            raise parsing("[bool] query malformed, no start_object after query name")
        body = dict(body)
        _no_boost("bool", body)
        _only("bool", body, ("must", "filter", "should", "must_not", "minimum_should_match"))
        clauses: dict[str, list[Condition | None]] = {}
        for name in ("must", "filter", "should", "must_not"):
            value = body.get(name, [])
            queries = value if isinstance(value, list) else [value]
            clauses[name] = [self._read(query, depth + 1) for query in queries]
        must = [c for c in clauses["must"] + clauses["filter"] if c is not None]
        should, excluded = clauses["should"], clauses["must_not"]
        wanted = _minimum(body.get("minimum_should_match"), clauses)
        if None in excluded or wanted > len(should):
            return NEVER
        # A clause that matches everything counts as one that is met.
        wanted -= sum(c is None for c in should)
        rest = [c for c in should if c is not None]
        out: Condition = {}
        if must:
            out["must"] = must
        if wanted == 1:
            out["should"] = rest
        elif wanted > 1:
            out["min_should"] = {"conditions": rest, "min_count": wanted}
        if excluded:
            out["must_not"] = excluded
        return out or None

    def _field(self, name: str, path: str) -> Field | None:
        """The field to search; None where the index has no such field, so that nothing matches."""
        field = self._mapping.get(path)
        if field is None:
            if path.startswith("_"):
                raise unsupported(f"{name} query on {path}")
            return None
        if field.kind == "text":
            raise unsupported(
                f"{name} query on the text field {path}", "query its keyword subfield"
            )
        if not field.indexed:
            raise ApiError(
                400,
                "query_shard_exception",
                f"Cannot search on field [{path}] since it is not indexed.",
            )
        return field

    def _term(self, path: str, value: Any) -> Condition:
        if isinstance(value, dict):
            value = dict(value)
            _no_boost("term", value)
            if value.pop("case_insensitive", False) is not False:
                raise unsupported("term query with case_insensitive")
            _only("term", value, ("value",))
            value = value.get("value")
        if value is None:
            raise illegal("value cannot be null")
        if isinstance(value, list | dict):
            raise parsing(f"[term] query does not support arrays or objects, field [{path}]")
        if path == "_id":
            return {"has_id": [point_id(self._collection, as_text(value))]}
        field = self._field("term", path)
        return NEVER if field is None else _equal(field, value)

    def _terms(self, path: str, values: Any) -> Condition:
        if isinstance(values, dict):
            raise unsupported("terms lookup", "give the terms themselves")
        if not isinstance(values, list):
            raise parsing(f"[terms] query does not support a value for [{path}], give an array")
        if len(values) > self._limits.terms:
            raise illegal(
                f"The number of terms [{len(values)}] used in the Terms Query request has exceeded "
                f"the allowed maximum of [{self._limits.terms}]"
            )
        if any(value is None or isinstance(value, list | dict) for value in values):
            raise illegal("No value specified for terms query, or a null, an array or an object")
        if path == "_id":
            ids = dict.fromkeys(point_id(self._collection, as_text(v)) for v in values)
            return {"has_id": list(ids)}
        field = self._field("terms", path)
        if field is None or not values:
            return NEVER
        conditions = [_equal(field, value) for value in values]
        exact = [c["match"]["value"] for c in conditions if "match" in c]
        others = [c for c in conditions if "match" not in c and c is not NEVER]
        if exact:
            any_of = {"match": {"any": list(dict.fromkeys(exact))}}
            others.append({"key": field.key, **any_of})
        if not others:
            return NEVER
        return others[0] if len(others) == 1 else {"should": others}

    def _range(self, path: str, body: Any) -> Condition:
        if not isinstance(body, dict):
            raise parsing(f"[range] query malformed, no start_object after the field [{path}]")
        body = dict(body)
        _no_boost("range", body)
        for name in ("time_zone", "relation", "from", "to", "include_lower", "include_upper"):
            if name in body:
                raise unsupported(f"range query with {name}", "use gt, gte, lt, lte")
        _only("range", body, ("gt", "gte", "lt", "lte", "format"))
        field = self._field("range", path)
        if field is None:
            return NEVER
        if field.kind in ("keyword", "boolean"):
            raise unsupported(f"range query on the {field.kind} field {path}")
        format_ = body.pop("format", None)
        if format_ is not None and field.kind != "date":
            raise illegal(f"Field [{path}] of type [{field.kind}] does not support custom formats")
        bounds: Json = {}
        try:
            formats = field.formats if format_ is None else parse_formats(format_)
            # As in Elasticsearch, the last bound of a side holds; null takes it away.
            for name, value in body.items():
                bounds.pop({"gt": "gte", "gte": "gt", "lt": "lte", "lte": "lt"}[name], None)
                bounds[name] = value
            bounds = {
                name: _bound(field, name, value, formats)
                for name, value in bounds.items()
                if value is not None
            }
        except ValueError as error:
            raise _bad_value(path, error) from error
        if not bounds:
            return _exists(field)
        return {"key": field.key, "range": bounds}

    def _exists(self, body: Json) -> Condition | None:
        _only("exists", body, ("field",))
        path = body.get("field")
        if not isinstance(path, str) or not path:
            raise parsing("[exists] must be provided with a [field]")
        if path == "_id":
            return None
        field = self._mapping.get(path)
        if field is not None:
            return _exists(field)
        if path.startswith("_"):
            raise unsupported(f"exists query on {path}")
        if "*" in path:
            raise unsupported("exists query with a wildcard")
        return _any([_exists(inner) for inner in self._mapping.below(path)])

    def _ids(self, body: Json) -> Condition:
        _only("ids", body, ("values",))
        values = body.get("values")
        if isinstance(values, str):
            values = [values]
        if not isinstance(values, list) or not all(isinstance(v, str | int) for v in values):
            raise parsing("[ids] failed to parse field [values], give an array of strings")
        if len(values) > self._limits.terms:
            raise illegal(f"[ids] takes at most [{self._limits.terms}] values")
        ids = dict.fromkeys(point_id(self._collection, str(v)) for v in values)
        return {"has_id": list(ids)}


_LEAVES = frozenset(("match_all", "term", "terms", "range", "exists", "ids"))


def equal(field: Field, value: Any) -> Condition:
    """Documents of which some normalised value equals this one."""
    if field.index_kind == "float":
        return {"key": field.key, "range": {"gte": value, "lte": value}}
    return {"key": field.key, "match": {"value": value}}


def exists(field: Field) -> Condition:
    """Documents that have a value of an indexed field."""
    return {"must_not": [empty(field)]}


def empty(field: Field) -> Condition:
    """Documents that have no value of an indexed field."""
    return {"is_empty": {"key": field.key}}


def conjunction(*parts: Json) -> Json:
    """All of several filters."""
    conditions = [part for part in parts if part]
    if len(conditions) == 1:
        return conditions[0]
    return {"must": conditions} if conditions else {}


def _exists(field: Field) -> Condition:
    if field.indexed:
        return exists(field)
    return {"key": "n", "match": {"value": field.path}}


def _any(conditions: list[Condition]) -> Condition:
    if not conditions:
        return NEVER
    return conditions[0] if len(conditions) == 1 else {"should": conditions}


def _equal(field: Field, value: Any) -> Condition:
    """A `term` condition; NEVER where no document can have this value."""
    try:
        if field.kind == "keyword":
            return equal(field, as_text(value))
        if field.kind == "boolean":
            return equal(field, as_boolean(value))
        if field.kind == "date":
            low, high = read_date(value, field.formats)
            return {"key": field.key, "range": {"gte": low, "lte": high}}
        number = as_number(value)
        if field.kind in FLOATS:
            return equal(field, field.rounded(float(number)))
        if number != int(number):
            return NEVER
        try:
            whole = field.normalise(int(number))
        except ValueError:
            return NEVER
        return NEVER if whole is None else equal(field, whole)
    except (ValueError, OverflowError) as error:
        raise _bad_value(field.path, error) from error


def _bound(field: Field, name: str, value: Any, formats: tuple[str, ...]) -> int | float:
    if field.kind == "date":
        low, high = read_date(value, formats)
        return low if name in ("gte", "lt") else high
    number = as_number(value)
    if field.kind in FLOATS:
        return field.rounded(float(number))
    # No stored value is beyond EXACT, so that the rounding decides nothing.
    return number if abs(number) <= EXACT else float(number)


def _bad_value(path: str, error: Exception) -> ApiError:
    return ApiError(400, "query_shard_exception", f"failed to create query: {error} [{path}]")


def uniform_score(query: Any, mapping: IndexMapping) -> float | None:
    """The score that all matches of a valid query share; None where it is not computed.

    The gateway does not rank. Where Elasticsearch would give all matches the same score their
    order is no ranking either, and the score is stated where it is a constant (a keyword's depends
    on term statistics).

    Raises:
        ApiError: 400, Elasticsearch would rank the matches.
    """
    ((name, body),) = query.items()
    if name == "term":
        ((path, _),) = ((p, v) for p, v in body.items() if p not in ("boost", "_name"))
        field = mapping.get(path)
        return None if field is not None and field.kind == "keyword" else 1.0
    if name != "bool":
        return 1.0
    clauses = {k: v if isinstance(v, list) else [v] for k, v in body.items() if k in _CLAUSES}
    if not any(clauses.values()):
        return 1.0
    must, should = clauses.get("must", []), clauses.get("should", [])
    if should:
        required = _minimum(body.get("minimum_should_match"), {**_CLAUSES, **clauses})
        if len(should) > required:
            raise unsupported(
                "ranking by relevance of bool.should", "put it into bool.filter, or give a sort"
            )
    scores = [uniform_score(inner, mapping) for inner in [*must, *should]]
    total = 0.0
    for score in scores:
        if score is None:
            return None
        total += score
    return total


_CLAUSES: dict[str, list[Any]] = {"must": [], "filter": [], "should": [], "must_not": []}


def _minimum(value: Any, clauses: dict[str, list[Condition | None]]) -> int:
    if value is None:
        return int(bool(clauses["should"]) and not (clauses["must"] or clauses["filter"]))
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        value = int(value)
    if type(value) is not int:
        raise unsupported(f"minimum_should_match: {value}", "give a whole number")
    if value < 0:
        value += len(clauses["should"])
    return max(int(value), 0)


def _no_boost(name: str, body: Json) -> None:
    boost = body.pop("boost", 1.0)
    if boost != 1:
        raise unsupported(f"boost in a {name} query", "this gateway ranks by sort only")
    query_name = body.pop("_name", None)
    if query_name is not None:
        raise unsupported(f"_name in a {name} query")


def _only(name: str, body: Json, allowed: tuple[str, ...]) -> None:
    for key in body:
        if key not in allowed:
            raise parsing(f"[{name}] query does not support [{key}]")

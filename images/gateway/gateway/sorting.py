"""Sort keys: what a request asks for, the values in a document, and cursors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from gateway.dates import read_date
from gateway.errors import ApiError, illegal, parsing, unsupported
from gateway.fields import FLOATS, Field, Value, as_boolean, as_number, as_text
from gateway.mapping import IndexMapping
from gateway.qdrant import Json

# What Elasticsearch gives as the sort value of a document without the field.
_LONG_MAX, _LONG_MIN = 2**63 - 1, -(2**63)
# Every value is finite.
_BEHIND, _BEFORE = float("inf"), float("-inf")

# A number, already negated when the key is descending; for a keyword its rank and itself.
Place = int | float | tuple[int, str]


@dataclass(frozen=True)
class SortKey:
    """One key of a sort.

    Attributes:
        field: the field; None for the order in which documents were written.
        descending: order.
        missing: where documents without a value go: "last", "first", or the value they count as.
    """

    field: Field | None
    descending: bool
    missing: Value

    @property
    def payload_key(self) -> str:
        """The payload key in Qdrant."""
        return "seq" if self.field is None else self.field.key

    @cached_property
    def numeric(self) -> bool:
        """Whether its values are numbers; only keywords are not."""
        return self.field is None or self.field.numeric

    @cached_property
    def value(self) -> Callable[[Json], Value | None]:
        """Gives a document's value: the least of several, the greatest when descending, or None.

        A function made for this key: it is called for every document of a page.
        """
        if self.field is None:
            return itemgetter("seq")
        name, of_several = self.field.payload, max if self.descending else min

        def value(payload: Json) -> Value | None:
            try:
                found: Any = payload["f"][name]
            except KeyError:
                return None
            known: Value = of_several(found) if type(found) is list else found
            return known

        return value

    def place(self, value: Value | None) -> Place:
        """Where a value stands: places compare, ascending for numbers; see `in_order`."""
        if value is None:
            if self.missing == "last":
                return _BEHIND if self.numeric else (0 if self.descending else 2, "")
            if self.missing == "first":
                return _BEFORE if self.numeric else (2 if self.descending else 0, "")
            value = self.missing
        if isinstance(value, str):
            return (1, value)
        return -value if self.descending else value

    @property
    def plain(self) -> bool:
        """Whether a value that is there is shown as it is."""
        return self.field is None or self.field.kind != "float"

    def shown(self, value: Value | None) -> Value | None:
        """A value as it stands in a hit's `sort`.

        Values are shown alike if and only if they stand at the same place: a bound that stands for
        a missing value is none that a document can have.
        """
        if value is not None:
            return value if self.field is None else self.field.shown(value)
        assert self.field is not None
        if self.missing not in ("last", "first"):
            return self.field.shown(self.missing)
        if self.field.kind == "keyword":
            return None
        high = (self.missing == "last") != self.descending
        if self.field.kind in FLOATS:
            return "Infinity" if high else "-Infinity"
        return _LONG_MAX if high else _LONG_MIN

    def cursor(self, value: Any) -> Value | None:
        """Read a value of `search_after`; None stands for documents without one.

        Raises:
            ApiError: 400, it is not a value of this field.
        """
        try:
            if self.field is None:
                return int(as_number(value))
            return self._cursor(self.field, value)
        except (ValueError, OverflowError) as error:
            name = "_doc" if self.field is None else self.field.path
            raise illegal(f"Failed to parse search_after value for field [{name}]: {error}") from (
                error
            )

    def _cursor(self, field: Field, value: Any) -> Value | None:
        if value is None:
            return None
        if field.kind == "keyword":
            return as_text(value)
        if value in ("Infinity", "-Infinity", _LONG_MAX, _LONG_MIN) and not isinstance(value, bool):
            if value == self.shown(None):
                return None
            raise ValueError(f"[{value}] does not stand for a missing value here")
        if field.kind == "boolean":
            return as_boolean(bool(value) if value in (0, 1) else value)
        if field.kind == "date":
            return read_date(value, (*field.formats, "epoch_millis"))[0]
        number = as_number(value)
        if field.kind in FLOATS:
            return field.rounded(float(number))
        return number


# Ends every sort, so that ties are paged without loss or repetition.
SEQUENCE = SortKey(None, False, "last")


def read_sort(value: Any, mapping: IndexMapping) -> list[SortKey] | None:
    """Read `sort`; None when it asks for Elasticsearch's ranking.

    Raises:
        ApiError: 400, it is wrong or not supported.
    """
    if value is None:
        return None
    items = value if isinstance(value, list) else [value]
    if len(items) > 16:
        raise illegal("at most [16] sort keys are taken")
    keys: list[SortKey] = []
    for item in items:
        if isinstance(item, str):
            item = {item: {}}
        if not isinstance(item, dict) or not item:
            raise parsing("malformed sort format, give field names or objects")
        for path, options in item.items():
            if isinstance(options, str):
                options = {"order": options}
            if not isinstance(options, dict):
                raise parsing(f"malformed sort format, the options of [{path}] are not an object")
            if path == "_score":
                if len(items) > 1 or options.get("order", "desc") != "desc":
                    raise unsupported("sort by _score", "this gateway does not rank")
                return None
            keys.append(_key(path, options, mapping))
    return keys or None


def _key(path: str, options: Json, mapping: IndexMapping) -> SortKey:
    order = options.get("order", "asc")
    if order not in ("asc", "desc"):
        raise illegal(f"Unknown SortOrder [{order}]")
    descending = order == "desc"
    for name, value in options.items():
        if name == "mode":
            if value != ("max" if descending else "min"):
                raise unsupported(f"sort mode {value} with order {order}")
        elif name in ("nested", "nested_path", "nested_filter", "numeric_type", "format"):
            raise unsupported(f"sort with {name}")
        elif name not in ("order", "missing", "unmapped_type"):
            raise parsing(f"[{path}] unknown sort option [{name}]")
    if path == "_doc":
        return SortKey(None, descending, "last")
    field = mapping.get(path)
    if field is None:
        if path.startswith("_"):
            raise unsupported(f"sort by {path}")
        if "unmapped_type" in options:
            raise unsupported(f"unmapped_type for [{path}]", "map the field before it is sorted by")
        raise ApiError(
            400, "query_shard_exception", f"No mapping found for [{path}] in order to sort on"
        )
    if not field.indexed:
        raise ApiError(
            400,
            "illegal_argument_exception",
            f"Field [{path}] of type [{field.kind}] cannot be sorted by: it has no values in an "
            "index; use a keyword field or subfield",
        )
    missing = options.get("missing", "_last")
    if missing in ("_last", "_first"):
        return SortKey(field, descending, missing[1:])
    if field.kind == "keyword":
        raise unsupported(f"missing: {missing} on the keyword field [{path}]", "_first or _last")
    try:
        found = field.normalise(missing)
    except ValueError as error:
        raise illegal(f"Failed to parse missing value of [{path}]: {error}") from error
    assert found is not None
    return SortKey(field, descending, found)


def in_order(documents: list[Json], keys: Sequence[SortKey]) -> list[Json]:
    """Sort payloads by the keys; those that are equal in all stand as they were written."""
    if len(documents) < 2:
        return documents
    if all(key.numeric for key in keys):
        columns = [_places(key, documents) for key in keys]
        written = [payload["seq"] for payload in documents]
        # The last column keeps payloads, which do not compare, out of the comparison.
        order = sorted(zip(*columns, written, range(len(documents)), strict=True))
        return [documents[place[-1]] for place in order]
    documents = sorted(documents, key=lambda payload: int(payload["seq"]))
    for key in reversed(keys):
        # Stable, so the keys that were sorted by before stay in order. Only strings, which have
        # no negative, need the reverse.
        documents.sort(key=_placer(key), reverse=key.descending and not key.numeric)
    return documents


def shown_values(documents: Sequence[Json], keys: Sequence[SortKey]) -> list[list[Value | None]]:
    """What the `sort` of each document's hit shows: see `SortKey.shown`."""
    columns = []
    for key in keys:
        values = list(map(key.value, documents))
        if not key.plain or None in values:
            values = list(map(key.shown, values))
        columns.append(values)
    return [list(row) for row in zip(*columns, strict=True)]


def _places(key: SortKey, documents: Sequence[Json]) -> list[Any]:
    """Where documents stand in a numeric key; a column at a time, as a page is sorted often."""
    values: list[Any] = list(map(key.value, documents))
    if None in values:
        return list(map(key.place, values))
    return [-value for value in values] if key.descending else values


def _placer(key: SortKey) -> Callable[[Json], Any]:
    return lambda payload: key.place(key.value(payload))

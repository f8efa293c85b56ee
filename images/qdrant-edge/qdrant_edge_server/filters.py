"""Qdrant's JSON filters as filters of the wheel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import qdrant_edge as edge

from .checks import as_object, boolean, integer, kind, listing, number, only, required, text
from .errors import bad_body, unsupported

PointId = int | str | UUID

_FILTER = frozenset(("must", "should", "must_not", "min_should"))
_FIELD_CONDITION = frozenset((
    "key", "match", "range", "geo_bounding_box", "geo_radius", "geo_polygon", "values_count",
    "is_empty", "is_null",
))  # fmt: skip
_RANGE = frozenset(("gt", "gte", "lt", "lte"))


class _Boolean:
    """A boolean that the wheel does not take for an integer.

    `MatchValue(True)` of qdrant-edge-py 0.9.0 becomes the integer 1, which matches no boolean
    payload: integers are tried first, and Python's `bool` is one. The bindings (PyO3) also take
    `numpy.bool_`, which is no integer, and know it by its name: this class carries that name.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value


_Boolean.__module__, _Boolean.__name__ = "numpy", "bool_"


def parse_filter(value: Any, where: str = "filter") -> edge.Filter | None:
    """The filter in `value` (a JSON object or None); a 400 names what is wrong in it."""
    if value is None:
        return None
    fields = only(value, _FILTER, where)
    min_should = None
    if fields.get("min_should") is not None:
        place = f"{where}.min_should"
        inner = only(fields["min_should"], ("conditions", "min_count"), place)
        required(inner, "min_count", place)
        min_should = edge.MinShould(
            _conditions(required(inner, "conditions", place), f"{place}.conditions"),
            integer(inner, "min_count", place) or 0,
        )
    return edge.Filter(
        must=_clause(fields, "must", where),
        should=_clause(fields, "should", where),
        must_not=_clause(fields, "must_not", where),
        min_should=min_should,
    )


def excluding(found: edge.Filter | None, point_id: PointId) -> edge.Filter:
    """`found`, and not the point `point_id` (a search by id leaves out that point itself)."""
    must: list[Any] = [] if found is None else [found]
    return edge.Filter(must=must, must_not=[edge.HasIdCondition({point_id})])


def point_id(value: Any, where: str) -> PointId:
    """A point id: a whole number from 0 or a UUID in any of the forms Qdrant reads."""
    if type(value) is int and 0 <= value < 2**64:
        return value
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError as error:
            raise bad_body(
                f"{where}: value {value} is not a valid point ID, expected an "
                "unsigned integer or a UUID"
            ) from error
    raise bad_body(
        f"{where}: value {value} is not a valid point ID, expected an unsigned integer or a UUID"
    )


def point_ids(values: Any, where: str) -> list[PointId]:
    """A list of point ids."""
    if not isinstance(values, list):
        raise bad_body(f"{where}: expected an array of point IDs, got {kind(values)}")
    return [point_id(value, where) for value in values]


def _clause(fields: dict[str, Any], name: str, where: str) -> list[Any] | None:
    value = fields.get(name)
    return None if value is None else _conditions(value, f"{where}.{name}")


def _conditions(value: Any, where: str) -> list[Any]:
    # Qdrant takes one condition in place of a list of one.
    items = value if isinstance(value, list) else [value]
    return [_condition(item, f"{where}[{n}]") for n, item in enumerate(items)]


def _condition(value: Any, where: str) -> Any:
    fields = as_object(value, where)
    if "key" in fields:
        return _field_condition(only(fields, _FIELD_CONDITION, where), where)
    if "has_id" in fields:
        only(fields, ("has_id",), where)
        return edge.HasIdCondition(set(point_ids(fields["has_id"], f"{where}.has_id")))
    if "is_empty" in fields:
        return edge.IsEmptyCondition(_keyed(fields, "is_empty", where))
    if "is_null" in fields:
        return edge.IsNullCondition(_keyed(fields, "is_null", where))
    if "has_vector" in fields:
        only(fields, ("has_vector",), where)
        return edge.HasVectorCondition(text(fields, "has_vector", where) or "")
    if "nested" in fields:
        place = f"{where}.nested"
        inner = only(only(fields, ("nested",), where)["nested"], ("key", "filter"), place)
        found = parse_filter(required(inner, "filter", place), f"{place}.filter")
        assert found is not None
        return edge.NestedCondition(str(required(inner, "key", place)), found)
    if "slice" in fields:
        raise unsupported("slice condition")
    return parse_filter(fields, where)


def _keyed(fields: dict[str, Any], name: str, where: str) -> str:
    inner = only(only(fields, (name,), where)[name], ("key",), f"{where}.{name}")
    key = required(inner, "key", f"{where}.{name}")
    if not isinstance(key, str):
        raise bad_body(f"{where}.{name}.key: expected a string, got {kind(key)}")
    return key


def _field_condition(fields: dict[str, Any], where: str) -> edge.FieldCondition:
    key = text(fields, "key", where)
    tests: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name == "key":
            continue
        read = _READERS.get(name)
        # The two that have no reader are plain booleans.
        tests[name] = (
            boolean(fields, name, where) if read is None else read(value, f"{where}.{name}")
        )
    if key is None or not tests:
        raise bad_body(f"{where}: at least one field condition must be specified")
    return edge.FieldCondition(key=key, **tests)


def _match(value: Any, where: str) -> Any:
    fields = as_object(value, where)
    if len(fields) != 1:
        raise bad_body(
            f"{where}: expected exactly one of value, any, except, text, text_any, "
            f"phrase, prefix, substring; got {sorted(fields)}"
        )
    ((name, wanted),) = fields.items()
    if name == "value":
        if type(wanted) not in (str, int, bool):
            raise bad_body(
                f"{where}.value: expected a string, an integer or a boolean, got {kind(wanted)}"
            )
        return edge.MatchValue(cast(bool, _Boolean(wanted)) if type(wanted) is bool else wanted)
    if name in ("any", "except"):
        if (
            not isinstance(wanted, list)
            or len({type(item) for item in wanted} - {str}) > 1
            or any(type(item) not in (str, int) for item in wanted)
            or len({type(item) for item in wanted}) > 1
        ):
            raise bad_body(f"{where}.{name}: expected an array of strings or of integers")
        return edge.MatchAny(wanted) if name == "any" else edge.MatchExcept(wanted)
    kinds: dict[str, Any] = {
        "text": edge.MatchText,
        "text_any": edge.MatchTextAny,
        "phrase": edge.MatchPhrase,
        "prefix": edge.MatchPrefix,
        "substring": edge.MatchSubstring,
    }
    if name not in kinds:
        raise bad_body(f"{where}: unknown field `{name}`")
    if not isinstance(wanted, str):
        raise bad_body(f"{where}.{name}: expected a string, got {kind(wanted)}")
    return kinds[name](wanted)


def _range(value: Any, where: str) -> edge.RangeFloat | edge.RangeDateTime:
    fields = only(value, _RANGE, where)
    if any(isinstance(bound, str) for bound in fields.values()):
        try:
            return edge.RangeDateTime(**{name: text(fields, name, where) for name in fields})
        except (TypeError, ValueError) as error:
            raise bad_body(f"{where}: not a date and time (RFC 3339): {error}") from error
    return edge.RangeFloat(**{name: number(fields, name, where) for name in fields})


def _values_count(value: Any, where: str) -> edge.ValuesCount:
    fields = only(value, _RANGE, where)
    return edge.ValuesCount(**{name: integer(fields, name, where) for name in fields})


def _geo_point(value: Any, where: str) -> edge.GeoPoint:
    fields = only(value, ("lon", "lat"), where)
    required(fields, "lon", where)
    required(fields, "lat", where)
    lon, lat = number(fields, "lon", where), number(fields, "lat", where)
    assert lon is not None
    assert lat is not None
    try:
        return edge.GeoPoint(lon, lat)
    except ValueError as error:
        raise bad_body(f"{where}: {error}") from error


def _bounding_box(value: Any, where: str) -> edge.GeoBoundingBox:
    fields = only(value, ("top_left", "bottom_right"), where)
    return edge.GeoBoundingBox(
        _geo_point(required(fields, "top_left", where), f"{where}.top_left"),
        _geo_point(required(fields, "bottom_right", where), f"{where}.bottom_right"),
    )


def _radius(value: Any, where: str) -> edge.GeoRadius:
    fields = only(value, ("center", "radius"), where)
    required(fields, "radius", where)
    radius = number(fields, "radius", where)
    assert radius is not None
    return edge.GeoRadius(_geo_point(required(fields, "center", where), f"{where}.center"), radius)


def _polygon(value: Any, where: str) -> edge.GeoPolygon:
    fields = only(value, ("exterior", "interiors"), where)
    interiors = listing(fields, "interiors", where)
    try:
        return edge.GeoPolygon(
            _line(required(fields, "exterior", where), f"{where}.exterior"),
            None
            if interiors is None
            else [_line(line, f"{where}.interiors[{n}]") for n, line in enumerate(interiors)],
        )
    except ValueError as error:
        raise bad_body(f"{where}: {error}") from error


def _line(value: Any, where: str) -> list[edge.GeoPoint]:
    points = required(only(value, ("points",), where), "points", where)
    if not isinstance(points, list):
        raise bad_body(f"{where}.points: expected an array, got {kind(points)}")
    return [_geo_point(point, f"{where}.points[{n}]") for n, point in enumerate(points)]


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "match": _match,
    "range": _range,
    "geo_bounding_box": _bounding_box,
    "geo_radius": _radius,
    "geo_polygon": _polygon,
    "values_count": _values_count,
}

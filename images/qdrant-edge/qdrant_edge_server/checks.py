"""Reading a JSON body: every field is known, of the right type and in range, or it is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from .errors import bad_body, invalid_value

Json = dict[str, Any]


def parse(body: bytes) -> Json:
    """The JSON object in `body`. An empty body counts as `{}`; anything else is a 400."""
    if not body:
        return {}
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_body(str(error)) from error
    return as_object(value, "body")


def as_object(value: Any, where: str) -> Json:
    """`value` if it is a JSON object, else a 400 that names `where`."""
    if not isinstance(value, dict):
        raise bad_body(f"{where}: expected an object, got {kind(value)}")
    return value


def only(value: Any, allowed: Iterable[str], where: str = "body") -> Json:
    """`value` if it is an object with no fields but the `allowed` ones, else a 400."""
    fields = as_object(value, where)
    known = allowed if isinstance(allowed, frozenset) else frozenset(allowed)
    if fields.keys() <= known:
        return fields
    for name in fields:
        if name not in known:
            raise bad_body(
                f"{where}: unknown field `{name}`, expected one of "
                + ", ".join(f"`{field}`" for field in sorted(known))
            )
    return fields


def required(fields: Mapping[str, Any], name: str, where: str = "body") -> Any:
    """The field `name`, or Qdrant's error for a field that is missing or null."""
    value = fields.get(name)
    if value is None:
        raise bad_body(f"{where}: missing field `{name}`")
    return value


def integer(
    fields: Mapping[str, Any], name: str, where: str = "body", least: int = 0
) -> int | None:
    """An optional whole number of at least `least` (422 below it)."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise bad_body(f"{where}.{name}: expected an integer, got {kind(value)}")
    if value < least:
        raise invalid_value(f"{where}.{name}", f"value {value} invalid, must be {least} or larger")
    return value


def number(fields: Mapping[str, Any], name: str, where: str = "body") -> float | None:
    """An optional number."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) not in (int, float):
        raise bad_body(f"{where}.{name}: expected a number, got {kind(value)}")
    return float(value)


def boolean(fields: Mapping[str, Any], name: str, where: str = "body") -> bool | None:
    """An optional boolean."""
    value = fields.get(name)
    if value is None or type(value) is bool:
        return value
    raise bad_body(f"{where}.{name}: expected a boolean, got {kind(value)}")


def text(fields: Mapping[str, Any], name: str, where: str = "body") -> str | None:
    """An optional string."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad_body(f"{where}.{name}: expected a string, got {kind(value)}")


def listing(fields: Mapping[str, Any], name: str, where: str = "body") -> list[Any] | None:
    """An optional array."""
    value = fields.get(name)
    if value is None or isinstance(value, list):
        return value
    raise bad_body(f"{where}.{name}: expected an array, got {kind(value)}")


def choice(value: Any, options: Mapping[str, Any], where: str) -> Any:
    """What `options` holds for the string `value`, else a 400 that lists the options."""
    if not isinstance(value, str) or value not in options:
        names = ", ".join(f"`{option}`" for option in options)
        raise bad_body(f"{where}: unknown variant `{value}`, expected one of {names}")
    return options[value]


def kind(value: Any) -> str:
    """The JSON name of a value's type, for error messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    return names.get(type(value), "an array" if isinstance(value, list) else "an object")

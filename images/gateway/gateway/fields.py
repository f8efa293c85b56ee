"""Field types: how a document's value is normalised, and how it reads back.

A normalised value is a string (keyword), an integer (whole numbers, booleans as 0 and 1, dates as
milliseconds) or a float. Qdrant's payload indexes hold these, so Qdrant orders, counts and filters
them exactly.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateway.dates import DEFAULT_FORMATS, FIRST, LAST, read_date, show_date

Value = str | int | float

# Bits of each whole-number type of Elasticsearch.
INTEGERS = {"long": 64, "integer": 32, "short": 16, "byte": 8}
FLOATS = ("double", "float")
TYPES = ("keyword", *INTEGERS, *FLOATS, "boolean", "date", "text")
# Qdrant compares in ranges as float64, so a whole number beyond this is not exact there.
EXACT = 2**53
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{0,300})?([eE][+-]?\d{1,3})?")


@dataclass(frozen=True)
class Field:
    """A field of the mapping.

    Attributes:
        path: full name with dots; a multi-field's is `field.subfield`.
        source: path in the document that its values come from.
        kind: Elasticsearch's type.
        indexed: it can be searched; False for text, and where the mapping says so.
        multi: some document may hold several values of it.
    """

    path: str
    source: str
    kind: str
    indexed: bool = True
    ignore_above: int | None = None
    null_value: Any = None
    formats: tuple[str, ...] = DEFAULT_FORMATS
    multi: bool = False

    @cached_property
    def key(self) -> str:
        """The payload key in Qdrant."""
        return f"f.{encode(self.path)}"

    @cached_property
    def payload(self) -> str:
        """The name below `f` in the payload."""
        return encode(self.path)

    @property
    def index_kind(self) -> str:
        """The payload index that Qdrant keeps for it."""
        if self.kind == "keyword":
            return "keyword"
        return "float" if self.kind in FLOATS else "integer"

    @property
    def numeric(self) -> bool:
        """Whether Qdrant can order by it."""
        return self.kind != "keyword"

    def normalise(self, value: Any) -> Value | None:
        """Normalise one value of a document; None when the value is not indexed.

        Raises:
            ValueError: it is not a value of this type.
        """
        if self.kind == "keyword":
            text = as_text(value)
            if self.ignore_above is not None and len(text) > self.ignore_above:
                return None
            return text
        if self.kind == "boolean":
            return as_boolean(value)
        if self.kind == "date":
            millis = read_date(value, self.formats)[0]
            if not FIRST <= millis <= LAST:
                raise ValueError(
                    f"[{value}] is beyond the years 1 to 9999, which this gateway does not index"
                )
            return millis
        number = as_number(value)
        if self.kind in FLOATS:
            return self.rounded(float(number))
        whole = math.trunc(number)
        limit = 1 << (INTEGERS[self.kind] - 1)
        if not -limit <= whole < limit:
            raise ValueError(f"Value [{value}] is out of range for {self.kind}")
        return _exact(whole)

    def rounded(self, number: float) -> float:
        """A number as this float type keeps it."""
        if not math.isfinite(number):
            raise ValueError(f"[{self.kind}] supports only finite values, but got [{number}]")
        if self.kind == "float":
            try:
                number = struct.unpack("f", struct.pack("f", number))[0]
            except OverflowError as error:
                raise ValueError(f"Value [{number}] is out of range for float") from error
        # Minus zero and zero are one value in every order and match here.
        return number + 0.0

    def shown(self, value: Value) -> Value:
        """A normalised value as a sort value or a metric: a float32 in its own digits."""
        if self.kind == "float" and isinstance(value, float):
            for digits in range(6, 10):
                short = float(f"{value:.{digits}g}")
                if struct.unpack("f", struct.pack("f", short))[0] == value:
                    return short
        return value

    def as_string(self, value: Value) -> str | None:
        """A normalised value's `_as_string` form where Elasticsearch gives one."""
        if self.kind == "boolean":
            return "true" if value else "false"
        if self.kind == "date":
            return show_date(int(value), self.formats[0])
        return None


def encode(path: str) -> str:
    """Encode a field's path as one plain key: Qdrant reads dots and signs as its own syntax.

    One to one: letters, digits and `-` stand for themselves, `_` is doubled, a dot is `_d`.
    """
    if path.isascii() and path.isalnum():
        return path
    parts = []
    for sign in path:
        if (sign.isascii() and sign.isalnum()) or sign == "-":
            parts.append(sign)
        elif sign == "_":
            parts.append("__")
        elif sign == ".":
            parts.append("_d")
        else:
            parts.append(f"_x{ord(sign):x}_")
    return "".join(parts)


def as_text(value: Any) -> str:
    """A keyword's value: strings, numbers and booleans are taken, as Elasticsearch does."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise ValueError(f"expected a string, a number or a boolean, got [{value}]")


def as_boolean(value: Any) -> int:
    """A boolean as 0 or 1.

    Raises:
        ValueError: it is not a boolean.
    """
    if value is True or value == "true":
        return 1
    if value is False or value in ("false", ""):
        return 0
    raise ValueError(f"Failed to parse value [{value}] as only [true] or [false] are allowed.")


def as_number(value: Any) -> int | float:
    """A number, or a string that is one.

    Raises:
        ValueError: it is not a number.
    """
    found: int | float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
        found = int(value) if value.lstrip("-").isdecimal() else float(value)
    if found is None or not math.isfinite(found):
        raise ValueError(f'For input string: "{str(value)[:100]}"')
    return found


def _exact(whole: int) -> int:
    if abs(whole) > EXACT:
        raise ValueError(
            f"[{whole}] is beyond 2^53: Qdrant would compare it inexactly, so this gateway does "
            "not index it; map it as keyword"
        )
    return whole

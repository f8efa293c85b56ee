"""Dates as Elasticsearch reads them: to milliseconds since 1970, UTC."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_FORMATS = ("strict_date_optional_time", "epoch_millis")

_OPTIONAL_TIME = re.compile(
    r"(?P<year>\d{4})(-(?P<month>\d\d)(-(?P<day>\d\d)"
    r"(T(?P<hour>\d\d)?(:(?P<minute>\d\d)(:(?P<second>\d\d)([.,](?P<fraction>\d{1,9}))?)?)?"
    r"(?P<zone>Z|[+-]\d\d(:?\d\d)?)?)?)?)?"
)
_DATE = re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)")
_SPACED = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
)
_WHOLE = re.compile(r"-?\d{1,18}")
_NAMES = ("year", "month", "day", "hour", "minute", "second")

Span = tuple[int, int]
# 0001-01-01 and the last millisecond of 9999, which Elasticsearch's formats write with four digits.
FIRST, LAST = -62135596800000, 253402300799999


def parse_formats(format_: str | None) -> tuple[str, ...]:
    """Split a mapping's or a query's `format`.

    Raises:
        ValueError: a format that the gateway does not know.
    """
    if format_ is None:
        return DEFAULT_FORMATS
    names = tuple(format_.split("||"))
    for name in names:
        if name not in _READERS:
            raise ValueError(
                f"date format [{name}] is not supported by this gateway; "
                f"there are {', '.join(_READERS)}"
            )
    return names


def read_date(value: object, formats: Sequence[str]) -> Span:
    """Read a date: the first and the last millisecond that it can mean.

    `2013-01-01` means a whole day; a number or a full time of day means one millisecond. Bounds
    of a range are rounded this way, as in Elasticsearch; a document's date is the first one.

    Raises:
        ValueError: it is not a date in any of the formats.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if text is not None:
        for name in formats:
            found = _READERS[name](text)
            if found is not None:
                return found
    raise ValueError(f"failed to parse date field [{value}] with format [{'||'.join(formats)}]")


def show_date(millis: int, format_: str = DEFAULT_FORMATS[0]) -> str:
    """Write milliseconds, from `FIRST` to `LAST`, in a format: `2013-01-01T05:00:00.000Z`."""
    return _WRITERS[format_](millis)


def _optional_time(text: str) -> Span | None:
    return _components(_OPTIONAL_TIME.fullmatch(text))


def _date(text: str) -> Span | None:
    return _components(_DATE.fullmatch(text))


def _spaced(text: str) -> Span | None:
    return _components(_SPACED.fullmatch(text))


def _epoch_millis(text: str) -> Span | None:
    return (int(text), int(text)) if _WHOLE.fullmatch(text) else None


def _epoch_second(text: str) -> Span | None:
    return (int(text) * 1000, int(text) * 1000 + 999) if _WHOLE.fullmatch(text) else None


_READERS: dict[str, Callable[[str], Span | None]] = {
    "strict_date_optional_time": _optional_time,
    "date_optional_time": _optional_time,
    "strict_date": _date,
    "yyyy-MM-dd": _date,
    "yyyy-MM-dd HH:mm:ss": _spaced,
    "epoch_millis": _epoch_millis,
    "epoch_second": _epoch_second,
}


def _show_time(millis: int) -> str:
    moment = EPOCH + timedelta(milliseconds=millis)
    # Not strftime's %Y, which leaves the zeros of an early year out.
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _show_seconds(millis: int) -> str:
    seconds, rest = divmod(millis, 1000)
    return f"{millis / 1000:.3f}".rstrip("0") if rest else str(seconds)


_WRITERS: dict[str, Callable[[int], str]] = {
    "strict_date_optional_time": _show_time,
    "date_optional_time": _show_time,
    "strict_date": lambda millis: _show_time(millis)[:10],
    "yyyy-MM-dd": lambda millis: _show_time(millis)[:10],
    "yyyy-MM-dd HH:mm:ss": lambda millis: _show_time(millis)[:19].replace("T", " "),
    "epoch_millis": str,
    "epoch_second": _show_seconds,
}


def _components(match: re.Match[str] | None) -> Span | None:
    if match is None:
        return None
    found = match.groupdict()
    given = {name: int(found[name]) for name in _NAMES if found.get(name) is not None}
    year = given["year"]
    first = {"month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0} | given
    last = {"month": 12, "hour": 23, "minute": 59, "second": 59} | given
    fraction = found.get("fraction")
    try:
        last.setdefault("day", monthrange(year, last["month"])[1])
        shift = _zone(found.get("zone"))
        bounds = [datetime(**parts, tzinfo=UTC) - shift for parts in (first, last)]
    except (ValueError, OverflowError):
        return None
    low, high = ((moment - EPOCH) // timedelta(milliseconds=1) for moment in bounds)
    if fraction is not None:
        millis = int(fraction[:3].ljust(3, "0"))
        return low + millis, high + millis
    return low, high + 999


def _zone(text: str | None) -> timedelta:
    if text is None or text == "Z":
        return timedelta()
    digits = text[1:].replace(":", "").ljust(4, "0")
    shift = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -shift if text[0] == "-" else shift

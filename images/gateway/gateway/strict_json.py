"""JSON as Elasticsearch takes it: no key twice in one object, no number that cannot be kept.

orjson keeps the last of two equal keys, and makes a float of a whole number beyond 64 bits: both
change what was sent, in silence. The standard library's scanner shows both, so every body is read a
second time by it (about 10 us for a page's body; a warm hit is answered before its body is read).
"""

from __future__ import annotations

import json
from typing import Any

import orjson

_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
# A whole number of fewer signs is within 64 bits.
_SHORT = 19


class StrictError(ValueError):
    """The text is not JSON, or says something twice or beyond 64 bits."""


def loads(text: bytes) -> Any:
    """Read a JSON text.

    Raises:
        StrictError: it is not one that can be kept as it is.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise StrictError(str(error)) from error
    try:
        _DECODER.decode(text.decode())
    except RecursionError as error:
        raise StrictError("it nests too deep") from error
    return value


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise StrictError(f"Duplicate field '{twice[:200]}'")


def _kept(digits: str) -> None:
    # The length first: Python refuses to read a number of thousands of digits.
    if len(digits) >= _SHORT and (
        len(digits) > _SHORT + 2 or not _LOWEST <= int(digits) <= _HIGHEST
    ):
        raise StrictError(
            f"the whole number {digits[:40]} is beyond 64 bits and could not be kept as it is; "
            "send it as a string"
        )


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_int=_kept)

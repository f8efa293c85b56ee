"""`_source`: which parts of a document are given back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.errors import illegal, parsing
from gateway.qdrant import Json

_MOST_PATTERNS = 256


class SourceFilter:
    """A `_source` setting.

    Attributes:
        wanted: False when no source is given at all.
        whole: the source is given as it was sent.
    """

    def __init__(
        self, wanted: bool, includes: Sequence[str] = (), excludes: Sequence[str] = ()
    ) -> None:
        if len(includes) + len(excludes) > _MOST_PATTERNS:
            raise illegal(f"[_source] takes at most [{_MOST_PATTERNS}] patterns")
        self.wanted = wanted
        self.whole = not includes and not excludes
        self._includes = [_pattern(text) for text in includes]
        self._excludes = [_pattern(text) for text in excludes]

    def apply(self, source: str) -> orjson.Fragment:
        """The source as it is to be given, from the stored text."""
        if self.whole:
            return orjson.Fragment(source)
        kept = self._object(orjson.loads(source), "", not self._includes)
        return orjson.Fragment(orjson.dumps(kept))

    def _object(self, value: Json, prefix: str, included: bool) -> Json:
        out: Json = {}
        for name, inner in value.items():
            path = prefix + name
            if any(pattern.fullmatch(path) for pattern in self._excludes):
                continue
            kept = included or any(pattern.fullmatch(path) for pattern in self._includes)
            found = self._value(inner, path, kept)
            if found is not _NOTHING:
                out[name] = found
        return out

    def _value(self, value: Any, path: str, included: bool) -> Any:
        if isinstance(value, dict):
            found = self._object(value, f"{path}.", included)
            return found if found or included else _NOTHING
        if isinstance(value, list):
            items = [self._value(item, path, included) for item in value]
            kept = [item for item in items if item is not _NOTHING]
            return kept if kept or included else _NOTHING
        return value if included else _NOTHING


_NOTHING = object()


def read_source(value: Any) -> SourceFilter:
    """Read `_source` of a body: a boolean, a pattern, patterns, or includes and excludes.

    Raises:
        ApiError: 400, it is none of these.
    """
    if value is None or value is True:
        return SourceFilter(True)
    if value is False:
        return SourceFilter(False)
    if isinstance(value, str | list):
        return SourceFilter(True, includes=_patterns(value))
    if isinstance(value, dict):
        known = {"include", "includes", "exclude", "excludes"}
        unknown = sorted(value.keys() - known)
        if unknown:
            raise parsing(f"[_source] unknown key [{unknown[0]}]")
        includes = _patterns(value.get("includes", value.get("include", [])))
        excludes = _patterns(value.get("excludes", value.get("exclude", [])))
        return SourceFilter(True, includes, excludes)
    raise parsing("[_source] must be a boolean, a string, an array or an object")


def read_source_parameters(parameters: dict[str, str]) -> SourceFilter | None:
    """Read `_source`, `_source_includes` and `_source_excludes` of a URL; None without any."""
    given = parameters.get("_source")
    includes = _split(parameters.get("_source_includes"))
    excludes = _split(parameters.get("_source_excludes"))
    if given is None and not includes and not excludes:
        return None
    if given == "false":
        return SourceFilter(False)
    if given not in (None, "true", ""):
        includes = [*_split(given), *includes]
    return SourceFilter(True, includes, excludes)


def _split(text: str | None) -> list[str]:
    return [part for part in text.split(",") if part] if text else []


def _patterns(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise parsing("[_source] patterns must be strings")
    return found


def _pattern(text: str) -> re.Pattern[str]:
    """Match a path, and all below it: also where a field's own name holds the dot."""
    path = ".*".join(re.escape(part) for part in text.split("*"))
    return re.compile(rf"{path}(?:\..*)?", re.DOTALL)

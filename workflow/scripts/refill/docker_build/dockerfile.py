"""What a Dockerfile says of the images that it builds on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from refill.image_sources import ImageError

SCRATCH = "scratch"

_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE)
_ARG = re.compile(r"ARG\s+([A-Za-z_][A-Za-z0-9_]*)(?:=(\S*))?\s*$", re.IGNORECASE)
# $NAME, ${NAME}, ${NAME:-value}
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


@dataclass(frozen=True)
class Bases:
    """The images that a Dockerfile begins with.

    Attributes:
        last: reference of the one whose layers lie below the result; "scratch" for none.
        others: references that earlier stages are built from, without `last`.
    """

    last: str
    others: tuple[str, ...]


def bases(name: str, dockerfile: bytes, arguments: Mapping[str, str]) -> Bases:
    """Return the images that a Dockerfile builds on, with build arguments put in.

    Args:
        name: the image that it builds, for messages.
        dockerfile: its text.
        arguments: build arguments, which win over the defaults before its first FROM.

    Raises:
        ImageError: it has no FROM, or one whose image depends on a value that is not given.
    """
    values: dict[str, str] = {}
    stages: dict[str, str] = {}
    found: list[str] = []
    for line in _lines(dockerfile):
        if (given := _ARG.match(line)) and not found:
            values[given[1]] = arguments.get(given[1], (given[2] or "").strip("\"'"))
        elif stage := _FROM.match(line):
            reference = _filled(name, stage[1], values)
            # A stage that begins with an earlier one has that one's image below it.
            found.append(stages.get(reference.lower(), reference))
            if stage[2]:
                stages[stage[2].lower()] = found[-1]
    if not found:
        raise ImageError(f"{name}: its Dockerfile has no FROM: mend it")
    others = set(found) - {found[-1], SCRATCH}
    return Bases(found[-1], tuple(sorted(others)))


def declared(dockerfile: bytes) -> set[str]:
    """Return the names of a Dockerfile's build arguments, of any of its stages."""
    return {found[1] for line in _lines(dockerfile) if (found := _ARG.match(line))}


def _lines(dockerfile: bytes) -> list[str]:
    text = dockerfile.decode(errors="replace").replace("\r\n", "\n").replace("\\\n", " ")
    return [line.strip() for line in text.splitlines()]


def _filled(name: str, reference: str, values: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        given = values.get(found[1] or found[2]) or found[3]
        if not given:
            raise ImageError(
                f"{name}: FROM {reference} in its Dockerfile: {found[0]} has no value: give it an "
                "ARG with a default before the first FROM, or set it under `build_arguments`"
            )
        return given

    return _VARIABLE.sub(value, reference)

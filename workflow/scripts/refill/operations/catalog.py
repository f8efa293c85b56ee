"""`config/operations.yaml`: which requests the rounds make, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.config import ConfigError, schemas
from refill.config.errors import Problem, key_text, nearest
from refill.config.paths import PROJECT, shown
from refill.config.yamlfile import read_yaml

SCHEMA = "operations.schema.yaml"
NAME = re.compile(r"\$\{([^}]*)\}")
INDEX = "index"


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        id: its key in the file.
        title: its name in tables.
        cache: `warm` or `cold`.
        method: of HTTP.
        path: with `${index}`, and perhaps `${name}`s.
        body: template of the JSON body, or None.
        values: how each name is drawn.
    """

    id: str
    title: str
    cache: str
    method: str
    path: str
    body: Mapping[str, Any] | None
    values: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Operations:
    """All operations.

    Attributes:
        warm: those whose requests repeat, in the order of the file.
        cold: the one whose requests are always new.
        bodies: distinct requests of a warm operation.
        counts: the published counts: `trials`, `clients`, and requests a trial of each profile.
    """

    warm: tuple[Operation, ...]
    cold: Operation
    bodies: int
    counts: Mapping[str, Any]

    @property
    def all(self) -> tuple[Operation, ...]:
        """The warm operations, then the cold one."""
        return (*self.warm, self.cold)


def load_operations(path: Path = PROJECT / "config/operations.yaml") -> Operations:
    """Read and check the operations. Raises ConfigError with one line for each problem."""
    value = read_yaml(path)
    found = schemas.problems(SCHEMA, value)
    if not found:
        value = schemas.fill_defaults(SCHEMA, value)
        found = list(_check(value["operations"]))
    if found:
        raise ConfigError([f"{shown(path)}: {key_text(p.where)}: {p.text}" for p in found])
    operations = [
        Operation(name, body=entry.get("body"), **{k: v for k, v in entry.items() if k != "body"})
        for name, entry in value["operations"].items()
    ]
    (cold,) = (operation for operation in operations if operation.cache == "cold")
    warm = tuple(operation for operation in operations if operation.cache == "warm")
    return Operations(warm, cold, value["bodies"], value["counts"])


def names(template: Any) -> set[str]:
    """Return the names of all `${name}` in a template."""
    if isinstance(template, str):
        return set(NAME.findall(template))
    if isinstance(template, Mapping):
        return {name for part in template.values() for name in names(part)}
    if isinstance(template, list):
        return {name for part in template for name in names(part)}
    return set()


def _check(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    cold = [name for name, entry in entries.items() if entry["cache"] == "cold"]
    if len(cold) != 1:
        listed = ", ".join(cold) or "none"
        yield Problem(("operations",), f"exactly one must have `cache: cold`, these have: {listed}")
    titles: dict[str, str] = {}
    for name, entry in entries.items():
        where = ("operations", name)
        first = titles.setdefault(entry["title"], name)
        if first != name:
            yield Problem((*where, "title"), f"is the title of {first} too: give another")
        yield from _check_names(where, entry)
        yield from _check_values(where, entry)


def _check_names(where: tuple[str, ...], entry: Mapping[str, Any]) -> Iterator[Problem]:
    used = names(entry["path"]) | names(entry.get("body"))
    known = {*entry["values"], INDEX}
    for name in sorted(used - known):
        listed = ", ".join(sorted(known))
        yield Problem(where, f"${{{name}}} has no value: {nearest(name, known)}there are {listed}")
    for name in sorted(known - used):
        yield Problem((*where, "values", name), f"is not used: put ${{{name}}} into path or body")


def _check_values(where: tuple[str, ...], entry: Mapping[str, Any]) -> Iterator[Problem]:
    unique = 0
    for name, value in entry["values"].items():
        if name == INDEX:
            yield Problem((*where, "values", name), "is the index's own: take another name")
        unique += bool(value.get("unique"))
        if "from" in value and value["from"] > value["to"]:
            text = f"must be >= from ({value['from']}), is {value['to']}"
            yield Problem((*where, "values", name, "to"), text)
        if value["kind"] == "cursor" and "search_after" not in entry.get("body", {}):
            text = "a cursor stands in `search_after` of the body: put it there"
            yield Problem((*where, "values", name), text)
    if unique != (entry["cache"] == "cold"):
        text = f"a {entry['cache']} operation has {int(entry['cache'] == 'cold')} number with "
        yield Problem((*where, "values"), f"{text}`unique: true`, here are {unique}")

"""Which facts about a machine last, so that figures of two machines are not taken for one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What changes from run to run of one machine: the load and its warnings, what is free just now.
_VARYING = ("load", "warnings")
_VARYING_ENDS = ("available_bytes", "free_bytes")


def lasting(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a record's `host` that are the same in every run of one machine."""
    kept: dict[str, Any] = {}
    for key, value in host.items():
        if key in _VARYING or key in _VARYING_ENDS:
            continue
        kept[key] = lasting(value) if isinstance(value, Mapping) else value
    return kept


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """Return a nested JSON value by dotted names, such as `cpu.model`."""
    if not isinstance(value, Mapping):
        return {where: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flat(item, f"{where}.{key}".lstrip("."))
    return found


def differing(values: list[Any]) -> list[str]:
    """Return the dotted names, sorted, under which nested JSON values are not all the same."""
    flats = [flat(value) for value in values]
    names = {name for one in flats for name in one}
    return sorted(n for n in names if any(one.get(n) != flats[0].get(n) for one in flats))


def mixed(records: list[Mapping[str, Any]]) -> list[str]:
    """Say in what the making of some records differs that changes figures; [] when in nothing.

    Each is a part of a sentence: "machine (cpu.model)", "code".
    """
    machine = differing([lasting(record["host"]) for record in records])
    found = [f"machine ({', '.join(machine)})"] if machine else []
    if len({record["code"] for record in records}) > 1:
        found.append("code")
    return found

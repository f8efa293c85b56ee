"""Which facts about a machine last, so that figures of two machines are not taken for one's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SAME, ANY = "same", "any"
"""Values of `compare.machines` in the configuration."""

# What an optimizer run's record says of how it was measured, beside its own configuration.
_SETTING = ("corpus", "engine", "sampler", "scale")
# What changes from run to run of one machine: the load and its warnings, what is free just now.
_VARYING = ("load", "warnings")
_VARYING_ENDS = ("available_bytes", "free_bytes")
# A cluster's nodes of one hardware are as good as one machine, whatever they are called.
_NAMES = ("node",)
# Set in a record's host where the configuration allows any machine.
_ALLOWED = "any_machine"
# Nodes of one kind differ by what their firmware keeps for itself.
_SAME_SIZE = 1.01


def described(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a record's `host` that are the same in every run of one machine."""
    kept: dict[str, Any] = {}
    for key, value in host.items():
        if key in _VARYING or key in _VARYING_ENDS or key == _ALLOWED:
            continue
        kept[key] = described(value) if isinstance(value, Mapping) else value
    return kept


def lasting(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a record's `host` that must be equal where runs are compared.

    None of them must where `allow` was told so.
    """
    if host.get(_ALLOWED):
        return {}
    return {key: value for key, value in described(host).items() if key not in _NAMES}


def allow(records: Sequence[Mapping[str, Any]], machines: str) -> list[dict[str, Any]]:
    """Return records that compare as `compare.machines` of the configuration says.

    With `any`, those of different machines are compared, and each then has a warning that says so.
    """
    if machines != ANY or not (names := _differing_machines(records)):
        return [dict(record) for record in records]
    says = across(names)
    return [
        {
            **record,
            "host": {**record["host"], _ALLOWED: True},
            "warnings": [*record.get("warnings", []), says],
        }
        for record in records
    ]


def across(names: Sequence[str]) -> str:
    """Say that machines differ in `names` and are compared all the same."""
    return (
        f"measured on different machines ({', '.join(names)}), and compared because "
        "compare.machines is any"
    )


def noted(records: Sequence[Mapping[str, Any]]) -> str:
    """Say that these records are compared across machines; empty when they are not."""
    if not any(record["host"].get(_ALLOWED) for record in records):
        return ""
    names = _differing_machines(records)
    return across(names) if names else ""


def _differing_machines(records: Sequence[Mapping[str, Any]]) -> list[str]:
    hosts = [described(record["host"]) for record in records]
    kept = [{key: value for key, value in host.items() if key not in _NAMES} for host in hosts]
    return _unequal(kept)


def _unequal(hosts: list[dict[str, Any]]) -> list[str]:
    """Return in what hosts differ; memory and disks of nearly one size are equal."""
    flats = [flat(host) for host in hosts]
    found = []
    for name in differing(list(hosts)):
        values = [one.get(name) for one in flats]
        sizes = [value for value in values if isinstance(value, int)]
        nearly = len(sizes) == len(values) and max(sizes) <= _SAME_SIZE * min(sizes)
        if not (name.endswith("total_bytes") and nearly):
            found.append(name)
    return found


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
    machine = _unequal([lasting(record["host"]) for record in records])
    found = [f"machine ({', '.join(machine)})"] if machine else []
    if len({record["code"] for record in records}) > 1:
        found.append("code")
    return found


def mixed_runs(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in what optimizer runs differ that must be equal where figures are compared.

    Beside `mixed` that is the engine: a container's figures are not a process's, nor are those of
    another image or under another budget; and corpus, sampler and scale.
    """
    found = [key for key in _SETTING if any(r[key] != records[0][key] for r in records)]
    return [*found, *mixed(list(records))]


def measured_alike(
    records: Sequence[Mapping[str, Any]], as_one: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return those of `records` that were measured as the runs `as_one` were."""
    return [record for record in records if not mixed_runs([record, *as_one])]

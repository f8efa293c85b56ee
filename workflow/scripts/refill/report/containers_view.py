"""What the page says of containers: the daemon, the images, the budgets as they were applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

RELAXED = "relaxed"


def sentences(records: Sequence[Record]) -> list[str]:
    """Return what a reader of figures from containers must know; nothing where there were none."""
    inside = [record for record in records if record.get("containers")]
    if not inside:
        return []
    return list(
        dict.fromkeys(
            [
                *(_daemon(record["containers"]) for record in inside),
                *_network(inside),
                *(line for record in inside for line in _budgets(record)),
                *(line for record in inside for line in _relaxed(record["containers"])),
                *(line for record in inside for line in _images(record)),
            ]
        )
    )


def _relaxed(containers: Record) -> list[str]:
    if containers["budget"] != RELAXED:
        return []
    return [f"The budget could not be had, so it is relaxed: {why}." for why in containers["why"]]


def _daemon(containers: Record) -> str:
    daemon = containers["daemon"]
    return (
        f"Engines ran in containers of {daemon.get('name', 'Docker')} {daemon['version']} "
        f"({daemon['storage_driver']}); "
        f"the driver reached them at ports published on loopback. CPUs: {containers['cpus']}."
    )


def _network(records: Sequence[Record]) -> Iterator[str]:
    """Say what the published port costs a client, by engine: the least and most of all records."""
    costs: dict[str, list[float]] = {}
    for record in records:
        for name, found in record["containers"].get("network", {}).items():
            if "cost_us" in found:
                costs.setdefault(name, []).append(found["cost_us"])
            else:
                why = found["not_measured"]
                yield f"What the published port of {name} costs a client: not measured ({why})."
    for name, found in costs.items():
        span = f"{min(found):.0f}" if len(found) == 1 else f"{min(found):.0f} to {max(found):.0f}"
        yield (
            f"The published port of {name} costs a client {span} µs a round trip more than the "
            "container's own address (p50); it is in every latency."
        )


def _budgets(record: Record) -> Iterator[str]:
    for name, engine in _engines(record):
        applied = engine.get("applied")
        if not applied or applied["budget"] == "none":
            continue
        found = applied["read_back"] or {}
        shared = ", shared by gateway, Qdrant and Valkey" if applied["shared"] else ""
        yield f"Budget of {name}, read back from the kernel: {_amounts(found)}{shared}."


def _amounts(found: Mapping[str, Any]) -> str:
    if not found:
        return "not known (the kernel's files are out of sight)"
    cpus = "all CPUs" if found["cpus"] is None else f"{found['cpus']:g} CPUs"
    memory = found["memory_bytes"]
    return f"{cpus}, " + ("no limit of memory" if memory is None else f"{memory / 2**30:.3g} GiB")


def _images(record: Record) -> Iterator[str]:
    for name, engine in _engines(record):
        if (image := engine.get("image")) and engine.get("runtime") == "docker":
            called = image.get("pinned") or image.get("reference") or image.get("tag")
            yield f"Image of {name}: {called}, {image['id']}."


def _engines(record: Record) -> list[tuple[str, Mapping[str, Any]]]:
    if "engine" in record:
        return [(str(record["engine"]["name"]), record["engine"])]
    return list(record.get("engines", {}).items())

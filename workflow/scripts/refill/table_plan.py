"""What the configuration asks for: which records, and how tables and report are made of them.

Of the workflow, which plans its jobs by it, and of `verify`, which holds a manifest against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refill.operations.catalog import Operations
from refill.phases.round_plan import order

Config = Mapping[str, Any]


def optimizer_runs(config: Config) -> list[tuple[str, int]]:
    """Return (id, repeat) of each run in its order.

    All configurations once, then all of them again: neighbours in time are not twins.
    """
    optimizers = config["optimizers"]
    repeats = range(1, optimizers["repeats"] + 1)
    return [(name, repeat) for repeat in repeats for name in optimizers["runs"]]


def rounds(config: Config) -> list[tuple[str, str, int]]:
    """Return (profile, image, number) of each round in its order, block after block."""
    section = config.get("rounds", {})
    ordered = order(section.get("blocks", 1))
    return [(p, image, n) for p in section.get("profiles", []) for image, n in ordered]


def expected_rounds(config: Config, operations: Operations) -> dict[str, Any]:
    """Return what the table of the rounds lists, measured or not."""
    named = {
        "warm": [{"id": o.id, "title": o.title} for o in operations.warm],
        "cold": [{"id": operations.cold.id, "title": operations.cold.title}],
    }
    section = config.get("rounds", {})
    return {
        "operations": named,
        "clients": {**operations.counts, **section.get("counts", {})}["clients"],
        "engines": section.get("engines", []),
        "profiles": section.get("profiles", []),
        **{key: section[key] for key in ("blocks", "margin", "images") if key in section},
    }


def of_tables(config: Config, operations: Operations) -> dict[str, Any]:
    """Return the plan of the tables, which is that of the report, too."""
    return {
        "runs": optimizer_runs(config),
        "rounds": rounds(config),
        "expected": expected_rounds(config, operations),
        "machines": config.get("compare", {}).get("machines", "same"),
        "proof": proof(config),
    }


def proof(config: Config) -> dict[str, Any] | None:
    """Return what the proof is asked to be, as its record says it; None when none is."""
    section = config.get("proof", {"form": "none"})
    if section["form"] == "none":
        return None
    return {
        "scale": config["scale"],
        "form": section["form"],
        "seed": section["seed"],
        "runtime": config.get("runtime", "process"),
        "servers": dict(section["servers"]),
        # The Qdrant behind them is another one in containers.
        "images": {part: section["images"][part] for part in ("old", "new")},
    }


def records(config: Config) -> dict[str, list[str]]:
    """Return the paths of the records that are asked for, by the name that scripts give them."""
    return {
        "rounds": [f"results/rounds/{p}/{image}-{n}.json" for p, image, n in rounds(config)],
        "proofs": ["results/proofs/aof.json"] if proof(config) else [],
        "records": [f"results/optimizers/{name}/{n}.json" for name, n in optimizer_runs(config)],
    }

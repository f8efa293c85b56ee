"""A copy of the project whose engines run in containers, and what is left of them in the daemon."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml
from project_copy import CONFIG, Project
from refill.image_sources import read_source
from refill.runtimes.leftovers import OWNER, RUN
from round_fixture import flights_package

OPENSEARCH = "refill-test-opensearch:3.9.0"
FEW_KILLS = 'Scale("smoke", 20, 12, 14, other_kills=2, cut_s=0.3)'
CPUS, MEMORY = 2, 1 << 30
ROUNDS: dict[str, Any] = {
    "profiles": ["on-main", "off-control"],
    "engines": ["gateway", "opensearch", "elasticsearch"],
    "corpus": {"name": "small-flights", "documents": 400},
    "images": {"old": "gateway-old", "new": "gateway-new"},
    "native": {"heap": "256m", "warm_up": 12},
    "counts": {"trials": 1, "clients": [1, 2], "warm": 6, "cold_enabled": 6, "cold_disabled": 6},
    "warm_up": 2,
}
RUNS = ["A1", "E1"]


def configuration(base: str) -> dict[str, Any]:
    """Give a configuration of a whole small workflow in containers built on `base`."""
    return {
        **CONFIG,
        "runtime": "docker",
        "docker": {
            "base": base,
            "valkey": {"image": "valkey"},
            "qdrant": {"image": "qdrant-edge"},
            "opensearch": {"pull": OPENSEARCH},
            # In no registry: it must be said, and everything else go on.
            "elasticsearch": {"pull": "refill-test-no-such-image:8.15.0"},
            "budget": {"cpus": CPUS, "memory_bytes": MEMORY},
        },
        "rounds": ROUNDS,
        "proof": {"form": "smoke"},
        "optimizers": {
            **CONFIG["optimizers"],
            "runs": RUNS,
            # E1 sets the default at its follow-up: small enough that there is work then.
            "defaults": {"indexing_threshold": 20},
        },
    }


def make(folder: Path, config: dict[str, Any]) -> Project:
    """Copy the project, its images pinned as they are, with data that need no network.

    `config` is given the documents that were made for it.
    """
    project = Project(folder)
    path = folder / "config/images.yaml"
    images = yaml.safe_load(path.read_text())
    for entry in images["images"].values():
        entry["pinned"] = read_source(folder, entry).state()
    path.write_text(yaml.safe_dump(images))
    # The proof's smoke form has tests of its own; here a few kills show that it runs: enough for
    # some to meet a write, as a proof in which none does is void.
    suite = folder / "workflow/scripts/refill/proofs/suite.py"
    text, changed = re.subn(r'"smoke": Scale\(.*\),', f'"smoke": {FEW_KILLS},', suite.read_text())
    assert changed == 1
    suite.write_text(text)
    package = flights_package(folder / "results/downloads/small-flights", 450)
    config["corpora"] = {**config["corpora"], "small-flights": package}
    project.configure(config)
    return project


def with_rounds(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Give a configuration with other rounds."""
    changed = copy.deepcopy(config)
    changed["rounds"] |= changes
    return changed


def runs_of(client: Any, owner: int) -> set[str]:
    """Give the runs whose containers, networks or volumes a process of this machine owns."""
    things = [*client.containers.list(all=True), *client.networks.list(), *client.volumes.list()]
    labels = [thing.attrs.get("Labels") or getattr(thing, "labels", None) or {} for thing in things]
    mine = (part for part in labels if part.get(OWNER, "").split("/")[0] == str(owner))
    return {part[RUN] for part in mine}


def left_of(client: Any, run: str) -> list[str]:
    """Give what a run has in the daemon: containers, networks, volumes."""
    marked = {"label": f"{RUN}={run}"}
    return [
        *(c.name for c in client.containers.list(all=True, filters=marked)),
        *(n.name for n in client.networks.list(filters=marked)),
        *(v.name for v in client.volumes.list(filters=marked)),
    ]

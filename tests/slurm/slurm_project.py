"""A copied project that runs through the Slurm profile, small enough for two pseudo-nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from project_copy import CONFIG, Project
from refill.image_sources import read_source
from round_fixture import flights_package
from slurm_cluster import CPUS, NODES

ROUNDS: dict[str, Any] = {
    "profiles": ["on-main"],
    # The native engines have tests of their own, and a start of seconds.
    "engines": ["gateway"],
    "corpus": {"name": "small-flights", "documents": 400},
    "images": {"old": "gateway-old", "new": "gateway-new"},
    "counts": {"trials": 1, "clients": [1, 2], "warm": 8, "cold_enabled": 8, "cold_disabled": 8},
    "warm_up": 4,
}
# A2 has nothing to drain, so its steady phase, made long here, is where the end finds it.
LONG: dict[str, Any] = {
    **CONFIG,
    "optimizers": {
        **CONFIG["optimizers"],
        "runs": ["A2"],
        "steady": {"passes": 400, "open_per_s": 20, "open_passes": 400},
    },
}
SHORT: dict[str, Any] = {**CONFIG, "optimizers": {**CONFIG["optimizers"], "runs": ["A2"]}}


class SlurmProject(Project):
    """A copied project whose jobs go to the cluster through a profile of workflow/profiles."""

    profile = "slurm"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "config/images.yaml"
        images = yaml.safe_load(path.read_text())
        for entry in images["images"].values():
            entry["pinned"] = read_source(folder, entry).state()
        path.write_text(yaml.safe_dump(images))

    def with_rounds(self, runs: list[str]) -> None:
        """Configure four rounds of a few documents, and these optimizer runs."""
        # As if pip had fetched it: no network in this test.
        package = flights_package(self.folder / "results/downloads/small-flights", 450)
        self.configure(
            {
                **CONFIG,
                "rounds": ROUNDS,
                "optimizers": {**CONFIG["optimizers"], "runs": runs},
            }
        )
        settings = self.folder / "test.yaml"
        config = yaml.safe_load(settings.read_text())
        config["corpora"]["small-flights"] = package
        settings.write_text(yaml.safe_dump(config))

    def command(self, *arguments: str) -> list[str]:
        """Give the command that runs Snakemake on this project through the profile."""
        # This cluster has no accounting, so squeue must tell; and it is looked at more often.
        slurm = [
            "--slurm-status-command",
            "squeue",
            "--slurm-init-seconds-before-status-checks",
            "5",
        ]
        return [
            sys.executable, "-m", "snakemake", *arguments,
            "--workflow-profile", f"workflow/profiles/{self.profile}",
            "--configfile", "test.yaml", "--nocolor",
            # What README.md of the profile tells to change.
            "--config", f"node_cpus={CPUS}",
            "--resources", f"machine={len(NODES)}", "session=1",
            "--seconds-between-status-checks", "2",
            *(slurm if self.profile == "slurm" else []),
        ]  # fmt: skip

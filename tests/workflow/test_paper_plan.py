"""The published setup as a dry run: eight rounds, 13 configurations, and nobody asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from refill.config import PROJECT, load

IDS = ["A1", "A2", "A3", "B1", "B2", "B3", "B4", "C1", "C2", "D1", "D2", "E1", "E2"]
IMAGES = {
    "valkey": "valkey/valkey:8.1.10",
    "qdrant": "qdrant/qdrant:v1.19.2",
    "opensearch": "opensearchproject/opensearch:3.9.0",
    "elasticsearch": "elasticsearch:8.15.0",
}


def dry_run(folder: Path) -> str:
    done = subprocess.run(
        [
            sys.executable, "-m", "snakemake", "--dry-run", "all", "--nocolor", "--cores", "1",
            "--configfile", "config/paper.yaml", "--directory", str(folder),
        ],
        cwd=PROJECT,
        # Nobody is there to be asked.
        env=os.environ | {"DOCKER_HOST": f"unix://{folder}/none"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_a_dry_run_shows_the_published_plan(tmp_path: Path) -> None:
    text = dry_run(tmp_path)
    records = set(re.findall(r"output: (results/(?:rounds|optimizers)/\S+\.json)", text))
    order = ["old-1", "new-1", "new-2", "old-2"]
    rounds = {f"results/rounds/{p}/{n}.json" for p in ("on-main", "off-control") for n in order}
    runs = {f"results/optimizers/{name}/{n}.json" for name in IDS for n in (1, 2, 3)}
    assert records == rounds | runs
    assert "Corpus msmarco-v2.1: 1760000 points and 1000 queries of 1024 dimensions" in text
    assert "results/proofs/aof.json" in text
    stats = dict(re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE))
    counts = {"image": "2", "pulled_image": "2", "native_engine": "2", "round_on": "4"}
    assert {rule: stats[rule] for rule in counts} == counts


def test_versions_and_budgets_are_the_published_ones() -> None:
    config = load(PROJECT / "config/config.yaml", [PROJECT / "config/paper.yaml"])
    assert config["runtime"] == "docker"
    assert {name: config["docker"][name]["pull"] for name in IMAGES} == IMAGES
    budget = {"cpus": 2, "memory_bytes": 4 << 30, "small_machine": "refuse"}
    assert config["docker"]["budget"] == budget
    assert config["rounds"]["counts"] == {}
    assert config["rounds"]["corpus"]["documents"] == 10_000
    assert config["optimizers"]["runs"] == IDS

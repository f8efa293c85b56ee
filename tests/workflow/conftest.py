"""What the tests of the workflow share: a whole small result folder, measured once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from project_copy import CONFIG, Project
from refill.evidence.records import read_json, write_json
from refill.image_sources import read_source
from round_fixture import flights_package

ROUNDS: dict[str, Any] = {
    "profiles": ["on-main"],
    # The native engines have tests of their own, and a start of seconds.
    "engines": ["gateway"],
    "corpus": {"name": "small-flights", "documents": 400},
    "images": {"old": "gateway-old", "new": "gateway-new"},
    "counts": {"trials": 2, "clients": [1], "warm": 8, "cold_enabled": 8, "cold_disabled": 8},
    "warm_up": 4,
}


@pytest.fixture(scope="session")
def small_results(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after one run of `all`: four rounds and one optimizer run, all small."""
    made = Project(tmp_path_factory.mktemp("a project"))
    path = made.folder / "config/images.yaml"
    images = yaml.safe_load(path.read_text())
    for entry in images["images"].values():
        entry["pinned"] = read_source(made.folder, entry).state()
    path.write_text(yaml.safe_dump(images))
    optimizers: dict[str, Any] = {**CONFIG["optimizers"], "runs": ["A2"]}
    made.configure({**CONFIG, "optimizers": optimizers, "rounds": ROUNDS})
    package = flights_package(made.folder / "results/downloads/small-flights", 450)
    given_ = made.folder / "test.yaml"
    config = yaml.safe_load(given_.read_text())
    config["corpora"]["small-flights"] = package
    given_.write_text(yaml.safe_dump(config))
    code, text = made.run("all", timeout_s=400)
    assert code == 0, text
    return made


@pytest.fixture
def manifest(small_results: Project) -> Path:
    return small_results.folder / "results/manifest.json"


@pytest.fixture
def copied(small_results: Project, tmp_path: Path) -> Path:
    """The manifest of a copy of everything, to be spoilt."""
    shutil.copytree(small_results.folder, tmp_path / "copy")
    return tmp_path / "copy/results/manifest.json"


@pytest.fixture
def other(manifest: Path, tmp_path: Path) -> Path:
    """The manifest of a second result folder, equal to the first but for its attempts."""
    shutil.copytree(manifest.parent, tmp_path / "other/results")
    path = tmp_path / "other/results/manifest.json"
    content = read_json(path)
    for run in content["runs"]:
        run["attempt"] = f"{run['attempt'][:-6]}ffffff"
    write_json(path, content)
    return path

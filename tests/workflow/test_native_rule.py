"""The rule that makes a native engine ready, in the real workflow, where one is not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_copy import CONFIG, Project
from refill.evidence.records import read_json
from test_rounds import ROUNDS, pin_images


@pytest.mark.parametrize("engine", ["opensearch", "elasticsearch"])
def test_an_engine_that_is_not_at_hand_is_recorded_and_no_failure(
    tmp_path: Path, engine: str
) -> None:
    project = Project(tmp_path)
    pin_images(project.folder)
    rounds = {**ROUNDS, "corpus": {"name": "flights", "documents": 400}}
    rounds |= {"engines": ["gateway", engine], "native": {"java": "/nowhere/java"}}
    project.configure({**CONFIG, "rounds": rounds})
    target = f"results/engines/{engine}.json"
    code, text = project.run(target)
    assert code == 0, text
    record = read_json(project.folder / target, "refill.engine/1")
    assert record["status"] == "not at hand"
    assert record["why"].endswith("found: none: install one, or set rounds.native.java to one")
    # It is an input of every round, and nothing is done twice.
    code, text = project.run(target, "--dry-run")
    assert code == 0, text
    assert "Nothing to be done" in text
    code, text = project.run("results/rounds/on-main/old-1.json", "--dry-run")
    assert code == 0, text
    assert target in text

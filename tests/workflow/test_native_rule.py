"""The rule that makes a native engine ready, in the real workflow, where one is not at hand."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from native_release import fake_java, make_release, program
from project_copy import CONFIG, Project
from refill.evidence.records import read_json
from refill.evidence.scrub import SHORTENED, machine_folders
from refill.processes import wait_for
from round_fixture import flights_package
from test_rounds import ROUNDS, pin_images

ENGINE = "results/engines/opensearch.json"
ROUND = "results/rounds/off-control/old-1.json"


def project_with(folder: Path, native: dict[str, Any], engine: str = "opensearch") -> Project:
    """A project whose rounds have one native engine beside the gateway."""
    project = Project(folder)
    pin_images(project.folder)
    rounds = {**ROUNDS, "engines": ["gateway", engine], "native": native}
    counts = {"trials": 1, "clients": [1], "warm": 4, "cold_enabled": 4, "cold_disabled": 4}
    project.configure({**CONFIG, "rounds": {**rounds, "counts": counts}})
    package = flights_package(project.folder / "results/downloads/small-flights", 450)
    settings = project.folder / "test.yaml"
    config = yaml.safe_load(settings.read_text())
    config["corpora"]["small-flights"] = package
    settings.write_text(yaml.safe_dump(config))
    return project


def ran(project: Project, target: str, *arguments: str) -> set[str]:
    """Run a target and give the rules that ran."""
    code, text = project.run(target, *arguments)
    assert code == 0, text
    words = [line.split() for line in text.splitlines()]
    kinds = ("rule", "localrule", "checkpoint", "localcheckpoint")
    return {line[1].rstrip(":") for line in words if len(line) == 2 and line[0] in kinds}


@pytest.mark.parametrize("engine", ["opensearch", "elasticsearch"])
def test_an_engine_that_is_not_at_hand_is_recorded_and_no_failure(
    tmp_path: Path, engine: str
) -> None:
    project = project_with(tmp_path, {"java": "/nowhere/java"}, engine)
    target = f"results/engines/{engine}.json"
    code, text = project.run(target)
    assert code == 0, text
    record = read_json(project.folder / target, "refill.engine/2")
    assert (record["status"], record["again"]) == ("not at hand", False)
    assert record["why"].endswith("found: none: install one, or set rounds.native.java to one")
    # It is an input of every round, and nothing is done twice: the plan knows of every Java.
    code, text = project.run(target, "--dry-run")
    assert code == 0, text
    assert "Nothing to be done" in text
    code, text = project.run(ROUND, "--dry-run")
    assert code == 0, text
    assert target in text


def test_what_may_have_passed_is_tried_again_and_reruns_rounds_only_when_it_has(
    tmp_path: Path,
) -> None:
    """The release holds nothing that runs, so a round that has it says that it failed."""
    java = fake_java(tmp_path / "java", "25.0.1").parents[1]
    release = make_release(tmp_path / "release")
    core = next((release / "lib").glob("opensearch-core-*"))
    aside = core.rename(tmp_path / "aside.jar")
    project = project_with(
        tmp_path / "project", {"java": str(java), "opensearch": {"home": str(release)}}
    )
    ran(project, ROUND)
    first = read_json(project.folder / ROUND)
    assert "opensearch-core-VERSION.jar is missing" in first["natives"]["opensearch"]["why"]

    # Still half: the engine is tried again, and the round is left alone.
    assert ran(project, ROUND) == {"native_engine"}
    assert read_json(project.folder / ENGINE)["attempt"] == 2
    assert read_json(project.folder / ROUND)["attempt"] == first["attempt"]

    # What else asks for the round is not forgotten over it.
    settings = project.folder / "test.yaml"
    config = yaml.safe_load(settings.read_text())
    config["rounds"]["warm_up"] += 1
    settings.write_text(yaml.safe_dump(config))
    assert ran(project, ROUND) == {"native_engine", "round_off"}
    second = read_json(project.folder / ROUND)
    assert second["attempt"] != first["attempt"]

    # Whole: the same run measures the round again.
    aside.rename(core)
    assert ran(project, ROUND) == {"native_engine", "round_off"}
    assert read_json(project.folder / ENGINE)["status"] == "at hand"
    third = read_json(project.folder / ROUND)
    assert third["natives"]["opensearch"]["status"] == "failed"
    assert "ERROR: no Java" in third["natives"]["opensearch"]["why"]
    (log,) = (project.folder / "results/attempts").rglob("opensearch.log")
    said = log.read_text()
    assert "ERROR: no Java: " in said
    assert (list(machine_folders(said)), said.endswith(f"{SHORTENED}\n")) == ([], True)
    code, text = project.run(ROUND, "--dry-run")
    assert code == 0, text
    assert "Nothing to be done" in text

    # Half again: the round that had it is kept, and nothing of it is asked for when it is whole.
    core.rename(aside)
    script = project.folder / "workflow/scripts/prepare_engine.py"
    script.write_text(script.read_text() + "# a change, so that the rule runs\n")
    assert ran(project, ROUND) == {"native_engine"}
    assert read_json(project.folder / ENGINE)["status"] == "not at hand"
    assert ran(project, ROUND) == {"native_engine"}
    aside.rename(core)
    assert ran(project, ROUND) == {"native_engine"}
    assert read_json(project.folder / ENGINE)["status"] == "at hand"
    assert read_json(project.folder / ROUND)["attempt"] == third["attempt"]


def test_ctrl_c_ends_a_download_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hangs in a child of its own stands in Maven's place."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    child = tmp_path / "child"
    program(tmp_path / "programs/mvn", f"sleep 300 & echo $! > {child}; wait\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    java = fake_java(tmp_path / "java", "25.0.1").parents[1]
    project = project_with(tmp_path / "project", {"java": str(java)})
    snakemake = project.start(ENGINE)
    try:
        assert wait_for(lambda: child.exists() and child.read_text().strip() != "", 120)
        sleeping = psutil.Process(int(child.read_text()))
        assert list(temporary.glob("refill-maven-*"))
        os.killpg(snakemake.pid, signal.SIGINT)
        assert snakemake.wait(60) != 0
    finally:
        if snakemake.poll() is None:
            os.killpg(snakemake.pid, signal.SIGKILL)
        snakemake.wait()
    assert wait_for(lambda: not sleeping.is_running(), 20)
    assert wait_for(lambda: not list(temporary.glob("refill-maven-*")), 20)
    assert not (project.folder / ENGINE).exists()

"""Ctrl+C, kills, dead and foreign engines: nothing stays behind, nothing is lost, all is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from edge_server import EdgeServer
from project_copy import CONFIG, Project
from refill.evidence.attempts import list_attempts
from refill.processes import wait_for

RECORD = "results/optimizers/A2/1.json"
# A2 has nothing to drain, so its steady phase, made long here, is where a signal finds it.
LONG: dict[str, Any] = {
    **CONFIG,
    "optimizers": {
        **CONFIG["optimizers"],
        "runs": ["A2"],
        "steady": {"passes": 40, "open_per_s": 20, "open_passes": 40},
    },
}
SHORT: dict[str, Any] = {**CONFIG, "optimizers": {**CONFIG["optimizers"], "runs": ["A2"]}}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    made.configure(LONG)
    return made


def engine_of(project: Project) -> psutil.Process:
    return next(p for p in project.processes() if "--storage" in p.cmdline())


def assert_nothing_stays(project: Project) -> None:
    assert wait_for(lambda: not project.processes(), 30), [
        process.cmdline() for process in project.processes()
    ]
    assert not list((project.folder / "results/scratch").glob("*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_workflow_leaves_nothing_and_a_rerun_completes(
    project: Project, number: signal.Signals
) -> None:
    snakemake = project.start("all")
    project.wait_for_log(snakemake, "A2-1", "steady begins")
    if number == signal.SIGKILL:
        snakemake.kill()
    else:
        # To all of its processes, as a terminal, systemd and Slurm do. A TERM to Snakemake alone
        # lets it finish the job under way, by its own design.
        os.killpg(snakemake.pid, number)
    snakemake.wait(60)
    assert_nothing_stays(project)
    assert not (project.folder / RECORD).exists()
    attempts = list_attempts(project.folder)
    assert [attempt["outcome"] for attempt in attempts] == ["interrupted"]
    # What was measured until then is kept beside the outputs.
    assert any("ledger/part-" in name for name in attempts[0]["files"])

    project.configure(SHORT)
    if number != signal.SIGINT:
        code, text = project.run("--unlock")
        assert code == 0, text
    code, text = project.run("all")
    assert code == 0, text
    assert project.json(RECORD)["valid"]
    assert [a["outcome"] for a in list_attempts(project.folder)] == ["interrupted", "completed"]
    assert (project.folder / "results/report.html").exists()


def test_a_killed_run_counts_as_died(project: Project) -> None:
    snakemake = project.start("all")
    project.wait_for_log(snakemake, "A2-1", "steady begins")
    script = next(
        p for p in project.processes() if p.cmdline()[1:2] and "run_optimizer.py" in p.cmdline()[1]
    )
    script.kill()
    snakemake.wait(60)
    assert wait_for(lambda: not project.processes(), 30)
    assert [a["outcome"] for a in list_attempts(project.folder)] == ["died"]
    # The dead run could not remove the engine's data; the next one of this target does.
    project.configure(SHORT)
    project.run("--unlock")
    code, text = project.run("all")
    assert code == 0, text
    assert_nothing_stays(project)


def test_an_engine_that_dies_makes_an_invalid_record_that_says_so(project: Project) -> None:
    snakemake = project.start("all")
    project.wait_for_log(snakemake, "A2-1", "steady begins")
    engine_of(project).kill()
    assert snakemake.wait(90) == 0
    record = project.json(RECORD)
    assert record["valid"] is False
    assert record["outcome"] == "failed"
    assert "qdrant has ended (signal SIGKILL)" in record["invalid"][0]
    assert record["ledger"]["rows"] > 0
    page = (project.folder / "results/report.html").read_text()
    assert "qdrant has ended" in page
    assert_nothing_stays(project)


def test_a_drain_that_reaches_its_limit_is_never_steady(project: Project) -> None:
    optimizers = {
        **SHORT["optimizers"],
        "runs": ["A1"],
        "defaults": {"indexing_threshold": 20},
        "draining": {
            **CONFIG["optimizers"]["draining"],
            "poll_s": 0.02,
            "idle_polls": 3,
            "limit_s": 0.1,
        },
    }
    project.configure({**SHORT, "optimizers": optimizers})
    code, text = project.run("all")
    assert code == 0, text
    record = project.json("results/optimizers/A1/1.json")
    assert record["outcome"] == "drain_limit"
    assert [phase["name"] for phase in record["phases"]] == ["upload", "draining"]
    assert record["phases"][1]["ended_by"]["reason"] == "drain_limit"


def test_a_server_at_a_url_is_used_and_left_as_it_was(project: Project, tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "storage") as server:
        url = server.url
        project.configure({**SHORT, "qdrant": {"image": None, "url": url}})
        code, text = project.run("all")
        assert code == 0, text
        record = project.json(RECORD)
        assert record["valid"], record["invalid"]
        assert record["engine"]["runtime"] == "external"
        assert record["engine"]["embedded"] is True  # its title says so
        assert server.result("GET", "/collections")["collections"] == []


def test_a_collection_that_is_there_is_not_touched(project: Project, tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "storage") as server:
        body = {"vectors": {"size": 4, "distance": "Dot"}}
        server.result("PUT", "/collections/refill", body)
        project.configure({**SHORT, "qdrant": {"image": None, "url": server.url}})
        code, text = project.run("all")
        assert code != 0
        assert "already there" in text
        assert not (project.folder / RECORD).exists()
        info = server.result("GET", "/collections/refill")
        assert info["config"]["params"]["vectors"]["size"] == 4


def test_nobody_at_the_url_is_an_error_with_words(project: Project) -> None:
    project.configure({**SHORT, "qdrant": {"image": None, "url": "http://127.0.0.1:9"}})
    code, text = project.run("all")
    assert code != 0
    assert "nothing answers at the address in the config" in text


def test_two_workflows_measure_one_after_the_other(tmp_path: Path) -> None:
    one, two = Project(tmp_path / "one"), Project(tmp_path / "two")
    lock = {"REFILL_LOCK": str(tmp_path / "lock")}
    running = []
    for project in (one, two):
        project.configure(SHORT)
        running.append(
            subprocess.Popen(
                project.command("results/optimizers/A2/1.json"),
                cwd=project.folder,
                env=project.environment | lock,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for process in running:
        out, _ = process.communicate(timeout=180)
        assert process.returncode == 0, out
    spans = sorted((r["started_at"], r["ended_at"]) for r in (one.json(RECORD), two.json(RECORD)))
    assert spans[0][1] <= spans[1][0]
    assert json.loads((one.folder / RECORD).read_text())["valid"]

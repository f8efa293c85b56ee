"""The crash proof in its smoke form, by the real workflow: target, record, attempts, manifest."""

from __future__ import annotations

import json
import os
from typing import Any

import pandas as pd
import pytest
from project_copy import CONFIG, Project
from refill.evidence.attempts import list_attempts
from refill.evidence.verification import verify
from refill.proofs.suite import CHECKS, judge
from refill.report.proofs import proofs_table
from refill.report.proofs_view import section

RECORD = "results/proofs/aof.json"
PUBLISHED = [
    "claims-and-tokens",
    "commits-and-releases",
    "publication-hit",
    "rewrite-restores",
    "old-generation",
    "after-publication-error",
]
KILLED = {"crash-server": "kills", "crash-gateway": "gateway kills"}


def configured(**proof: Any) -> dict[str, Any]:
    optimizers = {**CONFIG["optimizers"], "runs": ["A2"]}
    return {**CONFIG, "optimizers": optimizers, "proof": {"form": "smoke", **proof}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after `all`: the proof and one short optimizer run, in a folder with a space."""
    made = Project(tmp_path_factory.mktemp("a project"))
    made.configure(configured())
    code, text = made.run("all", timeout_s=1200)
    assert code == 0, text
    return made


@pytest.fixture(scope="module")
def record(project: Project) -> dict[str, Any]:
    return project.json(RECORD)


def made_on_the_default(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (made["id"], made["image"]): made
        for made in record["checks"]
        if made["server"] == record["default_server"]
    }


def test_the_proof_holds(record: dict[str, Any]) -> None:
    assert record["valid"], record["invalid"]
    made = made_on_the_default(record)
    assert {key[0] for key in made} == {check.id for check in CHECKS}
    for image in ("old", "new"):
        for id_ in PUBLISHED:
            entry = made[id_, image]
            assert (entry["source"], entry["outcome"]) == ("published", "pass")
            assert entry["evidence"]
    assert made["publication-hit", "new"]["evidence"]["property_holds"]
    assert not made["publication-hit", "old"]["evidence"]["property_holds"]


def test_kills_are_counted_and_met_something(record: dict[str, Any]) -> None:
    made = made_on_the_default(record)
    for id_, name in KILLED.items():
        evidence = made[id_, "new"]["evidence"]
        assert evidence[name] == 20
        assert evidence["seed"] == 1
    assert made["crash-server", "new"]["evidence"]["calls that a kill left unanswered"] > 0
    assert made["crash-gateway", "new"]["evidence"]["gateway kills that left a writer"] > 0


def test_what_cannot_run_here_is_not_run_and_never_passed(record: dict[str, Any]) -> None:
    for made in record["checks"]:
        if made["outcome"] == "not run":
            assert made["why"]
            # On a machine of its own everything can be had.
            in_full = made["why"].endswith("tried in the full form only")
            only_here = made["server"] != record["default_server"] or in_full
            assert only_here or not os.environ.get("CI") or os.geteuid() != 0, made
        if made["outcome"] == "pass":
            assert made["evidence"] or made["id"] == "as-built"
    for server in record["servers"]:
        if os.environ.get("CI") and os.geteuid() == 0:
            assert server["status"] == "run", server


def test_a_second_server_is_in_the_record(record: dict[str, Any]) -> None:
    counts = record["counts"]["valkey-9"]
    assert counts["pass"] > 20
    assert counts["fail"] == counts["void"] == 0


def test_nothing_is_left_to_do_and_nothing_of_it_behind(project: Project) -> None:
    assert project.planned() == {}
    assert not list((project.folder / "results/scratch").glob("*proofs*"))


def test_the_attempt_is_kept_and_listed(project: Project, record: dict[str, Any]) -> None:
    (attempt,) = [a for a in list_attempts(project.folder) if a["target"] == "proofs/aof"]
    assert attempt["outcome"] == "completed"
    assert list(attempt["files"]) == [RECORD]
    kept = project.folder / "results/attempts" / attempt["attempt"] / "aof.json"
    assert json.loads(kept.read_text()) == record
    manifest = project.json("results/manifest.json")
    (run,) = [run for run in manifest["runs"] if run["record"] == RECORD]
    assert (run["outcome"], run["valid"]) == ("completed", True)
    assert RECORD not in manifest["not_asked_for"]
    assert manifest["results"][RECORD]["kind"] == "record"
    assert attempt["attempt"] in [a["attempt"] for a in manifest["attempts"]]
    assert {e["engine"]["name"] for e in manifest["engines"]} >= {"valkey", "qdrant"}
    assert verify(project.folder / "results/manifest.json") == []


def test_the_proof_runs_before_the_optimizers(project: Project, record: dict[str, Any]) -> None:
    assert record["ended_at"] <= project.json("results/optimizers/A2/1.json")["started_at"]


def test_the_report_and_the_table_of_the_workflow_have_it(project: Project) -> None:
    assert "The proof holds on valkey-8.1" in (project.folder / "results/report.html").read_text()
    table = pd.read_csv(project.folder / "results/tables/proofs.csv")
    assert set(table["check"]) >= set(PUBLISHED)


def test_table_and_page_say_what_the_record_says(record: dict[str, Any]) -> None:
    table = proofs_table([record])
    missing = sum(server["status"] != "run" for server in record["servers"])
    assert len(table) == len(record["checks"]) + missing
    assert table["counts"].sum() == 2 * len(CHECKS)
    shown = section([record])
    assert shown["valid"]
    assert len(shown["rows"]) + 6 == len(CHECKS)
    assert len(shown["cuts"]) == 12


def test_one_check_that_fails_is_enough(record: dict[str, Any]) -> None:
    assert judge(record["checks"]) == []
    for outcome, wrong in (("fail", True), ("void", True), ("not run", True), ("pass", False)):
        entries = [dict(made) for made in record["checks"]]
        entries[0]["outcome"] = outcome
        assert bool(judge(entries)) is wrong
    optional = [dict(made) for made in record["checks"]]
    for made in optional:
        if made["needs"]:
            made["outcome"] = "not run"
    assert judge(optional) == []
    elsewhere = [dict(m) for m in record["checks"] if m["server"] != record["default_server"]]
    assert judge(elsewhere) != []


def test_another_proof_in_its_place_is_refused(project: Project) -> None:
    """The last test here: Snakemake takes the tables away before they are made again."""
    project.configure(configured(seed=2))
    code, text = project.run("results/tables/proofs.csv", "--force", "--rerun-triggers", "mtime")
    project.configure(configured())
    assert code != 0
    assert "results/proofs/aof.json: asked_for.seed: is 1, the configuration asks for 2" in text
    assert "`rm results/proofs/aof.json`, and run again" in text

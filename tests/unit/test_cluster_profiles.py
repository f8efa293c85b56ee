"""The profiles of clusters: no measurement shares a node, nothing of the default is lost."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from project_copy import PROJECT
from refill import needs
from refill.config.load import load
from refill.workflow import Plans

WORKFLOW = PROJECT / "workflow"
CLUSTERS = {"slurm": "slurm_extra", "cluster-generic": "place"}


def profile(name: str) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((WORKFLOW / f"profiles/{name}/config.yaml").read_text())
    return value


def rule_blocks() -> dict[str, str]:
    """The text of each rule; one made from another (`use rule a as b`) has that one's before it."""
    blocks: dict[str, str] = {}
    for path in sorted((WORKFLOW / "rules").glob("*.smk")):
        parts = re.split(
            r"^\s*(?:use )?rule (\w+)(?: as (\w+) with)?:$", path.read_text(), flags=re.M
        )
        for name, made, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            blocks[made or name] = (blocks[name] if made else "") + text
    return blocks


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_rule_that_measures_has_its_node_alone(name: str) -> None:
    blocks = rule_blocks()
    measuring = {rule for rule, text in blocks.items() if "machine=1" in text}
    assert {"optimizer", "round_on", "round_off"} <= measuring
    given = profile(name)["set-resources"]
    for rule in measuring | {"pick_node"}:
        wanted = str(given.get(rule, {}).get(CLUSTERS[name]))
        assert wanted.startswith("'--exclusive"), f"{name}: {rule}: {wanted}"
        # What must run on the chosen node has it among its inputs.
        assert ("--nodelist=' + open(input.node)" in wanted) == ("node=ROUNDS_NODE" in blocks[rule])
    # One at a time: what is ordered.
    assert profile(name)["resources"]["session"] == 1
    assert all("session=in_session" in t for t in blocks.values() if "node=ROUNDS_NODE" in t)


def test_no_job_of_a_cluster_runs_for_a_call_that_was_replaced() -> None:
    for rule, text in rule_blocks().items():
        if "localrule: True" not in text and rule != "all":
            # Of its own target, not of the one whose text it was made from.
            assert "turn=in_turn(" in text.split("output:")[-2], rule


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_rule_of_a_cluster_says_what_it_needs(name: str) -> None:
    for rule, text in rule_blocks().items():
        if "localrule: True" not in text:
            assert "mem_mb=" in text, rule
            assert "runtime=" in text, rule
    assert set(profile(name)["set-resources"]) <= set(rule_blocks())


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_job_that_is_stopped_deletes_no_results(name: str) -> None:
    # They can be those of a later job; tests/slurm shows it.
    assert profile(name)["keep-incomplete"] is True


@pytest.mark.parametrize("name", CLUSTERS)
def test_what_the_default_profile_sets_is_repeated(name: str) -> None:
    mine, default = profile(name), profile("default")
    for key, value in default.items():
        if key == "resources":
            assert set(value if isinstance(value, dict) else [value.split("=")[0]]) <= set(
                mine[key]
            )
        else:
            assert mine[key] == value


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("COMPLETED", "success"),
        ("PENDING", "running"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("TIMEOUT", "failed"),
        ("NODE_FAIL", "failed"),
        ("PREEMPTED", "failed"),
        ("CANCELLED by 0", "failed"),
        ("", "failed"),
    ],
)
def test_the_status_of_a_job_in_the_words_of_snakemake(
    tmp_path: Path, state: str, said: str
) -> None:
    squeue = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    sacct = f"echo '{state}'" if state else "exit 1"
    assert status(tmp_path, squeue, sacct) == f"{said}\n"


def status(folder: Path, squeue: str, sacct: str) -> str:
    """Ask for a job's status with these programs in the place of Slurm's."""
    for name, text in (("squeue", squeue), ("sacct", sacct)):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    done = subprocess.run(
        [WORKFLOW / "profiles/cluster-generic/status.sh", "12"],
        env={"PATH": f"{folder}:/usr/bin:/bin", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_controller_that_does_not_answer_says_nothing_of_the_job_for_a_while(
    tmp_path: Path,
) -> None:
    silent = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
    assert status(tmp_path, silent, "exit 1") == "running\n"
    (mark,) = tmp_path.glob("refill-no-answer-*")
    os.utime(mark, (0, 0))
    assert status(tmp_path, silent, "exit 1") == "failed\n"
    assert status(tmp_path, "echo RUNNING", "exit 1") == "running\n"
    assert list(tmp_path.glob("refill-no-answer-*")) == []
    # Accounting knows, although the controller is silent.
    assert status(tmp_path, silent, "echo COMPLETED") == "success\n"


def test_needs_grow_with_what_is_measured() -> None:
    base = PROJECT / "config/config.yaml"
    default, paper = load(base), load(base, [PROJECT / "config/paper.yaml"])
    # 10 s of upload, and twice a drain of 180 s, 5,000 closed and 1,000 open searches and a check.
    assert needs.optimizer(default) == needs.Need(mem_mb=4171, runtime=36)
    # 1.76 M vectors of 1,024 float32 are 7.2 GB; a drain may take two hours, and comes twice.
    assert needs.optimizer(paper).mem_mb > 2 * 7200
    assert needs.corpus(paper).mem_mb > 3 * 7200
    assert needs.optimizer(paper).runtime > 240


def test_a_round_needs_what_all_its_engines_do() -> None:
    base = PROJECT / "config/config.yaml"
    whole = load(base)
    trials = 3 * 2 * 6
    alone = {**whole, "rounds": {**whole["rounds"], "engines": ["gateway"]}}
    # Trials and three parts of a warm-up of a minute each, three starts of half a minute, 10 more.
    assert needs.one_round(alone, trials) == needs.Need(mem_mb=3000, runtime=trials + 3 + 2 + 10)
    # Two Javas of 1 GB and half of it again; each is warmed up and starts within two minutes.
    three = needs.one_round(whole, 3 * trials)
    assert three.mem_mb > 3000 + 2 * 1536
    assert three.runtime == 3 * trials + 5 + 2 + 4 + 10
    native = whole["rounds"]["native"]
    away = {**native, "opensearch": {**native["opensearch"], "url": "http://example.org:9200"}}
    one = needs.one_round({**whole, "rounds": {**whole["rounds"], "native": away}}, 3 * trials)
    assert one.mem_mb < three.mem_mb - 1536
    assert one.runtime == three.runtime - 2


def test_the_plan_counts_the_trials_of_every_engine() -> None:
    base = PROJECT / "config/config.yaml"
    alone_: dict[str, Any] = {"rounds": {"engines": ["gateway"]}}
    plans = [Plans(load(base, given), [base], PROJECT) for given in ([], [alone_])]
    three, alone = (made.round_needs.runtime for made in plans)
    counts = plans[0].round_counts
    cells = len(counts["clients"]) * 6
    assert three - alone >= 2 * cells * counts["trials"]

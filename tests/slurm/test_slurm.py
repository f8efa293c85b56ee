"""The workflow on a real Slurm of two pseudo-nodes: order, nodes, limits, losses, and reruns."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from project_copy import Project
from refill.batch_job import scratch
from refill.evidence.attempts import list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.verification import verify
from refill.processes import wait_for
from slurm_cluster import NODES, SlurmCluster, missing, stamp
from slurm_project import LONG, SHORT, SlurmProject

pytestmark = pytest.mark.slurm

RUNS = ["A1", "D1"]
RECORDS = [f"results/optimizers/{name}/1.json" for name in RUNS]
ORDER = [f"results/rounds/on-main/{name}.json" for name in ("old-1", "new-1", "new-2", "old-2")]
RECORD = "results/optimizers/A2/1.json"
IMAGES = ["results/images/qdrant-edge.json"]
# Long enough to be stopped in its steady phase, and short enough to come to its end.
MEDIUM: dict[str, Any] = {
    **LONG,
    "optimizers": {
        **LONG["optimizers"],
        "steady": {"passes": 8, "open_per_s": 20, "open_passes": 8},
    },
}


# Longer than another job for the same target takes.
OUTLIVES: dict[str, Any] = {
    **LONG,
    "optimizers": {
        **LONG["optimizers"],
        "steady": {"passes": 40, "open_per_s": 20, "open_passes": 40},
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if why := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    with SlurmCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def finished(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> SlurmProject:
    """A project whose name has a space: the optimizer runs by their paths, then `all`."""
    made = SlurmProject(tmp_path_factory.mktemp("a project"))
    made.with_rounds(RUNS)
    for targets in (RECORDS, ["all"]):
        code, text = made.run(*targets, timeout_s=900)
        assert code == 0, f"{text[-4000:]}\n{cluster.logs()}"
    return made


def no_overlap(records: list[dict[str, Any]]) -> bool:
    spans = sorted((r["started_at"], r["ended_at"]) for r in records)
    return all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


# ---- the whole workflow


def test_rounds_keep_their_order_on_one_node_and_never_overlap(finished: SlurmProject) -> None:
    records = [finished.json(path) for path in ORDER]
    for record in records:
        assert record["valid"], record["invalid"]
    begun = [record["started_at"] for record in records]
    assert begun == sorted(begun)
    assert no_overlap(records)
    node = (finished.folder / "results/cluster/rounds.node").read_text().strip()
    assert node in NODES
    assert [record["host"]["node"] for record in records] == [node] * 4


def test_optimizer_runs_spread_over_the_nodes_one_at_a_time_on_each(
    finished: SlurmProject,
) -> None:
    records = [finished.json(path) for path in RECORDS]
    for record in records:
        assert record["valid"], record["invalid"]
    assert {record["host"]["node"] for record in records} == set(NODES)
    for node in NODES:
        assert no_overlap([r for r in records if r["host"]["node"] == node])


def test_a_measurement_has_its_whole_node(cluster: SlurmCluster, finished: SlurmProject) -> None:
    measured = ("rule_optimizer_", "rule_round_", "rule_pick_node", "rule_corpus_")
    jobs = [job for job in cluster.jobs() if job.get("Comment", "").startswith(measured)]
    assert len(jobs) >= len(RECORDS) + len(ORDER) + 2
    for job in jobs:
        assert job["OverSubscribe"] == "NO"
        assert job["NumCPUs"] == "2"
    record = finished.json(RECORDS[0])
    assert record["engine"]["cpus"] == 2


def test_records_name_node_cpu_and_load_and_attempts_the_job(finished: SlurmProject) -> None:
    for path in [*RECORDS, *ORDER]:
        host = finished.json(path)["host"]
        assert host["cpu"]["model"] == finished.json(RECORDS[0])["host"]["cpu"]["model"]
        assert host["load"]["1min"] >= 0
    for attempt in list_attempts(finished.folder):
        assert attempt["outcome"] == "completed"
        assert attempt["facts"]["job"]["scheduler"] == "slurm"
        assert attempt["facts"]["job"]["node"] in NODES


def test_results_are_whole_and_nothing_is_left_to_do(finished: SlurmProject) -> None:
    assert verify(finished.folder / "results/manifest.json", finished.folder) == []
    page = (finished.folder / "results/report.html").read_text()
    assert "measured on n1" in page
    assert "measured on n2" in page
    assert finished.planned() == {}


def test_a_new_choice_of_the_node_measures_all_rounds_anew(finished: SlurmProject) -> None:
    code, text = finished.run("all", "-n", "--forcerun", "pick_node")
    assert code == 0, text
    jobs = text.split("Job stats:")[1].split("Reasons:")[0].split()
    assert jobs[jobs.index("pick_node") + 1] == "1"
    assert jobs[jobs.index("round_on") + 1] == str(len(ORDER))
    # Without the file alone nothing is planned, as nothing that is there needs it.
    chosen = finished.folder / "results/cluster/rounds.node"
    before = chosen.read_bytes()
    chosen.unlink()
    try:
        assert finished.planned() == {}
    finally:
        chosen.write_bytes(before)


def test_a_chosen_node_that_takes_no_jobs_is_told_and_a_spoilt_choice_refused(
    cluster: SlurmCluster, finished: SlurmProject
) -> None:
    chosen = finished.folder / "results/cluster/rounds.node"
    before, again = chosen.read_bytes(), [ORDER[0], "-n", "--forcerun", "round_on"]
    node = before.decode().strip()
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a fan")
    try:
        code, text = finished.run(*again)
        assert code == 0, text
        assert text.count(f"the rounds wait: they run on node {node}") == 1, text
        assert "that node is drained (a fan)" in text
    finally:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    chosen.write_text("n1,n2\n")
    try:
        code, text = finished.run(*again)
        assert code != 0
        assert "rounds.node: must hold the name of the one node" in text
    finally:
        chosen.write_bytes(before)
    code, text = finished.run(*again)
    assert code == 0, text
    assert "the rounds wait" not in text


def test_overhead_of_a_job_is_told(
    cluster: SlurmCluster, finished: SlurmProject, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said, not judged: what a job costs beside its measurement, on this machine."""
    inside = []
    for attempt in list_attempts(finished.folder):
        job = next(
            j for j in cluster.jobs("COMPLETED") if j["JobId"] == attempt["facts"]["job"]["id"]
        )
        record = finished.json(f"results/{attempt['target']}.json")
        seconds = stamp(job["EndTime"]) - stamp(job["StartTime"])
        inside.append(seconds - record["wall"]["total_s"])
    rounds = [finished.json(path) for path in ORDER]
    gaps = [
        _seconds(b["started_at"]) - _seconds(a["ended_at"]) for a, b in itertools.pairwise(rounds)
    ]
    assert all(gap > 0 for gap in gaps)
    with capsys.disabled():
        print(
            f"\noverhead of a Slurm job: within the job {statistics.median(inside):.0f} s "
            f"(median of {len(inside)}; {min(inside):.0f} to {max(inside):.0f}); from the end of "
            f"one round to the start of the next {statistics.median(gaps):.1f} s "
            f"(median of {len(gaps)}; {min(gaps):.1f} to {max(gaps):.1f}), load "
            f"{os.getloadavg()[0]:.1f}"
        )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# ---- ends that are no end


def prepared(folder: Path) -> SlurmProject:
    """A project whose image and corpus are there, made without a cluster."""
    made = SlurmProject(folder)
    made.configure(SHORT)
    local = Project.command(made, "results/corpora/small/corpus.json", *IMAGES)
    done = subprocess.run(
        local, cwd=folder, env=made.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def shared(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> SlurmProject:
    return prepared(tmp_path_factory.mktemp("stops") / "project")


@pytest.fixture
def project(shared: SlurmProject) -> SlurmProject:
    """A project without a record and without attempts."""
    for name in ("optimizers", "attempts", "logs"):
        shutil.rmtree(shared.folder / "results" / name, ignore_errors=True)
    return shared


def start_until_steady(project: SlurmProject, config: dict[str, Any]) -> subprocess.Popen[str]:
    project.configure(config)
    snakemake = project.start(RECORD)
    project.wait_for_log(snakemake, "A2-1", "steady begins", 240)
    return snakemake


def output(project: SlurmProject) -> str:
    return (project.folder / "output.txt").read_text()[-4000:]


def outcomes(project: SlurmProject) -> list[str]:
    return [attempt["outcome"] for attempt in list_attempts(project.folder)]


def assert_nothing_stays(cluster: SlurmCluster, project: SlurmProject) -> None:
    def stays() -> list[list[str]]:
        return [process.cmdline() for process in project.processes()]

    assert wait_for(lambda: not stays(), 60, 0.2), stays()
    for node in NODES:
        assert not list((cluster.folder / node / "tmp").glob(f"{scratch_name(project, node)}/*"))


def scratch_name(project: SlurmProject, node: str) -> str:
    variables = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": node, "REFILL_SCRATCH": "/"}
    return scratch(project.folder, variables).name


def assert_only_an_attempt_is_left(
    cluster: SlurmCluster, project: SlurmProject, job: dict[str, str]
) -> None:
    assert_nothing_stays(cluster, project)
    assert not (project.folder / RECORD).exists()
    assert outcomes(project) == ["interrupted"]
    attempt = list_attempts(project.folder)[0]
    assert attempt["reason"] == "stopped by SIGTERM"
    assert attempt["facts"]["job"]["id"] == job["JobId"]
    # What was measured until then is kept beside the outputs.
    assert any("ledger/part-" in name for name in attempt["files"])


@pytest.fixture(scope="module")
def limited(
    cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SlurmProject, subprocess.Popen[str], dict[str, str]]:
    """A project whose job will reach its time limit while other tests use the other node."""
    made = prepared(tmp_path_factory.mktemp("limited") / "project")
    snakemake = start_until_steady(made, LONG)
    job = cluster.job_of("optimizer")
    # Minutes; Slurm knows no shorter limit.
    cluster.run("scontrol", "update", f"JobId={job['JobId']}", "TimeLimit=1")
    return made, snakemake, job


def test_a_preempted_job_is_started_again_and_completes(
    cluster: SlurmCluster,
    limited: tuple[SlurmProject, subprocess.Popen[str], dict[str, str]],
    project: SlurmProject,
) -> None:
    snakemake = start_until_steady(project, MEDIUM)
    node = list_attempts(project.folder)[0]["facts"]["job"]["node"]
    # The engine's data are on the node, not on the shared disk.
    assert list(cluster.folder.glob(f"{node}/tmp/{scratch_name(project, node)}/optimizers-A2-1/*"))
    assert not (project.folder / "results/scratch").exists()
    cluster.urgent_job(node, seconds=2)
    assert snakemake.wait(400) == 0, output(project)
    assert outcomes(project) == ["interrupted", "completed"]
    assert project.json(RECORD)["valid"]
    assert_nothing_stays(cluster, project)


def test_a_job_at_its_time_limit_leaves_an_attempt_and_a_rerun_completes(
    cluster: SlurmCluster, limited: tuple[SlurmProject, subprocess.Popen[str], dict[str, str]]
) -> None:
    project, snakemake, job = limited
    assert snakemake.wait(400) != 0
    assert cluster.job(job["JobId"])["JobState"] == "TIMEOUT"
    assert_only_an_attempt_is_left(cluster, project, job)

    project.configure(SHORT)
    code, text = project.run(RECORD, timeout_s=400)
    assert code == 0, text[-4000:]
    assert project.json(RECORD)["valid"]
    assert outcomes(project) == ["interrupted", "completed"]


def test_ctrl_c_cancels_the_job(cluster: SlurmCluster, project: SlurmProject) -> None:
    snakemake = start_until_steady(project, LONG)
    job = cluster.job_of("optimizer")
    snakemake.send_signal(signal.SIGINT)
    assert snakemake.wait(240) != 0
    assert wait_for(lambda: cluster.job(job["JobId"])["JobState"] == "CANCELLED", 60, 0.2)
    assert_only_an_attempt_is_left(cluster, project, job)


def test_a_lost_node_is_a_died_attempt_and_the_job_runs_elsewhere(
    cluster: SlurmCluster, project: SlurmProject
) -> None:
    snakemake = start_until_steady(project, MEDIUM)
    node = cluster.job_of("optimizer")["NodeList"]
    cluster.lose_node(node)
    try:
        assert snakemake.wait(400) == 0, output(project)
    finally:
        cluster.start_node(node)
    attempts = list_attempts(project.folder)
    assert outcomes(project) == ["died", "completed"]
    record = project.json(RECORD)
    assert record["valid"]
    assert record["attempt"] == attempts[1]["attempt"]
    assert record["host"]["node"] != node
    assert wait_for(lambda: cluster.states() == ["idle"] * len(NODES), 60, 0.2), cluster.states()


@pytest.mark.parametrize("orphan", ["comes to its end", "is started again"])
def test_a_job_that_outlives_its_submission_leaves_the_newer_result_alone(
    cluster: SlurmCluster, project: SlurmProject, orphan: str
) -> None:
    snakemake = start_until_steady(project, OUTLIVES if orphan == "comes to its end" else LONG)
    job = cluster.job_of("optimizer")["JobId"]
    snakemake.kill()
    snakemake.wait()
    project.configure(SHORT)
    code, text = project.run("--unlock")
    assert code == 0, text
    code, text = project.run(RECORD, timeout_s=400)
    assert code == 0, text[-4000:]
    newer = project.json(RECORD)
    assert cluster.job(job)["JobState"] == "RUNNING", "the job was to outlive the rerun"

    if orphan == "is started again":
        # As preemption and a lost node do. Its Snakemake would begin by deleting the result.
        cluster.run("scontrol", "requeue", job)
        ended = "FAILED"
    else:
        ended = "COMPLETED"
    assert wait_for(lambda: cluster.job(job)["JobState"] == ended, 300, 0.5), cluster.job(job)
    assert project.json(RECORD) == newer
    assert outcomes(project) == ["superseded", "completed"]
    assert newer["attempt"] in list_attempts(project.folder)[0]["reason"]
    for path in project.folder.glob("results/optimizers/A2/1.*"):
        assert sha256_file(path) in list_attempts(project.folder)[1]["files"].values(), path
    assert_nothing_stays(cluster, project)


# ---- the other ways


def submit(cluster: SlurmCluster, project: SlurmProject) -> str:
    """Submit the script of README.md's second way, for one record, and give the job's number."""
    text = (project.folder / "workflow/profiles/slurm/README.md").read_text()
    script = text.split("```\n#!/bin/bash")[1].split("```")[0]
    documented = ".venv/bin/snakemake --cores all all"
    assert documented in script
    ours = f"{sys.executable} -m snakemake --cores all {RECORD} --configfile test.yaml"
    path = project.folder / "job.sh"
    path.write_text("#!/bin/bash" + script.replace(documented, ours))
    return cluster.run(
        "sbatch", "--parsable", f"--chdir={project.folder}", "--output=job.txt",
        str(path), cwd=project.folder,
    )  # fmt: skip


def test_one_allocation_runs_the_local_profile_and_goes_on_where_it_ended(
    cluster: SlurmCluster, project: SlurmProject
) -> None:
    project.configure(LONG)
    number = submit(cluster, project)
    assert wait_for(lambda: "steady begins" in project.log("A2-1"), 240, 0.1), cluster.logs()
    cluster.run("scancel", number)
    assert wait_for(lambda: cluster.job(number)["JobState"] == "CANCELLED", 60, 0.2)
    assert_only_an_attempt_is_left(cluster, project, cluster.job(number))

    project.configure(SHORT)
    number = submit(cluster, project)
    assert wait_for(lambda: cluster.job(number)["JobState"] == "COMPLETED", 240, 0.5), (
        project.folder / "job.txt"
    ).read_text()
    record = project.json(RECORD)
    assert record["valid"]
    assert record["host"]["node"] in NODES
    assert outcomes(project) == ["interrupted", "completed"]


def test_the_example_for_any_scheduler_submits_and_completes(project: SlurmProject) -> None:
    project.configure(SHORT)
    project.profile = "cluster-generic"
    code, text = project.run(RECORD, timeout_s=400)
    assert code == 0, text[-4000:]
    record = project.json(RECORD)
    assert record["valid"]
    assert record["host"]["node"] in NODES

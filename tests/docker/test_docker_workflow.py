"""The whole workflow in containers: rounds, proof and optimizer runs, what is recorded of them, a
driver that is killed, a daemon that is absent."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import opensearch_image
import pandas as pd
import psutil
import pytest
from daemon_fixture import cannot
from docker.errors import ImageNotFound
from docker_project import (
    CPUS,
    MEMORY,
    OPENSEARCH,
    RUNS,
    configuration,
    left_of,
    make,
    runs_of,
    with_rounds,
)
from project_copy import Project
from refill.config import PROJECT, load, load_native
from refill.engines.description import EngineError
from refill.evidence.attempts import list_attempts
from refill.processes import wait_for

ROUNDS = [
    f"results/rounds/{profile}/{image}-{n}.json"
    for profile in ("on-main", "off-control")
    for image, n in (("old", 1), ("new", 1), ("new", 2), ("old", 2))
]
IMAGES = {
    "gateway-old": "gateway", "gateway-new": "gateway", "qdrant-edge": "qdrant", "valkey": "valkey",
}  # fmt: skip
GATHERED = {"tables": 1, "manifest": 1, "report": 1, "crate": 1}
# There is no such image of Elasticsearch, and no registry that could have it by now.
TRIED_AGAIN = {"native_engine": 1, "manifest": 1, "report": 1, "crate": 1}
NOBODY = "unix:///nonexistent/docker.sock"

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def config(docker_client: Any, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The configuration of a small workflow; an image with OpenSearch is there."""
    try:
        docker_client.images.get(OPENSEARCH)
    except ImageNotFound:
        settings = load(PROJECT / "config/config.yaml")["rounds"]["native"]
        try:
            found = opensearch_image.installed(
                tmp_path_factory.mktemp("opensearch"), load_native(), settings
            )
        except EngineError as error:
            cannot(f"OpenSearch is not at hand: {error}")
        opensearch_image.build(docker_client, base_image, OPENSEARCH, found)
    return configuration(base_image)


@pytest.fixture(scope="module")
def project(config: Any, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after one run of `all`: eight rounds, the proof, two optimizer runs."""
    made = make(tmp_path_factory.mktemp("a project") / "in containers", config)
    code, text = made.run("all", timeout_s=1500)
    assert code == 0, text
    return made


def test_every_measurement_is_valid_and_ran_in_containers(project: Project) -> None:
    rounds = [project.json(path) for path in ROUNDS]
    runs = [project.json(f"results/optimizers/{name}/1.json") for name in RUNS]
    for record in [*rounds, *runs]:
        assert record["valid"], record["invalid"]
        assert record["outcome"] == "completed"
        assert record["containers"]["daemon"]["version"]
        assert record["warnings"] == [w for w in record["warnings"] if "budget" not in w]
    spans = [(r["started_at"], r["ended_at"]) for r in rounds]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    for record in rounds:
        assert {e["runtime"] for e in record["engines"].values()} == {"docker"}
        assert set(record["engines"]) == {"gateway", "qdrant", "valkey", "opensearch"}
    assert {run["engine"]["runtime"] for run in runs} == {"docker"}
    assert all(run["engine"]["embedded"] for run in runs)


def test_images_are_those_that_the_daemon_has(project: Project, docker_client: Any) -> None:
    for name, part in IMAGES.items():
        image = project.json(f"results/images/{name}.json")
        assert docker_client.images.get(image["id"]).id == image["id"]
        # Two names of one image would be one system measured twice.
        measured = {
            r["engines"][part]["image"]["id"]
            for r in map(project.json, ROUNDS)
            if r["engines"][part]["image"]["name"] == name
        }
        assert measured == {image["id"]}
    ids = [project.json(f"results/images/gateway-{arm}.json")["id"] for arm in ("old", "new")]
    assert ids[0] != ids[1]


def test_budgets_are_read_back_as_they_were_configured(project: Project) -> None:
    for record in map(project.json, ROUNDS):
        for name, engine in record["engines"].items():
            applied = engine["applied"]
            assert applied["budget"] == "exact"
            assert applied["read_back"]["cpus"] == CPUS
            assert applied["read_back"]["memory_bytes"] == MEMORY
            assert applied["shared"] == (name != "opensearch")
        resources = record["cells"][0]["trials"][0]["resources"]
        assert resources["shared budget"]["throttled_s"] is not None
        assert resources["gateway"]["memory_peak_bytes"] > 1e6
    # The published experiment gave the optimizers the whole machine.
    run = project.json(f"results/optimizers/{RUNS[0]}/1.json")
    assert run["engine"]["applied"]["budget"] == "none"
    assert run["engine"]["applied"]["read_back"]["memory_bytes"] is None


def test_the_proof_holds_in_containers(project: Project) -> None:
    proof = project.json("results/proofs/aof.json")
    assert proof["valid"], proof["invalid"]
    assert {engine["runtime"] for engine in proof["engines"].values()} == {"docker"}


def test_an_image_that_cannot_be_had_takes_its_own_cells_alone(project: Project) -> None:
    table = pd.read_csv(project.folder / "results/tables/rounds.csv")
    absent = table[table["engine"] == "elasticsearch"]
    assert absent["status"].str.contains("is not in the daemon and cannot be pulled").all()
    assert not absent["status"].str.contains("://").any()
    assert (table[table["engine"] != "elasticsearch"]["status"] == "completed").all()
    aof = pd.read_csv(project.folder / "results/tables/aof.csv")
    cold = aof[(aof["profile"] == "on-main") & (aof["cell"] == "cold")]
    assert (cold[cold["image"] == "new"]["growth_bytes"] == 0).all()
    assert (cold[cold["image"] == "old"]["growth_bytes"] > 0).all()


def test_results_verify_where_there_is_no_daemon(project: Project) -> None:
    code, text = verified(project)
    assert code == 0, text
    manifest = (project.folder / "results/manifest.json").read_text()
    assert str(project.folder) not in manifest
    page = (project.folder / "results/report.html").read_text()
    assert "Engines ran in containers of Docker" in page
    assert f"Budget of gateway, read back from the kernel: {CPUS} CPUs, 1 GiB, shared" in page
    # No record holds a password or another variable's value: names alone.
    engines = project.json(ROUNDS[0])["engines"]
    assert "REFILL_GATEWAY_VALKEY_PASSWORD" in engines["gateway"]["container"]["variables"]


def verified(project: Project) -> tuple[int, str]:
    """Verify the results in a process that knows no daemon."""
    done = subprocess.run(
        [sys.executable, "-m", "refill.evidence", "verify", "results/manifest.json"],
        cwd=project.folder,
        env={
            **project.environment,
            "PYTHONPATH": str(project.folder / "workflow/scripts"),
            "DOCKER_HOST": NOBODY,
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_left_to_do_but_another_try_for_what_could_not_be_pulled(
    project: Project,
) -> None:
    assert project.planned() == TRIED_AGAIN


def test_a_daemon_that_is_absent_is_said_once_before_the_first_job(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    before = len(list_attempts(project.folder))
    # A plan needs no daemon.
    code, text = project.run(ROUNDS[1], "-n", "--forcerun", "round_on")
    assert code == 0, text
    code, text = project.run(ROUNDS[1], "--forcerun", "round_on")
    assert code != 0
    told = [line for line in text.splitlines() if "docker: the daemon at" in line]
    assert len(told) == 1, text
    assert "is not running" in told[0]
    assert "runtime: process" in told[0]
    assert "Traceback" not in text
    assert "localrule" not in text
    assert len(list_attempts(project.folder)) == before
    assert (project.folder / ROUNDS[1]).is_file()
    assert project.planned() == TRIED_AGAIN


def test_a_killed_driver_leaves_no_container_and_the_rerun_completes(
    project: Project, config: Any, docker_client: Any
) -> None:
    target = "results/rounds/on-main/new-2.json"
    snakemake = in_the_middle(project, config, target)
    driver = driver_of(project)
    (run,) = runs_of(docker_client, driver.pid)
    assert len(left_of(docker_client, run)) >= 4
    driver.send_signal(signal.SIGKILL)
    snakemake.wait(60)
    assert wait_for(lambda: not left_of(docker_client, run), 60, 0.2), left_of(docker_client, run)
    assert wait_for(lambda: not project.processes(), 30)
    assert list_attempts(project.folder)[-1]["outcome"] == "died"
    assert not (project.folder / target).exists()

    project.configure(config)
    code, text = project.run("--unlock")
    assert code == 0, text
    assert project.planned() == {"round_on": 1, **GATHERED, **TRIED_AGAIN}
    code, text = project.run("all", timeout_s=600)
    assert code == 0, text
    record = project.json(target)
    assert record["valid"], record["invalid"]
    code, text = verified(project)
    assert code == 0, text


def test_a_container_that_somebody_removes_makes_the_round_invalid_and_says_so(
    project: Project, config: Any, docker_client: Any
) -> None:
    target = "results/rounds/on-main/new-1.json"
    before = project.json(target)
    snakemake = in_the_middle(project, config, target)
    (run,) = runs_of(docker_client, driver_of(project).pid)
    valkey = next(
        c.name for c in docker_client.containers.list() if c.name == f"refill-{run}-valkey"
    )
    docker_client.api.remove_container(valkey, force=True)
    assert snakemake.wait(200) == 0, (project.folder / "output.txt").read_text()[-3000:]
    record = project.json(target)
    assert not record["valid"]
    assert "valkey: somebody removed its container while it was in use" in record["invalid"][0]
    attempt = list_attempts(project.folder)[-1]
    assert attempt["outcome"] == record["outcome"] != "completed"
    assert left_of(docker_client, run) == []
    # What was measured before is kept with its attempt.
    assert project.json(f"results/attempts/{before['attempt']}/{Path(target).name}") == before
    project.configure(config)


def test_a_limit_that_somebody_changes_makes_the_round_invalid_and_says_so(
    project: Project, config: Any, docker_client: Any
) -> None:
    target = "results/rounds/on-main/old-2.json"
    snakemake = in_the_middle(project, config, target)
    (run,) = runs_of(docker_client, driver_of(project).pid)
    # One of the three that share a budget.
    name, less = f"refill-{run}-valkey", MEMORY // 2
    docker_client.api.update_container(name, mem_limit=less, memswap_limit=less)
    assert snakemake.wait(200) == 0, (project.folder / "output.txt").read_text()[-3000:]
    record = project.json(target)
    changed = "valkey: somebody changed its limits while it was in use: it has"
    assert [why for why in record["invalid"] if why.startswith(f"{changed} {less} bytes")]
    project.configure(config)


def test_an_image_that_is_gone_is_said_before_anything_is_touched(
    project: Project, docker_client: Any
) -> None:
    image = project.json("results/images/gateway-old.json")
    docker_client.api.remove_image(image["id"], force=True)
    before = len(list_attempts(project.folder))
    kept = (project.folder / ROUNDS[0]).read_bytes()
    code, text = project.run(ROUNDS[0], "--forcerun", "round_on")
    assert code != 0
    assert f"image gateway-old: {image['id'][:19]} is not in the daemon any more: delete" in text
    assert "Traceback" not in text
    assert (project.folder / ROUNDS[0]).read_bytes() == kept
    assert len(list_attempts(project.folder)) == before
    # As it says.
    (project.folder / "results/images/gateway-old.json").unlink()
    code, text = project.run("results/images/gateway-old.json")
    assert code == 0, text
    docker_client.api.inspect_image(project.json("results/images/gateway-old.json")["id"])


def in_the_middle(project: Project, config: Any, target: str) -> subprocess.Popen[str]:
    """Configure a round that is long enough to be found in the middle, and run it until there."""
    counts = {**config["rounds"]["counts"], "warm": 2000}
    project.configure(with_rounds(config, counts=counts, engines=["gateway"]))
    log = project.folder / target.replace("results/", "results/logs/").replace(".json", ".log")
    log.unlink()
    snakemake = project.start(target)

    def measuring() -> bool:
        told = log.read_text() if log.exists() else ""
        return "warm, read-document, gateway, 1 client" in told or snakemake.poll() is not None

    wait_for(measuring, 120, 0.05)
    assert snakemake.poll() is None, (project.folder / "output.txt").read_text()[-3000:]
    return snakemake


def driver_of(project: Project) -> psutil.Process:
    """Give the process that runs a round."""
    return next(
        p
        for p in project.processes()
        if p.cmdline()[1:2] and Path(p.cmdline()[1]).name.endswith("run_round.py")
    )

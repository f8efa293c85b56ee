"""The job of a scheduler: how it is known, where its data go, and the node it must have."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from refill.batch_job import NodeError, batch_job, check_node, scratch, write_node

SLURM = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "REFILL_SCRATCH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, ("slurm", "12", "n1")),
        ({"PBS_JOBID": "7.server"}, ("pbs", "7.server", platform.node())),
        ({"LSB_JOBID": "8"}, ("lsf", "8", platform.node())),
        ({"JOB_ID": "9", "SGE_TASK_ID": "undefined"}, ("grid engine", "9", platform.node())),
    ],
)
def test_a_job_is_known_by_its_variables(
    environment: dict[str, str], expected: tuple[str, str, str]
) -> None:
    job = batch_job(environment)
    assert job is not None
    assert (job.scheduler, job.id, job.node) == expected
    assert job.plain() == {"scheduler": job.scheduler, "id": job.id, "node": job.node}


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": ""}, {"JOB_ID": "of a CI"}])
def test_elsewhere_there_is_no_job(environment: dict[str, str]) -> None:
    assert batch_job(environment) is None


def test_data_of_engines_lie_in_the_results_or_on_the_node(tmp_path: Path) -> None:
    assert scratch(tmp_path, {"TMPDIR": "/node"}) == tmp_path / "results/scratch"
    one = scratch(tmp_path, {**SLURM, "TMPDIR": "/node"})
    assert one.parent == Path("/node")
    # The same in every job, and another one for another project.
    assert one == scratch(tmp_path, {**SLURM, "SLURM_JOB_ID": "13", "TMPDIR": "/node"})
    assert one != scratch(tmp_path / "other", {**SLURM, "TMPDIR": "/node"})
    assert scratch(tmp_path, {"REFILL_SCRATCH": "/given"}) == Path("/given") / one.name
    assert scratch(tmp_path, {**SLURM, "TMPDIR": "/x", "REFILL_SCRATCH": "/given"}).parent == Path(
        "/given"
    )


def test_a_node_is_written_and_then_held_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rounds.node"
    with pytest.raises(NodeError, match="no cluster's job"):
        write_node(file)
    assert not file.exists()
    for name, value in SLURM.items():
        monkeypatch.setitem(os.environ, name, value)
    assert write_node(file) == "n1"
    assert file.read_text() == "n1\n"
    check_node(file)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    with pytest.raises(NodeError, match=r"to run on n1, .* runs on n2: .* set-resources"):
        check_node(file)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(NodeError, match="runs on no node of a cluster"):
        check_node(file)

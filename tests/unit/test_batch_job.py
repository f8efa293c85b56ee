"""The job of a scheduler: how it is known, and where the data of its engines go."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from refill.batch_job import ScratchError, batch_job, scratch, scratch_note
from refill.evidence.host import host_facts

SLURM = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"}


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
    node, given = tmp_path / "node", tmp_path / "given"
    for folder in (node, given):
        folder.mkdir()
    assert scratch(tmp_path, {"TMPDIR": str(node)}) == tmp_path / "results/scratch"
    one = scratch(tmp_path, {**SLURM, "TMPDIR": str(node)})
    assert one.parent == node
    # The same in every job, and another one for another project, and for another node.
    assert one == scratch(tmp_path, {**SLURM, "SLURM_JOB_ID": "13", "TMPDIR": str(node)})
    assert one != scratch(tmp_path / "other", {**SLURM, "TMPDIR": str(node)})
    assert one != scratch(tmp_path, {**SLURM, "SLURMD_NODENAME": "n2", "TMPDIR": str(node)})
    assert scratch(tmp_path, {**SLURM, "REFILL_SCRATCH": str(given)}) == given / one.name
    both = {**SLURM, "TMPDIR": str(node), "REFILL_SCRATCH": str(given)}
    assert scratch(tmp_path, both).parent == given
    assert scratch(tmp_path, {"REFILL_SCRATCH": str(given)}).parent == given


@pytest.mark.parametrize(
    ("name", "set_to"),
    [
        ("TMPDIR", {"TMPDIR": "/nowhere/at/all"}),
        # What Snakemake made of it for its script is another matter than what the job was given.
        ("TMPDIR", {"TMPDIR": "/tmp", "REFILL_GIVEN_TMPDIR": "/nowhere/at/all"}),
        ("REFILL_SCRATCH", {"TMPDIR": "/tmp", "REFILL_SCRATCH": "/nowhere/at/all"}),
    ],
)
def test_a_folder_that_is_named_and_missing_is_an_error_that_tells_no_path(
    tmp_path: Path, name: str, set_to: dict[str, str]
) -> None:
    with pytest.raises(ScratchError, match=f"^{name} names a folder .* on node n1") as told:
        scratch(tmp_path, {**SLURM, **set_to})
    assert "nowhere" not in str(told.value)


def test_a_folder_that_nobody_named_is_told_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = {**SLURM, "TMPDIR": "/tmp", "REFILL_GIVEN_TMPDIR": ""}
    assert "TMPDIR is not set in this job" in scratch_note(unset)
    assert scratch_note({**unset, "REFILL_GIVEN_TMPDIR": "/tmp"}) == ""
    assert scratch_note({**unset, "REFILL_SCRATCH": "/tmp"}) == ""
    assert scratch_note({}) == ""
    for variable, value in unset.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("REFILL_SCRATCH", raising=False)
    assert scratch_note() in host_facts(tmp_path)["warnings"]

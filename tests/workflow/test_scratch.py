"""Where engines have their data in a job of a cluster, through the real workflow."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from project_copy import CONFIG, Project
from refill.evidence.attempts import list_attempts
from refill.processes import wait_for

RECORD = "results/optimizers/A2/1.json"
SHORT: dict[str, Any] = {**CONFIG, "optimizers": {**CONFIG["optimizers"], "runs": ["A2"]}}


class InAJob(Project):
    """A project whose Snakemake runs inside a job, with these variables; None: not set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.configure(SHORT)
        self.variables: Mapping[str, str | None] = {}

    @property
    def environment(self) -> dict[str, str]:
        job = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1", **self.variables}
        whole = {**super().environment, **job}
        return {name: value for name, value in whole.items() if value is not None}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> InAJob:
    return InAJob(tmp_path_factory.mktemp("scratch") / "project")


def last_attempt(project: Project) -> dict[str, Any]:
    return list_attempts(project.folder)[-1]


def test_a_job_without_a_folder_of_its_own_says_so_in_the_record_and_in_a_line(
    project: InAJob,
) -> None:
    # Snakemake sets it for the script all the same.
    project.variables = {"TMPDIR": None, "TMP": None, "TEMP": None}
    code, text = project.run(RECORD)
    assert code == 0, text
    says = "TMPDIR is not set in this job"
    assert f"note: {says}" in text
    assert any(says in warning for warning in project.json(RECORD)["host"]["warnings"])


def test_a_folder_that_is_named_and_missing_is_an_error(project: InAJob) -> None:
    project.variables = {"TMPDIR": "/nowhere/at/all"}
    code, text = project.run(RECORD, "--forcerun", "optimizer")
    assert code != 0
    assert "TMPDIR names a folder that is not there on node n1" in text
    assert last_attempt(project)["outcome"] == "failed"
    assert "/nowhere" not in last_attempt(project)["reason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB: less than an engine needs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode != 0:
        why = "needs root, and the right to mount"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    yield folder
    assert wait_for(
        lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, 20
    )


def test_a_full_folder_is_the_reason_that_is_given(project: InAJob, small_disk: Path) -> None:
    project.variables = {"TMPDIR": str(small_disk)}
    _, text = project.run(RECORD, "--forcerun", "optimizer", "--rerun-incomplete")
    full = "The disk that holds its data is full"
    assert full in text
    assert full in last_attempt(project)["reason"]
    assert str(small_disk) not in last_attempt(project)["reason"]
    assert list(small_disk.iterdir()) == []

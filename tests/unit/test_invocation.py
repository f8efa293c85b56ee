"""A call of Snakemake is one, also for jobs that another machine runs."""

import os
import subprocess
import sys

import pytest
from refill import processes


def test_a_call_names_itself_once_and_its_jobs_keep_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(processes.INVOCATION, raising=False)
    # To be undone at the end, although it is set by the code under test.
    monkeypatch.setenv(processes.INVOCATION, "")
    del os.environ[processes.INVOCATION]
    processes.name_invocation()
    named = os.environ[processes.INVOCATION]
    assert named.startswith(f"{os.getpid()} 20")
    again = "from refill import processes as p; p.name_invocation()"
    shown = f"{again}; import os; print(os.environ[p.INVOCATION])"
    job = subprocess.run(
        [sys.executable, "-c", shown],
        env=processes.module_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert job.stdout.strip() == named


def test_a_job_tells_the_call_that_its_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "snakemake_command", lambda: ["snakemake", "all"])
    monkeypatch.setenv(processes.INVOCATION, "4711 2026-01-01T10:00:00Z")
    assert processes.snakemake_invocation() == {"pid": 4711, "started_at": "2026-01-01T10:00:00Z"}
    # Nothing above this test is a Snakemake.
    monkeypatch.undo()
    assert processes.snakemake_invocation() is None

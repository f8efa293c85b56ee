"""The environment that `make` sets up: made once, changed in place, never emptied under a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from refill.config import PROJECT

# Every command of the suite may be running in an environment: this one is the test's own.
READY = ".venv/ready"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(PROJECT / "Makefile", tmp_path)
    (tmp_path / "requirements.lock").write_text("# nothing\n")
    return tmp_path


def make(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", READY, f"PYTHON={sys.executable}"],
        cwd=project,
        env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"} | {"PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def newer_lock(project: Path, text: str) -> None:
    lock = project / "requirements.lock"
    lock.write_text(text)
    later = (project / READY).stat().st_mtime + 10
    os.utime(lock, (later, later))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_environment_that_is_there_is_never_emptied(project: Path) -> None:
    done = make(project)
    assert done.returncode == 0, done.stderr
    used = project / ".venv/used-by-a-measurement"
    used.touch()

    # A newer lock that says the same: nothing is installed, so a pip that fails is not asked.
    newer_lock(project, "# nothing\n")
    pip = next((project / ".venv").glob("lib/*/site-packages/pip/_internal/commands/install.py"))
    good = pip.read_text()
    pip.write_text("raise SystemExit('pip was asked to install')\n")
    done = make(project)
    assert done.returncode == 0, done.stderr
    assert used.exists()

    # Another lock: installed in place; until that has worked the environment is not ready.
    newer_lock(project, "# something else\n")
    assert make(project).returncode != 0
    assert (project / READY).read_text() == "# nothing\n"
    pip.write_text(good)
    done = make(project)
    assert done.returncode == 0, done.stderr
    assert (project / READY).read_text() == "# something else\n"
    assert used.exists()

    # What does not start is made anew.
    (project / ".venv/bin/python").unlink()
    newer_lock(project, "# something else\n")
    done = make(project)
    assert done.returncode == 0, done.stderr
    assert not used.exists()
    assert (project / ".venv/bin/python").exists()

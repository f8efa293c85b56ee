"""The check that pyproject.toml, environment.yml and requirements.lock pin the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import check_environment
import pytest
from refill.config import PROJECT

PYPROJECT = """\
[project]
requires-python = ">=3.11"
dependencies = ["PyYAML==6.0.4", "snakemake[reports]==9.27.1", "qdrant_edge-py==0.9.0"]
"""
ENVIRONMENT = """\
name: x
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip
  - pyyaml=6.0.4
  - snakemake=9.27.1
  - pip:
      - qdrant-edge-py==0.9.0
"""
LOCK = """\
pyyaml==6.0.4 \\
    --hash=sha256:aa
    # via x (pyproject.toml)
qdrant-edge-py==0.9.0 \\
    --hash=sha256:bb
snakemake==9.27.1 \\
    --hash=sha256:cc
other==1.0 ; sys_platform == 'win32' \\
    --hash=sha256:dd
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "environment.yml").write_text(ENVIRONMENT)
    (tmp_path / "requirements.lock").write_text(LOCK)
    return tmp_path


def test_the_projects_own_files_agree() -> None:
    done = subprocess.run(
        [sys.executable, str(PROJECT / "workflow/scripts/check_environment.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_files_that_agree_have_no_difference(project: Path) -> None:
    assert check_environment.check(project) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "environment.yml",
            "pyyaml=6.0.4",
            "pyyaml=6.0.3",
            "environment.yml: pyyaml: is 6.0.3, pyproject.toml pins 6.0.4",
        ),
        ("environment.yml", "  - pyyaml=6.0.4\n", "", "environment.yml: pyyaml: is missing"),
        ("environment.yml", "- pip\n", "- pip\n  - numpy=1\n", "numpy: is not in pyproject.toml"),
        ("environment.yml", "pyyaml=6.0.4", "pyyaml>=6", "'pyyaml>=6': is no exact pin"),
        ("environment.yml", "py==0.9.0", "py=0.9.0", "'qdrant-edge-py=0.9.0': is no exact pin"),
        ("environment.yml", "python=3.11", "python=3.10", "python: is 3.10, pyproject.toml req"),
        ("environment.yml", "  - python=3.11\n", "", "environment.yml: python: is None"),
        (
            "environment.yml",
            "      - qdrant",
            "      - PyYAML==6.0.4\n      - qdrant",
            "pyyaml: stands in the conda list and under pip",
        ),
        ("environment.yml", "- pip\n", "- pip\n  - pyyaml=6.0.4\n", "stands there twice"),
        (
            "requirements.lock",
            "snakemake==9.27.1",
            "snakemake==9.27.0",
            "requirements.lock: snakemake: is 9.27.0, pyproject.toml pins 9.27.1",
        ),
        ("requirements.lock", "pyyaml==6.0.4", "pyyam==6.0.4", "pyyaml: is missing, pyproject"),
        ("requirements.lock", "    --hash=sha256:dd\n", "", "other==1.0: has no hash"),
        ("requirements.lock", "pyyaml", "--index-url https://x/\npyyaml", "address of an index"),
        ("pyproject.toml", "PyYAML==6.0.4", "PyYAML>=6", "'PyYAML>=6': is no exact pin"),
    ],
)
def test_a_difference_is_named(project: Path, file: str, old: str, new: str, expected: str) -> None:
    path = project / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert any(expected in line for line in check_environment.check(project))


def test_the_exit_status_says_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_environment, "PROJECT", project)
    assert check_environment.main() == 0
    (project / "requirements.lock").write_text("")
    assert check_environment.main() == 1
    assert "uv pip compile" in capsys.readouterr().err

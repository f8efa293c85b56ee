"""A driver that is killed leaves the data of its engines; the next run removes them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from refill.phases.attempted import attempted
from refill.processes import module_environment, wait_for
from refill.progress import silent
from refill.runtimes.left_data import MARK, sweep
from refill.runtimes.owner import Owner

# A driver with an engine; it says where the data are and then waits.
DRIVER = """
import sys, time
from pathlib import Path
from refill.engines.description import Description
from refill.runtimes.process import ProcessEngine
user = sys.argv[2] or None
described = Description("sleeper", lambda place: ["sleep", "600"], lambda _: True, user=user)
with ProcessEngine(described, Path(sys.argv[1]), Path(sys.argv[3])) as engine:
    (engine._place.storage / "data").write_text("much")
    print(engine.pid, engine._place.storage.parent, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of this test's own, which other users can reach."""
    folder = Path(tempfile.mkdtemp(prefix="refill-test-"))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


def driver(scratch: Path, log: Path, user: str = "") -> tuple[subprocess.Popen[str], int, Path]:
    """Start a driver; give it, its engine's process, and where that one's data are."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(scratch), user, str(log)],
        stdout=subprocess.PIPE, text=True, env=module_environment(),
    )  # fmt: skip
    assert process.stdout is not None
    pid, _, folder = process.stdout.readline().strip().partition(" ")
    return process, int(pid), Path(folder)


@pytest.mark.parametrize("user", ["", "nobody"])
def test_data_of_a_killed_driver_are_removed_and_those_of_a_living_one_never(
    tmp_path: Path, temporary: Path, user: str
) -> None:
    if user and os.geteuid() != 0:
        pytest.skip("only root runs an engine as another user")
    top = tmp_path / "scratch"
    (top / "rounds-a").mkdir(parents=True)
    process, engine, folder = driver(top / "rounds-a/native", tmp_path / "log", user)
    try:
        # Another user may not come to this test's folder, so that one's data are elsewhere.
        assert folder.parent == (temporary if user else top / "rounds-a")
        assert sweep(top) == []
        assert (folder / "sleeper/data").is_file()
    finally:
        process.kill()
        process.wait()
    assert wait_for(lambda: not psutil.pid_exists(engine), 30)
    assert (folder / "sleeper/data").is_file()
    assert sweep(top) == [f"removed {folder.name}, data of an engine that a killed run left"]
    assert not folder.exists()
    assert user or list(top.iterdir()) == []


def test_every_measurement_removes_them_first(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFILL_LOCK", str(tmp_path / "lock"))
    process, _, folder = driver(tmp_path / "results/scratch/optimizers-A1-1", tmp_path / "log")
    process.kill()
    process.wait()
    there = []
    record = {"outcome": "completed", "invalid": ["made up"], "valid": False}

    def work(*_: object) -> dict[str, object]:
        there.append(folder.exists())
        return record

    plan = {"code": "test", "scale": "test"}
    attempted(tmp_path, "rounds/a/b-1", plan, [], silent("test"), work)
    assert there == [False]


def test_what_may_be_anothers_stays(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = replace(Owner.this_process(), began=1)
    before = replace(dead, boot="an earlier start")
    cases = {
        "dead": (dead.label, platform.node()),
        "before": (before.label, platform.node()),
        "elsewhere": (before.label, "another-machine"),
        "living": (Owner.this_process().label, platform.node()),
        "odd": ("no owner", platform.node()),
    }
    for name, (owner, host) in cases.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / MARK).write_text(json.dumps({"owner": owner, "host": host}))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / MARK).write_text("{")
    (tmp_path / "unmarked").mkdir()
    with monkeypatch.context() as patch:
        # Marks of another user say nothing.
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert sweep(tmp_path) == []
    assert len(sweep(tmp_path)) == 2
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["elsewhere", "half", "living", "odd", "unmarked"]

"""A measurement's folder for data: what dead runs left there goes, what living ones have stays."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from refill.batch_job import ScratchError, scratch
from refill.config import PROJECT
from refill.evidence.records import write_json
from refill.phases.own_scratch import OWNER, folder_name, own_scratch
from refill.processes import wait_for
from refill.proofs.scratch import PREFIX, Scratch
from refill.runtimes.owner import Owner

RUN = """
import sys, time
from pathlib import Path
from refill.batch_job import scratch
from refill.phases.own_scratch import own_scratch
with own_scratch(Path(sys.argv[1]), sys.argv[2], print):
    data = scratch(Path(sys.argv[1])) / sys.argv[2].replace("/", "-") / "qdrant"
    data.mkdir(parents=True)
    (data / "wal").write_text("data")
    print("begun", flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("REFILL_GIVEN_TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("REFILL_SCRATCH", raising=False)


@contextmanager
def running(root: Path, target: str) -> Iterator[subprocess.Popen[str]]:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(root), target],
        cwd=PROJECT / "workflow/scripts",
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        yield run
    finally:
        run.kill()
        run.wait()


def not_here(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def test_the_next_run_on_a_node_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = scratch(tmp_path)
    with running(tmp_path, "optimizers/A2/1") as run, running(tmp_path, "rounds/on-main/old-1"):
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert (folder / "optimizers-A2-1/qdrant/wal").exists()
        said: list[str] = []
        # Another target: the one that was killed may have been measured elsewhere since.
        with own_scratch(tmp_path, "optimizers/B1/1", said.append):
            assert sorted(path.name for path in folder.iterdir()) == [
                f"optimizers-B1-1{OWNER}",
                "rounds-on-main-old-1",
                f"rounds-on-main-old-1{OWNER}",
            ]
        assert said == ["removed the data of optimizers-A2-1, which died here"]
        assert (folder / "rounds-on-main-old-1/qdrant/wal").read_text() == "data"
    with own_scratch(tmp_path, "optimizers/B1/1", said.append):
        pass
    assert not folder.exists()


def test_what_cannot_be_seen_from_here_is_left(tmp_path: Path) -> None:
    folder, here = scratch(tmp_path), Owner.this_process()
    folder.mkdir()
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    dead = Owner(died.pid, 1, here.boot, here.namespace)
    marks = {
        "other-host": {"owner": dead.label, "host": "elsewhere"},
        "other-container": {
            "owner": Owner(dead.pid, 1, here.boot, here.namespace + 1).label,
            "host": platform.node(),
        },
        "unreadable": {"owner": "?", "host": platform.node()},
        "no-text": {"owner": 5, "host": platform.node()},
        # The machine was started again since.
        "other-boot": {
            "owner": Owner(os.getpid(), here.began, "0" * 8, here.namespace).label,
            "host": platform.node(),
        },
        # The number is another process's by now.
        "same-number": {
            "owner": Owner(os.getpid(), here.began + 1, here.boot, here.namespace).label,
            "host": platform.node(),
        },
    }
    for name, mark in marks.items():
        (folder / name).mkdir()
        (folder / f"{name}{OWNER}").write_text(json.dumps(mark))
    with own_scratch(tmp_path, "optimizers/B1/1", lambda _: None):
        left = {path.name for path in folder.iterdir() if path.is_dir()}
    assert left == {"other-host", "other-container", "unreadable", "no-text"}


def test_the_data_of_a_killed_proof_go_and_those_of_a_replay_beside_it_stay(tmp_path: Path) -> None:
    """A proof's folder says whose it is; the mark of its target is the same for all."""
    folder = scratch(tmp_path)
    folder.mkdir()
    here = Owner.this_process()
    earlier = replace(here, boot="0" * 8)
    write_json(folder / f"{PREFIX}{OWNER}", {"owner": earlier.label, "host": platform.node()})
    dead, replay = folder / folder_name(PREFIX, earlier), folder / folder_name(PREFIX, here)
    for data in (dead, replay):
        data.mkdir()
        (data / "appendonly.aof").write_text("data")
    said: list[str] = []
    with own_scratch(tmp_path, "optimizers/B1/1", said.append):
        assert not dead.exists()
        assert (replay / "appendonly.aof").exists()
    assert f"removed the data of {PREFIX}, which died here" in said
    with Scratch(tmp_path, print) as proof:
        assert proof.path == replay


def test_what_is_mounted_is_never_deleted(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_here("needs root: mounts a file system")
    folder = scratch(tmp_path)
    with running(tmp_path, "proofs/aof") as run:
        inside = folder / "proofs-aof/a disk"
        inside.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(inside)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if mounted.returncode != 0:
            not_here(f"nothing can be mounted here: {mounted.stderr}")
        try:
            (inside / "log").write_text("data")
            run.kill()
            run.wait()
            said: list[str] = []
            with own_scratch(tmp_path, "optimizers/B1/1", said.append):
                assert (inside / "log").read_text() == "data"
            assert "1 file systems are mounted in it" in said[0]
        finally:
            assert wait_for(
                lambda: subprocess.run(["umount", str(inside)], check=False).returncode == 0, 20
            )
    with own_scratch(tmp_path, "optimizers/B1/1", said.append):
        pass
    assert not folder.exists()


def test_a_folder_that_takes_no_file_is_an_error_in_words(tmp_path: Path) -> None:
    scratch(tmp_path).write_text("a file where the folder would be")
    with (
        pytest.raises(ScratchError, match=r"takes no file .*: let TMPDIR or REFILL_SCRATCH"),
        own_scratch(tmp_path, "optimizers/B1/1", print),
    ):
        pass

"""The proof's images side by side, and what becomes of all when one process ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
from proof_subject import subject
from refill.processes import StoppedError, Watch, module_command, module_environment, wait_for
from refill.proofs import suite
from refill.proofs.findings import Check, Findings, HarnessError
from refill.proofs.lanes import run_lanes
from refill.proofs.subject import Subject

SECONDS = 60.0


def silent(_: object) -> None:
    """Take a line or an entry, and say nothing."""


@pytest.fixture
def lanes(tmp_path: Path) -> list[list[Subject]]:
    """Both images on two servers."""
    return [
        [subject(image, tmp_path / server, server) for server in ("valkey-8.1", "valkey-9")]
        for image in ("new", "old")
    ]


def set_check(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "beyond", run),))  # type: ignore[arg-type]


def test_images_are_tried_at_the_same_time(
    lanes: list[list[Subject]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meets_the_other(made: Subject, found: Findings) -> None:
        mark = f"{made.server_name}-"
        (tmp_path / f"{mark}{made.image}").touch()
        others = [tmp_path / f"{mark}{image}" for image in ("old", "new")]
        found.expect(wait_for(lambda: all(path.exists() for path in others), SECONDS), "alone")
        found.note(process=os.getpid())

    set_check(monkeypatch, meets_the_other)
    kept: list[dict[str, object]] = []
    entries = run_lanes(lanes, silent, silent, kept.append)
    assert [(made["image"], made["server"], made["outcome"]) for made in entries] == [
        ("new", "valkey-8.1", "pass"), ("new", "valkey-9", "pass"),
        ("old", "valkey-8.1", "pass"), ("old", "valkey-9", "pass"),
    ]  # fmt: skip
    assert sorted(map(json.dumps, kept)) == sorted(map(json.dumps, entries))
    processes = {made["evidence"]["process"] for made in entries}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_a_lane_that_is_killed_is_a_fault_of_the_proof(
    lanes: list[list[Subject]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_killed(made: Subject, found: Findings) -> None:
        if made.image == "old":
            os.kill(os.getpid(), signal.SIGKILL)
        found.note(waited=wait_for(lambda: False, SECONDS))

    set_check(monkeypatch, is_killed)
    with Watch(), pytest.raises(HarnessError, match="process that tried old ended with -9"):
        run_lanes(lanes, silent, silent, silent)


def test_what_one_lane_raises_stops_the_other(
    lanes: list[list[Subject]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(made: Subject, found: Findings) -> None:
        mark = tmp_path / "server"
        if made.image == "old":
            wait_for(mark.exists, SECONDS)
            raise RuntimeError("a fault of the harness")
        with made.server() as server:
            mark.write_text(str(server.pid))
            wait_for(lambda: False, SECONDS)
            (tmp_path / "not stopped").touch()

    set_check(monkeypatch, fails)
    with Watch(), pytest.raises(RuntimeError, match="a fault of the harness") as told:
        run_lanes(lanes, silent, silent, silent)
    assert "in fails" in str(told.value.__cause__)
    assert not psutil.pid_exists(int((tmp_path / "server").read_text()))
    assert list(tmp_path.rglob("data")) == []
    assert not (tmp_path / "not stopped").exists()


def test_a_stop_ends_what_the_lanes_started(
    lanes: list[list[Subject]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = [tmp_path / image for image in ("new", "old")]

    def waits(made: Subject, found: Findings) -> None:
        with made.server() as server:
            whole = tmp_path / f"{made.image}.part"
            whole.write_text(str(server.pid))
            whole.rename(tmp_path / made.image)
            wait_for(lambda: False, SECONDS)
            (tmp_path / "not stopped").touch()

    def stop() -> None:
        wait_for(lambda: all(mark.exists() for mark in marks), SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    set_check(monkeypatch, waits)
    stopper = threading.Thread(target=stop)
    stopper.start()
    with Watch(), pytest.raises(StoppedError, match="SIGTERM"):
        run_lanes(lanes, silent, silent, silent)
    stopper.join()
    assert [pid for mark in marks if psutil.pid_exists(pid := int(mark.read_text()))] == []
    assert list(tmp_path.rglob("data")) == []
    assert not (tmp_path / "not stopped").exists()


KILLED = """
import sys, time
from pathlib import Path
from proof_subject import subject
from refill.processes import Watch
from refill.proofs import suite
from refill.proofs.findings import Check
from refill.proofs.lanes import run_lanes
folder = Path(sys.argv[1])
def waits(made, found):
    with made.server() as server:
        print(server.pid, flush=True)
        time.sleep(600)
suite.CHECKS = (Check("x", "a property", "beyond", waits),)
silent = lambda _: None
with Watch([]):
    lanes = [[subject(image, folder / image)] for image in ("new", "old")]
    run_lanes(lanes, silent, silent, silent)
"""


def test_lanes_of_a_killed_proof_end_with_what_they_started(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    command = [module_command("x")[0], str(tmp_path / "killed.py"), str(tmp_path)]
    environment = module_environment()
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        servers = [psutil.Process(int(process.stdout.readline())) for _ in range(2)]
        started = [*psutil.Process(process.pid).children(recursive=True), *servers]
        process.kill()
        process.wait()
    gone, alive = psutil.wait_procs(started, SECONDS)
    assert alive == []
    assert len(gone) >= 4
    assert list(tmp_path.rglob("data")) == []

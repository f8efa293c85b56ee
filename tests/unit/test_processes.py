"""Stopping: signals, a lost parent, children that must not outlive a run, and the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from refill.phases.lock import machine_lock
from refill.processes import StoppedError, Watch, module_environment, wait_for

WATCHED = """
import sys, time, psutil
from refill.processes import StoppedError, Watch
try:
    with Watch([psutil.Process(int(sys.argv[1]))]):
        print("watching", flush=True)
        time.sleep(60)
except StoppedError as stopped:
    print(f"stopped: {stopped}", flush=True)
"""


def watched(parent: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(parent)],
        stdout=subprocess.PIPE,
        text=True,
        env=module_environment(),
    )
    assert process.stdout
    assert process.stdout.readline() == "watching\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_becomes_stopped(number: signal.Signals) -> None:
    process = watched(os.getpid())
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert out == f"stopped: stopped by {number.name}\n"


def test_a_run_notices_that_its_parent_is_gone() -> None:
    parent = subprocess.Popen(["sleep", "60"])
    process = watched(parent.pid)
    parent.kill()
    parent.wait()
    out, _ = process.communicate(timeout=20)
    assert out == "stopped: the process that started this run is gone\n"


def test_a_second_signal_does_not_break_the_clean_up() -> None:
    cleaned = []

    def run() -> None:
        with Watch([psutil.Process()]):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
                cleaned.append(True)

    with pytest.raises(StoppedError):
        run()
    assert cleaned


HOLDER = """
import sys, time
from pathlib import Path
from refill.phases.lock import machine_lock
with machine_lock(lambda text: print("waits", flush=True), Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(60)
"""


def test_the_lock_is_waited_for_and_freed_by_a_kill(tmp_path: Path) -> None:
    def holder() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
            stdout=subprocess.PIPE,
            text=True,
            env=module_environment(),
        )

    first = holder()
    assert first.stdout
    assert first.stdout.readline() == "holds\n"
    second = holder()
    assert second.stdout
    assert second.stdout.readline() == "waits\n"
    first.kill()
    assert second.stdout.readline() == "holds\n"
    second.kill()
    for process in (first, second):
        process.wait()
    with machine_lock(pytest.fail, tmp_path / "lock") as waited:
        assert waited < 5


class _StopsInItsEnd:
    """A signal that arrives in a destructor: Python drops what the handler raises there."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def _stopped_in_a_destructor() -> None:
    with Watch([psutil.Process()]):
        _StopsInItsEnd()
        wait_for(lambda: False, 20)
        pytest.fail("the stop was lost")


def test_a_stop_that_python_drops_comes_again() -> None:
    with pytest.raises(StoppedError, match="SIGINT"):
        _stopped_in_a_destructor()

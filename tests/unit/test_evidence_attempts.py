"""Attempts: append-only, complete lines, and a death without an end is seen."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refill.config import PROJECT
from refill.evidence.attempts import LINES, Attempt, AttemptError, list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.records import RecordError

WRITER = """
import sys
from pathlib import Path
from refill.evidence.attempts import Attempt
for i in range(40):
    attempt = Attempt.begin(Path(sys.argv[1]), "optimizers/A1/1", {"pad": "x" * 20000, "i": i})
    attempt.end("completed", sys.argv[2])
"""

VICTIM = """
import os, signal, sys
from pathlib import Path
from refill.evidence.attempts import Attempt
Attempt.begin(Path(sys.argv[1]), "optimizers/A1/1", {})
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=PROJECT / "workflow/scripts")


def test_an_attempt_leaves_two_lines_and_a_folder(tmp_path: Path) -> None:
    attempt = Attempt.begin(tmp_path, "optimizers/A1/1", {"points": 5})
    assert attempt.folder.is_dir()
    assert attempt.folder.parent == tmp_path / "results/attempts/optimizers-A1-1"
    assert re.fullmatch(r"\d{8}T\d{9}Z-[0-9a-f]{6}", attempt.folder.name)
    file = attempt.folder / "part.bin"
    file.write_bytes(b"abc")
    attempt.end("drain_limit", "still indexing", [file])
    (one,) = list_attempts(tmp_path)
    assert one["outcome"] == "drain_limit"
    assert one["reason"] == "still indexing"
    assert one["facts"] == {"points": 5}
    assert one["target"] == "optimizers/A1/1"
    assert one["begun_at"] <= one["ended_at"]
    assert one["files"] == {f"results/attempts/{attempt.name}/part.bin": sha256_file(file)}
    assert len((tmp_path / LINES).read_text().splitlines()) == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    before = b""
    for _ in range(5):
        attempt = Attempt.begin(tmp_path, "optimizers/A1/1", {})
        attempt.end("failed", "for the test")
        after = (tmp_path / LINES).read_bytes()
        assert after.startswith(before)
        assert len(after) > len(before)
        before = after
    assert len({a["attempt"] for a in list_attempts(tmp_path)}) == 5
    assert len(list((tmp_path / "results/attempts/optimizers-A1-1").iterdir())) == 5


def test_a_killed_attempt_counts_as_died(tmp_path: Path) -> None:
    assert start(VICTIM, str(tmp_path)).wait(timeout=60) == -9
    Attempt.begin(tmp_path, "optimizers/A2/1", {}).end("completed", "valid")
    died, good = list_attempts(tmp_path)
    assert (died["outcome"], died["ended_at"], died["target"]) == ("died", None, "optimizers/A1/1")
    assert good["outcome"] == "completed"


def test_lines_of_two_processes_do_not_tear(tmp_path: Path) -> None:
    writers = [start(WRITER, str(tmp_path), name) for name in ("one", "two")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    lines = [json.loads(line) for line in (tmp_path / LINES).read_bytes().splitlines()]
    assert len(lines) == 160
    attempts = list_attempts(tmp_path)
    assert len({a["attempt"] for a in attempts}) == 80
    assert {a["outcome"] for a in attempts} == {"completed"}
    assert [sum(a["reason"] == name for a in attempts) for name in ("one", "two")] == [40, 40]


def test_a_writer_waits_for_the_lock(tmp_path: Path) -> None:
    Attempt.begin(tmp_path, "optimizers/A1/1", {}).end("completed", "valid")
    before = (tmp_path / LINES).read_bytes()
    with (tmp_path / LINES).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = start(WRITER, str(tmp_path), "waited")
        deadline = time.monotonic() + 60
        # "->" marks who waits for a lock.
        while not re.search(rf"-> FLOCK .* {writer.pid} ", Path("/proc/locks").read_text()):
            assert writer.poll() is None, "it did not wait"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (tmp_path / LINES).read_bytes() == before
    assert writer.wait(timeout=60) == 0
    assert len(list_attempts(tmp_path)) == 41


def test_a_torn_line_spoils_no_other_and_is_listed(tmp_path: Path) -> None:
    Attempt.begin(tmp_path, "optimizers/A1/1", {}).end("completed", "valid")
    with (tmp_path / LINES).open("ab") as file:
        file.write(b'{"event":"begin","att')
    Attempt.begin(tmp_path, "optimizers/A2/1", {}).end("completed", "valid")
    outcomes = [(a["target"], a["outcome"]) for a in list_attempts(tmp_path)]
    assert outcomes == [
        ("optimizers/A1/1", "completed"),
        (None, "unreadable"),
        ("optimizers/A2/1", "completed"),
    ]
    assert "line 3 of attempts.jsonl" in list_attempts(tmp_path)[1]["reason"]


def test_an_end_without_a_beginning_is_listed(tmp_path: Path) -> None:
    attempt = Attempt.begin(tmp_path, "optimizers/A1/1", {})
    (tmp_path / LINES).write_bytes(b"")
    attempt.end("completed", "valid")
    assert [a["outcome"] for a in list_attempts(tmp_path)] == ["unreadable"]


def test_an_attempt_ends_once(tmp_path: Path) -> None:
    attempt = Attempt.begin(tmp_path, "optimizers/A1/1", {})
    attempt.end("completed", "valid")
    with pytest.raises(AttemptError, match="has ended already"):
        attempt.end("failed", "again")
    assert list_attempts(tmp_path)[0]["outcome"] == "completed"


def test_wrong_ends_are_refused_and_the_attempt_stays_open(tmp_path: Path) -> None:
    attempt = Attempt.begin(tmp_path, "optimizers/A1/1", {})
    with pytest.raises(AttemptError, match="does not exist"):
        attempt.end("completed", "valid", [tmp_path / "none"])
    with pytest.raises(AttemptError, match="outside of the workflow"):
        attempt.end("completed", "valid", [Path(__file__)])
    for outcome in ("died", "", "Two words"):
        with pytest.raises(AttemptError, match="outcome"):
            attempt.end(outcome, "valid")
    assert [a["outcome"] for a in list_attempts(tmp_path)] == ["died"]
    attempt.end("completed", "valid")


@pytest.mark.parametrize("target", ["", "/abs", "../x", "a/../b", "a b", "a//b", "a\n"])
def test_a_target_is_a_plain_path(tmp_path: Path, target: str) -> None:
    with pytest.raises(AttemptError, match="attempt target"):
        Attempt.begin(tmp_path, target, {})
    assert not (tmp_path / "results").exists()


def test_facts_that_json_cannot_hold_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"facts\.x"):
        Attempt.begin(tmp_path, "optimizers/A1/1", {"x": float("nan")})
    assert list_attempts(tmp_path) == []


def test_a_reason_holds_no_absolute_path(tmp_path: Path) -> None:
    attempt = Attempt.begin(tmp_path, "optimizers/A1/1", {})
    attempt.end("failed", f"no such file: '{tmp_path}/results/x' in {tmp_path}")
    text = (tmp_path / LINES).read_text()
    assert str(tmp_path) not in text
    assert "no such file: 'results/x' in " in list_attempts(tmp_path)[0]["reason"]

"""Turns at a target: whatever an older attempt does, the newer one's result stands."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT
from refill.evidence import turns
from refill.evidence.attempts import Attempt, list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.turns import Turn, latest, preparing, refuse_superseded, staged
from refill.phases.attempted import attempted
from refill.processes import StoppedError
from refill.progress import silent
from refill.told import SupersededError

TARGET = "optimizers/A1/1"
PLAN = {"code": "c", "scale": "test"}
JOB = {"scheduler": "slurm", "id": "45", "node": "n1"}


def call(second: int) -> dict[str, Any]:
    return {"pid": 7, "started_at": f"2026-01-01T00:00:{second:02d}Z"}


def results(root: Path) -> list[Path]:
    folder = root / "results/optimizers/A1"
    return [folder / "1.json", folder / "1.parquet", folder / "1.polls.parquet"]


def begun(root: Path, **facts: Any) -> tuple[Attempt, Turn]:
    whole = {"invocation": None, **facts}
    attempt = Attempt.begin(root, TARGET, whole)
    return attempt, Turn.take(attempt, results(root), whole)


def measured(attempt: Attempt, root: Path) -> None:
    for result in results(root):
        staged(attempt, result).write_text(attempt.name)


def texts(root: Path) -> set[str]:
    return {result.read_text() for result in results(root)}


def test_results_stand_only_when_all_are_there_with_a_second_name_in_the_attempt(
    tmp_path: Path,
) -> None:
    attempt, turn = begun(tmp_path)
    measured(attempt, tmp_path)
    assert not any(result.exists() for result in results(tmp_path))
    hashes = turn.publish(keep=True)
    assert texts(tmp_path) == {attempt.name}
    assert hashes == {f"results/optimizers/A1/{p.name}": sha256_file(p) for p in results(tmp_path)}
    for result in results(tmp_path):
        assert result.samefile(attempt.folder / result.name)
    assert not list(attempt.folder.glob("p*/*")) + list(attempt.folder.glob("staged/*"))


@pytest.mark.parametrize("first", ["older", "newer"])
def test_an_older_attempt_puts_nothing_in_the_place_of_a_newer_one(
    tmp_path: Path, first: str
) -> None:
    old, older = begun(tmp_path, job=JOB)
    new, newer = begun(tmp_path, job={**JOB, "id": "46", "node": "n2"})
    for attempt in (old, new):
        measured(attempt, tmp_path)
    if first == "newer":
        newer.publish(keep=False)
    with pytest.raises(SupersededError, match=rf"{new.name} \(job 46 on n2\)"):
        older.publish(keep=True)
    assert older.is_over()
    if first == "older":
        assert not any(result.exists() for result in results(tmp_path))
        newer.publish(keep=False)
    assert texts(tmp_path) == {new.name}
    # What it measured it keeps.
    assert staged(old, results(tmp_path)[0]).read_text() == old.name


def test_a_turn_that_is_taken_in_the_middle_of_putting_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, older = begun(tmp_path)
    measured(old, tmp_path)
    link_all, taken = turns.link_all, []

    def slow(files: Sequence[Path], folder: Path) -> None:
        link_all(files, folder)
        # With one file in place, one about to be, and the record still to come.
        if files[0].name == "1.parquet":
            taken.append(begun(tmp_path))

    monkeypatch.setattr(turns, "link_all", slow)
    with pytest.raises(SupersededError):
        older.publish(keep=True)
    there = [result.name for result in results(tmp_path) if result.exists()]
    assert there == ["1.polls.parquet"]
    ((new, newer),) = taken
    measured(new, tmp_path)
    newer.publish(keep=False)
    assert texts(tmp_path) == {new.name}


def test_a_job_of_an_earlier_call_that_starts_late_is_refused_before_it_takes_anything(
    tmp_path: Path,
) -> None:
    new, newer = begun(tmp_path, job=JOB, invocation=call(30))
    with pytest.raises(SupersededError, match="of a later call"):
        refuse_superseded(tmp_path, TARGET, call(10))
    refuse_superseded(tmp_path, TARGET, call(30))  # the same call, started again by Slurm
    refuse_superseded(tmp_path, TARGET, call(50))
    refuse_superseded(tmp_path, "optimizers/A2/1", call(10))
    with pytest.raises(SupersededError):
        begun(tmp_path, job=JOB, invocation=call(10))
    measured(new, tmp_path)
    newer.publish(keep=False)
    assert texts(tmp_path) == {new.name}
    again, turn = begun(tmp_path, job=JOB, invocation=call(30))
    measured(again, tmp_path)
    turn.publish(keep=False)
    assert texts(tmp_path) == {again.name}
    # Outside of a cluster no job waits in a queue, and a clock that was set back harms nobody.
    begun(tmp_path, invocation=call(10))


def test_turns_work_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refused)
    old, older = begun(tmp_path)
    new, newer = begun(tmp_path)
    for attempt in (old, new):
        measured(attempt, tmp_path)
    with pytest.raises(SupersededError):
        older.publish(keep=True)
    newer.publish(keep=True)
    assert texts(tmp_path) == {new.name}
    assert (new.folder / "1.json").read_text() == new.name


def turn_files(root: Path) -> list[Path]:
    return sorted((root / "results/attempts/optimizers-A1-1").glob("turn-*.json"))


WHOLE = {"schema": turns.SCHEMA, "attempt": "a", "places": [], "invocation": None, "job": None}
ODD = (
    {"invocation": {}}, {"invocation": "x"}, {"invocation": [1]}, {"attempt": 5},
    {"places": [5]}, {"places": "x"}, {"job": {"id": "7"}}, {"job": 7},
)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", '{"schema": "refill.tu', '{"schema": "refill.turn/1"}',
     *(json.dumps(WHOLE | odd) for odd in ODD)],
)  # fmt: skip
def test_a_damaged_turn_is_an_earlier_one_like_any_other(tmp_path: Path, text: str) -> None:
    """The file of the turn is the attempt's own, so its attempt is known all the same."""
    old, older = begun(tmp_path)
    (damaged,) = turn_files(tmp_path)
    damaged.write_text(text)
    assert str(latest(tmp_path, TARGET)) == f"attempt {old.name}"
    new, newer = begun(tmp_path)
    for attempt in (old, new):
        measured(attempt, tmp_path)
    newer.publish(keep=False)
    with pytest.raises(SupersededError, match=new.name):
        older.publish(keep=False)
    assert texts(tmp_path) == {new.name}


def test_a_damaged_turn_of_nobody_stops_nobody_but_its_own_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "WRITING_S", 0.2)
    old, older = begun(tmp_path)
    (damaged,) = turn_files(tmp_path)
    damaged.unlink()
    damaged.write_text("{")
    refuse_superseded(tmp_path, TARGET, call(10))
    new, newer = begun(tmp_path, job=JOB, invocation=call(10))
    for attempt in (old, new):
        measured(attempt, tmp_path)
    newer.publish(keep=False)
    with pytest.raises(SupersededError, match=new.name):
        older.publish(keep=False)
    assert texts(tmp_path) == {new.name}


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_turn_whose_file_was_removed_leaves_the_order_of_the_others(
    tmp_path: Path, removed: int
) -> None:
    """Whoever deletes a file of a turn deletes nothing but that."""
    attempts = [begun(tmp_path) for _ in range(3)]
    turn_files(tmp_path)[removed].unlink()
    again, turn = begun(tmp_path)
    for attempt, _ in [*attempts, (again, turn)]:
        measured(attempt, tmp_path)
    assert not turn.is_over()
    turn.publish(keep=False)
    for _, earlier in attempts[:2]:
        with pytest.raises(SupersededError):
            earlier.publish(keep=False)
    assert texts(tmp_path) == {again.name}


def test_half_a_turn_is_not_left_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(Path, "read_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        begun(tmp_path)
    assert turn_files(tmp_path) == []


RACER = """
import random, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from refill.told import SupersededError
from test_evidence_turns import begun, measured
root = Path(sys.argv[1])
for _ in range(12):
    attempt, turn = begun(root)
    measured(attempt, root)
    time.sleep(random.random() / 100)
    try:
        turn.publish(keep=True)
    except SupersededError as over:
        attempt.end("superseded", str(over))
    else:
        attempt.end("completed", "valid")
"""


def test_of_many_at_once_the_last_turn_stands_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(tmp_path), str(Path(__file__).parent)]
    racers = [subprocess.Popen(command, cwd=PROJECT / "workflow/scripts") for _ in range(3)]
    assert [racer.wait(120) for racer in racers] == [0, 0, 0]
    attempts = {attempt["attempt"]: attempt["outcome"] for attempt in list_attempts(tmp_path)}
    assert len(attempts) == 36
    last = latest(tmp_path, TARGET)
    assert last is not None
    assert attempts[last.attempt] == "completed"
    assert texts(tmp_path) == {last.attempt}


# ---- a whole measurement


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives a function that goes to a node: its job, its lock, its folder for data."""

    def go(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for variable, value in {
            "SLURM_JOB_ID": f"job-{name}",
            "SLURMD_NODENAME": name,
            "TMPDIR": str(folder),
            "REFILL_GIVEN_TMPDIR": str(folder),
            "REFILL_LOCK": str(folder / "lock"),
        }.items():
            monkeypatch.setenv(variable, value)

    return go


def measure(root: Path, value: int, meanwhile: Any = None) -> dict[str, Any]:
    def work(attempt: Attempt, _: float) -> dict[str, Any]:
        record = {"valid": True, "invalid": [], "outcome": "completed", "value": value}
        for result in results(root):
            staged(attempt, result).write_text(json.dumps(record))
        if meanwhile is not None:
            meanwhile()
        return record

    return attempted(root, TARGET, PLAN, results(root), silent("test"), work)


@pytest.mark.parametrize("end", [None, StoppedError("stopped by SIGTERM"), RuntimeError("broken")])
def test_a_run_that_was_taken_over_meanwhile_ends_superseded_however_it_ends(
    tmp_path: Path, node: Any, end: BaseException | None
) -> None:
    def meanwhile() -> None:
        node("n2")
        measure(tmp_path, 2)
        node("n1")
        if end is not None:
            raise end

    node("n1")
    with pytest.raises(SupersededError, match=r"job job-n2 on n2"):
        measure(tmp_path, 1, meanwhile)
    assert json.loads(results(tmp_path)[0].read_text())["value"] == 2
    older, newer = list_attempts(tmp_path)
    assert newer["outcome"] == "completed"
    assert older["outcome"] == "superseded"
    assert newer["attempt"] in older["reason"]
    assert str(end or "") in older["reason"]
    kept = f"results/attempts/{older['attempt']}/staged/1.json"
    assert older["files"][kept] == sha256_file(tmp_path / kept)
    assert set(newer["files"]) == {f"results/optimizers/A1/{p.name}" for p in results(tmp_path)}


@pytest.mark.parametrize("end", [None, FileNotFoundError("the other one removed it")])
def test_what_is_prepared_does_not_take_the_place_of_what_a_later_job_prepares(
    tmp_path: Path, node: Any, end: Exception | None
) -> None:
    done = []

    def prepare(name: str, meanwhile: Any = None) -> None:
        with preparing(tmp_path, "corpora/small") as check:
            if meanwhile is not None:
                meanwhile()
                if end is not None:
                    raise end
            check()
            done.append(name)

    node("n1")
    with pytest.raises(SupersededError, match="job job-n2 on n2"):
        prepare("older", lambda: (node("n2"), prepare("newer"), node("n1")))
    assert done == ["newer"]
    assert list_attempts(tmp_path) == []
    prepare("again")
    assert done == ["newer", "again"]


def test_what_is_prepared_outside_of_a_cluster_leaves_nothing_of_it(tmp_path: Path) -> None:
    with preparing(tmp_path, "corpora/small") as check:
        check()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_was_taken_over_ends_well_so_that_nothing_is_deleted(tmp_path: Path) -> None:
    script = (
        "import sys; from refill.edge import logged; from refill.told import SupersededError\n"
        "with logged(sys.argv[1]): raise SupersededError('taken over by another')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "A1-1.log")],
        cwd=PROJECT / "workflow/scripts",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "A1-1: taken over by another\n"

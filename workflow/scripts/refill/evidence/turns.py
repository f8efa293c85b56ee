"""Whose turn a target is: what an older attempt still measures never lands on a newer one's result.

A job of a cluster outlives the call of Snakemake that submitted it, and runs on beside the job of a
later call for the same target, on another node. Each attempt therefore takes a turn at its target:
a number above all others, as a hard link that can be made once. With it go *places*, one file for
each result, which the attempt fills and renames to the result at its end. Whoever takes a later
turn first removes the places of all earlier ones, and a rename of what is gone fails. Nothing of
this needs a lock, which shared file systems keep badly: link, remove and rename are each one step
of the server.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from refill.batch_job import batch_job
from refill.evidence.attempts import FOLDER, Attempt, folder_of, link_all
from refill.evidence.hashes import sha256_file
from refill.evidence.records import RecordError, check_forms, read_json, write_json
from refill.processes import named_invocation, wait_for
from refill.told import SupersededError

SCHEMA = "refill.turn/1"
PLACES = "places"
STAGED = "staged"
# Where there are no hard links a turn's file is there a moment before its text.
WRITING_S = 10.0


@dataclass(frozen=True)
class Taken:
    """A turn that an attempt took: its name, its places, its call of Snakemake, and its job.

    `attempt` is None for a turn that cannot be read, and whose attempt nothing else tells.
    """

    attempt: str | None
    places: Sequence[str]
    invocation: Mapping[str, Any] | None
    job: Mapping[str, str] | None

    def __str__(self) -> str:
        if self.attempt is None:
            return "an attempt whose turn cannot be read"
        if self.job is None:
            return f"attempt {self.attempt}"
        return f"attempt {self.attempt} (job {self.job['id']} on {self.job['node']})"

    def of_a_later_call(self, invocation: Mapping[str, Any] | None) -> bool:
        """Say whether the call that made it began after another one; False where either is unknown.

        Both times are of the machines that submit, to a second.
        """
        if self.invocation is None or invocation is None:
            return False
        return bool(self.invocation["started_at"] > invocation["started_at"])


class Turn:
    """An attempt's turn at its target. Make one with `Turn.take`.

    The attempt writes its results to `staged` paths; `publish` puts them in place.
    """

    def __init__(self, attempt: Attempt, number: int, results: Sequence[Path]) -> None:
        self._attempt = attempt
        self._number = number
        self._results = list(results)

    @classmethod
    def take(cls, attempt: Attempt, results: Sequence[Path], facts: Mapping[str, Any]) -> Turn:
        """Take the next turn at the attempt's target, and all earlier ones' right to publish.

        Args:
            attempt: has begun.
            results: the files that it is to put in place, the one that makes them a result first;
                their names differ.
            facts: of the attempt; its `invocation` and, in a scheduler's job, its `job` are read.

        Raises:
            SupersededError: this is a job of a call of Snakemake that began before one that took a
                turn already: it waited in the queue meanwhile, or was started again.
        """
        for name in (PLACES, STAGED):
            (attempt.folder / name).mkdir()
        # There before the turn is, so that whoever comes later finds them to remove.
        for result in results:
            (attempt.folder / PLACES / result.name).touch(exist_ok=False)
        ticket = attempt.folder / "turn.json"
        ours = {
            "schema": SCHEMA,
            "attempt": attempt.name,
            "places": [result.name for result in results],
            "invocation": facts["invocation"],
            "job": facts.get("job"),
        }
        write_json(ticket, ours)
        # A job waited in the queue while a later call's took the target.
        called = facts["invocation"] if ours["job"] is not None else None
        folder = attempt.folder.parent
        numbers = _numbers(folder)
        earlier = [_let_by(attempt, _read(_file(folder, n)), called) for n in numbers]
        number = max(numbers, default=0) + 1
        while not _made(ticket, path := _file(folder, number)):
            taken = _read(path)
            if taken.attempt == attempt.name:
                break  # the server had made the link, and its answer was lost
            earlier.append(_let_by(attempt, taken, called))
            number += 1
        for taken in earlier:
            _take_places(attempt.root, taken)
        return cls(attempt, number, results)

    def publish(self, keep: bool) -> dict[str, str]:
        """Put the staged results in place; the one that makes them a result comes last.

        Args:
            keep: whether each gets a second name in the attempt's folder. Snakemake deletes a
                result before its rerun, and an interrupted rerun must not lose the old one.

        Returns:
            The SHA-256 of each by its path below the root.

        Raises:
            SupersededError: a later turn was taken. What is in place is replaced at its end.
        """
        if self.is_over():
            raise self.lost()  # whose turn could not be read, nobody took the places from
        hashes, root = {}, self._attempt.root.resolve()
        for result in reversed(self._results):
            place = self._attempt.folder / PLACES / result.name
            self._fill(place, self._attempt.folder / STAGED / result.name)
            try:
                hashes[result.resolve().relative_to(root).as_posix()] = sha256_file(place)
                if keep:
                    link_all([place], self._attempt.folder)
                result.parent.mkdir(parents=True, exist_ok=True)
                place.rename(result)
            except FileNotFoundError:
                raise self.lost() from None
        for name in (PLACES, STAGED):
            shutil.rmtree(self._attempt.folder / name)
        return hashes

    def _fill(self, place: Path, staged: Path) -> None:
        """Copy what was measured into its place, which is never made here: it may be gone."""
        try:
            handle = os.open(place, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self.lost() from None
        with os.fdopen(handle, "wb") as to, staged.open("rb") as source:
            shutil.copyfileobj(source, to)
            to.flush()
            os.fsync(handle)

    def is_over(self) -> bool:
        """Say whether a later turn was taken."""
        folder = self._attempt.folder.parent
        # By its name first: a list of names may be an older one on a shared file system.
        next_one = _file(folder, self._number + 1).exists()
        return next_one or any(number > self._number for number in _numbers(folder))

    def lost(self) -> SupersededError:
        """Give the error that says who has the target now."""
        later = latest(self._attempt.root, self._attempt.target, self._number + 1)
        return _superseded(self._attempt.target, later)


@contextmanager
def preparing(root: Path, target: str) -> Iterator[Callable[[], None]]:
    """Take a turn for what is prepared and not measured: nothing of it is an attempt.

    Only a job of a cluster outlives its call, so elsewhere nothing happens.

    Args:
        root: the working folder of the workflow.
        target: what is prepared, such as `corpora/glove-50d`.

    Yields:
        A function to call right before what was prepared takes its place.

    Raises:
        SupersededError: a later job prepares it, or did: from that function, or in the place of
            what the block raised, as Snakemake would delete the other's files after an error.
    """
    job = batch_job()
    if job is None:
        yield lambda: None
        return
    attempt = Attempt.named(root, target, datetime.now(UTC))
    attempt.folder.mkdir(parents=True)
    turn = Turn.take(attempt, [], {"invocation": named_invocation(), "job": job.plain()})

    def check() -> None:
        if turn.is_over():
            raise turn.lost()

    try:
        yield check
    except SupersededError:
        raise
    except BaseException as error:
        if turn.is_over():
            raise turn.lost() from error
        raise


def staged(attempt: Attempt, result: Path) -> Path:
    """Give the path at which an attempt writes a result until it is put in place."""
    return attempt.folder / STAGED / result.name


def latest(root: Path, target: str, first: int = 1) -> Taken | None:
    """Give the latest turn at a target from number `first` on; None when there is none."""
    folder = folder_of(root, target)
    last = max((number for number in _numbers(folder) if number >= first), default=first - 1)
    while _file(folder, last + 1).exists():
        last += 1
    return _read(_file(folder, last)) if last >= first else None


def refuse_superseded(root: Path, target: str, invocation: Mapping[str, Any] | None) -> None:
    """Raise SupersededError when a later call of Snakemake than `invocation` took the target.

    To be asked before Snakemake starts the job of a cluster that was submitted long ago, as it
    deletes the results that are there.
    """
    taken = latest(root, target)
    if taken is not None and taken.of_a_later_call(invocation):
        raise _superseded(target, taken)


def _take_places(root: Path, taken: Taken) -> None:
    """Remove the places of a turn, so that its attempt can put nothing there any more."""
    if taken.attempt is not None:
        for name in taken.places:
            (root / FOLDER / taken.attempt / PLACES / name).unlink(missing_ok=True)


def _let_by(attempt: Attempt, taken: Taken, called: Mapping[str, Any] | None) -> Taken:
    """Give an earlier turn; raise SupersededError when it is of a later call."""
    if taken.of_a_later_call(called):
        raise _superseded(attempt.target, taken)
    return taken


def _superseded(target: str, later: Taken | None) -> SupersededError:
    return SupersededError(
        f"{target} was taken over by {later or 'another attempt'}, of a later call of Snakemake or "
        "a later start of this job, so nothing of this one is put in place; its own files are in "
        "results/attempts"
    )


def _file(folder: Path, number: int) -> Path:
    return folder / f"turn-{number}.json"


def _made(ticket: Path, path: Path) -> bool:
    """Give the ticket a second name that nobody has yet; False when somebody has it."""
    try:
        os.link(ticket, path)
    except FileExistsError:
        return False
    except OSError:
        # No hard links here. Exclusive all the same, but the text comes a moment later.
        try:
            file = path.open("xb")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(ticket.read_bytes())
        except OSError:
            path.unlink()  # a full disk: half a turn would be in everybody's way
            raise
    return True


def _numbers(folder: Path) -> list[int]:
    """Give the numbers of the turns at a target, in order. One may be missing: a removed file."""
    names = (re.fullmatch(r"turn-(\d+)\.json", path.name) for path in folder.glob("turn-*.json"))
    return sorted(int(name[1]) for name in names if name)


def _read(path: Path) -> Taken:
    """Read a turn. One that cannot be read is a turn all the same, of whom it can be told."""
    found: list[Taken] = []

    def look() -> bool:
        try:
            turn = read_json(path, SCHEMA)
            nothing = type(None)
            check_forms(
                path, turn,
                {"attempt": (str,), "places": (list,), "invocation": (dict, nothing),
                 "job": (dict, nothing)},
            )  # fmt: skip
            if (invocation := turn["invocation"]) is not None:
                check_forms(path, invocation, {"started_at": (str,)})
            if (job := turn["job"]) is not None:
                check_forms(path, job, {"id": (str,), "node": (str,)})
            if not all(isinstance(name, str) for name in turn["places"]):
                return False
            found.append(Taken(turn["attempt"], turn["places"], invocation, job))
        except (RecordError, OSError):
            return False
        return True

    # A hard link is whole from the first moment on.
    whole = look() or (path.exists() and path.stat().st_nlink > 1)
    if not whole:
        wait_for(look, WRITING_S, 0.1)
    return found[0] if found else _unreadable(path)


def _unreadable(path: Path) -> Taken:
    """Give a turn of whose text nothing is left: its attempt has the same file in its folder."""
    for ticket in path.parent.glob("*/turn.json"):
        if path.exists() and ticket.samefile(path):
            places = sorted(place.name for place in (ticket.parent / PLACES).glob("*"))
            return Taken(ticket.parent.relative_to(path.parents[1]).as_posix(), places, None, None)
    return Taken(None, (), None, None)

"""The images are tried side by side, each in a process of its own: what most checks do is wait.

Such a process, a lane, is forked from the proof's and so has what that opened. It tells the proof
of each check by a pipe. A lane that is stopped, or that finds its proof gone, ends its servers,
disks and folders as a proof does that is stopped itself.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil

from refill.processes import Watch
from refill.proofs.findings import HarnessError
from refill.proofs.subject import Subject
from refill.proofs.suite import run_all
from refill.runtimes import ports

Entry = dict[str, Any]
Takers = dict[str, Callable[[Any], None]]


def run_lanes(
    lanes: Sequence[Sequence[Subject]],
    say: Callable[[str], None],
    at: Callable[[str], None],
    keep: Callable[[Entry], None],
) -> list[Entry]:
    """Run every check on every subject, the lanes side by side and each in its order.

    Args:
        lanes: subjects that come one after the other.
        say, at, keep: as for `run_all`; called in this process.

    Returns:
        The entries of the record, one lane's after the other's.

    Raises:
        HarnessError: a lane's process was killed.
        Exception: what a lane raised; the others are stopped then.
        StoppedError: this process was stopped, or a lane.
    """
    if len(lanes) == 1:
        return run_all(lanes[0], say, at, keep)
    taken_by: Takers = {"say": say, "at": at, "keep": keep}
    started: list[_Lane] = []
    try:
        for number, subjects in enumerate(lanes):
            started.append(_Lane(number, len(lanes), subjects))
        working = {lane.pipe: lane for lane in started}
        while working:
            for pipe in wait(list(working)):
                assert isinstance(pipe, Connection)
                if not working[pipe].pass_on(taken_by):
                    del working[pipe]
    finally:
        for lane in started:
            lane.end()
    return [made for lane in started for made in lane.entries]


class _Lane:
    """The proof's side of a lane."""

    def __init__(self, number: int, lanes: int, subjects: Sequence[Subject]) -> None:
        # Forked, not spawned: of what the proof opened, not all can be sent.
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.entries: list[Entry] = []
        self._name = "/".join(dict.fromkeys(subject.image for subject in subjects))
        self._process = context.Process(
            target=_work,
            args=((number, lanes), subjects, theirs, psutil.Process()),
            name=f"proof of {self._name}",
        )
        self._process.start()
        # Only the lane's own end is left, so the pipe ends with it.
        theirs.close()

    def pass_on(self, taken_by: Takers) -> bool:
        """Pass on what the lane says next; False when it came to its end.

        Raises:
            HarnessError: it was killed.
            BaseException: what it raised.
        """
        try:
            kind, what = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            if status := self._process.exitcode:
                raise HarnessError(
                    f"the process that tried {self._name} ended with {status}"
                ) from None
            return False
        if kind == "raise":
            error, where = what
            raise error from HarnessError(f"in the process that tried {self._name}:\n{where}")
        taken_by[kind](what)
        if kind == "keep":
            self.entries.append(what)
        return True

    def end(self) -> None:
        """Stop it if it is at work, and wait until all that it started has ended."""
        self._process.terminate()
        # Nobody listens any more: it must not wait for somebody who does.
        self.pipe.close()
        self._process.join()


def _work(
    share: tuple[int, int], subjects: Sequence[Subject], pipe: Connection, proof: psutil.Process
) -> None:
    """Run a lane's subjects in its process; what is raised here is raised in the proof."""
    try:
        with Watch([proof]):
            # What one lane's server listens on between a kill and its start is not another's.
            ports.take_share(*share)
            run_all(
                subjects,
                lambda text: pipe.send(("say", text)),
                lambda text: pipe.send(("at", text)),
                lambda made: pipe.send(("keep", made)),
            )
    except BaseException as error:  # noqa: BLE001 - raised in the proof's process
        # Of a proof that is stopped or gone, nobody may be there to take it.
        with suppress(OSError):
            pipe.send(("raise", (error, traceback.format_exc())))

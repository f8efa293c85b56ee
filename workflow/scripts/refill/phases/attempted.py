"""One measurement as an attempt: alone on the machine, stoppable, and never without a trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.batch_job import batch_job, unspoken
from refill.evidence.attempts import Attempt
from refill.evidence.scrub import without_paths
from refill.evidence.turns import PLACES, Turn
from refill.phases.lock import machine_lock
from refill.phases.own_scratch import own_scratch
from refill.processes import StoppedError, Watch, snakemake_invocation
from refill.progress import Progress
from refill.told import SupersededError, with_notes

Work = Callable[[Attempt, float], dict[str, Any]]


def attempted(
    root: Path,
    target: str,
    plan: Mapping[str, Any],
    written: Sequence[Path],
    progress: Progress,
    work: Work,
) -> dict[str, Any]:
    """Do a measurement under the machine's lock, and keep its attempt whatever comes of it.

    Args:
        root: the working folder of the workflow.
        target: what is tried, such as `optimizers/A1/1`.
        plan: of the job; its `code` and `scale` are the attempt's facts, beside which call of
            Snakemake it was made in and the scheduler's job that this is, if any.
        written: the results, the record first. `work` writes them to their `staged` paths; they
            are put in place when it has come to its end and the target is still this attempt's.
        progress: told when the machine is waited for.
        work: takes the attempt and the seconds waited, and gives the record.

    Returns:
        The record.

    Raises:
        StoppedError: the run was stopped; the attempt says so and no record is written.
        SupersededError: another attempt has the target now; this one keeps what it measured.
    """
    with Watch(), machine_lock(progress.say) as waited:
        facts = {"code": plan["code"], "scale": plan["scale"], "invocation": snakemake_invocation()}
        if (job := batch_job()) is not None:
            facts["job"] = job.plain()
        attempt, turn = Attempt.begin(root, target, facts), None
        try:
            with own_scratch(root, target, progress.say):
                turn = Turn.take(attempt, written, facts)
                record = work(attempt, waited)
            hashes = turn.publish(keep=record["valid"])
        except SupersededError as over:
            attempt.end("superseded", str(over), _left(attempt.folder))
            raise
        except BaseException as error:
            if turn is not None and turn.is_over():
                # Whatever ended it: as a failure, Snakemake would delete the other's results.
                lost = turn.lost()
                attempt.end("superseded", f"{_told(error, root)}; {lost}", _left(attempt.folder))
                raise lost from error
            outcome = "interrupted" if isinstance(error, StoppedError) else "failed"
            attempt.end(outcome, _told(error, root), _left(attempt.folder))
            raise
        reason = "; ".join(record["invalid"][:5]) or "valid"
        attempt.end(record["outcome"], reason, hashes=hashes)
        if record["valid"]:
            _remove_parts(attempt.folder)
        return record


def _told(error: BaseException, root: Path) -> str:
    text = with_notes(error)
    if not isinstance(error, StoppedError):
        text = f"{type(error).__name__}: {text}"
    return without_paths(text, unspoken(root))


def _remove_parts(folder: Path) -> None:
    """Take away the parts of a ledger that is whole now, hash and all."""
    for part in folder.iterdir():
        if part.is_dir():
            shutil.rmtree(part)


def _left(folder: Path) -> list[Path]:
    """Give what an attempt that put nothing in place leaves."""
    shutil.rmtree(folder / PLACES, ignore_errors=True)
    return sorted(path for path in folder.rglob("*") if path.is_file())

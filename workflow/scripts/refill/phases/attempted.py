"""One measurement as an attempt: alone on the machine, stoppable, and never without a trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.batch_job import batch_job
from refill.evidence.attempts import Attempt, link_all
from refill.phases.lock import machine_lock
from refill.processes import StoppedError, Watch, snakemake_invocation
from refill.progress import Progress

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
        written: the files that `work` writes, the record among them.
        progress: told when the machine is waited for.
        work: takes the attempt and the seconds waited, and gives the record.

    Returns:
        The record.

    Raises:
        StoppedError: the run was stopped; the attempt says so and no record is written.
    """
    with Watch(), machine_lock(progress.say) as waited:
        facts = {"code": plan["code"], "scale": plan["scale"], "invocation": snakemake_invocation()}
        if (job := batch_job()) is not None:
            facts["job"] = job.plain()
        attempt = Attempt.begin(root, target, facts)
        try:
            record = work(attempt, waited)
        except StoppedError as stopped:
            attempt.end("interrupted", str(stopped), _left(attempt.folder))
            raise
        except BaseException as error:
            attempt.end("failed", f"{type(error).__name__}: {error}", _left(attempt.folder))
            raise
        attempt.end(record["outcome"], "; ".join(record["invalid"][:5]) or "valid", written)
        if record["valid"]:
            _replace_parts(attempt.folder, written)
        return record


def _replace_parts(folder: Path, written: Sequence[Path]) -> None:
    """Take away the parts of a ledger that is whole now, hash and all.

    Snakemake deletes a result before its rerun: a second name for each file keeps an interrupted
    rerun from losing the old one.
    """
    for part in folder.iterdir():
        if part.is_dir():
            shutil.rmtree(part)
    link_all(written, folder)


def _left(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())

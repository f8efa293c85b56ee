"""The job of a cluster's scheduler that this process runs in, if any, and what follows from it.

Read from the environment that the scheduler sets: sbatch(1) and srun(1) of Slurm, qsub(1) of PBS
and of Grid Engine, bsub(1) of LSF.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from refill.told import ToldError

SCRATCH = Path("results/scratch")
# `$TMPDIR` as a job was given it; empty: it was not set.
GIVEN_TMPDIR = "REFILL_GIVEN_TMPDIR"

# Variable that holds the job's id, and the one with the node's name where there is one. Grid
# Engine's JOB_ID is too common a name to stand alone.
_SCHEDULERS = (
    ("slurm", "SLURM_JOB_ID", "SLURMD_NODENAME", None),
    ("pbs", "PBS_JOBID", None, None),
    ("lsf", "LSB_JOBID", None, None),
    ("grid engine", "JOB_ID", None, "SGE_TASK_ID"),
)


class ScratchError(ToldError):
    """There is no place for the data of engines; the text says what to set."""


@dataclass(frozen=True)
class BatchJob:
    """A scheduler's job: `scheduler` is its kind, `id` the job's, `node` the node it runs on."""

    scheduler: str
    id: str
    node: str

    def plain(self) -> dict[str, str]:
        """Give the job as JSON."""
        return asdict(self)


def batch_job(environment: Mapping[str, str] | None = None) -> BatchJob | None:
    """Return the job that this process runs in; None outside of a scheduler.

    `environment` is `os.environ` when None.
    """
    variables = os.environ if environment is None else environment
    for scheduler, job, node, mark in _SCHEDULERS:
        if variables.get(job) and (mark is None or mark in variables):
            name = variables.get(node) if node else None
            return BatchJob(scheduler, variables[job], name or platform.node())
    return None


def name_tmpdir() -> None:
    """Keep `$TMPDIR` as this job was given it, for the script that Snakemake starts.

    Snakemake sets TMPDIR for its scripts to what Python's tempfile finds, which takes /tmp in
    silence for a folder that is missing. To be called where the workflow is read, in each process.
    """
    os.environ[GIVEN_TMPDIR] = os.environ.get("TMPDIR", "")


def scratch(root: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for the data of engines that run.

    It is `results/scratch` below the workflow's folder `root`, which is on a cluster most often a
    shared disk: within a scheduler's job it is therefore a folder of the node's own temporary one
    (`$TMPDIR`), and `REFILL_SCRATCH` names the folder anywhere. Such a folder has a name that is
    always the same for one `root` and one node, so that the next run on this node finds what a
    killed one left, and nodes never share one, on whatever disk it is.

    Raises:
        ScratchError: the variable names a folder that is not there.
    """
    variables = os.environ if environment is None else environment
    job = batch_job(variables)
    name = "REFILL_SCRATCH"
    place = variables.get(name)
    if not place:
        if job is None:
            return root / SCRATCH
        name = "TMPDIR"
        place = _tmpdir(variables) or tempfile.gettempdir()
    if not Path(place).is_dir():
        # What it names is not told: attempts keep this text, and such a path names people.
        where = f"on node {job.node}" if job else "on this machine"
        raise ScratchError(
            f"{name} names a folder that is not there {where}: engines would have their data "
            f"somewhere else than meant: make the folder, set {name} to one of the node's own, or "
            f"unset it (for TMPDIR: in the job's environment, or the prolog of the cluster)"
        )
    of = bytes(root.resolve()) + (job.node if job else platform.node()).encode()
    return Path(place) / f"refill-{hashlib.sha256(of).hexdigest()[:12]}"


def scratch_note(environment: Mapping[str, str] | None = None) -> str:
    """Say where the data of engines lie when nobody has said it; empty when somebody has."""
    variables = os.environ if environment is None else environment
    if batch_job(variables) is None or variables.get("REFILL_SCRATCH") or _tmpdir(variables):
        return ""
    return (
        "TMPDIR is not set in this job: the engines' data are in the node's folder for temporary "
        "files, whatever disk that is; REFILL_SCRATCH names another one"
    )


def unspoken(root: Path) -> list[Path]:
    """Give the folders whose paths no record tells: the workflow's, and those for engines' data."""
    named = [os.environ.get("REFILL_SCRATCH"), _tmpdir(os.environ)]
    return [root, *(Path(name) for name in named if name and name != "/tmp")]


def _tmpdir(variables: Mapping[str, str]) -> str:
    return variables.get(GIVEN_TMPDIR, variables.get("TMPDIR", ""))

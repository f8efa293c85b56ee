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

from refill.evidence.records import write_bytes

SCRATCH = Path("results/scratch")

# Variable that holds the job's id, and the one with the node's name where there is one. Grid
# Engine's JOB_ID is too common a name to stand alone.
_SCHEDULERS = (
    ("slurm", "SLURM_JOB_ID", "SLURMD_NODENAME", None),
    ("pbs", "PBS_JOBID", None, None),
    ("lsf", "LSB_JOBID", None, None),
    ("grid engine", "JOB_ID", None, "SGE_TASK_ID"),
)


class NodeError(Exception):
    """A job does not run where it was to run; the text says what to change."""


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


def scratch(root: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder for the data of engines that run.

    It is `results/scratch` below the workflow's folder `root`, which is on a cluster most often a
    shared disk: within a scheduler's job it is therefore a folder of the node's own temporary one
    (`$TMPDIR`), and `REFILL_SCRATCH` names the folder anywhere. Such a folder has a name that is
    always the same for one `root`, so that a rerun on this node finds what a killed run left.
    """
    variables = os.environ if environment is None else environment
    place = variables.get("REFILL_SCRATCH")
    if not place:
        if batch_job(variables) is None:
            return root / SCRATCH
        place = variables.get("TMPDIR") or tempfile.gettempdir()
    return Path(place) / f"refill-{hashlib.sha256(bytes(root.resolve())).hexdigest()[:12]}"


def check_node(chosen: Path) -> None:
    """Raise NodeError unless this job runs on the node whose name stands in the file `chosen`."""
    wanted, job = chosen.read_text(encoding="utf-8").strip(), batch_job()
    found = job.node if job else "no node of a cluster"
    if found != wanted:
        raise NodeError(
            f"this is to run on {wanted}, as all rounds that are compared, and runs on {found}: "
            "let the profile's set-resources name the node that stands in its input `node`, as "
            "workflow/profiles/slurm does; to choose another node and measure all rounds anew: "
            f"rm {chosen}"
        )


def write_node(path: Path) -> str:
    """Write the name of the node that this job runs on, and give it.

    Raises NodeError outside of a scheduler's job.
    """
    job = batch_job()
    if job is None:
        raise NodeError(
            "no cluster's job: a node is chosen because the configuration sets `node_cpus`, so run "
            "Snakemake with a profile that submits jobs (workflow/profiles/slurm), or leave "
            "`node_cpus` to such a profile"
        )
    write_bytes(path, f"{job.node}\n".encode())
    return job.node

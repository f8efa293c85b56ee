"""The node of a cluster on which all rounds run: chosen, read, and held to."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from refill.batch_job import batch_job
from refill.evidence.records import read_json, write_bytes
from refill.told import ToldError

ANOTHER_NODE = (
    "to choose another node, and measure all rounds anew: "
    "snakemake --workflow-profile workflow/profiles/slurm all --forcerun pick_node"
)
# What a name of one node looks like in any scheduler; more than one would be a list of Slurm's.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
# sinfo(1): states of a node on which a job starts, at once or when others end. Flags stand behind.
_STARTS = ("idle", "mixed", "allocated", "completing", "planned")
_FLAGS = "*~#!%$@^-+"
_ASK_S = 10.0
# Every round asks; so long one answer does for all.
_KEPT_S = 20.0


class NodeError(ToldError):
    """A job does not run, or will not, where it is to; the text says what to change."""


def write_node(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """Write the name of the node that this job runs on, unless `check` raises, and give it.

    Raises NodeError outside of a scheduler's job.
    """
    job = batch_job()
    if job is None:
        raise NodeError(
            "no cluster's job: a node is chosen because the configuration sets `node_cpus`, so run "
            "Snakemake with a profile that submits jobs (workflow/profiles/slurm), or leave "
            "`node_cpus` to such a profile"
        )
    check()
    write_bytes(path, f"{job.node}\n".encode())
    return job.node


def read_node(chosen: Path) -> str:
    """Return the name in the file that `write_node` wrote.

    Raises NodeError when it holds no name of one node: it was emptied or edited.
    """
    try:
        text = chosen.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        text = "\ufffd"
    if not _NAME.fullmatch(text):
        raise NodeError(
            f"{chosen}: must hold the name of the one node that all rounds run on, and holds "
            f"{text[:40]!r}: write that name into it again (it stands in the records of rounds "
            f"as host.node); {ANOTHER_NODE}"
        )
    return text


def check_node(chosen: Path) -> None:
    """Raise NodeError unless this job runs on the node whose name stands in the file `chosen`."""
    wanted, job = read_node(chosen), batch_job()
    found = job.node if job else "no node of a cluster"
    if found != wanted:
        raise NodeError(
            f"this is to run on {wanted}, as all rounds that are compared, and runs on {found}: "
            "let the profile's set-resources name the node that stands in its input `node`, as "
            f"workflow/profiles/slurm does; {ANOTHER_NODE}"
        )


def check_same_node(records: Path) -> None:
    """Raise NodeError when rounds below `records` were measured on another node than this job's.

    For a profile that chooses no node: rounds of two nodes are never compared, so a round on a
    second one would be measured for nothing.
    """
    job = batch_job()
    if job is None:
        return
    for path in sorted(records.glob("*/*.json")):
        if "." in path.stem:
            continue  # a raw profile or resources, not a round's record
        found = read_json(path)["host"]["node"]
        if found not in (None, job.node):
            raise NodeError(
                f"this round is on node {job.node}, and {path} was measured on {found}: rounds are "
                "compared with one another, and never across nodes. Let the profile set "
                "`node_cpus` and submit rounds to the node in their input `node`, as "
                "workflow/profiles/slurm does, and remove the records of rounds that are there"
            )


def waits(chosen: Path) -> str:
    """Say why a round that is submitted to the chosen node would not start; empty when it would.

    Asks Slurm where it is there; another scheduler tells nothing, and neither does this.

    Raises NodeError as `read_node`.
    """
    node = read_node(chosen)
    state = _state(node, int(time.monotonic() / _KEPT_S))
    if not state or state.partition(" ")[0].rstrip(_FLAGS) in _STARTS:
        return ""
    return (
        f"the rounds wait: they run on node {node}, as {chosen} says, and that node is {state}, so "
        "nothing starts there until whoever runs the cluster takes it back (scontrol update "
        f"NodeName={node} State=RESUME); not to wait: Ctrl+C, and {ANOTHER_NODE}"
    )


@lru_cache(maxsize=4)
def _state(node: str, moment: int) -> str:
    """Give a node's state as Slurm says it, with the reason where one is given; empty: unknown.

    `moment` changes when an answer is too old.
    """
    if shutil.which("sinfo") is None:
        return ""
    command = ["sinfo", "--noheader", f"--nodes={node}", "--format=%T|%E"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return ""  # the executor says that the controller is silent
    if done.returncode != 0:
        return ""
    if not done.stdout.strip():
        return "unknown to Slurm"
    state, _, reason = done.stdout.splitlines()[0].strip().partition("|")
    return state if reason in ("", "none") else f"{state} ({reason})"

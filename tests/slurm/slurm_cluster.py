"""A real Slurm of Debian's packages on this machine: two pseudo-nodes, gone after the test.

Needs root and the packages slurm-wlm and munge. Everything lies in one temporary folder, but for
/etc/slurm/slurm.conf, where the commands inside a job look; one that was there is put back.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil
from refill.processes import wait_for
from refill.runtimes.ports import free_port

CONFIG = Path("/etc/slurm/slurm.conf")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue", "sinfo")
NODES = ("n1", "n2")
CPUS = 2
# More than this machine may have: Slurm only counts it (SlurmdParameters=config_overrides).
MEMORY_MB = 16000
URGENT = "urgent"

# The prolog gives each job what a real node gives it: a temporary folder of the node's own. The
# lock is of the job's own, so that nothing but the scheduler keeps measurements apart.
PROLOG = """\
#!/bin/sh
mkdir -p {folder}/$SLURMD_NODENAME/tmp
echo "export TMPDIR={folder}/$SLURMD_NODENAME/tmp"
echo "export REFILL_LOCK={folder}/$SLURMD_NODENAME/lock-$SLURM_JOB_ID"
"""
SETTINGS = """\
ClusterName=refill
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=10
KillWait=15
MinJobAge=7200
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
{nodes}
PartitionName=measure Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName={urgent} Nodes={names} MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


def missing() -> str:
    """Say why no cluster can be set up here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root: Slurm's daemons start jobs as other users"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm munge"
    if any(p.info["name"] in ("slurmctld", "slurmd") for p in psutil.process_iter(["name"])):
        return "a Slurm runs on this machine already; this one would take its configuration"
    return ""


class SlurmCluster:
    """A cluster of the nodes `NODES`. Used as a context: leaving it ends all that it started.

    Args:
        folder: an empty folder for state, logs and the nodes' own temporary folders.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open = ExitStack()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._configure()
            self._start_munge()
            self._start("slurmctld", "-D", "-i")
            for node in NODES:
                self.start_node(node)
            assert wait_for(lambda: self.states() == ["idle"] * len(NODES), 60, 0.2), (
                f"the nodes are {self.states()}\n{self.logs()}"
            )
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # ---- what a test does with it

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Run one of Slurm's commands and give what it prints."""
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def states(self) -> list[str]:
        """Give the state of each node."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "measure", "-o", "%T"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split()

    def jobs(self, *states: str) -> list[dict[str, str]]:
        """Give the jobs in these states (all when none is given), each by scontrol's keys."""
        found = []
        for line in self.run("scontrol", "-o", "show", "jobs").splitlines():
            job = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
            if "JobId" in job and (not states or job["JobState"] in states):
                found.append(job)
        return found

    def job(self, number: str) -> dict[str, str]:
        """Give a job by its number."""
        return next(job for job in self.jobs() if job["JobId"] == number)

    def job_of(self, rule: str) -> dict[str, str]:
        """Give the job of a rule that runs now; Snakemake names the rule in the comment."""
        assert wait_for(lambda: bool(self._running(rule)), 60, 0.2), self.jobs()
        return self._running(rule)[0]

    def _running(self, rule: str) -> list[dict[str, str]]:
        return [
            job
            for job in self.jobs("RUNNING")
            if job.get("Comment", "").startswith(f"rule_{rule}_")
        ]

    def urgent_job(self, node: str, seconds: int) -> None:
        """Take a node at once for a job of higher priority, which preempts what runs there."""
        self.run(
            "sbatch", "--partition", URGENT, "--exclusive", f"--nodelist={node}",
            "--output=/dev/null", "--wrap", f"sleep {seconds}",
        )  # fmt: skip

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        for name in ("spool", "tmp"):
            (self.folder / node / name).mkdir(parents=True, exist_ok=True)
        self._start("slurmd", "-D", "-N", node)

    def lose_node(self, node: str) -> None:
        """Let a node vanish with all that runs on it, as a loss of power does."""
        daemon = self._daemons.pop(f"slurmd-{node}")
        # The daemon first, or it would tell of the end of the others.
        daemon.kill()
        daemon.wait()
        self._kill_steps(node)

    def _kill_steps(self, node: str) -> None:
        for step in self._steps(node):
            with suppress(psutil.NoSuchProcess):
                for process in [step, *step.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()

    def _steps(self, node: str) -> list[psutil.Process]:
        """Give the processes that hold a node's job steps, which outlive the node's daemon."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name() == "slurmstepd" and process.cwd() == str(self.folder / node):
                    found.append(process)
        return found

    def logs(self) -> str:
        """Give the ends of the daemons' logs."""
        paths = [self.folder / "slurmctld.log", *(self.folder / n / "slurmd.log" for n in NODES)]
        found = ""
        for path in paths:
            if path.exists():
                found += f"== {path.name}\n" + path.read_text(errors="replace")[-3000:]
        return found

    # ---- up and down

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir()
        prolog = self.folder / "prolog"
        prolog.write_text(PROLOG.format(folder=self.folder))
        prolog.chmod(0o755)
        ports = [free_port() for _ in range(1 + len(NODES))]
        nodes = "\n".join(
            f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname={platform.node()} Port={port} "
            f"CPUs={CPUS} RealMemory={MEMORY_MB} State=UNKNOWN"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        text = SETTINGS.format(
            folder=self.folder,
            host=platform.node().split(".")[0],
            port=ports[0],
            nodes=nodes,
            names=",".join(NODES),
            urgent=URGENT,
        )
        before = CONFIG.read_bytes() if CONFIG.exists() else None
        self._open.callback(_put_back, before)
        CONFIG.parent.mkdir(parents=True, exist_ok=True)
        CONFIG.write_text(text)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        assert wait_for(lambda: (self.folder / "munge.socket").exists(), 20), self._output("munged")

    def _start(self, program: str, *arguments: str) -> None:
        name = f"slurmd-{arguments[-1]}" if program == "slurmd" else program
        # A node's daemon and its job steps work in the node's own folder, and are told by it.
        place = self.folder / arguments[-1] if program == "slurmd" else self.folder
        with (self.folder / f"{name}.out").open("ab") as output:
            daemon = subprocess.Popen(
                [shutil.which(program) or program, *arguments],
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons[name] = daemon
        self._open.callback(self._end, name, daemon)

    def _output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def _end(self, name: str, daemon: subprocess.Popen[bytes]) -> None:
        if name == "slurmctld" and daemon.poll() is None:
            # Their daemons would leave them.
            for node in NODES:
                self._kill_steps(node)
        if daemon.poll() is None:
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _put_back(before: bytes | None) -> None:
    if before is None:
        CONFIG.unlink(missing_ok=True)
    else:
        CONFIG.write_bytes(before)


def stamp(text: str) -> float:
    """Give the seconds of one of Slurm's local times."""
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


__all__: Sequence[str] = ["NODES", "SlurmCluster", "missing", "stamp"]

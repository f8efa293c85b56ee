"""A copy of the project and a small corpus, on which the real workflow runs in a test."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from refill.evidence.hashes import sha256_file
from refill.processes import wait_for

PROJECT = Path(__file__).parents[1]
RUNS = ["A1", "A3", "D1"]
CONFIG: dict[str, Any] = {
    "scale": "test",
    "corpus": {"name": "small", "points": 3000, "queries": 40},
    "corpora": {"small": {"kind": "npy", "path": "small.npy", "distance": "Dot"}},
    # The rounds of the gateway have tests of their own.
    "rounds": {"profiles": []},
    # So has the proof.
    "proof": {"form": "none"},
    "optimizers": {
        "runs": RUNS,
        "upload": {"batch": 100, "points_per_s": 5000},
        "draining": {
            "open_window_s": 1,
            "closed_window_s": 0.3,
            "poll_s": 0.1,
            "idle_polls": 4,
            "limit_s": 60,
        },
        "steady": {"passes": 3, "open_per_s": 100},
    },
}


class Project:
    """A copied project in a folder of its own, with its own measurement lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("workflow", "config", "images"):
            ignore = shutil.ignore_patterns("__pycache__", ".mypy_cache", ".pytest_cache")
            shutil.copytree(PROJECT / name, folder / name, ignore=ignore)
        for name in ("environment.yml", "pyproject.toml", "requirements.lock"):
            shutil.copy(PROJECT / name, folder)
        rng = np.random.default_rng(7)
        np.save(folder / "small.npy", rng.standard_normal((3100, 16)).astype(np.float32))
        self.configure(CONFIG)

    def configure(self, config: dict[str, Any]) -> None:
        """Write the configuration that goes over the project's own; the corpus is pinned."""
        config = copy.deepcopy(config)
        for corpus in config.get("corpora", {}).values():
            if "sha256" not in corpus:
                corpus["sha256"] = sha256_file(self.folder / corpus["path"])
        (self.folder / "test.yaml").write_text(yaml.safe_dump(config))

    def command(self, *arguments: str) -> list[str]:
        """Give the command that runs Snakemake on this project."""
        return [
            sys.executable, "-m", "snakemake", *arguments,
            "--cores", "1", "--configfile", "test.yaml", "--nocolor",
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """Give the environment of its processes: no path to the project under development."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {"REFILL_LOCK": str(self.folder / "measurement.lock")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Snakemake and give the process; its output goes to `output.txt`."""
        with (self.folder / "output.txt").open("a") as output:
            return subprocess.Popen(
                self.command(*arguments),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self, *arguments: str, timeout_s: float = 240) -> tuple[int, str]:
        """Run Snakemake to its end; give the exit code and all that it printed."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def planned(self) -> dict[str, int]:
        """Give what a run of `all` would do: number of jobs by rule, without `all` itself."""
        code, text = self.run("all", "-n")
        assert code == 0, text
        if "Nothing to be done" in text:
            return {}
        table = text.split("Job stats:")[1].split("total")[0].splitlines()[3:]
        jobs = {line.split()[0]: int(line.split()[1]) for line in table if line.strip()}
        return {rule: count for rule, count in jobs.items() if rule != "all"}

    def json(self, path: str) -> dict[str, Any]:
        """Read a JSON file of the project."""
        value: dict[str, Any] = json.loads((self.folder / path).read_text())
        return value

    def log(self, run: str) -> str:
        """Give the log of a run such as `A1-1`, empty when there is none yet."""
        path = self.folder / f"results/logs/optimizers/{run}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(
        self, snakemake: subprocess.Popen[str], run: str, words: str, seconds: float = 90
    ) -> None:
        """Wait until a run's log says something; fail when Snakemake has ended before."""

        def over() -> bool:
            return words in self.log(run) or snakemake.poll() is not None

        wait_for(over, seconds, 0.05)
        assert words in self.log(run), (
            f"{run} never said {words!r}: {self.log(run)}\n"
            + (self.folder / "output.txt").read_text()[-3000:]
        )

    def processes(self) -> list[psutil.Process]:
        """Give the processes that work in this folder or were started for it."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue  # ended; its parent has not asked how
                words = process.cmdline()
                inside = process.cwd().startswith(str(self.folder))
            except psutil.Error:
                continue
            if inside or any(str(self.folder) in word for word in words):
                found.append(process)
        return found

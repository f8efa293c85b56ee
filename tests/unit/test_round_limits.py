"""What no round can have is refused on the configuration; what a job refuses is told in words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT, ConfigError, load
from refill.workflow import Plans

BASE = PROJECT / "config/config.yaml"


def plans(**rounds: Any) -> Plans:
    given = {"rounds": rounds}
    return Plans(load(BASE, [given]), [BASE], PROJECT, given)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        (
            {"counts": {"cold_enabled": 16660}},
            r"^command line \(--config\): rounds.counts.cold_enabled: is 16660, with 3 trials at 2 "
            "numbers of clients and a warm-up of 41 these are 100,001 cold requests",
        ),
        (
            {"counts": {"cold_disabled": 60000}, "profiles": ["off-control"]},
            "rounds.counts.cold_disabled: is 60000, .* 360,040 cold requests",
        ),
        (
            {"corpus": {"documents": 74}},
            "rounds.corpus.documents: is 74, page-after-cursor of config/operations.yaml needs a "
            "search with 75 hits: ask for more documents",
        ),
        ({"corpus": {"documents": 7}}, "is 7, read-document .* needs 8 distinct ones"),
    ],
)
def test_what_no_round_can_have_is_refused(rounds: dict[str, Any], expected: str) -> None:
    over = {"warm_up": 41} if "100,001" in expected else {}
    with pytest.raises(ConfigError, match=expected):
        plans(**rounds, **over)


def test_the_most_that_a_round_can_have_is_let_through() -> None:
    plans(counts={"cold_enabled": 16660}, corpus={"documents": 75})
    # Counts of a profile that is not run are nobody's.
    plans(counts={"cold_disabled": 60000}, profiles=["on-main"])


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, to its end."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(PROJECT / "workflow/scripts")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_stopped_job_ends_behind_the_signal_of_the_snakemake_above_it(tmp_path: Path) -> None:
    """Snakemake waits for ever when it is signalled while it handles the end of a job."""
    (tmp_path / "snakemake").write_text(
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, *sys.argv[1:]], check=False).returncode)\n"
    )
    (tmp_path / "job.py").write_text(
        "import time\nfrom refill import edge\nfrom refill.processes import StoppedError\n"
        "slept = []\nedge.time = type('', (), {'sleep': slept.append})\n"
        "try:\n    with edge.logged('log.txt'): raise StoppedError('stopped')\n"
        "finally:\n    open('slept.txt', 'w').write(str(slept))\n"
    )
    command = [sys.executable, str(tmp_path / "snakemake"), str(tmp_path / "job.py")]
    environment = {"PYTHONPATH": str(PROJECT / "workflow/scripts")}
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, check=True)
    assert (tmp_path / "slept.txt").read_text() == "[1.0]"


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("raise StoppedError('stopped by SIGTERM')", "stopped by SIGTERM"),
        ("os.kill(os.getpid(), signal.SIGINT)", "stopped"),
    ],
)
def test_a_job_that_is_stopped_says_so_and_how_to_go_on(
    tmp_path: Path, stop: str, said: str
) -> None:
    code = (
        "import os, signal\nfrom refill.edge import logged\n"
        f"from refill.processes import StoppedError\nwith logged('log.txt'): {stop}\n"
    )
    done = run(code, tmp_path)
    words = f"{said}; the same command goes on from here\n"
    assert done.returncode == 130
    assert ((tmp_path / "log.txt").read_text(), done.stderr) == (words, f"log: {words}")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("refill.evidence.records.RecordError('a.json: no record; run')", False),
        ("refill.operations.requests.RequestError('too many; ask for fewer')", False),
        ("refill.oracle.columns.OracleError('too few hits; widen')", False),
        ("refill.corpora.errors.CorpusError('c', 'f', 'k', 'bad', 'mend')", False),
        ("KeyError('an error of the code')", True),
    ],
)
def test_a_log_has_a_traceback_only_where_the_words_are_not_all(
    tmp_path: Path, error: str, shown: bool
) -> None:
    module = error.partition("(")[0].rpartition(".")[0]
    code = (f"import {module}\n" if module else "") + (
        f"from refill.edge import logged\nwith logged('log.txt'): raise {error}\n"
    )
    done = run(code, tmp_path)
    log = (tmp_path / "log.txt").read_text()
    assert done.returncode == 1
    assert ("Traceback" in log) is shown
    name = error.partition("(")[0].rpartition(".")[2]
    assert f"{name}: " in log
    assert f"log: {name}: " in done.stderr

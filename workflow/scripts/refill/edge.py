"""What every script of the workflow does at its edge: take the log, report a failure, exit."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from refill.processes import StoppedError, snakemake_command
from refill.told import SupersededError, ToldError, with_notes

# How long Snakemake may take to hear a signal that this process was stopped by.
HEARS_S = 1.0


@contextmanager
def logged(log: str | Path) -> Iterator[IO[str]]:
    """Send this process's output, its children's too, to a log, and keep the terminal aside.

    Snakemake's `log:` captures nothing by itself. A failure is written to the log with its
    traceback, unless its text tells all (ToldError), and to the terminal in one line; the process
    then exits with 1. One that was stopped says so in both, and exits with 130. What another
    attempt has taken over ends well: Snakemake would delete the results of a job that failed, and
    they are the other's.

    Args:
        log: path of the log file; it is made anew.

    Yields:
        The terminal, for progress that people follow.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(2), "w", buffering=1)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        yield terminal
    except SupersededError as over:
        print(f"{type(over).__name__}: {over}", file=sys.stderr)
        print(f"{path.stem}: {over}", file=terminal)
    except Exception as error:  # noqa: BLE001 - the edge: everything ends here, in words
        if isinstance(error, ToldError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        print(f"{path.stem}: {type(error).__name__}: {error}", file=terminal)
        print(f"    the log: {log}", file=terminal)
        sys.exit(1)
    except (StoppedError, KeyboardInterrupt) as stopped:
        # Where it stood then tells nothing, and Snakemake shows the log.
        said = f"{with_notes(stopped) or 'stopped'}; the same command goes on from here"
        print(said, file=sys.stderr)
        print(f"{path.stem}: {said}", file=terminal)
        _let_snakemake_hear()
        sys.exit(130)


def _let_snakemake_hear() -> None:
    """Wait until the Snakemake above this process, if there is one, has had the same signal.

    Its handler takes a lock that is no reentrant one, and that it holds while it handles the end of
    a job: a signal that comes behind the end of this process can make it wait for ever (9.27.1,
    `JobScheduler.exit_gracefully`). A scheduler and a terminal signal all processes of a job.
    """
    if snakemake_command():
        time.sleep(HEARS_S)

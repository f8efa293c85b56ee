"""The end of a run whose driver was killed: `python -m refill.runtimes.watcher` removes it.

A process beside the driver that waits on a pipe from it. The pipe breaks when the driver ends,
however it ends; unless the driver said before that all is done, everything of the run is removed.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from refill.processes import module_command, module_environment

DONE = b"done"
# How long the daemon may go on with a request that a killed driver had made.
QUIET_S = 2.0
# How long a daemon that does not answer may take to be back.
BACK_S = 20.0


class Watcher:
    """The watching process, from the driver's side.

    Args:
        run: the run.
        group: the control group that its containers share; None: there is none.
        host: the daemon's address, as the config gives it.
        log: takes what the watcher has to say; None: nothing is kept.
    """

    def __init__(self, run: str, group: str | None, host: str | None, log: Path | None) -> None:
        arguments = ["--run", run]
        arguments += ["--group", group] if group else []
        arguments += ["--host", host] if host else []
        output = log.open("ab") if log else subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                module_command("refill.runtimes.watcher", *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=module_environment(),
                # Ctrl+C reaches all processes of a terminal's group.
                start_new_session=True,
            )
        finally:
            if not isinstance(output, int):
                output.close()

    def dismiss(self) -> None:
        """Tell it that all has been removed."""
        assert self._process.stdin is not None
        # It can have been killed, as by someone who clears a machine.
        with suppress(BrokenPipeError):
            self._process.stdin.write(DONE)

    def close(self) -> None:
        """Let it do what is left to do, and wait for its end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Wait for the driver's end; then remove what it left."""
    parser = argparse.ArgumentParser(prog="python -m refill.runtimes.watcher", description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--group")
    parser.add_argument("--host")
    options = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return 0
    return _remove(options.run, options.group, options.host)


def _remove(run: str, group: str | None, host: str | None) -> int:
    # Only now: a run that ends well should not pay for these.
    from refill.engines.description import EngineError
    from refill.runtimes.cgroups import ControlGroups
    from refill.runtimes.run_group import remove_group

    print(f"the driver of run {run} is gone: removing its containers", flush=True)
    try:
        _remove_from_daemon(run, host)
        if group:
            remove_group(group, ControlGroups.here())
    except EngineError as error:
        print(f"{error}; when the daemon answers, `make clean-docker` removes the rest", flush=True)
        return 1
    return 0


def _remove_from_daemon(run: str, host: str | None) -> None:
    """Remove all of a run; wait for a daemon that is being started anew, which may be why it ended.

    Raises:
        EngineError: it does not come back, or something cannot be removed.
    """
    from refill.runtimes.docker_daemon import DockerError, connect
    from refill.runtimes.leftovers import remove_run

    deadline = time.monotonic() + BACK_S
    while True:
        try:
            with closing(connect(host)) as client:
                remove_run(client, run, QUIET_S)
            return
        except DockerError as error:
            if time.monotonic() >= deadline:
                raise
            print(f"{error}; trying again", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())

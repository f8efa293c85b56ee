"""A server that tests start beside themselves: its log, the wait until it answers, its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from refill.processes import wait_for

# Where Debian keeps servers, whoever's PATH this is.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
UP_S = 90.0
END_S = 60.0


class ServiceProcess:
    """A server in a process of its own.

    Args:
        command: what starts it.
        log: file that takes its output.
        answers: asks it once whether it can serve.
        environment: variables beside those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        answers: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command, self._log, self._answers = list(command), log, answers
        self._environment = {**os.environ, "PATH": PATH, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers; fail with its log when it does not."""
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: process.poll() is not None or self._answers(), UP_S, 0.1)
        if process.poll() is not None or not self._answers():
            self.end()
            raise AssertionError(f"{self._command[0]} does not answer\n{self.log()[-3000:]}")

    def end(self) -> None:
        """Ask it to end and wait; kill it when it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """Give what it has printed."""
        return self._log.read_text(errors="replace")

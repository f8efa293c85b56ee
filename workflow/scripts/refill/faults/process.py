"""Start the proxy as a process of its own, and read what it put in."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from refill.load.wire import Address
from refill.processes import die_with_parent, module_command, module_environment


class FaultProxy:
    """A running proxy. Used as a context: leaving it ends the process.

    Args:
        to: the engine.
        fault: a name of `refill.faults.kinds.FAULTS`.
        log: file for the faults that are put in.
        options: further options of the command line, without the dashes; `on` and so on.
    """

    def __init__(self, to: Address, fault: str, log: Path, **options: object) -> None:
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._command = module_command(
            "refill.faults", "--to", to.url, "--fault", fault, "--log", str(log), *words
        )
        self._log = log

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=module_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            self._end()
            raise RuntimeError(f"the proxy did not start: {' '.join(self._command)}")
        self.address = Address.from_url(line.removeprefix("listening on ").strip())
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def stall(self) -> None:
        """Begin the stall now."""
        self._process.send_signal(signal.SIGUSR1)

    def put_in(self) -> list[dict[str, Any]]:
        """Give the faults that were put in so far, in their order."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text().splitlines()]

"""strace on a running server: how often it syncs, and syncs that fail."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from refill.processes import die_with_parent, wait_for
from refill.proofs.findings import NotRunError

ATTACH_S = 20.0
_SYNC = re.compile(r"\bf(?:data)?sync\(")


@dataclass(frozen=True)
class Strace:
    """The program `strace`. Make one with `Strace.find`."""

    path: str

    @classmethod
    def find(cls) -> Strace:
        """Find it.

        Raises:
            NotRunError: there is none.
        """
        found = shutil.which("strace")
        if found is None:
            raise NotRunError("no strace on PATH (Debian: apt-get install strace)")
        return cls(found)

    @contextmanager
    def syncs(self, pid: int, log: Path) -> Iterator[Syncs]:
        """Count the syncs of a process, all its threads, while the context lasts.

        Raises:
            NotRunError: strace may not attach to processes here.
        """
        with self._attached(pid, log, ["-e", "trace=fdatasync,fsync"]):
            yield Syncs(log)

    @contextmanager
    def failing_sync(self, pid: int, log: Path) -> Iterator[None]:
        """Let every fdatasync of a process fail with EIO; raises as `syncs`."""
        inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"]
        with self._attached(pid, log, inject):
            yield

    @contextmanager
    def _attached(self, pid: int, log: Path, options: list[str]) -> Iterator[None]:
        log.touch()
        process = subprocess.Popen(
            [self.path, "-f", "-o", str(log), *options, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        said: list[str] = []
        assert process.stderr is not None
        stderr = process.stderr
        reading = threading.Thread(target=lambda: said.extend(stderr), daemon=True)
        reading.start()
        try:
            wait_for(lambda: "attached" in "".join(said) or process.poll() is not None, ATTACH_S)
            if "attached" not in "".join(said):
                raise NotRunError(f"strace may not attach here: {''.join(said).strip()}")
            yield
        finally:
            # It lets go of the process; a kill would do, too, and is the way out when it hangs.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ATTACH_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reading.join(ATTACH_S)


@dataclass(frozen=True)
class Syncs:
    """The syncs that strace has seen."""

    log: Path

    def count(self) -> int:
        """How many, until now."""
        return len(_SYNC.findall(self.log.read_text(errors="replace")))

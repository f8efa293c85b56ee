"""The server's side of the optimizer process: start it, give it jobs, kill it, start it again."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
from pathlib import Path
from typing import Any

import orjson

from .configuration import CollectionConfig

log = logging.getLogger(__name__)
# A job's answer is one short line, but its list of segments has no bound of its own.
_LINE_LIMIT = 16 * 1024 * 1024


class OptimizerEndedError(Exception):
    """The optimizer process ended (was killed, or crashed) while it had a job."""


class OptimizerFailedError(Exception):
    """The optimizer process reported an error for a job."""


class OptimizerProcess:
    """One optimizer process for all collections; started with the first job."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)

    @property
    def pid(self) -> int | None:
        """The process id, or None when none runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def turn(self) -> asyncio.Lock:
        """Held by the collection whose job is being prepared or runs."""
        return self._turn

    async def run(self, directory: Path, config: CollectionConfig) -> dict[str, Any]:
        """Optimize the shard in `directory`; the caller holds `turn` and called `start`.

        Raises OptimizerEndedError if the process ended meanwhile, and OptimizerFailedError with
        the error that it reported.
        """
        process = self._process
        if process is None or process.returncode is not None:
            raise OptimizerEndedError("the optimizer process ended before it got the job")
        assert process.stdin is not None
        assert process.stdout is not None
        number = next(self._numbers)
        job = {"job": number, "directory": str(directory), "config": config.as_json()}
        try:
            process.stdin.write(orjson.dumps(job) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line.endswith(b"\n"):
            code = await process.wait()
            raise OptimizerEndedError(
                f"optimizer process {process.pid} ended by signal {-code}"
                if code < 0
                else f"optimizer process {process.pid} ended with status {code}"
            )
        answer: dict[str, Any] = orjson.loads(line)
        if answer["job"] != number:
            raise OptimizerFailedError(f"answer for job {answer['job']} instead of {number}")
        if "error" in answer:
            raise OptimizerFailedError(answer["error"])
        return answer

    async def kill(self) -> None:
        """Kill the process, if it runs; a job that it had ends with OptimizerEndedError."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:
                log.debug("optimizer process %d had ended already", process.pid)
        await process.wait()

    async def start(self) -> None:
        """Start the process if it does not run; the caller holds `turn`."""
        if self.pid is None:
            # Started from the main thread: PR_SET_PDEATHSIG follows the thread that forked.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(self._archive),
                "--optimizer-of",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
            )
            log.info("optimizer process %d started", self._process.pid)

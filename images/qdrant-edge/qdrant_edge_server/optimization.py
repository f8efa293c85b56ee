"""When a collection's layers go to the optimizer, and the record of it for `/optimizations`."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from . import cloning
from .checks import Json
from .layers import Layer
from .optimizer import OptimizerEndedError, OptimizerFailedError, OptimizerProcess
from .stack import LayerStack

log = logging.getLogger(__name__)

INDEXING, MERGE, VACUUM, MISMATCH = "indexing", "merge", "vacuum", "config mismatch"
# Deletes and overwrites come in bursts: the planner looks at the base when the burst is over,
# or after this many seconds of it.
_QUIET_SECONDS = 0.25
_BURST_SECONDS = 5.0
# A run of the planner over the base that has not come back after this long is building a segment.
_PLANNING_SECONDS = 0.5
# Pauses before another try: after the process ended (longer each time, up to this), and after it
# reported an error and a write or a new configuration followed.
_LONGEST_RESTART_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_KEPT_RECORDS = 1024


Result = TypeVar("Result")


class CancelledJobError(Exception):
    """The running job was cancelled on purpose."""


class Job:
    """One run of the optimizer over the base and at most one sealed unit."""

    def __init__(self, optimizer: str, unit: Layer | None, segments: dict[str, int]) -> None:
        self.id = str(uuid.uuid4())
        self.optimizer = optimizer
        self.unit = unit
        self.segments = segments
        self.status: str | Json = "optimizing"
        self.started_at = datetime.now(UTC)
        self.started = time.monotonic()
        self.finished_at: datetime | None = None
        self.seconds = 0.0
        self.steps: dict[str, float] = {}
        self.cancelled: str | None = None

    @property
    def building(self) -> bool:
        """False while this is a mere look of the planner that may find nothing to do."""
        return self.unit is not None or time.monotonic() - self.started > _PLANNING_SECONDS

    def check(self) -> None:
        """Raise CancelledJobError if the job was cancelled."""
        if self.cancelled is not None:
            raise CancelledJobError

    def finish(self, status: str | Json) -> None:
        """Set the final status and the end."""
        self.status = status
        self.finished_at = datetime.now(UTC)
        self.seconds = time.monotonic() - self.started

    def as_json(self) -> Json:
        """An entry of `running` or `completed`."""
        finished = self.finished_at is not None
        progress: Json = {
            "name": "Segment Optimizing",
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
            "duration_sec": self.seconds if finished else time.monotonic() - self.started,
        }
        if self.status == "done":
            progress["done"] = progress["total"] = sum(self.segments.values())
            progress["children"] = [
                {"name": name, "duration_sec": seconds} for name, seconds in self.steps.items()
            ]
        return {
            "uuid": self.id,
            "optimizer": self.optimizer,
            "status": self.status,
            "segments": segments_json(self.segments),
            "progress": progress,
        }


class Optimizations:
    """Gives one collection's jobs to the optimizer process, one at a time, oldest unit first."""

    def __init__(self, stack: LayerStack, process: OptimizerProcess) -> None:
        self._stack = stack
        self._process = process
        self._wake = asyncio.Event()
        self._look_for: str | None = MISMATCH if stack.base is not None else None
        self._look_since = 0.0
        self._last_write = 0.0
        self._looked_at: tuple[Layer | None, int] = (None, 0)
        self._failures = 0
        self._completed: deque[Job] = deque(maxlen=_KEPT_RECORDS)
        self.running: Job | None = None
        self.error: str | None = None
        self._task = asyncio.create_task(self._work(), name="optimizations")
        self.wake()

    def wake(self) -> None:
        """Look for work again: layers or the configuration changed."""
        self._wake.set()

    def written(self) -> None:
        """A write was applied: the base may have got deletes worth a vacuum."""
        self._last_write = time.monotonic()
        if self._look_for is None and self._may_vacuum():
            self._look_for = VACUUM
            self._look_since = self._last_write
        if self._look_for is not None or self._stack.sealed:
            self.wake()

    async def reconfigured(self) -> None:
        """The configuration changed: stop a running job, and let the planner look at the base."""
        await self.cancel("the collection's configuration changed")
        self.error = None
        if self._stack.base is not None:
            self._look_for = MISMATCH
            self._look_since = 0.0
        self.wake()

    async def cancel(self, why: str) -> None:
        """Stop the running job, if there is one; its layers stay as they are, and it is queued
        again. Called under the stack's lock, so that no swap comes in between."""
        job = self.running
        if job is not None and job.cancelled is None:
            job.cancelled = why
            await self._process.kill()

    async def close(self) -> None:
        """Stop looking for work and stop the running job."""
        self._task.cancel()
        if self.running is not None:
            await self._process.kill()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def status(self) -> str:
        """The collection's status: green, yellow, grey or red."""
        if self.error is not None:
            return "red"
        if self._stack.sealed or (self.running is not None and self.running.building):
            return "yellow"
        return "grey" if self.running is not None or self._look_for is not None else "green"

    @property
    def optimizer_status(self) -> str | Json:
        """`ok` or the optimizer's error."""
        return "ok" if self.error is None else {"error": self.error}

    def as_json(self, parts: set[str]) -> Json:
        """The result of `/optimizations`; `parts` of queued, completed, idle_segments."""
        running = self.running if self.running is not None and self.running.building else None
        queued: list[Json] = [
            {"optimizer": self._optimizer_of(unit), "segments": segments_json(unit.segments)}
            for unit in reversed(self._stack.sealed)
            if running is None or unit is not running.unit
        ]
        base = self._stack.base
        idle: dict[str, int] = {}
        if base is not None and running is None:
            if self._look_for is not None or self.running is not None:
                reason = self._look_for or VACUUM
                if self.running is not None:
                    reason = self.running.optimizer
                queued.append({"optimizer": reason, "segments": segments_json(base.segments)})
            else:
                idle = base.segments
        out: Json = {
            "summary": {
                "queued_optimizations": len(queued),
                "queued_segments": sum(len(entry["segments"]) for entry in queued),
                "queued_points": sum(
                    segment["points_count"] for entry in queued for segment in entry["segments"]
                ),
                "idle_segments": len(idle),
            },
            "running": [] if running is None else [running.as_json()],
        }
        if "queued" in parts:
            out["queued"] = queued
        if "completed" in parts:
            out["completed"] = [job.as_json() for job in reversed(self._completed)]
        if "idle_segments" in parts:
            out["idle_segments"] = segments_json(idle)
        return out

    def _optimizer_of(self, unit: Layer) -> str:
        config = self._stack.config
        threshold = config.optimizers["indexing_threshold"]
        if not unit.deferrable:
            return VACUUM
        big = threshold and unit.points() * config.bytes_per_point >= threshold * 1024
        return INDEXING if big else MERGE

    def _may_vacuum(self) -> bool:
        """Whether any segment of the base can have passed the vacuum thresholds.

        Deletes are known for the base as a whole only: this is false only where no share of them
        over the segments would do.
        """
        base, optimizers = self._stack.base, self._stack.config.optimizers
        if base is None:
            return False
        deleted = base.total - base.points()
        if (base, deleted) == self._looked_at:
            return False
        sizes = [
            size
            for size in base.segments.values()
            if size >= optimizers["vacuum_min_vector_number"]
        ]
        return bool(sizes) and deleted > optimizers["deleted_threshold"] * min(sizes)

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._stack.sealed or self._look_for is not None:
                try:
                    await self._next_job()
                except (OptimizerEndedError, OptimizerFailedError) as error:
                    await self._after_failure(error)
                except Exception as error:
                    log.error("optimization failed", exc_info=error)
                    await self._after_failure(error)

    async def _next_job(self) -> None:
        if self._stack.sealed:
            unit = self._stack.sealed[-1]
            if unit.points() == 0:
                async with self._stack.lock:
                    await self._stack.drop_empty_unit(unit)
                return
            await self._run(unit, self._optimizer_of(unit))
            return
        now = time.monotonic()
        quiet = self._last_write + _QUIET_SECONDS - now
        if quiet > 0 and now < self._look_since + _BURST_SECONDS:
            self._wake.clear()
            await asyncio.sleep(quiet)
            return
        reason, self._look_for = self._look_for or VACUUM, None
        base = self._stack.base
        if base is not None and base.total > 0:
            self._looked_at = (base, base.total - base.points())
            await self._run(None, reason)

    async def _run(self, unit: Layer | None, optimizer: str) -> None:
        stack = self._stack
        async with self._process.turn:
            segments = dict(stack.base.segments) if stack.base is not None else {}
            if unit is not None:
                segments.update(unit.segments)
            job = self.running = Job(optimizer, unit, segments)
            directory = stack.new_directory("base")
            try:
                points = await _unbroken(self._clone(job, directory))
                await _unbroken(self._process.start())
                job.check()
                answer = await self._process.run(directory, stack.config)
                job.steps = answer["seconds"]
                if unit is not None or answer["optimized"]:
                    await _unbroken(self._swap(job, directory, points))
                self._failures = 0
                self.error = None
            except (CancelledJobError, OptimizerEndedError) as error:
                job.finish({"cancelled": job.cancelled or str(error)})
                self._completed.append(job)
                if unit is None and self._look_for is None:
                    self._look_for = optimizer
                if job.cancelled is None:
                    raise
            except Exception as error:
                job.finish({"error": str(error)})
                self._completed.append(job)
                if unit is None and self._look_for is None:
                    self._look_for = optimizer
                raise
            finally:
                self.running = None
                stack.end_job()
                if not stack.may_be_named(directory):
                    await asyncio.to_thread(cloning.remove, directory)

    async def _clone(self, job: Job, directory: Path) -> int:
        if job.unit is not None:
            await self._stack.write_back([job.unit])
        async with self._stack.lock:
            job.check()
            return await self._stack.clone_for_job(job.unit, directory)

    async def _swap(self, job: Job, directory: Path, points: int) -> None:
        async with self._stack.lock:
            job.check()
            await self._stack.swap(directory, points, job.unit)
        job.finish("done")
        self._completed.append(job)

    async def _after_failure(self, error: Exception) -> None:
        self._failures += 1
        log.error("optimization of %r: %s", self._stack.manifest.name, error)
        if isinstance(error, OptimizerEndedError):
            # Killed from outside: start again, but not in a busy loop if it dies every time.
            await asyncio.sleep(min(0.05 * 2 ** min(self._failures, 7), _LONGEST_RESTART_SECONDS))
            return
        # The same input would fail again: wait for a write or a new configuration, as Qdrant does.
        self.error = str(error)
        self._wake.clear()
        await self._wake.wait()
        await asyncio.sleep(_RETRY_SECONDS)


async def _unbroken(step: Coroutine[Any, Any, Result]) -> Result:
    """Run a step that must not stop half-way: a cancellation takes effect at its end."""
    task = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def segments_json(segments: dict[str, int]) -> list[dict[str, Any]]:
    """Segments as `/optimizations` lists them."""
    return [{"uuid": name, "points_count": points} for name, points in segments.items()]

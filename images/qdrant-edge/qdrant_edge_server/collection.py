"""One collection: its layers, its queue of writes, its optimizations, its periodic flush."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from . import cloning
from .checks import Json
from .configuration import CollectionConfig
from .errors import missing_point
from .filters import PointId
from .manifest import Manifest
from .optimization import Optimizations
from .optimizer import OptimizerProcess
from .payload_index import schema_json
from .points import PointReader
from .stack import STEP, LayerStack
from .updates import UpdateQueue

log = logging.getLogger(__name__)

COMPLETED, ACKNOWLEDGED, WAIT_TIMEOUT = "completed", "acknowledged", "wait_timeout"


class Collection:
    """A collection that is open. Must be made inside the running event loop."""

    def __init__(self, stack: LayerStack, process: OptimizerProcess) -> None:
        self.stack = stack
        self.reader = PointReader(stack.config)
        self.optimizations = Optimizations(stack, process)
        self.updates = UpdateQueue(stack, self.optimizations.written)
        self._flusher = asyncio.create_task(self._flush_periodically(), name="flush")

    @classmethod
    def create(
        cls, directory: Path, name: str, config: CollectionConfig, process: OptimizerProcess
    ) -> Collection:
        """A new, empty collection."""
        return cls(LayerStack.create(directory, name, config), process)

    @classmethod
    def open(cls, directory: Path, manifest: Manifest, process: OptimizerProcess) -> Collection:
        """The collection whose `manifest` was read from `directory`."""
        return cls(LayerStack.open(directory, manifest), process)

    @property
    def name(self) -> str:
        """The collection's name."""
        return self.stack.manifest.name

    async def update(
        self,
        apply: Callable[[], Awaitable[None]],
        wait: bool,
        timeout: float | None,
        size: int,
        adds_points: bool = True,
    ) -> Json:
        """Queue a write operation; the result object of Qdrant's update requests.

        `size` is that of the request's body in bytes.

        With `wait`, `prevent_unoptimized` and an operation that adds or changes points, returns
        when no point that is stored now is hidden any more, or after `timeout` seconds with the
        status `wait_timeout`.
        """
        try:
            async with asyncio.timeout(timeout if wait else None):
                number = await self.updates.submit(apply, wait, size)
                if wait and adds_points and self.stack.config.prevent_unoptimized:
                    for unit in [unit for unit in self.stack.sealed if unit.deferrable]:
                        await unit.absorbed.wait()
        except TimeoutError:
            return {"operation_id": self.updates.number, "status": WAIT_TIMEOUT}
        return {"operation_id": number, "status": COMPLETED if wait else ACKNOWLEDGED}

    async def change_points(
        self,
        ids: list[PointId] | None,
        condition: edge.Filter | None,
        operation: Callable[[list[PointId]], edge.UpdateOperation],
    ) -> None:
        """Apply an operation on existing points (payload, vectors) wherever they are.

        They are moved into the active shard first: older layers only ever see deletes. Raises
        ApiError 404 if one of the `ids` does not exist.
        """
        if ids is None:
            assert condition is not None
            ids = await self.stack.matching(condition)
        else:
            present = self.stack.present(ids)
            for wanted in ids:
                if wanted not in present:
                    raise missing_point(wanted)
        if not ids:
            return
        await self.stack.promote(ids)
        for position in range(0, len(ids), STEP):
            self.stack.active.dirty = True
            self.stack.active.shard.update(operation(ids[position : position + STEP]))
            await asyncio.sleep(0)
        await self.stack.seal_if_full()

    async def reconfigure(self, config: CollectionConfig) -> None:
        """Put a new configuration into force; returns when it is durable."""
        async with self.stack.lock:
            await self.stack.reconfigure(config)
            self.reader = PointReader(config)
            await self.optimizations.reconfigured()

    async def change_index(self, change: Callable[[], Awaitable[None]]) -> None:
        """Create or delete a payload index (under the stack's lock); a running optimization
        would miss it, so it starts again afterwards."""
        await change()
        await self.optimizations.cancel("a payload index changed")

    def info(self) -> Json:
        """The result of `GET /collections/{name}`."""
        layers = self.stack.all()
        infos = [layer.shard.info() for layer in layers]
        base = self.stack.base
        schema: Json = {}
        for field, wanted in self.stack.manifest.payload_indexes.items():
            points = sum(
                info.payload_schema[field].points for info in infos if field in info.payload_schema
            )
            schema[field] = schema_json(wanted, points)
        out: Json = {
            "status": self.optimizations.status,
            "optimizer_status": self.optimizations.optimizer_status,
            "indexed_vectors_count": sum(info.indexed_vectors_count for info in infos),
            "points_count": sum(info.points_count for info in infos),
            "segments_count": 1
            + len(self.stack.sealed)
            + (0 if base is None else len(base.segments)),
            "config": self.stack.config.as_json(),
            "payload_schema": schema,
            "update_queue": {
                "length": self.updates.length,
                "deferred_points": self.stack.deferred_points(),
            },
        }
        warnings = self.stack.config.warnings()
        if warnings:
            out["warnings"] = warnings
        return out

    def layers_json(self) -> list[dict[str, Any]]:
        """What only this server has: its layers, newest first."""
        stack = self.stack
        roles = ["active", *("sealed" for _ in stack.sealed), "base"]
        return [
            {
                "layer": role,
                "directory": layer.directory.name,
                "points_count": layer.points(),
                "deleted_count": layer.total - layer.points(),
                "durable": not layer.dirty,
                "deferred": stack.config.prevent_unoptimized and layer.deferrable,
            }
            for role, layer in zip(roles, stack.all(), strict=False)
        ]

    async def close(self) -> None:
        """Apply what is queued, make everything durable, close the layers."""
        await self.updates.close()
        await self.optimizations.close()
        await self._stop_flusher()
        async with self.stack.lock:
            await self.stack.close()

    async def delete(self) -> None:
        """Stop and remove the collection's files."""
        self.updates.abandon()
        await self.optimizations.close()
        await self._stop_flusher()
        async with self.stack.lock:
            for layer in self.stack.all():
                layer.absorbed.set()
                layer.shard.close()
            await asyncio.to_thread(cloning.remove, self.stack.directory)

    async def _stop_flusher(self) -> None:
        self._flusher.cancel()
        await asyncio.gather(self._flusher, return_exceptions=True)

    async def _flush_periodically(self) -> None:
        while True:
            await asyncio.sleep(self.stack.config.optimizers["flush_interval_sec"])
            if any(layer.dirty for layer in self.stack.all()):
                try:
                    await self.stack.write_back(self.stack.all())
                    async with self.stack.lock:
                        await self.stack.flush()
                except Exception:
                    # Nothing more becomes durable: say so, and go on trying.
                    log.exception("collection %r cannot be flushed", self.name)

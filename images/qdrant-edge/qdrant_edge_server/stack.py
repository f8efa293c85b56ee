"""The layers of one collection as a whole, newest first: active shard W, sealed units U, base B.

Rules that everything here keeps:
- An id is live in one layer at most: a write deletes it from the older layers first, and only the
  active shard is ever written to. The others see deletes only (their files may be hard-linked).
- Flushes go from the newest layer to the oldest: a delete in an older layer must not become
  durable before the newer copy of the point.
- Everything that changes layers runs under `lock`. Reads do not: each step leaves the layers whole.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import qdrant_edge as edge

from . import cloning, layers
from . import manifest as manifests
from .checks import Json
from .configuration import CollectionConfig
from .filters import PointId
from .layers import Layer
from .manifest import Manifest, Sealed
from .payload_index import create_operation

log = logging.getLogger(__name__)

# Ids read from a layer at once.
_PAGE = 4096
# Points applied before other requests get their turn: a few milliseconds of work.
STEP = 256
# The active shard and a sealed unit are one segment: more threads have nothing to do, and each
# of a long queue of units would have its own.
_UNIT_THREADS = 1


class LayerStack:
    """The open layers of a collection and its manifest."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        active: Layer,
        sealed: list[Layer],
        base: Layer | None,
    ) -> None:
        self.directory = directory
        self.manifest = manifest
        self.config = CollectionConfig.from_json(manifest.config)
        self.active = active
        self.sealed = sealed
        self.base = base
        self.lock = asyncio.Lock()
        self._job_layers: frozenset[Layer] = frozenset()
        self._deleted_meanwhile: list[PointId] = []
        self._may_be_named: set[Path] = set()
        self._next_number = manifest.next_number
        self._template = self._make_template()

    @classmethod
    def create(cls, directory: Path, name: str, config: CollectionConfig) -> LayerStack:
        """A new collection in the new directory `directory`. It exists once its manifest does."""
        manifest = Manifest(name=name, config=config.as_json(), active="active-0")
        active = layers.create(directory / manifest.active, config.edge_config(_UNIT_THREADS))
        manifest.write(directory)
        return cls(directory, manifest, active, [], None)

    @classmethod
    def open(cls, directory: Path, manifest: Manifest) -> LayerStack:
        """The collection in `directory`: unnamed leftovers removed, repaired if it was not
        stopped cleanly, and marked as open."""
        for entry in directory.iterdir():
            if entry.is_dir() and entry.name not in manifest.directories():
                cloning.remove(entry)
        config = CollectionConfig.from_json(manifest.config)
        active = layers.load(directory / manifest.active, config.edge_config(_UNIT_THREADS))
        sealed = []
        for unit in manifest.sealed:
            layer = layers.load(directory / unit.directory, config.edge_config(_UNIT_THREADS))
            layer.deferrable = unit.deferrable
            sealed.append(layer)
        base = None
        if manifest.base is not None:
            base = layers.load(directory / manifest.base, config.edge_config())
        stack = cls(directory, manifest, active, sealed, base)
        if not manifest.clean:
            stack._repair()
        manifest.clean = False
        manifest.write(directory)
        return stack

    def all(self) -> list[Layer]:
        """All layers, newest first."""
        rest = [] if self.base is None else [self.base]
        return [self.active, *self.sealed, *rest]

    def visible(self) -> list[Layer]:
        """The layers that reads see, newest first, without empty ones; the active shard alone may
        be empty."""
        if self.base is None and not self.sealed:
            # Mostly so while there is little: asking the engine whether it is empty costs more.
            return [self.active]
        hides = self.config.prevent_unoptimized
        return [
            layer for layer in self.all() if not (hides and layer.deferrable) and layer.points()
        ]

    def deferred_points(self) -> int:
        """Points that are stored but hidden from reads until they are optimized."""
        if not self.config.prevent_unoptimized:
            return 0
        return sum(layer.points() for layer in self.sealed if layer.deferrable)

    async def upsert(self, points: list[edge.Point]) -> None:
        """Insert or overwrite points; seals the active shard whenever it is full."""
        position = 0
        while position < len(points):
            room = self.room()
            if room == 0:
                await self.seal()
                continue
            step = points[position : position + min(STEP, room or STEP)]
            self._write(step)
            position += len(step)
            await asyncio.sleep(0)
        await self.seal_if_full()

    async def seal_if_full(self) -> None:
        """Seal the active shard if it has reached its size."""
        if self.room() == 0 and self.active.points():
            await self.seal()

    async def delete(self, ids: list[PointId]) -> None:
        """Delete points from whatever layer they are in."""
        for position in range(0, len(ids), STEP):
            step = ids[position : position + STEP]
            self.active.delete(step)
            self._delete_older(step)
            await asyncio.sleep(0)
        if self._active_wants_vacuum():
            # Only the optimizer reclaims deleted points, and it works on sealed units. Not
            # hidden by prevent_unoptimized: this unit may be far below the indexing threshold.
            await self.seal(deferrable=False)

    async def promote(self, ids: list[PointId]) -> None:
        """Move points of older layers into the active shard, as they are."""
        for position in range(0, len(ids), STEP):
            step = ids[position : position + STEP]
            for layer in self.all()[1:]:
                found = layer.shard.retrieve(step, with_payload=True, with_vector=True)
                if found:
                    points = [
                        edge.Point(record.id, record.vector or {}, record.payload)
                        for record in found
                    ]
                    self._write(points)
            await asyncio.sleep(0)

    def present(self, ids: list[PointId]) -> set[PointId]:
        """Which of the `ids` are live in any layer, hidden ones included."""
        return {
            record.id
            for layer in self.all()
            for record in layer.shard.retrieve(ids, with_payload=False, with_vector=False)
        }

    async def matching(self, condition: edge.Filter) -> list[PointId]:
        """The ids of all points that match, hidden ones included. Called under the lock."""
        found: list[PointId] = []
        for layer in self.all():
            offset: PointId | None = None
            while layer.points():
                page = edge.ScrollRequest(
                    offset=offset,
                    limit=_PAGE,
                    filter=condition,
                    with_payload=False,
                    with_vector=False,
                )
                records, offset = layer.shard.scroll(page)
                found.extend(record.id for record in records)
                await asyncio.sleep(0)
                if offset is None:
                    break
        return found

    def room(self) -> int | None:
        """Points that the active shard takes before it is sealed; None: no limit."""
        size = self.config.sealing_size()
        return None if size is None else max(0, size - self.active.points())

    async def seal(self, deferrable: bool = True) -> None:
        """Make the active shard a sealed unit and start a new one."""
        directory = self.new_directory("active")
        await asyncio.to_thread(cloning.copy_empty, self._template, directory)
        active = layers.load(directory, self.config.edge_config(_UNIT_THREADS))
        await self.write_manifest(
            active=directory.name,
            sealed=[Sealed(self.manifest.active, deferrable), *self.manifest.sealed],
        )
        unit, self.active = self.active, active
        unit.deferrable = deferrable
        unit.segments = dict.fromkeys(
            (entry.name for entry in (unit.directory / layers.SEGMENTS).iterdir()), unit.points()
        )
        self.sealed.insert(0, unit)

    async def flush(self) -> None:
        """Make every applied write durable, newest layer first, one layer at a time."""
        await self._flush_layers(self.all())

    async def _flush_layers(self, wanted: list[Layer]) -> None:
        await self.write_back(wanted)
        for layer in wanted:
            layer.flush()
            await asyncio.sleep(0)

    async def write_back(self, wanted: list[Layer]) -> None:
        """Have the kernel write what it holds of changed layers, in a thread.

        It makes nothing durable that counts, and spares the flush, which holds up everything
        else, most of the waiting for the disk. Callers that can do so before they take the lock.
        """
        changed = [layer.directory for layer in wanted if layer.dirty]
        if changed:
            await asyncio.to_thread(cloning.write_back, changed)

    async def write_manifest(self, **changes: Any) -> None:
        """Replace the manifest by one with these changes; in force here once it is durable.

        The waiting for the disk is left to a thread.
        """
        changed = replace(self.manifest, next_number=self._next_number, **changes)
        await asyncio.to_thread(manifests.write_bytes, self.directory, changed.as_bytes())
        self.manifest = changed

    async def reconfigure(self, config: CollectionConfig) -> None:
        """Put a configuration into force; returns when that is durable."""
        await self.write_manifest(config=config.as_json())
        outdated = config.params != self.config.params
        self.config = config
        if outdated:
            await self._renew_template()
        await self.seal_if_full()

    async def create_index(self, field: str, schema: str | Json) -> None:
        """Create a payload index in every layer, and remember it for later ones."""
        operation = create_operation(field, schema)
        for layer in self.all():
            layer.shard.update(operation)
            layer.dirty = True
            await asyncio.sleep(0)
        await self.flush()
        await self.write_manifest(payload_indexes={**self.manifest.payload_indexes, field: schema})
        await self._renew_template()

    async def delete_index(self, field: str) -> None:
        """Delete a payload index from every layer."""
        operation = edge.UpdateOperation.delete_field_index(field)
        kept = {key: value for key, value in self.manifest.payload_indexes.items() if key != field}
        for layer in self.all():
            layer.shard.update(operation)
            layer.dirty = True
            await asyncio.sleep(0)
        await self.flush()
        await self.write_manifest(payload_indexes=kept)
        await self._renew_template()

    def new_directory(self, role: str) -> Path:
        """A path in this collection that was never used; `role` becomes a part of the name."""
        name = f"{role}-{self._next_number}"
        self._next_number += 1
        return self.directory / name

    async def clone_for_job(self, unit: Layer | None, directory: Path) -> int:
        """Clone the base's and the unit's segments into `directory`; returns the points in it.

        From here on deletes in these layers are kept for the swap, until `end_job`.
        """
        sources = [layer for layer in (unit, self.base) if layer is not None]
        if any(layer.has_deletes for layer in sources):
            await self.flush()
        else:
            # No point can have a newer copy that must be durable first.
            await self._flush_layers(sources)
        await asyncio.to_thread(cloning.clone, [layer.directory for layer in sources], directory)
        self._job_layers = frozenset(sources)
        self._deleted_meanwhile = []
        return sum(layer.points() for layer in sources)

    def may_be_named(self, directory: Path) -> bool:
        """Whether the manifest on disk may name this result of a job as the base."""
        return directory in self._may_be_named

    def end_job(self) -> None:
        """Forget the job's clone."""
        self._job_layers = frozenset()
        self._deleted_meanwhile = []

    async def swap(self, directory: Path, points: int, unit: Layer | None) -> None:
        """Make the optimized clone in `directory` the base, in place of the base and the unit.

        `points` is what `clone_for_job` returned. Raises RuntimeError, and changes nothing, if
        the result does not hold exactly those points.
        """
        base = layers.load(directory, self.config.edge_config())
        if base.points() != points:
            base.shard.close()
            raise RuntimeError(f"{points} points went into the optimizer, {base.points()} came out")
        for position in range(0, len(self._deleted_meanwhile), STEP * 4):
            base.delete(self._deleted_meanwhile[position : position + STEP * 4])
            await asyncio.sleep(0)
        replaced = [layer for layer in (self.base, unit) if layer is not None]
        if base.has_deletes:
            # Deletes that were durable in the replaced layers must be durable in the new one
            # before the manifest names it, and newer layers go first.
            await self.flush()
            base.flush()
        # Should the write fail, it may have taken effect all the same.
        self._may_be_named.add(directory)
        await self.write_manifest(base=directory.name, sealed=self._sealed_without(unit))
        self.base = base
        if unit is not None:
            self.sealed.remove(unit)
            unit.absorbed.set()
        self.end_job()
        for layer in replaced:
            await self.drop(layer)

    async def drop(self, layer: Layer) -> None:
        """Close a layer that the manifest no longer names and remove its files."""
        layer.absorbed.set()
        layer.shard.close()
        await asyncio.to_thread(cloning.remove, layer.directory)

    async def drop_empty_unit(self, unit: Layer) -> None:
        """Drop a sealed unit whose points are all deleted: there is nothing to optimize."""
        await self.flush()
        await self.write_manifest(sealed=self._sealed_without(unit))
        self.sealed.remove(unit)
        await self.drop(unit)

    async def close(self) -> None:
        """Flush and close all layers and mark the collection as cleanly stopped."""
        await self.flush()
        for layer in self.all():
            layer.shard.close()
        await asyncio.to_thread(cloning.remove, self._template)
        await self.write_manifest(clean=True)

    def _make_template(self) -> Path:
        """An empty shard of this collection, to be copied whenever a new active one is needed.

        Creating a shard takes a score of waits for the disk inside the wheel, with everything
        else held up; copying one takes them in a thread.
        """
        directory = self.new_directory("template")
        template = layers.create(directory, self.config.edge_config())
        for field, schema in self.manifest.payload_indexes.items():
            template.shard.update(create_operation(field, schema))
        template.shard.flush()
        template.shard.close()
        return directory

    async def _renew_template(self) -> None:
        outdated, self._template = self._template, self._make_template()
        await asyncio.to_thread(cloning.remove, outdated)

    def _write(self, points: list[edge.Point]) -> None:
        ids = [point.id for point in points]
        try:
            self.active.upsert(points)
        except Exception:
            # Part of the batch may have been applied: keep the rule of one live copy for that.
            applied = self.active.shard.retrieve(ids, with_payload=False, with_vector=False)
            self._delete_older([record.id for record in applied])
            raise
        self._delete_older(ids)

    def _delete_older(self, ids: list[PointId]) -> None:
        for layer in self.all()[1:]:
            if layer.delete(ids) and layer in self._job_layers:
                self._deleted_meanwhile.extend(ids)

    def _sealed_without(self, unit: Layer | None) -> list[Sealed]:
        name = None if unit is None else unit.directory.name
        return [entry for entry in self.manifest.sealed if entry.directory != name]

    def _active_wants_vacuum(self) -> bool:
        total = self.active.total
        deleted = total - self.active.points()
        optimizers = self.config.optimizers
        least: int = optimizers["vacuum_min_vector_number"]
        share: float = optimizers["deleted_threshold"]
        return total >= least and deleted > share * total

    def _repair(self) -> None:
        log.warning("collection %r was not stopped cleanly: repairing it", self.manifest.name)
        for layer in self.all():
            layers.repair_counter(layer)
        removed = layers.remove_older_copies(self.all())
        for layer in self.all():
            layer.flush()
        log.warning(
            "collection %r repaired: %d points, %d older copies of points removed",
            self.manifest.name,
            sum(layer.points() for layer in self.all()),
            removed,
        )

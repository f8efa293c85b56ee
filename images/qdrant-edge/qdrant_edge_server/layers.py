"""Layers of a collection: the active shard, sealed units and the base, each a shard on disk."""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import qdrant_edge as edge

from .filters import PointId

SEGMENTS = "segments"
_VERSIONS = ("mutable_id_tracker.versions", "id_tracker.versions")
# More operations than a shard can have seen: a larger value is no version but another file layout.
_LIKELY_VERSIONS = 1 << 40


@dataclass(eq=False)
class Layer:
    """One shard of a collection and what the front knows about it.

    `total` counts the points ever placed in it (deleted ones included). `absorbed` is set when
    the unit has become part of the base. Since the last flush, `dirty`: changed at all,
    `has_deletes`: points were deleted.
    """

    directory: Path
    shard: edge.EdgeShard
    total: int = 0
    dirty: bool = False
    has_deletes: bool = False
    deferrable: bool = False
    segments: dict[str, int] = field(default_factory=dict)
    absorbed: asyncio.Event = field(default_factory=asyncio.Event)

    def points(self) -> int:
        """Live points."""
        return self.shard.info().points_count

    def flush(self) -> None:
        """Make the layer durable, if it changed."""
        if self.dirty:
            self.shard.flush()
            self.dirty = self.has_deletes = False

    def upsert(self, points: list[edge.Point]) -> None:
        """Insert or overwrite points of this layer."""
        before = self.points()
        self.dirty = True
        self.shard.update(edge.UpdateOperation.upsert_points(points))
        self.total += self.points() - before

    def delete(self, ids: list[PointId]) -> bool:
        """Delete the `ids` that are here; whether there was any."""
        before = self.points()
        if before == 0:
            return False
        self.shard.update(edge.UpdateOperation.delete_points(ids))
        deleted = self.points() != before
        if deleted:
            self.dirty = self.has_deletes = True
        return deleted

    def ids(self) -> list[PointId]:
        """The ids of all live points."""
        points = self.points()
        if points == 0:
            return []
        records, _ = self.shard.scroll(
            edge.ScrollRequest(limit=points, with_payload=False, with_vector=False)
        )
        return [record.id for record in records]


def create(directory: Path, config: edge.EdgeConfig) -> Layer:
    """A new, empty and durable layer in `directory`."""
    directory.mkdir(parents=True)
    shard = edge.EdgeShard.create(str(directory), config)
    shard.flush()
    return Layer(directory, shard)


def load(directory: Path, config: edge.EdgeConfig) -> Layer:
    """The layer in `directory`, under `config`."""
    segments = segment_sizes(directory)
    shard = edge.EdgeShard.load(str(directory), config)
    return Layer(directory, shard, total=sum(segments.values()), segments=segments)


def segment_sizes(directory: Path) -> dict[str, int]:
    """Points ever placed in each segment of a flushed shard directory, by segment UUID.

    Empty segments are left out. Taken from the size of the id tracker's versions (8 bytes a
    point): the wheel tells the points of a whole shard only.
    """
    sizes = {}
    root = directory / SEGMENTS
    for segment in sorted(root.iterdir()) if root.is_dir() else []:
        points = sum(path.stat().st_size // 8 for path in _version_files(segment))
        if points:
            sizes[segment.name] = points
    return sizes


def repair_counter(layer: Layer) -> None:
    """After an unclean stop: raise the shard's operation counter past every point's version.

    The counter starts from the segments' recorded versions, which can be below the versions of
    points; the shard then drops deletes and overwrites of those points in silence. Deletes of an
    id that nobody has count as operations; a real one makes the segments record the new version.
    """
    highest = 0
    for segment in (layer.directory / SEGMENTS).iterdir():
        for path in _version_files(segment):
            data = path.read_bytes()
            versions = array("Q")
            versions.frombytes(data[: len(data) // 8 * 8])
            highest = max(highest, max(versions, default=0))
    if highest > _LIKELY_VERSIONS:
        raise ValueError(
            f"{layer.directory}: unknown layout of the id tracker's versions; this storage was "
            "written by another version of qdrant-edge-py: start it with that one"
        )
    nobody = uuid.uuid4()
    no_operation = edge.UpdateOperation.delete_points([nobody])
    for _ in range(highest + 1):
        layer.shard.update(no_operation)
    layer.shard.update(edge.UpdateOperation.upsert_points([edge.Point(nobody, {}, None)]))
    layer.shard.update(no_operation)
    layer.total += 1
    layer.dirty = True


def remove_older_copies(layers: Iterable[Layer]) -> int:
    """After an unclean stop: where an id stands in several layers (newest first), keep the newest.

    Returns how many copies were deleted.
    """
    seen: set[PointId] = set()
    removed = 0
    for layer in layers:
        ids = layer.ids()
        older = [found for found in ids if found in seen]
        if older:
            layer.delete(older)
            removed += len(older)
        seen.update(ids)
    return removed


def _version_files(segment: Path) -> list[Path]:
    return [segment / name for name in _VERSIONS if (segment / name).exists()]

"""The files after every single step of a flush, a seal and a swap: no point is lost or stale.

A SIGKILL leaves the files as they are at that moment. So the layers run in this process, every
flush of a layer and every write of the manifest is followed by a copy of the whole collection,
and each copy is opened, repaired and compared like after a kill.
"""

from __future__ import annotations

import asyncio
import importlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines.edge_server import TREE

Allowed = dict[int, set[int | None]]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of the server's package."""
    monkeypatch.syspath_prepend(str(TREE))
    return lambda name: importlib.import_module(f"qdrant_edge_server.{name}")


class Recorder:
    """Copies a collection at each step, with the values that each id may have in the copy."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        self.allowed: Allowed = {}
        self.copies: list[tuple[str, Path, Allowed]] = []

    def write(self, ids: range, value: int | None) -> None:
        """The ids got a new value (None: deleted), which is not durable yet."""
        for found in ids:
            self.allowed.setdefault(found, {None}).add(value)

    def durable(self, ids: range, value: int | None) -> None:
        """The value that the ids got last is durable: older ones must not come back."""
        for found in ids:
            self.allowed[found] = {value}

    def copy(self, step: str) -> None:
        """Take the files as they are now."""
        target = self.target / f"{len(self.copies):02d}"
        # The shards' files are mostly holes.
        subprocess.run(["cp", "-a", "--sparse=always", self.source, target], check=True)
        allowed = {found: set(values) for found, values in self.allowed.items()}
        self.copies.append((step, target, allowed))


def test_every_step_leaves_files_that_can_be_opened(
    tmp_path: Path, module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, manifests = module("layers"), module("manifest")
    stacks, config = module("stack"), module("configuration")
    edge = importlib.import_module("qdrant_edge")
    (tmp_path / "copies").mkdir()
    recorder = Recorder(tmp_path / "collection", tmp_path / "copies")

    flush, write = layers.Layer.flush, manifests.write_bytes

    def recorded_flush(layer: Any) -> None:
        flush(layer)
        recorder.copy(f"flush of {layer.directory.name}")

    def recorded_write(directory: Path, content: bytes) -> None:
        recorder.copy("before the manifest")
        write(directory, content)
        recorder.copy("after the manifest")

    def points(ids: range, value: int) -> list[Any]:
        return [edge.Point(n, [float(n), 1.0], {"v": value}) for n in ids]

    async def scenario() -> None:
        created = config.parse_create({"vectors": {"size": 2, "distance": "Dot"}})
        recorder.source.mkdir()
        stack = stacks.LayerStack.create(recorder.source, "c", created)
        monkeypatch.setattr(layers.Layer, "flush", recorded_flush)
        monkeypatch.setattr(manifests, "write_bytes", recorded_write)

        async def upsert(ids: range, value: int) -> None:
            recorder.write(ids, value)
            await stack.upsert(points(ids, value))

        async def delete(ids: range) -> None:
            recorder.write(ids, None)
            await stack.delete(list(ids))

        async def durable(*states: tuple[range, int | None]) -> None:
            await stack.flush()
            for ids, value in states:
                recorder.durable(ids, value)
            recorder.copy("flushed")

        await upsert(range(100), 1)
        await durable((range(100), 1))
        # Overwritten in another layer than they were in; both flushed, in order.
        await stack.seal()
        await upsert(range(50), 2)
        await delete(range(90, 100))
        await durable((range(50), 2), (range(90, 100), None))
        await stack.seal()
        await upsert(range(40, 60), 3)
        # The oldest unit becomes the base; writes go on while it is away.
        unit = stack.sealed[-1]
        directory = stack.new_directory("base")
        number = await stack.clone_for_job(unit, directory)
        module("optimizer_process").optimize(directory, stack.config)
        await upsert(range(60, 70), 4)
        await delete(range(80, 90))
        # A delete that is durable in the layers to be replaced must be so in the new base.
        await durable((range(40, 60), 3), (range(60, 70), 4), (range(80, 90), None))
        await delete(range(70, 75))
        await upsert(range(75, 80), 5)
        await stack.swap(directory, number, unit)
        await durable((range(70, 75), None), (range(75, 80), 5))
        # The other unit, onto the base.
        unit = stack.sealed[-1]
        directory = stack.new_directory("base")
        await upsert(range(10), 6)
        number = await stack.clone_for_job(unit, directory)
        module("optimizer_process").optimize(directory, stack.config)
        await upsert(range(10, 20), 7)
        await stack.swap(directory, number, unit)
        await durable((range(10), 6), (range(10, 20), 7))
        await stack.close()

    asyncio.run(scenario())
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(TREE))
    assert len(recorder.copies) > 20
    for step, copy, allowed in recorder.copies:
        manifest = manifests.read(copy)
        stack = stacks.LayerStack.open(copy, manifest)
        found: dict[int, int] = {}
        for layer in stack.all():
            size = max(layer.points(), 1)
            for record in layer.shard.scroll(edge.ScrollRequest(limit=size))[0]:
                assert record.id not in found, (step, copy.name)
                found[record.id] = record.payload["v"]
        for number, values in allowed.items():
            assert found.get(number) in values, (step, copy.name, number)
        for layer in stack.all():
            layer.shard.close()

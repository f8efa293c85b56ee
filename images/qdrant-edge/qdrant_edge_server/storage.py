"""All collections of a storage directory, which one server at a time may have open."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import uuid
from pathlib import Path

from . import cloning, manifest
from .collection import Collection
from .configuration import CollectionConfig
from .errors import ApiError, missing_collection
from .optimizer import OptimizerProcess

log = logging.getLogger(__name__)

_FORBIDDEN = frozenset('<>:"/\\|?*\0\x1f')
_LONGEST_NAME = 255


class StorageInUseError(Exception):
    """Another server has the storage directory open."""


class StorageLock:
    """Exclusive use of a storage directory, released by the kernel when the process ends."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / ".lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise StorageInUseError(
                f"--storage {directory}: in use by another server (process {owner or 'unknown'}); "
                "stop that server or give another directory"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another server have the directory."""
        os.close(self._descriptor)


class Storage:
    """The open collections by name."""

    def __init__(self, directory: Path, process: OptimizerProcess) -> None:
        self._root = directory / "collections"
        self._process = process
        self._collections: dict[str, Collection] = {}
        self._changing = asyncio.Lock()

    def open(self) -> None:
        """Open every collection; repairs those that were not stopped cleanly."""
        self._root.mkdir(exist_ok=True)
        for directory in sorted(self._root.iterdir()):
            found = manifest.read(directory)
            if found is None:
                # Its creation or its deletion was cut short.
                cloning.remove(directory)
                continue
            self._collections[found.name] = Collection.open(directory, found, self._process)

    def names(self) -> list[str]:
        """The names of all collections."""
        return sorted(self._collections)

    def exists(self, name: str) -> bool:
        """Whether there is a collection of this name."""
        return name in self._collections

    def get(self, name: str) -> Collection:
        """The collection, or ApiError 404."""
        try:
            return self._collections[name]
        except KeyError:
            raise missing_collection(name) from None

    async def create(self, name: str, config: CollectionConfig) -> None:
        """Create a collection; ApiError 409 if there is one of this name."""
        bad = sorted(_FORBIDDEN.intersection(name))
        if bad:
            raise ApiError(422, f"Validation error: collection name cannot contain {bad!r}")
        if not 0 < len(name) <= _LONGEST_NAME:
            raise ApiError(422, "Validation error: collection name must have 1 to 255 characters")
        async with self._changing:
            if name in self._collections:
                raise ApiError(409, f"Wrong input: Collection `{name}` already exists!")
            # The name may be too long or too odd for a file system: the manifest keeps it.
            directory = self._root / uuid.uuid4().hex
            directory.mkdir()
            try:
                self._collections[name] = Collection.create(directory, name, config, self._process)
            except Exception:
                cloning.remove(directory)
                raise

    async def delete(self, name: str) -> bool:
        """Delete a collection; whether there was one."""
        async with self._changing:
            collection = self._collections.pop(name, None)
            if collection is None:
                return False
            # Without its manifest it is gone, whatever happens to the rest of its files.
            (collection.stack.directory / manifest.FILE).unlink()
            await collection.delete()
            return True

    async def close(self) -> None:
        """Apply and flush everything, end the optimizer process."""
        for collection in self._collections.values():
            await collection.close()
        await self._process.kill()

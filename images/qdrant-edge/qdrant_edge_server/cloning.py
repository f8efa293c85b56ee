"""Shard directories as files: clones for the optimizer process, copies of an empty shard, removal.

Whole segment directories are moved, linked and copied; nothing here reads what is in their files.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import logging
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from .layers import SEGMENTS, segment_sizes

# Written once (or only appended to, at places the clone never reads): safe to share by hard link.
# All else is copied, because a loaded clone writes to it.
_LINKED = ("matrix.dat", "links*.bin", "graph.bin", "chunk_*.mmap", "page_*.dat")
log = logging.getLogger(__name__)
_CONFIG = "edge_config.json"


def clone(sources: Iterable[Path], target: Path) -> None:
    """Make one new shard directory `target` with all segments of the shards `sources`.

    The shards must be flushed and must not change until this returns. Empty segments are left
    out. Nothing here touches the interpreter lock for long: it may run in a thread.
    """
    (target / SEGMENTS).mkdir(parents=True)
    for n, source in enumerate(sources):
        if n == 0:
            shutil.copyfile(source / _CONFIG, target / _CONFIG)
        for segment in segment_sizes(source):
            _copy_tree(source / SEGMENTS / segment, target / SEGMENTS / segment)


def copy_empty(source: Path, target: Path) -> None:
    """A durable copy of the closed, empty shard `source`. May run in a thread.

    Its segments get new names: segments of several layers meet in one directory when they are
    cloned.
    """
    _copy_tree(source, target, link=())
    for segment in list((target / SEGMENTS).iterdir()):
        segment.rename(segment.with_name(str(uuid.uuid4())))
    make_durable(target)


def make_durable(directory: Path) -> None:
    """Write a directory and all in it to the disk. May run in a thread."""
    for root, _, files in os.walk(directory):
        for name in files:
            _sync(Path(root, name))
        _sync(Path(root))
    _sync(directory.parent)


def write_back(directories: Iterable[Path]) -> None:
    """Write the files of shards that are in use to the disk. May run in a thread."""
    for directory in directories:
        for root, _, files in os.walk(directory):
            for name in files:
                # The shard may replace a file meanwhile: then there is nothing to write.
                with contextlib.suppress(FileNotFoundError):
                    _sync(Path(root, name))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_tree(source: Path, target: Path, link: Iterable[str] = _LINKED) -> None:
    target.mkdir()
    for entry in os.scandir(source):
        if entry.is_dir():
            _copy_tree(Path(entry.path), target / entry.name, link)
        elif any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in link):
            os.link(entry.path, target / entry.name)
        else:
            _copy_sparse(entry.path, target / entry.name)


def _copy_sparse(source: str, target: Path) -> None:
    # Most copied files are preallocated and mostly holes: copy the data, keep the holes.
    with Path(source).open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        position = 0
        while position < size:
            try:
                start = os.lseek(reader.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # only a hole is left
            end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            while start < end:
                sent = os.copy_file_range(
                    reader.fileno(), writer.fileno(), end - start, start, start
                )
                if sent == 0:
                    break
                start += sent
            position = end


def remove(directory: Path) -> None:
    """Remove a directory that no manifest names. A later start removes what could not be."""

    def report(_function: object, path: str, error: BaseException) -> None:
        log.warning("cannot remove %s: %s", path, error)

    shutil.rmtree(directory, onerror=lambda f, path, info: report(f, path, info[1]))

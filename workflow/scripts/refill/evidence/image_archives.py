"""Images held against their records and what was measured, without any daemon.

An archive holds the files that its record names. An image of a daemon is out of reach where results
are verified: its record must agree with itself, and with those of the measurements that ran it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from refill.config.load import NATIVE_ENGINES
from refill.evidence.hashes import sha256_bytes, sha256_tree
from refill.evidence.records import RecordError, read_json

SCHEMA = "refill.image/1"
TREE_LABEL = "org.refill.tree"


def differences(work: Path, path: str) -> list[str]:
    """Return one line for each file in which an image's archive is not as its record says.

    `work` is the folder that holds results, `path` the record's below it.
    """
    try:
        record = read_json(work / path, SCHEMA)
    except (RecordError, OSError) as error:
        return [f"{path}: cannot be read: {type(error).__name__}: {error}"]
    return _of_daemon(path, record) if _is_docker(record) else _of_archive(work, path, record)


def unlike_measured(work: Path, images: Sequence[str], records: Sequence[str]) -> list[str]:
    """Return where a measurement names another image than the image's record does.

    `images` and `records` are paths of records below `work`.
    """
    known = {}
    for path in images:
        # One that cannot be read is said elsewhere.
        with suppress(RecordError, OSError):
            known[Path(path).stem] = (path, read_json(work / path, SCHEMA))
    found = []
    for path in records:
        for key, block in _image_blocks(read_json(work / path)):
            if block["name"] not in known:
                found.append(f"{path}: {key}: names {block['name']}, which has no record")
                continue
            of, image = known[block["name"]]
            found += [
                f"{path}: {key}.{part}: says {block[part]}, {of} says {image.get(part)}"
                for part in ("id", "tree", "reference", "pinned")
                if part in block and block[part] != image.get(part)
            ]
    return found


def _image_blocks(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the images that a measurement ran, each with its place in the record."""
    engines: Mapping[str, Any] = record.get("engines") or {}
    blocks = {
        **{f"engines.{name}.image": e.get("image") for name, e in engines.items()},
        "engine.image": (record.get("engine") or {}).get("image"),
        **{f"images.{name}": image for name, image in (record.get("images") or {}).items()},
    }
    for key, block in blocks.items():
        # A native engine's image has no record of its own: it stands in the engine's.
        if block and "name" in block and block["name"] not in NATIVE_ENGINES:
            yield key, block


def _is_docker(record: Mapping[str, Any]) -> bool:
    return bool(record.get("runtime") == "docker")


def _of_daemon(path: str, record: Mapping[str, Any]) -> list[str]:
    """Hold the record of an image of a daemon against itself."""
    found = []
    if built := record.get("docker"):
        if built["id"] != record["id"]:
            found.append(f"{path}: docker.id: says {built['id']}, id says {record['id']}")
        labelled = built["labels"].get(TREE_LABEL)
        if labelled != record["tree"]:
            found.append(f"{path}: docker.labels: say tree {labelled}, tree says {record['tree']}")
        if (tree := sha256_tree(record["files"])) != record["tree"]:
            found.append(f"{path}: tree: says {record['tree']}, its files give {tree}")
    elif (digest := record["pinned"]) is not None and digest not in record["repo_digests"]:
        found.append(f"{path}: pinned: {digest} is none of its repo_digests")
    return found


def _of_archive(work: Path, path: str, record: Mapping[str, Any]) -> list[str]:
    try:
        with zipfile.ZipFile(work / record["archive"]) as archive:
            files = {name: sha256_bytes(archive.read(name)) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        return [f"{path}: its archive cannot be read: {type(error).__name__}: {error}"]
    said: Mapping[str, Any] = record["files"]
    found = [
        f"{path}: files.{name}: says {said.get(name)}, {record['archive']} has {files.get(name)}"
        for name in sorted({*said, *files})
        if said.get(name) != files.get(name)
    ]
    if (tree := sha256_tree(files)) != record["tree"]:
        found.append(f"{path}: tree: says {record['tree']}, {record['archive']} gives {tree}")
    return found

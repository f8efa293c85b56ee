"""The archive of an image held against its record: it holds the files that the record names."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.evidence.hashes import sha256_bytes, sha256_tree
from refill.evidence.records import RecordError, read_json

SCHEMA = "refill.image/1"


def differences(work: Path, path: str) -> list[str]:
    """Return one line for each file in which an image's archive is not as its record says.

    `work` is the folder that holds results, `path` the record's below it.
    """
    try:
        record = read_json(work / path, SCHEMA)
        with zipfile.ZipFile(work / record["archive"]) as archive:
            files = {name: sha256_bytes(archive.read(name)) for name in archive.namelist()}
    except (RecordError, OSError, zipfile.BadZipFile, KeyError) as error:
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

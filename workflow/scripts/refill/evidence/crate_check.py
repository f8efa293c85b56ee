"""The crate held against what is there: it has the hashes of manifest and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from refill.evidence import crate
from refill.evidence.hashes import sha256_bytes, sha256_file
from refill.evidence.json_difference import unequal
from refill.evidence.records import RecordError, canonical_json, read_json

# The log of the job that makes the crate: nothing can state its hash, and it has nothing to say.
LAST_LOG = "results/logs/crate.log"


def check(work: Path) -> list[str]:
    """Return one line for each difference between a crate and the results of `work`.

    The crate is results/ro-crate, or `work` itself where an archive was unpacked.
    """
    last = work / LAST_LOG
    found = []
    if last.is_file() and last.stat().st_size:
        found.append(f"{LAST_LOG}: is empty when all went well, and holds something now")
    root = work / crate.FOLDER
    if not (root / crate.METADATA).is_file():
        if not (work / crate.METADATA).is_file():
            made = f"{crate.FOLDER}/{crate.METADATA}"
            return [
                *found,
                f"{made}: is missing, and with it what manifest and report are held against; "
                f"make it with `snakemake {made}`",
            ]
        root = work
    name = (root / crate.METADATA).relative_to(work).as_posix()
    try:
        stored = read_json(root / crate.METADATA)
        stated = _stated(stored)
        manifest = read_json(work / "results/manifest.json")
    except (RecordError, KeyError, TypeError) as error:
        return [*found, f"{name}: is no crate any more: {error}"]
    later = [*crate.LATER]
    if root == work:
        known = {**manifest["sources"], **manifest["results"]}
        later += sorted(path for path in stated if path not in known and path not in later)
    changed = _later(work, stated, name, later)
    if root != work:
        changed += _copies(root, work, manifest, stated)
    found += changed
    if not changed:
        found += _metadata(root, stored, manifest, name)
    return found


def _stated(stored: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 that a crate states, by path."""
    return {
        unquote(entity["@id"]): str(entity["sha256"])
        for entity in stored["@graph"]
        if "sha256" in entity
    }


def _later(work: Path, stated: Mapping[str, str], name: str, paths: Sequence[str]) -> list[str]:
    """Return which of the files that the manifest cannot name are not as the crate states."""
    found = []
    for path in paths:
        file, expected = work / path, stated.get(path)
        if expected is None and file.is_file():
            found.append(f"{path}: is there, {name} does not name it")
        elif expected is not None and not file.is_file():
            found.append(f"{path}: is missing; expected SHA-256 {expected}, as {name} states")
        elif expected is not None and (got := sha256_file(file)) != expected:
            found.append(f"{path}: has changed: {name} states SHA-256 {expected}, got {got}")
    return found


def _copies(
    root: Path, work: Path, manifest: Mapping[str, Any], stated: Mapping[str, str]
) -> list[str]:
    """Return which files of the crate's folder are not as they were put there."""
    known = {**manifest["sources"], **manifest["results"]}
    expected = {path: entry["sha256"] for path, entry in known.items()} | dict(stated)
    files = (file for file in root.rglob("*") if file.is_file())
    # Hidden files are temporary ones, here as everywhere.
    there = {f.relative_to(root).as_posix() for f in files if not f.name.startswith(".")}
    there.discard(crate.METADATA)
    folder = crate.FOLDER
    found = [
        f"{folder}/{path}: is there, and belongs to no crate" for path in there - set(expected)
    ]
    found += [
        f"{folder}/{path}: is missing; {folder}/{crate.METADATA} or the manifest names it"
        for path in set(expected) - there
    ]
    for path in there & set(expected):
        file, other = root / path, work / path
        # A second name of a file whose hash is looked at anyway.
        if other.is_file() and file.samefile(other):
            continue
        if (got := sha256_file(file)) != expected[path]:
            found.append(
                f"{folder}/{path}: has changed: expected SHA-256 {expected[path]}, got {got}"
                + (f" ({folder}/{crate.METADATA} states the former)" if path in stated else "")
            )
    return sorted(found)


def _metadata(
    root: Path, stored: Mapping[str, Any], manifest: Mapping[str, Any], name: str
) -> list[str]:
    """Return where the crate's description is not what the manifest gives."""
    again = crate.metadata(manifest, crate.tree(manifest, root, root))
    try:
        one = {entity["@id"]: entity for entity in stored["@graph"]}
    except (LookupError, TypeError) as error:
        return [f"{name}: is no crate any more: {type(error).__name__}: {error}"]
    other = {entity["@id"]: entity for entity in again["@graph"]}
    found = [
        f"{name}: {id_}{where}: says {says!r}, the manifest gives {gives!r}"
        for id_ in sorted({*one, *other})
        for where, says, gives in unequal(one.get(id_), other.get(id_))
    ]
    written = sha256_bytes((root / crate.METADATA).read_bytes())
    if not found and written != sha256_bytes(canonical_json(again).encode()):
        found.append(f"{name}: is not in the form it was written in")
    return found[:5]

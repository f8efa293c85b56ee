"""Homes of native engines held against their records, as the manifest does not name their files.

A home that was put together here holds what its record names: jars, the few texts of
config/native.yaml, for Elasticsearch the empty console, and perhaps a Java. Beside a release of a
user's own, which lies elsewhere, it holds a Java or nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.config.errors import ConfigError
from refill.config.load import load_native
from refill.engines import elasticsearch, home_files
from refill.engines.artifacts import jar_name
from refill.engines.description import EngineError
from refill.engines.installations import JAVA, SCHEMA, home_of
from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import RecordError, read_json


def differences(work: Path, project: Path, path: str) -> tuple[list[str], list[str]]:
    """Return the differences between an engine's home and its record, and notes that are none.

    `work` is the folder that holds results, `project` the one with config/native.yaml, `path` the
    record's below `work`. A home that is not there (no archive has it) is a note.
    """
    home = home_of(Path(path))
    try:
        record = read_json(work / path, SCHEMA)
        recorded = _recorded(record)
        there = home_files.files_of(work / home) if (work / home).is_dir() else {}
        unlike = _unlike_pins(record, recorded, project, path) if recorded else []
    except (
        RecordError, ConfigError, EngineError, OSError, LookupError, TypeError, AttributeError,
    ) as error:  # fmt: skip
        return [f"{path}: its home cannot be looked at: {type(error).__name__}: {error}"], []
    if not recorded:
        # Of an engine that runs elsewhere, or could not be put together: nothing ran from it.
        unused = f"{home.as_posix()}: {path} names no engine made there, not looked at"
        return [], [unused] if there else []
    if not there:
        return unlike, [f"{home.as_posix()}: is not here: the {len(recorded)} files of the engine "
                        f"that {path} names were not looked at"]  # fmt: skip
    found = [
        f"{(home / name).as_posix()}: is there, {path} does not name it"
        for name in sorted(there.keys() - recorded.keys())
    ]
    for name, sha256 in sorted(recorded.items()):
        if name not in there:
            found.append(f"{(home / name).as_posix()}: is missing; expected SHA-256 {sha256}")
        elif (got := there[name]) != sha256:
            found.append(
                f"{(home / name).as_posix()}: has changed: {path} says SHA-256 {sha256}, got {got}"
            )
    return [*unlike, *found], []


def _recorded(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file that a record says this workflow put there, by path."""
    key = {"artifacts": "files", "home": "own_files"}.get(record.get("source", ""))
    return {str(name): str(sha256) for name, sha256 in record[key].items()} if key else {}


def _unlike_pins(
    record: Mapping[str, Any], recorded: Mapping[str, str], project: Path, path: str
) -> list[str]:
    """Return what a record of artifacts names that config/native.yaml does not, and the reverse.

    A Java is checked against its own pin when it is unpacked, and a later pin says nothing of it.
    """
    if record["source"] != "artifacts":
        return []
    spec = load_native(project / "config/native.yaml")[record["name"]]
    pins = _pinned(record["name"], spec)
    own = {name: sha for name, sha in recorded.items() if not name.startswith(f"{JAVA}/")}
    wrong = sorted(k for k in pins.keys() | own.keys() if pins.get(k) != own.get(k))
    return [
        f"{path}: says SHA-256 {own.get(name, 'nothing')} of {name}, config/native.yaml pins "
        f"{pins.get(name, 'no such file')}"
        for name in wrong
    ]


def _pinned(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of all that a home of artifacts holds but its Java, by path."""
    made = {
        f"{folder}/{jar_name(coordinates)}": sha256
        for folder, pinned in spec["artifacts"].items()
        for coordinates, sha256 in pinned.items()
    }
    made |= {path: sha256_bytes(text.encode()) for path, text in spec["files"].items()}
    if name == elasticsearch.NAME:
        with tempfile.TemporaryDirectory(prefix="refill-console-") as folder:
            elasticsearch.complete(Path(folder))
            made |= home_files.files_of(Path(folder))
    return made

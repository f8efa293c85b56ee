"""Homes of native engines held against their records, as the manifest does not name their files.

A home that was put together here holds the jars that its record names, the few texts of
config/native.yaml, for Elasticsearch the empty console, and perhaps a Java.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.config.errors import ConfigError
from refill.config.load import load_native
from refill.engines import elasticsearch
from refill.evidence.hashes import sha256_bytes, sha256_file
from refill.evidence.records import RecordError, read_json

SCHEMA = "refill.engine/1"
# Put in by Java's own archive, whose hash is checked when it is unpacked, and not kept.
_JAVA = "jdk"


def differences(work: Path, project: Path, path: str) -> tuple[list[str], list[str]]:
    """Return the differences between an engine's home and its record, and notes that are none.

    `work` is the folder that holds results, `project` the one with config/native.yaml, `path` the
    record's below `work`. A home that is not there (no archive has it) is a note.
    """
    home = Path(path).with_suffix("") / "home"
    try:
        record = read_json(work / path, SCHEMA)
        if record.get("source") != "artifacts":
            # Of an engine that runs elsewhere, or could not be put together: nothing ran from it.
            unused = f"{home.as_posix()}: {path} names no engine made there, not looked at"
            return [], [unused] if _files(work / home) else []
        expected = {str(jar): str(sha256) for jar, sha256 in record["jars"].items()}
        expected |= _beside_jars(record["name"], project)
    except (RecordError, ConfigError, OSError, LookupError, TypeError, AttributeError) as error:
        return [f"{path}: its home cannot be looked at: {type(error).__name__}: {error}"], []
    there = _files(work / home)
    if not there:
        return [], [f"{home.as_posix()}: is not here: the {len(expected)} files of the engine "
                    f"that {path} names were not looked at"]  # fmt: skip
    own = {name: file for name, file in there.items() if not name.startswith(f"{_JAVA}/")}
    found = [
        f"{(home / name).as_posix()}: is there, {path} does not name it"
        for name in sorted(own.keys() - expected.keys())
    ]
    for name, sha256 in sorted(expected.items()):
        if name not in own:
            found.append(f"{(home / name).as_posix()}: is missing; expected SHA-256 {sha256}")
        elif (got := sha256_file(own[name])) != sha256:
            found.append(
                f"{(home / name).as_posix()}: has changed: {path} says SHA-256 {sha256}, got {got}"
            )
    if (java := len(there) - len(own)) == 0:
        return found, []
    where = (home / _JAVA).as_posix()
    return found, [f"{where}: nothing holds the hashes of its {java} files, not looked at"]


def _beside_jars(name: str, project: Path) -> dict[str, str]:
    """Return the SHA-256 of what a home holds beside the jars of its record, by path."""
    texts: Mapping[str, Any] = load_native(project / "config/native.yaml")[name]["files"]
    made = {path: sha256_bytes(text.encode()) for path, text in texts.items()}
    if name == elasticsearch.NAME:
        with tempfile.TemporaryDirectory(prefix="refill-console-") as folder:
            elasticsearch.complete(Path(folder))
            made |= {path: sha256_file(file) for path, file in _files(Path(folder)).items()}
    return made


def _files(home: Path) -> dict[str, Path]:
    """Return the files of a home by path; not Snakemake's mark at its top."""
    return {
        file.relative_to(home).as_posix(): file
        for file in home.rglob("*")
        if file.is_file() and file != home / ".snakemake_timestamp"
    }

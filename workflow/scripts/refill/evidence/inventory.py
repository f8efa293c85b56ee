"""Which files are evidence, what kind each is, and their hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from refill.evidence.hashes import sha256_file

RESULTS = "results"

# What is written after the manifest, or by it, cannot stand in it; the crate has the hashes of it.
WRITTEN_LATER = (
    "results/manifest.json",
    "results/report.html",
    "results/ro-crate/*",
    "results/logs/manifest.log",
    "results/logs/report.log",
    "results/logs/crate.log",
    # Of this project's own speed, at any time; no result.
    "results/bench.json",
    # The data of engines that run, or were killed.
    "results/scratch/*",
    # The jars of native engines: `engine_homes` holds them against the engines' records.
    "results/engines/*/*",
)

# First match wins. Patterns are those of fnmatch: * crosses folders.
_SOURCES = (
    ("workflow/scripts/refill/*", "helper"),
    ("workflow/scripts/*", "script"),
    ("workflow/Snakefile", "rule"),
    ("workflow/rules/*", "rule"),
    ("workflow/schemas/*", "schema"),
    ("workflow/profiles/*", "config"),
    ("workflow/report/*", "caption"),
    ("config/*", "config"),
    ("images/*", "image source"),
    ("pyproject.toml", "lock"),
    ("requirements.lock", "lock"),
    ("environment.yml", "lock"),
    ("Makefile", "script"),
)
_RESULTS = (
    ("results/images/*", "image"),
    ("results/engines/*.json", "engine"),
    ("results/corpora/*", "corpus"),
    ("results/downloads/*", "download"),
    ("results/attempts/*", "attempt"),
    ("results/logs/*", "log"),
    ("results/tables/*", "table"),
    ("results/optimizers/*.polls.parquet", "polls"),
    ("results/optimizers/*.parquet", "ledger"),
    ("results/optimizers/*.json", "record"),
    ("results/rounds/*.resources.json", "resources"),
    ("results/rounds/*.warm.json", "raw profile"),
    ("results/rounds/*.cold.json", "raw profile"),
    ("results/rounds/*.parquet", "ledger"),
    ("results/rounds/*.json", "record"),
    ("results/proofs/*.parquet", "ledger"),
    ("results/proofs/*.json", "record"),
    ("results/*", "other"),
)


class InventoryError(ValueError):
    """The files change while they are listed; the text names the file and what to do."""


def sources(project: Path) -> dict[str, str]:
    """Return the kind of each file of the project that makes results, by relative path."""
    tops = {pattern.partition("/")[0] for pattern, _ in _SOURCES}
    return _classified(project, sorted(tops), _SOURCES, ())


def results(work: Path, left_out: Sequence[str] = WRITTEN_LATER) -> dict[str, str]:
    """Return the kind of each file below `work`/results, by path relative to `work`.

    `left_out` are patterns of paths that do not count.
    """
    return _classified(work, [RESULTS], _RESULTS, left_out)


def source_kind(path: str) -> str | None:
    """Return the kind of a file of the project; None for one that makes no results."""
    return _kind(path, _SOURCES)


def result_kind(path: str) -> str | None:
    """Return the kind of a file below results; None for one that stands in no manifest."""
    return None if left_out_by(path, WRITTEN_LATER) else _kind(path, _RESULTS)


def hashed(root: Path, kinds: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return {path: {"kind", "sha256", "bytes"}} for files below `root`.

    Raises InventoryError for a file that is gone by now: something still writes there.
    """
    entries = {}
    for path, kind in sorted(kinds.items()):
        file = root / path
        try:
            entries[path] = {
                "kind": kind,
                "sha256": sha256_file(file),
                "bytes": file.stat().st_size,
            }
        except FileNotFoundError:
            raise InventoryError(
                f"{path}: vanished while it was read: something is still running in this "
                "folder; wait for its end and gather again"
            ) from None
    return entries


def strange_hidden(work: Path) -> list[str]:
    """Return the hidden files below `work`/results that neither records nor Snakemake leave."""
    own = re.compile(r"(\.snakemake_timestamp|\..+\.[0-9a-f]{16}\.tmp)$")
    found = []
    for file in (work / RESULTS).rglob("*"):
        path = file.relative_to(work)
        hidden = any(part.startswith(".") for part in path.parts)
        if hidden and file.is_file() and not left_out_by(path.as_posix(), WRITTEN_LATER):
            found += [] if own.match(path.name) else [path.as_posix()]
    return sorted(found)


def left_out_by(path: str, patterns: Sequence[str]) -> bool:
    """Say whether a path matches one of the patterns of what does not count."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _classified(
    root: Path,
    tops: Sequence[str],
    kinds: Sequence[tuple[str, str]],
    left_out: Sequence[str],
) -> dict[str, str]:
    found = {}
    for file in (file for top in tops for file in _files(root / top)):
        path = file.relative_to(root).as_posix()
        kind = _kind(path, kinds)
        if kind is not None and not left_out_by(path, left_out):
            found[path] = kind
    return found


def _kind(path: str, kinds: Sequence[tuple[str, str]]) -> str | None:
    return next((kind for pattern, kind in kinds if fnmatchcase(path, pattern)), None)


def _files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for file in top.rglob("*"):
        parts = file.relative_to(top).parts
        # Hidden files are temporary ones of atomic writes, and marks of Snakemake and the shell.
        hidden = any(part.startswith(".") for part in parts)
        if file.is_file() and not hidden and "__pycache__" not in parts and file.suffix != ".pyc":
            yield file

"""Logs that an archive leaves out because they hold something private: named, hash and all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.evidence.records import read_json

# Beside ro-crate-metadata.json, at the top of an archive.
FILE = "withheld.json"
SCHEMA = "refill.withheld/1"


def may_be_withheld(path: str, kind: str) -> bool:
    """Say whether an archive can do without a file: a log, of which no figure is made."""
    return path.endswith(".log") and kind in ("log", "attempt")


def read_withheld(work: Path, results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the reasons by path for which logs of the manifest's `results` are not in `work`.

    Raises RecordError when the list cannot be read.
    """
    if not (work / FILE).exists():
        return {}
    listed = read_json(work / FILE, SCHEMA)["files"]
    return {
        path: str(why)
        for path, why in listed.items()
        if path in results and may_be_withheld(path, results[path]["kind"])
    }

"""Logs that an archive leaves out because they hold something private: named, hash and all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.evidence.records import RecordError, read_json

# Beside ro-crate-metadata.json, at the top of an archive.
FILE = "withheld.json"
SCHEMA = "refill.withheld/1"
CRATE = "ro-crate-metadata.json"


def may_be_withheld(path: str, kind: str) -> bool:
    """Say whether an archive can do without a file: a log, of which no figure is made."""
    return path.endswith(".log") and kind in ("log", "attempt")


def read_withheld(work: Path, results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the reasons by path for which logs of the manifest's `results` are not in `work`.

    A list counts only where an archive was unpacked, that is beside its crate: no workflow writes
    one in a project's folder. Raises RecordError when the list cannot be read.
    """
    if not (work / FILE).exists():
        return {}
    if not (work / CRATE).is_file() or (work / "results/ro-crate").exists():
        raise RecordError(
            f"{FILE}: excuses what an archive leaves out, and this folder is none (it has no "
            f"{CRATE} beside it, or a crate of its own below results): delete the file"
        )
    listed = read_json(work / FILE, SCHEMA).get("files")
    if not isinstance(listed, Mapping):
        raise RecordError(
            f"{FILE}: files: is no object of reasons by path: unpack the archive anew"
        )
    return {
        path: str(why)
        for path, why in listed.items()
        if path in results and may_be_withheld(path, results[path]["kind"])
    }

"""What one does who falsifies results, and what one does who mends them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from refill.evidence import crate
from refill.evidence.hashes import sha256_file
from refill.evidence.manifest import gather
from refill.evidence.records import read_json, write_json

RECORD = "results/rounds/on-main/old-1.json"
RUN = "results/optimizers/A2/1.json"


def seal(manifest: Path) -> None:
    """Do what one who falsifies can do: make all hashes of the files that are there anew."""
    work = manifest.parent.parent
    content = read_json(manifest)
    for files in (content["results"], content["sources"]):
        for path, entry in files.items():
            entry.update(sha256=sha256_file(work / path), bytes=(work / path).stat().st_size)
    write_json(manifest, content)
    crate.write(content, work, work, work / crate.FOLDER)


def gathered(manifest: Path) -> None:
    """Gather the manifest anew, and the crate, from what is there."""
    work, old = manifest.parent.parent, read_json(manifest)
    planned, written = old["order"]["planned"], old["written"]
    new = gather(work, manifest.parent, old["config"], old["command"], (), planned, written)
    write_json(manifest, new)
    crate.write(new, work, work, work / crate.FOLDER)


def rewritten(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file, as one who falsifies would."""
    content = read_json(path)
    change(content)
    path.unlink()
    write_json(path, content)

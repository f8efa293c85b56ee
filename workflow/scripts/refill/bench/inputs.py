"""What the gateway's bench is made with: the results of a run, or the same made for the moment."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill import images
from refill.config import PROJECT, load, load_images
from refill.corpora.documents import RECORD, Documents
from refill.corpora.fetch import fetch
from refill.corpora.flights import prepare_flights
from refill.evidence.code import code_hash
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json

SCRIPTS = PROJECT / "workflow" / "scripts"


def read_config() -> dict[str, Any]:
    """Read config/config.yaml."""
    return load(PROJECT / "config" / "config.yaml")


def archives(config: Mapping[str, Any], results: Path, folder: Path) -> dict[str, Path]:
    """Give the archives of the gateways and of the embedded Qdrant.

    Args:
        config: names the images.
        results: a run's results; what they lack is built from its pinned source.
        folder: takes what is built.

    Returns:
        The archives by `old`, `new` and `qdrant`.

    Raises:
        RuntimeError: the config names no image of Qdrant, or an archive is not what its record
            says.
        ImageError: a source has drifted from its pin.
    """
    names = {**config["rounds"]["images"], "qdrant": config["qdrant"].get("image")}
    if names["qdrant"] is None:
        raise RuntimeError("config: qdrant.image is not set; this bench starts its own Qdrant")
    return {key: _archive(name, results, folder) for key, name in names.items()}


def _archive(name: str, results: Path, folder: Path) -> Path:
    record = results / "images" / f"{name}.json"
    if not record.is_file():
        return _built(name, folder)
    image = read_json(record, images.SCHEMA)
    path = results.parent / str(image["archive"])
    if sha256_file(path) != image["id"].removeprefix("sha256:"):
        raise RuntimeError(f"{image['archive']} is not what its record says: delete it, run again")
    return path


def _built(name: str, folder: Path) -> Path:
    entries, path = load_images(), folder.resolve() / f"{name}.pyz"
    code = code_hash(SCRIPTS / "build_image.py", SCRIPTS)
    # A record names its archive relative to the working folder.
    with contextlib.chdir(folder):
        needed = images.needed(entries, name)
        images.build(PROJECT, name, needed, path, path.with_suffix(".json"), code)
    return path


def documents(config: Mapping[str, Any], results: Path, folder: Path) -> Documents:
    """Open the rounds' corpus in a run's results; without one, prepare it in `folder`.

    Raises:
        CorpusError: it cannot be had, or is not the pinned one.
    """
    rounds = config["rounds"]
    name = rounds["corpus"]["name"]
    prepared = results / "corpora" / name
    if not (prepared / RECORD).is_file():
        spec, kept, prepared = config["corpora"][name], results / "downloads" / name, folder / name
        fetched = fetch(spec, name, kept if kept.is_file() else folder / f"{name}.package")
        prepare_flights(
            spec, name, rounds["corpus"]["documents"], rounds["seed"], prepared, fetched,
            code=code_hash(SCRIPTS / "prepare_documents.py", SCRIPTS),
        )  # fmt: skip
    return Documents.open(prepared, verify=True)

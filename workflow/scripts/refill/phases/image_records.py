"""Records of images as measurements use them: an archive, an image of the daemon, and its block."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.engines.description import EngineError
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json

SCHEMA = "refill.image/1"
# What the record of a measurement says of an image, as far as the image's own record does.
_KEPT = ("name", "id", "tag", "tree", "reference", "pinned", "repo_digests")


def read_image(path: Path) -> dict[str, Any]:
    """Read the record of an image."""
    return read_json(path, SCHEMA)


def archive_of(root: Path, image: Mapping[str, Any]) -> Path:
    """Give an image's archive when it is the one that its record names.

    Raises:
        EngineError: it is another one.
    """
    path = root / str(image["archive"])
    if (found := sha256_file(path)) != image["id"].removeprefix("sha256:"):
        raise EngineError(
            f"{image['archive']} has the SHA-256 {found}, its record says {image['id']}: "
            f"delete {image['archive']} and run again"
        )
    return path


def image_block(image: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a record says of an image: identity, source, and how it differs from another."""
    block = {key: image[key] for key in _KEPT if key in image}
    if built := image.get("docker"):
        base = built["base"] or {}
        block["repo_digests"] = built["repo_digests"]
        block["base"] = {key: base.get(key) for key in ("reference", "id", "pinned")}
    differs = image.get("differs_from")
    if differs:
        block["differs_from"] = {key: differs[key] for key in ("image", "files")}
    return block

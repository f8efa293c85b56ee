"""SHA-256 of files and of trees of files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 lower-case hex digits.

    The file is read in blocks, so memory stays bounded. Raises OSError when it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_tree(files: Mapping[str, str]) -> str:
    """Return one hash for a tree, given the SHA-256 of each file under its relative path.

    It is the hash of the lines that `sha256sum` prints (`<sha256>  <path>`), sorted by path as
    bytes, so it can be checked without this program.
    """
    lines = [f"{files[path]}  {path}\n" for path in sorted(files, key=lambda p: p.encode())]
    return sha256_bytes("".join(lines).encode())

"""The manifest: which directories of a collection are its layers. Replaced as a whole, durably.

What the manifest does not name is no part of the collection and is removed at start. `clean` is
false while a server has the collection open: found false at start, the last stop was unclean.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from .checks import Json

FILE = "manifest.json"
FORMAT = 1


@dataclass
class Sealed:
    """A sealed unit: its directory, and whether `prevent_unoptimized` may hide it."""

    directory: str
    deferrable: bool


@dataclass
class Manifest:
    """A collection's name, configuration and layers, newest first."""

    name: str
    config: Json
    active: str
    sealed: list[Sealed] = field(default_factory=list)
    base: str | None = None
    payload_indexes: dict[str, str | Json] = field(default_factory=dict)
    next_number: int = 1
    clean: bool = False

    def directories(self) -> set[str]:
        """The names of all layers' directories."""
        names = {self.active, *(unit.directory for unit in self.sealed)}
        return names if self.base is None else names | {self.base}

    def write(self, directory: Path) -> None:
        """Replace the manifest in `directory`; returns when it is durable."""
        write_bytes(directory, self.as_bytes())

    def as_bytes(self) -> bytes:
        """The file's content."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "name": self.name,
                "config": self.config,
                "layers": {
                    "active": self.active,
                    "sealed": [
                        {"directory": unit.directory, "deferrable": unit.deferrable}
                        for unit in self.sealed
                    ],
                    "base": self.base,
                },
                "payload_indexes": self.payload_indexes,
                "next_number": self.next_number,
                "clean": self.clean,
            },
            option=orjson.OPT_INDENT_2,
        )


def write_bytes(directory: Path, content: bytes) -> None:
    """Replace the manifest in `directory` by `content`; returns when it is durable."""
    temporary = directory / f"{FILE}.new"
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / FILE)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(directory: Path) -> Manifest | None:
    """The manifest in `directory`, or None if there is none (a collection never fully created).

    Raises ValueError, naming the file, if it is not a manifest of this format.
    """
    path = directory / FILE
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}); restore it or remove {directory}") from error
    if value.get("format") != FORMAT:
        raise ValueError(
            f"{path}: format {value.get('format')!r}, this version reads {FORMAT}; "
            "use the version that wrote it, or another storage directory"
        )
    layers = value["layers"]
    return Manifest(
        name=value["name"],
        config=value["config"],
        active=layers["active"],
        sealed=[Sealed(**unit) for unit in layers["sealed"]],
        base=layers["base"],
        payload_indexes=value["payload_indexes"],
        next_number=value["next_number"],
        clean=value["clean"],
    )

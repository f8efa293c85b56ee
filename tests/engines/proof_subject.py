"""Subjects of the proof for tests: scripts out of archives that are built here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from refill.config import PROJECT, load_images
from refill.image_sources import read_source
from refill.images import archive
from refill.proofs.calls import read_sources
from refill.proofs.engines import Archives
from refill.proofs.servers import DEFAULT, Program, find
from refill.proofs.subject import Scale, Subject

SMALL = Scale("test", 20, 10, 4, other_kills=10, cut_s=0.3)


def build(name: str, folder: Path) -> Path:
    """Build an image's archive from the sources as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pyz"
    if not path.exists():
        entry = load_images()[name]
        path.write_bytes(archive(name, read_source(PROJECT, entry).files))
    return path


@cache
def programs() -> dict[str, Program]:
    return {program.name: program for program in find({})}


@cache
def sources(image: str) -> dict[str, bytes]:
    with_archive = Path(mkdtemp(prefix="refill-proof-"))
    try:
        return read_sources(build(f"gateway-{image}", with_archive))
    finally:
        (with_archive / f"gateway-{image}.pyz").unlink()
        with_archive.rmdir()


def subject(image: str, folder: Path, server: str = DEFAULT) -> Subject:
    return Subject(
        image,
        sources(image),
        programs()[server],
        folder / "scratch",
        SMALL,
        parts=Archives(build(f"gateway-{image}", folder), build("qdrant-edge", folder)),
    )

"""What the proof is tried on: servers, scripts and whole gateways, by runtime."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.engines.description import EngineError
from refill.phases.image_records import archive_of, image_block, read_image
from refill.proofs.calls import read_sources
from refill.proofs.engines import QDRANT, Archives, Parts
from refill.proofs.findings import IMAGES
from refill.proofs.servers import Program, find, started_once


@dataclass(frozen=True)
class Setup:
    """What the proof is tried on.

    Attributes:
        runtime: `process` or `docker`.
        programs: all servers, the default first, the missing ones too.
        images: what the record says of each image.
        sources: the scripts of `old` and `new`, by name.
        parts: what a whole gateway of `old` and of `new` is made of.
        containers: what the record says of them: the daemon, and that they have no limits.
    """

    runtime: str
    programs: list[Program]
    images: Mapping[str, Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, bytes]]
    parts: Mapping[str, Parts]
    containers: Mapping[str, Any] | None = None


@contextmanager
def opened(
    plan: Mapping[str, Any],
    images: Mapping[str, Path],
    scratch: Path,
    say: Callable[[str], None],
) -> Iterator[Setup]:
    """Open what a plan's runtime runs.

    Args:
        plan: `servers`, and with `runtime` docker also `docker`: `host`.
        images: the records of `old`, `new` and `qdrant`, each beside its archive; in containers of
            `valkey`, too.
        scratch: a folder for what is tried before the first check.
        say: told what is removed that an earlier run left.

    Raises:
        EngineError: there is no default server or no daemon, or an image is not the one of its
            record.
        ScriptsError: an image has other scripts than the proof knows.
    """
    records = {name: read_image(path) for name, path in images.items()}
    docker = plan.get("runtime") == "docker"
    for path, record in zip(images.values(), records.values(), strict=True):
        if (record.get("runtime") == "docker") != docker:
            raise EngineError(
                f"{path.name}: is an image {'of an archive' if docker else 'of Docker'}, the proof "
                f"is to run {'in containers' if docker else 'as processes'}: build it for that "
                "(`runtime` in the config), or call the proof with or without --docker"
            )
    if docker:
        # Imported here: a proof without containers needs nothing of it.
        from refill.proofs.containers import in_containers

        with in_containers(plan["docker"]["host"], records, scratch, say) as setup:
            yield setup
        return
    archives = {name: _copied(path, records[name], scratch / name) for name, path in images.items()}
    given = plan["servers"]
    yield Setup(
        "process",
        [p if p.missing else started_once(p, scratch / p.name, given) for p in find(given)],
        {name: {**image_block(r), "archive": r["archive"]} for name, r in records.items()},
        {image: read_sources(archives[image]) for image in IMAGES},
        {image: Archives(archives[image], archives[QDRANT]) for image in IMAGES},
    )


def _copied(record_path: Path, record: Mapping[str, Any], folder: Path) -> Path:
    """Copy the archive beside an image's record, so that all checks run what was compared with it.

    Raises:
        EngineError: it is not the one of its record.
    """
    here = {**record, "archive": record_path.with_suffix(".pyz").name}
    found = archive_of(record_path.parent, here)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found, folder / found.name)
    # Looked at again: between the two looks it can have become another one.
    return archive_of(folder, here)

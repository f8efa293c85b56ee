"""Engines from published artifacts: fetched by Maven, checked, laid out as a home.

`config/native.yaml` names every file with its SHA-256; the client and its set-up are the machine's
own. What a release holds beside these artifacts (launchers, agents, most modules) is not there,
and the record of an engine says so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.engines import maven
from refill.engines.description import EngineError
from refill.evidence.hashes import sha256_file


def assemble(spec: Mapping[str, Any], home: Path, earlier: Path | None = None) -> None:
    """Lay out a home from an engine's artifacts.

    Args:
        spec: entry of config/native.yaml.
        home: folder that is empty, or not there; after an error half a home may lie in it.
        earlier: a home from which those artifacts are taken that are in it as they are pinned, so
            that nothing that is here needs a network.

    Raises:
        EngineError: Maven is missing, an artifact cannot be had, or one is not what is pinned.
    """
    missing = []
    for folder, pinned in spec["artifacts"].items():
        (home / folder).mkdir(parents=True)
        for coordinates, wanted in pinned.items():
            place = Path(folder, jar_name(coordinates))
            if earlier is None or not _taken(earlier / place, home / place, wanted):
                missing.append((coordinates, home / place, wanted))
    if missing:
        with tempfile.TemporaryDirectory(prefix=".fetched-", dir=home) as fetched:
            # All at once: most of the time is the client's own start.
            maven.copy([coordinates for coordinates, _, _ in missing], Path(fetched))
            for coordinates, place, wanted in missing:
                jar = Path(fetched, place.name)
                _check(coordinates, jar, wanted)
                jar.replace(place)
    # A release has them; a node would make what is missing, and may not write here.
    for name in ("bin", "plugins"):
        (home / name).mkdir(parents=True)
    for name, text in spec["files"].items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _taken(jar: Path, place: Path, wanted: str) -> bool:
    """Give a file that is the wanted one a second name; False where it is not."""
    try:
        if sha256_file(jar) != wanted:
            return False
        try:
            os.link(jar, place)
        except OSError:
            shutil.copyfile(jar, place)  # no hard links here
    except OSError:
        return False
    return True


def _check(coordinates: str, jar: Path, wanted: str) -> None:
    """Check that an artifact came, and that it is the pinned one."""
    if not jar.is_file():
        raise EngineError(
            f"{coordinates}: Maven ended well and left no {jar.name}: run "
            f"`mvn dependency:get -Dartifact={coordinates}` and look at what it says"
        )
    if (found := sha256_file(jar)) != wanted:
        group, artifact, version = coordinates.split(":")
        cached = f"{group.replace('.', '/')}/{artifact}/{version}"
        raise EngineError(
            f"{coordinates}: its SHA-256 is {found}, config/native.yaml says {wanted}: if it is "
            f"trusted, write its hash there; if not, remove {cached} from Maven's local repository "
            "(~/.m2/repository unless its settings say otherwise) and run again"
        )


def jar_name(coordinates: str) -> str:
    """Give the file name of an artifact."""
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"

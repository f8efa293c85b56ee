"""Engines from published artifacts: resolved by the ordinary `mvn`, checked, laid out as a home.

`config/native.yaml` names every file with its SHA-256; the client and its set-up are the machine's
own. What a release holds beside these artifacts (launchers, agents, most modules) is not there,
and the record of an engine says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import xml.sax.saxutils
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.engines.description import EngineError
from refill.evidence.hashes import sha256_file

CLIENT = "mvn"
RESOLVE_TIMEOUT_S = 900.0
_ADDRESS = re.compile(r"\s*\(?\w+://\S+")


def available() -> bool:
    """Say whether Maven's client is here."""
    return shutil.which(CLIENT) is not None


def assemble(spec: Mapping[str, Any], home: Path) -> dict[str, str]:
    """Lay out a home from an engine's artifacts.

    Args:
        spec: entry of config/native.yaml.
        home: folder that is made anew.

    Returns:
        The SHA-256 of each jar, by its path in the home.

    Raises:
        EngineError: Maven is missing, an artifact cannot be had, or one is not what is pinned.
    """
    shutil.rmtree(home, ignore_errors=True)
    made: dict[str, str] = {}
    fetched = home / "fetched"
    fetched.mkdir(parents=True)
    # Once for all folders: most of the time is the client's own start.
    resolve([c for pinned in spec["artifacts"].values() for c in pinned], fetched)
    for folder, pinned in spec["artifacts"].items():
        (home / folder).mkdir(parents=True)
        for coordinates, wanted in pinned.items():
            jar = home / folder / jar_name(coordinates)
            if (source := fetched / jar.name).is_file():
                source.replace(jar)
            found = sha256_file(jar) if jar.is_file() else "no file"
            if found != wanted:
                raise EngineError(
                    f"{coordinates}: its SHA-256 is {found}, config/native.yaml says {wanted}: if "
                    "it is trusted, write its hash there; if not, remove it from Maven's cache"
                )
            made[f"{folder}/{jar.name}"] = wanted
    shutil.rmtree(fetched)
    # A release has them; a node would make what is missing, and may not write here.
    for name in ("bin", "plugins"):
        (home / name).mkdir(parents=True)
    for name, text in spec["files"].items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return dict(sorted(made.items()))


def resolve(coordinates: Sequence[str], target: Path) -> None:
    """Have Maven copy artifacts (`group:artifact:version`) to a folder.

    Raises:
        EngineError: Maven is missing, fails, or takes too long; with its first error.
    """
    if not available():
        raise EngineError(
            f"Maven's client {CLIENT} is not on PATH: install it, or set `home` to a release"
        )
    with tempfile.TemporaryDirectory(prefix="refill-maven-") as folder:
        project = Path(folder) / "pom.xml"
        project.write_text(_project(coordinates))
        try:
            done = subprocess.run(
                [
                    CLIENT, "-B", "-q", "-f", str(project), "dependency:copy-dependencies",
                    "-DincludeScope=runtime", f"-DoutputDirectory={target.resolve()}",
                ],
                capture_output=True, text=True, errors="replace", timeout=RESOLVE_TIMEOUT_S,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"Maven did not do its work: {type(error).__name__}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).splitlines()
        first = next((line for line in said if "[ERROR]" in line), "it says nothing")
        # Where the machine's set-up looks for artifacts is its own business.
        raise EngineError(f"Maven: {_ADDRESS.sub('', first)[:400]}")


def jar_name(coordinates: str) -> str:
    """Give the file name of an artifact."""
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def _project(coordinates: Sequence[str]) -> str:
    """Give a project that depends on the artifacts and on nothing of theirs: they are all named."""
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    alone += "</exclusions>"
    parts = []
    for entry in coordinates:
        names = ("groupId", "artifactId", "version")
        values = zip(names, map(xml.sax.saxutils.escape, entry.split(":")), strict=True)
        text = "".join(f"<{name}>{value}</{name}>" for name, value in values)
        parts.append(f"<dependency>{text}{alone}</dependency>")
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>refill</groupId><artifactId>engine</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{''.join(parts)}</dependencies></project>\n"
    )

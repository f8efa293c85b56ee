"""Whether a native engine is at hand, and the record that says what it is made of, or why not."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.engines import artifacts, elasticsearch, java, native, opensearch
from refill.engines.description import EngineError
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json, write_json
from refill.evidence.scrub import without_paths

SCHEMA = "refill.engine/1"
DIALECTS: Mapping[str, native.Dialect] = {
    opensearch.NAME: opensearch.DIALECT,
    elasticsearch.NAME: elasticsearch.DIALECT,
}


@dataclass(frozen=True)
class Installed:
    """A native engine that can be started here, or runs at a URL.

    Attributes:
        home: its folder; None at a URL and in a container.
        java: what runs it there; None likewise.
        image: record of its image, for a container.
    """

    home: Path | None
    java: java.Java | None
    image: Mapping[str, Any] | None = None


def prepare(
    root: Path,
    name: str,
    spec: Mapping[str, Any],
    settings: Mapping[str, Any],
    home: Path,
    record: Path,
    code: str,
) -> dict[str, Any]:
    """Make a native engine ready to be started, if it can be had, and write its record.

    An engine that cannot be had is no error: its record says why, and its cells stand in the
    tables as not measured.

    Args:
        root: the project's working folder.
        name: `opensearch` or `elasticsearch`.
        spec: its entry in config/native.yaml.
        settings: the `rounds.native` section.
        home: folder for the engine when it is put together from artifacts.
        record: where the record goes.
        code: hash of the code.
    """
    own = settings[name]
    content: dict[str, Any] = {"schema": SCHEMA, "name": name, "code": code}
    home.mkdir(parents=True, exist_ok=True)
    try:
        if own["url"]:
            content |= {"status": "at hand", "source": "url"}
        else:
            place = Path(own["home"] or home)
            wanted = _java_to_fetch(spec, settings["java"], place)
            content |= _installed(name, spec, own["home"], home)
            if wanted is not None:
                archive = root / "results/downloads" / f"{wanted['package']}-{wanted['version']}"
                java.fetch(wanted, archive, place / "jdk")
            found = java_of(spec, settings["java"], place)
            content |= {"status": "at hand", "java": found.identity()}
    except EngineError as error:
        why = without_paths(str(error), [root])
        content |= {"status": "not at hand", "why": why}
    write_json(record, content)
    return content


def prepare_image(
    root: Path,
    name: str,
    reference: str,
    host: str | None,
    home: Path,
    record: Path,
    code: str,
) -> dict[str, Any]:
    """Make a native engine's image ready to be started, if it can be had, and write its record.

    Args:
        root: the project's working folder.
        name: `opensearch` or `elasticsearch`.
        reference: the image that is pulled unless it is there.
        host: the daemon's address; None: the default.
        home: folder that stays empty.
        record: where the record goes.
        code: hash of the code.

    Raises:
        DockerError: there is no daemon.
    """
    # Imported here: what runs without containers needs nothing of it.
    from refill.runtimes.docker_daemon import DockerError, connect
    from refill.runtimes.docker_pulls import resolve

    home.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"schema": SCHEMA, "name": name, "code": code, "source": "docker"}
    client = connect(host)
    try:
        image = resolve(client, reference, f"docker.{name}.pull")
        content |= {"status": "at hand", "image": {"name": name, **image}}
    except DockerError as error:
        content |= {"status": "not at hand", "why": without_paths(str(error), [root])}
    finally:
        client.close()
    write_json(record, content)
    return content


def _installed(name: str, spec: Mapping[str, Any], given: str | None, home: Path) -> dict[str, Any]:
    """Find or put together an engine's home."""
    if given:
        return {"source": "home", "version": version_of(Path(given), name), "jars": _jars(given)}
    jars = artifacts.assemble(spec, home)
    if name == elasticsearch.NAME:
        elasticsearch.complete(home)
    return {
        "source": "artifacts",
        "version": spec["version"],
        "jars": jars,
        "absent": list(spec["absent"]),
    }


def _java_to_fetch(spec: Mapping[str, Any], given: str, home: Path) -> Mapping[str, Any] | None:
    """Say which Java must be fetched: None where one is here, the pinned one where none is.

    Raises:
        EngineError: none is here, and the pinned one is not for this engine or machine.
    """
    try:
        java_of(spec, given, home)
    except EngineError:
        numbers, pinned = spec["java"], spec["fetched_java"]
        fits = numbers["least"] <= pinned["feature"] <= numbers.get("most", pinned["feature"])
        here = platform.system() == "Linux" and platform.machine() == pinned["machine"]
        if given == java.AUTO and fits and here:
            return dict(pinned)
        raise
    return None


def java_of(spec: Mapping[str, Any], given: str, home: Path) -> java.Java:
    """Give the Java that an engine runs on: the configured, its own, or one of this machine."""
    return java.find(given, spec["java"]["least"], spec["java"].get("most"), home / "jdk")


def version_of(home: Path, name: str) -> str:
    """Give the version of a release by the name of its main jar.

    Raises:
        EngineError: the folder holds no such engine.
    """
    for jar in sorted((home / "lib").glob(f"{name}-*.jar")):
        if match := re.fullmatch(rf"{name}-(\d+\.\d+\.\d+(?:-\w+)?)", jar.stem):
            return match[1]
    raise EngineError(
        f"rounds.native.{name}.home: no lib/{name}-VERSION.jar there: give the folder of an "
        "unpacked release"
    )


def _jars(home: str) -> dict[str, str]:
    lib = Path(home) / "lib"
    return {f"lib/{jar.name}": sha256_file(jar) for jar in sorted(lib.glob("*.jar"))}


def is_at_hand(record: Path) -> bool:
    """Say whether an engine's record says that it can be had."""
    return bool(read_json(record, SCHEMA)["status"] == "at hand")


def open_installation(
    record: Path, name: str, spec: Mapping[str, Any], settings: Mapping[str, Any], home: Path
) -> Installed:
    """Give what a round starts; it must be what the record was written of.

    Raises:
        EngineError: it is not at hand (the text is the record's reason), a jar has changed, or
            Java has.
    """
    content = read_json(record, SCHEMA)
    again = f"delete {record.name} of results/engines and run again"
    if content["status"] != "at hand":
        raise EngineError(content["why"])
    own = settings[name]
    if content["source"] == "docker":
        return Installed(None, None, content["image"])
    if content["source"] == "url":
        return Installed(None, None)
    place = Path(own["home"]) if own["home"] else home
    for jar, wanted in content["jars"].items():
        path = place / jar
        if not path.is_file() or sha256_file(path) != wanted:
            raise EngineError(f"{name}: {jar} is not the one that its record names: {again}")
    found = java_of(spec, settings["java"], place)
    if found.identity() != content["java"]:
        raise EngineError(
            f"{name}: Java is {found.version} now, its record says "
            f"{content['java']['version']}: {again}"
        )
    return Installed(place, found)

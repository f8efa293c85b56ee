"""The files of an engine's home: all of them by their hashes, and whether they are a whole release.

A release that a user unpacked is taken as it lies there, so what ran is known by the hash of each
of its files. What a node that is started here never reads is left out, and named.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from refill.engines.description import EngineError
from refill.evidence.hashes import sha256_file

# Names at the top of a home, and why they tell nothing of what runs.
LEFT_OUT: Mapping[str, str] = {
    "config": "a node that is started here has settings of its own",
    "data": "a node that is started here has data of its own",
    "logs": "what a node wrote that was started by hand",
}
# Put into every folder that a rule made.
_MARK = ".snakemake_timestamp"
_TRANSPORT = "modules/transport-netty4"
_DESCRIPTORS = ("plugin-descriptor.properties", "stable-plugin-descriptor.properties")
_SHOWN = 3


def files_of(home: Path) -> dict[str, str]:
    """Give the SHA-256 of each file of a home by its path in it; links are followed.

    Raises:
        EngineError: a link leads nowhere or in a circle, or a file cannot be read; with its path.
    """
    found = {}
    for path, file in sorted(_walk(home, "", frozenset())):
        try:
            found[path] = sha256_file(file)
        except OSError as error:
            raise EngineError(
                f"{path} cannot be read ({error.strerror}): make it readable to the user who runs "
                "the workflow, or unpack the release again"
            ) from error
    return found


def left_out_of(home: Path) -> dict[str, str]:
    """Give what of a home `files_of` leaves out, and why."""
    return {name: why for name, why in LEFT_OUT.items() if (home / name).exists()}


def unlike(wanted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Say how a home differs from what was recorded of it; None when it does not."""
    parts = [
        ("changed", sorted(k for k in wanted.keys() & found.keys() if wanted[k] != found[k])),
        ("added", sorted(found.keys() - wanted.keys())),
        ("missing", sorted(wanted.keys() - found.keys())),
    ]
    said = [f"{how}: {_some(paths)}" for how, paths in parts if paths]
    return "; ".join(said) or None


def check_release(home: Path, name: str, files: Mapping[str, str]) -> str:
    """Check that a home is one whole release of an engine, and give its version.

    Every jar is read through, which is where a copy that was cut off shows.

    Args:
        home: the release's folder.
        name: `opensearch` or `elasticsearch`.
        files: as `files_of` gives them.

    Raises:
        EngineError: it is another engine's, two releases in one, or a part of one; with the path
            in the home, and what to do.
    """
    version = _version(home, name, files)
    again = "unpack the release again, into an empty folder"
    own = re.compile(rf"lib/({name}-[a-z0-9-]+?|lucene-[a-z0-9-]+?)-(\d[\w.\-]*)\.jar")
    parts: dict[str, set[str]] = {}
    for match in filter(None, map(own.fullmatch, files)):
        parts.setdefault(match[1], set()).add(match[2])
    for part, versions in sorted(parts.items()):
        if len(versions) > 1:
            raise EngineError(f"lib holds {part} in versions {_some(sorted(versions))}: {again}")
        if part.startswith(f"{name}-") and versions != {version}:
            raise EngineError(
                f"lib/{part}-{min(versions)}.jar is not of {name} {version}, whose main jar lies "
                f"beside it: {again}"
            )
    for part in (f"{name}-core", f"{name}-x-content", "lucene-core"):
        if part not in parts:
            raise EngineError(
                f"lib/{part}-VERSION.jar is missing, this is part of a release: {again}"
            )
    if not any(path.startswith(_TRANSPORT) and path.endswith(".jar") for path in files):
        raise EngineError(f"{_TRANSPORT} has no jar, this is part of a release: {again}")
    _check_modules(home, name, version, files, again)
    for path in files:
        if path.endswith(".jar"):
            _check_jar(home, path, again)
    return version


def _walk(folder: Path, inside: str, above: frozenset[Path]) -> Iterator[tuple[str, Path]]:
    """Give the files below a folder; `above` are the folders on the way, to notice a circle."""
    real = folder.resolve()
    if real in above:
        raise EngineError(f"{inside} is a link that leads in a circle: remove it")
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise EngineError(
            f"{inside or 'its folder'} cannot be listed ({error.strerror}): make it readable to "
            "the user who runs the workflow"
        ) from error
    for entry in entries:
        path = f"{inside}/{entry.name}" if inside else entry.name
        if not inside and (entry.name in LEFT_OUT or entry.name == _MARK):
            continue
        if entry.is_dir():
            yield from _walk(entry, path, above | {real})
        elif entry.is_file():
            yield path, entry
        elif entry.is_symlink():
            raise EngineError(f"{path} is a link to what is not there: mend or remove it")
        else:
            raise EngineError(f"{path} is no file: remove it")


def _version(home: Path, name: str, files: Mapping[str, str]) -> str:
    """Give the version in the name of a release's main jar."""
    main = re.compile(r"lib/(elasticsearch|opensearch)-(\d+\.\d+\.\d+(?:-\w+)?)\.jar")
    jars = [match for match in map(main.fullmatch, files) if match]
    own = [match[2] for match in jars if match[1] == name]
    if len(jars) > 1:
        names = _some([f"{match[1]} {match[2]}" for match in jars])
        raise EngineError(
            f"lib holds the main jars of {names}: unpack one release into an empty folder"
        )
    if own:
        return own[0]
    hint = f"; this is {jars[0][1]} {jars[0][2]}" if jars else _near(home, name)
    raise EngineError(
        f"no lib/{name}-VERSION.jar there{hint}: give the folder of an unpacked release of {name}"
    )


def _near(home: Path, name: str) -> str:
    """Say where a release lies that was given with one folder too many or too few."""
    if list(home.parent.glob(f"lib/{name}-[0-9]*.jar")):
        return "; the folder above has one"
    inner = sorted(home.glob(f"*/lib/{name}-[0-9]*.jar"))
    return f"; its folder {inner[0].parents[1].name} has one" if inner else ""


def _check_modules(
    home: Path, name: str, version: str, files: Mapping[str, str], again: str
) -> None:
    """Check that each module says what it is, and is of the release's version."""
    modules = sorted({path.split("/")[1] for path in files if path.count("/") > 1
                      and path.startswith("modules/")})  # fmt: skip
    for module in modules:
        kept = [f"modules/{module}/{file}" for file in _DESCRIPTORS]
        descriptor = next((path for path in kept if path in files), None)
        if descriptor is None:
            raise EngineError(f"{kept[0]} is missing, this is part of a release: {again}")
        text = (home / descriptor).read_text(encoding="utf-8", errors="replace")
        said = re.search(rf"^{name}\.version\s*=\s*(\S+)", text, re.MULTILINE)
        # A build that is no release yet may say so in one of the two alone.
        if said and said[1].split("-")[0] != version.split("-")[0]:
            raise EngineError(
                f"{descriptor} is of {name} {said[1]}, the main jar is of {version}: {again}"
            )


def _check_jar(home: Path, path: str, again: str) -> None:
    try:
        with zipfile.ZipFile(home / path) as jar:
            broken = jar.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, ValueError) as error:
        raise EngineError(f"{path} is no whole jar ({error}): {again}") from error
    if broken is not None:
        raise EngineError(f"{path} is damaged (in {broken}): {again}")


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more

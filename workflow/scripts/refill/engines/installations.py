"""Whether a native engine is at hand, and the record that says what it is made of, or why not."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.batch_job import batch_job
from refill.engines import artifacts, elasticsearch, home_files, java, native, opensearch
from refill.engines.description import EngineError, NotInstalledError
from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import RecordError, canonical_json, check_forms, read_json, write_json
from refill.evidence.scrub import without_paths
from refill.temporary import folder_beside

SCHEMA = "refill.engine/2"
# The folder of a home that holds its Java.
JAVA = "jdk"
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


def home_of(record: Path) -> Path:
    """Give the folder for what is put together or fetched for an engine of a record."""
    return record.with_suffix("") / "home"


def prepare(
    root: Path,
    name: str,
    spec: Mapping[str, Any],
    settings: Mapping[str, Any],
    home: Path,
    record: Path,
    code: str,
    attempt: int = 1,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make a native engine ready to be started, if it can be had, and write its record.

    An engine that cannot be had is no error: its record says why, and its cells stand in the
    tables as not measured. A home that is there is replaced by another one only, at the end, so
    that a round can go on with it meanwhile.

    Args:
        root: the project's working folder.
        name: `opensearch` or `elasticsearch`.
        spec: its entry in config/native.yaml.
        settings: the `rounds.native` section.
        home: folder for what is put together or fetched here; nothing is written anywhere else.
        record: where the record goes.
        code: hash of the code.
        attempt: which try this is, as `next_attempt` gives it.
        check: called right before anything takes its place; what it raises leaves all as it was.
    """
    content: dict[str, Any] = {"schema": SCHEMA, "name": name, "code": code, "attempt": attempt}
    with _made_beside(home) as (made, put_in_place):
        try:
            if settings[name]["url"]:
                content |= {"status": "at hand", "source": "url"}
            else:
                content |= {"status": "at hand"}
                content |= _installed(root, name, spec, settings, made, home)
        except EngineError as error:
            content |= _not_at_hand(error, root)
        check()
        if content["status"] == "at hand":
            put_in_place()
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
    attempt: int = 1,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make a native engine's image ready to be started, if it can be had, and write its record.

    Args:
        root: the project's working folder.
        name: `opensearch` or `elasticsearch`.
        reference: the image that is pulled unless it is there.
        host: the daemon's address; None: the default.
        home: folder that is empty afterwards, if it can be had.
        record: where the record goes.
        code: hash of the code.
        attempt: which try this is, as `next_attempt` gives it.
        check: as for `prepare`.

    Raises:
        DockerError: there is no daemon.
    """
    # Imported here: what runs without containers needs nothing of it.
    from refill.runtimes.docker_daemon import DockerError, connect
    from refill.runtimes.docker_pulls import resolve

    content: dict[str, Any] = {"schema": SCHEMA, "name": name, "code": code, "attempt": attempt}
    content["source"] = "docker"
    client = connect(host)
    try:
        image = resolve(client, reference, f"docker.{name}.pull")
        content |= {"status": "at hand", "image": {"name": name, **image}}
    except DockerError as error:
        content |= _not_at_hand(error, root)
    finally:
        client.close()
    with _made_beside(home) as (_, put_in_place):
        check()
        if content["status"] == "at hand":
            put_in_place()
    write_json(record, content)
    return content


@contextmanager
def _made_beside(home: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Give an empty folder beside a home, and what puts it in the home's place.

    A home of the same files stays: rounds may run from it, and a job of a cluster that somebody
    else's has taken over must not take it away.
    """
    with folder_beside(home) as folder:
        made = folder / home.name
        made.mkdir()

        def put_in_place() -> None:
            if not _same(made, home):
                if home.exists():
                    home.rename(folder / "earlier")
                made.rename(home)

        yield made, put_in_place


def _same(made: Path, home: Path) -> bool:
    try:
        return home.is_dir() and home_files.files_of(made) == home_files.files_of(home)
    except EngineError:
        return False  # not even readable


def _not_at_hand(error: Exception, root: Path) -> dict[str, Any]:
    """Give what a record says of an engine that cannot be had.

    `again`: whether the next run of the workflow tries once more, though its plan is the same. The
    plan knows what is installed where it is made, which on a cluster is not the node of the job.
    """
    again = not isinstance(error, NotInstalledError) or batch_job() is not None
    why = without_paths(str(error), [root])
    return {"status": "not at hand", "why": why, "again": again}


def _installed(
    root: Path,
    name: str,
    spec: Mapping[str, Any],
    settings: Mapping[str, Any],
    home: Path,
    earlier: Path,
) -> dict[str, Any]:
    """Find or put together an engine's home and its Java; give what a record says of them.

    `home` is empty, `earlier` one that may hold the same files already.
    """
    given, asked_java = settings[name]["home"], settings["java"]
    place = Path(given) if given else home
    content: dict[str, Any] = {"source": "home" if given else "artifacts"}
    if given:
        content |= _release(name, place)
    # Asked before the artifacts: without Java nothing needs to be downloaded.
    to_fetch = _java_to_fetch(spec, asked_java, (place, home))
    if not given:
        artifacts.assemble(spec, home, earlier)
        if name == elasticsearch.NAME:
            elasticsearch.complete(home)
        content |= {"version": spec["version"], "absent": list(spec["absent"])}
    if to_fetch is not None:
        archive = root / "results/downloads" / f"{to_fetch['package']}-{to_fetch['version']}"
        java.fetch(to_fetch, archive, home / JAVA)
    if given:
        content["own_files"] = home_files.files_of(home)
    else:
        content["files"] = home_files.files_of(home)
    return {**content, "java": java_of(spec, asked_java, (place, home)).identity()}


def _release(name: str, place: Path) -> dict[str, Any]:
    """Look through the release that the config names.

    Raises:
        EngineError: it is none, or not whole.
    """
    try:
        if not place.is_dir():
            raise EngineError(f"there is no such folder: give that of an unpacked {name} release")
        files = home_files.files_of(place)
        version = home_files.check_release(place, name, files)
        left_out = home_files.left_out_of(place)
    except (EngineError, OSError) as error:
        # Such as a name that is too long for a path, which `is_dir` does not take for no folder.
        why = error.strerror if isinstance(error, OSError) else error
        raise EngineError(f"rounds.native.{name}.home: {why}") from error
    return {"version": version, "files": files, "left_out": left_out}


def _java_to_fetch(
    spec: Mapping[str, Any], given: str, homes: Sequence[Path]
) -> Mapping[str, Any] | None:
    """Say which Java must be fetched: None where one is here, the pinned one where none is.

    Raises:
        EngineError: none is here, and the pinned one is not for this engine or machine.
    """
    try:
        java_of(spec, given, homes)
    except EngineError:
        numbers, pinned = spec["java"], spec["fetched_java"]
        fits = numbers["least"] <= pinned["feature"] <= numbers.get("most", pinned["feature"])
        here = platform.system() == "Linux" and platform.machine() == pinned["machine"]
        if given == java.AUTO and fits and here:
            return dict(pinned)
        raise
    return None


def java_of(spec: Mapping[str, Any], given: str, homes: Sequence[Path]) -> java.Java:
    """Give the Java that an engine runs on: the configured, one of its homes, or this machine's."""
    numbers = spec["java"]
    bundled = [home / JAVA for home in homes]
    return java.find(given, numbers["least"], numbers.get("most"), bundled)


def read_record(record: Path) -> dict[str, Any]:
    """Read an engine's record.

    Raises:
        RecordError: it is none, or has not what such a record has.
    """
    content = read_json(record, SCHEMA)
    check_forms(record, content, {"status": (str,), "attempt": (int,)})
    if content["status"] != "at hand":
        check_forms(record, content, {"why": (str,)})
        return content
    check_forms(record, content, {"source": (str,)})
    needed = {
        "home": ("files", "own_files", "java"),
        "artifacts": ("files", "java"),
        "docker": ("image",),
    }
    check_forms(record, content, dict.fromkeys(needed.get(content["source"], ()), (dict,)))
    return content


def next_attempt(record: Path) -> int:
    """Give the number of the try that a plan asks for.

    It stays that of the record, so that nothing is done twice, unless the engine was not at hand
    for a reason that may have passed, or what was put together for it is gone: then it is the next,
    and the changed plan runs the rule. So does 0, where what stands there is no record, or one of
    an earlier version.
    """
    if not record.exists():
        return 1
    try:
        content = read_record(record)
    except RecordError:
        return 0
    made = content.get("files" if content.get("source") == "artifacts" else "own_files")
    gone = bool(made) and not home_of(record).is_dir()
    return int(content["attempt"]) + int(gone or bool(content.get("again")))


def identity_of(record: Path) -> str | None:
    """Give the SHA-256 of what an engine's record says of it; None where it is not at hand.

    How often it was tried, by which code, and why it is not there change nothing for a round. None
    also where there is no record, or something else in its place: the rule makes it first.
    """
    try:
        content = read_record(record)
    except RecordError:
        return None
    if content["status"] != "at hand":
        return None
    kept = {key: value for key, value in content.items() if key not in ("attempt", "code")}
    return sha256_bytes(canonical_json(kept).encode())


def is_at_hand(record: Path) -> bool:
    """Say whether an engine's record says that it can be had."""
    return bool(read_record(record)["status"] == "at hand")


def open_installation(
    record: Path, name: str, spec: Mapping[str, Any], settings: Mapping[str, Any], home: Path
) -> Installed:
    """Give what a round starts; it must be what the record was written of, file by file.

    Raises:
        EngineError: it is not at hand (the text is the record's reason), a file was changed, added
            or removed, or Java is another.
    """
    content = read_record(record)
    if content["status"] != "at hand":
        raise EngineError(content["why"])
    if content["source"] == "docker":
        return Installed(None, None, content["image"])
    if content["source"] == "url":
        return Installed(None, None)
    given = settings[name]["home"]
    place = Path(given) if given else home
    again = f"delete {record.name} of results/engines and run again"
    looked_at = [(place, "files"), *([(home, "own_files")] if given else [])]
    for folder, key in looked_at:
        if not folder.is_dir():
            raise EngineError(f"{name}: its folder is gone: {again}")
        if how := home_files.unlike(content[key], home_files.files_of(folder)):
            raise EngineError(
                f"{name}: its home is not the one that its record names: {how}: put it back as it "
                f"was, or, if it is meant, {again}"
            )
    found = java_of(spec, settings["java"], (place, home))
    if found.identity() != content["java"]:
        raise EngineError(
            f"{name}: Java is {found.version} now, its record says "
            f"{content['java']['version']}: {again}"
        )
    return Installed(place, found)

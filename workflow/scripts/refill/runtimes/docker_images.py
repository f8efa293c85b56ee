"""Images for containers: built here from pinned sources, or pulled; each with its record.

A build is as reproducible as its Dockerfile: the context has one form, nothing of it depends on the
network (but for an image that Docker alone builds, `runtime: docker` without wheels of ours), and
the result is brought into one form (`refill.docker_build.normal_form`). Two uncached builds of one
source on one base give one ID.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from docker.errors import DockerException, ImageNotFound
from requests import RequestException

from refill.docker_build.context import context
from refill.docker_build.dockerfile import SCRATCH, Bases, bases, declared
from refill.docker_build.normal_form import Base, normalise
from refill.docker_build.wheels import LOCK, fetch
from refill.evidence.records import write_json
from refill.image_sources import IMAGES, ImageError, Source
from refill.images import Entries, checked_source, described
from refill.runtimes.docker_daemon import DockerError, connect, daemon_record, told
from refill.runtimes.docker_pulls import present, record_pulled, resolve
from refill.temporary import folder_beside

__all__ = ["BuildFiles", "DockerError", "build", "connect", "present", "record_pulled", "resolve"]

# 1980-01-01, as in the archives of the process runtime: a tree has no time of its own.
TREE_EPOCH = 315_532_800
LOG_LINES = 15
IMAGE_LABEL = "org.refill.image"
_BUILD_TIMEOUT_S = 3600
_GIVEN = ("BASE", "SOURCE_DATE_EPOCH")
# The daemon colours what a step writes to its standard error.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BUILT = re.compile(r"Successfully built ([0-9a-f]{12,64})")


@dataclass(frozen=True)
class BuildFiles:
    """Where a build puts things: its record, its log, and the folder that keeps wheels."""

    record: Path
    log: Path
    wheels: Path


def build(
    client: Any,
    project: Path,
    name: str,
    entries: Entries,
    settings: Mapping[str, Any],
    files: BuildFiles,
    code: str,
    nocache: bool = False,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Build an image from its pinned source, bring it into its one form, and write its record.

    Args:
        client: a connected `docker.DockerClient`.
        project: the folder that paths of `entries` are relative to, with the lock.
        name: the image.
        entries: config/images.yaml by name, at least `refill.images.needed`.
        settings: the section `docker` of the configuration: `base`, `python`.
        files: where to write.
        code: hash of the code that builds.
        nocache: take no step from the daemon's cache.
        say: told what is done; the lines of the build, too.

    Returns:
        The record (schema refill.image/1); `id` is the image's ID.

    Raises:
        ImageError: the source is not as pinned, a wheel cannot be had, or the Dockerfile fails;
            then with the last lines of the log.
        DockerError: the daemon cannot be asked, or the base image cannot be had.
    """
    entry = entries[name]
    state, source = checked_source(project, name, entries)
    epoch = TREE_EPOCH if source.committed_at is None else source.committed_at
    daemon = daemon_record(client)
    arguments = _arguments(name, entry, source, settings["base"], epoch)
    dockerfile = source.files.get("Dockerfile", b"")
    wheels = fetch(
        name,
        entry["dependencies"],
        project / LOCK,
        settings["python"],
        daemon["architecture"],
        files.wheels,
        say,
    )
    tar = context(name, source, wheels, epoch)
    on = bases(name, dockerfile, arguments)
    base, others = _base_images(client, on, say)
    described_as = described(name, entries, state, source)
    labels = _labels(name, described_as)
    built = _Build(client, name, files.log, say).run(
        tar, arguments, labels, nocache, offline=bool(wheels)
    )
    identity = _in_one_form(client, name, built, base, epoch, files.record)
    tag = entry.get("tag", f"{name}:{identity.removeprefix('sha256:')[:12]}")
    _tag(client, name, identity, tag)
    record = {
        **described_as,
        "runtime": "docker",
        "id": identity,
        "tag": tag,
        "build_arguments": ({"variant": entry["variant"]} if "variant" in entry else {}),
        "dependencies": {wheel.package: wheel.version for wheel in wheels},
        "dependency_files": {wheel.package: wheel.sha256 for wheel in wheels},
        "code": code,
        "docker": {
            "id": identity,
            "tag": tag,
            "repo_digests": _repo_digests(client, identity),
            "base": base,
            "other_bases": others,
            "build_arguments": arguments,
            "labels": labels,
            "source_date_epoch": epoch,
            "wheels": {wheel.package: wheel.path.name for wheel in wheels},
            "log": f"results/images/{files.log.name}",
            "normalised": True,
            "python": settings["python"],
            "daemon": daemon,
        },
    }
    write_json(files.record, record)
    return record


def _arguments(
    name: str, entry: Mapping[str, Any], source: Source, base: str, epoch: int
) -> dict[str, str]:
    """Return the build arguments that the Dockerfile declares."""
    known = declared(source.files.get("Dockerfile", b""))
    own: Mapping[str, str] = entry.get("build_arguments", {})
    if unknown := sorted(own.keys() - known):
        raise ImageError(
            f"{name}: build_arguments.{unknown[0]} in {IMAGES}: its Dockerfile has no such ARG; it "
            f"has {', '.join(sorted(known)) or 'none'}"
        )
    given = dict(zip(_GIVEN, (base, str(epoch)), strict=True)) | dict(own)
    return {key: given[key] for key in sorted(given) if key in known}


def _labels(name: str, described_as: Mapping[str, Any]) -> dict[str, str]:
    origin = described_as["source"]
    labels = {
        IMAGE_LABEL: name,
        "org.refill.tree": described_as["tree"],
        "org.opencontainers.image.title": name,
        "org.opencontainers.image.source": origin.get("repository", origin.get("path")),
        # A tree has no commit: what it holds says which state it is.
        "org.opencontainers.image.revision": origin.get("commit", described_as["tree"]),
    }
    if "variant" in origin:
        labels["org.refill.variant"] = origin["variant"]
    return dict(sorted(labels.items()))


def _base_images(
    client: Any, on: Bases, say: Callable[[str], object]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Resolve what a Dockerfile builds on, so that the build itself pulls nothing."""
    others = [resolve(client, reference, "FROM", say) for reference in on.others]
    if on.last == SCRATCH:
        return None, others
    return resolve(client, on.last, "docker.base", say), others


class _Build:
    """One build by the daemon, with its log."""

    def __init__(self, client: Any, name: str, log: Path, say: Callable[[str], object]) -> None:
        self._client = client
        self._name = name
        self._log = log
        self._say = say
        self._last: list[str] = []

    def run(
        self,
        tar: bytes,
        arguments: Mapping[str, str],
        labels: Mapping[str, str],
        nocache: bool,
        offline: bool,
    ) -> str:
        """Build; return the ID that the daemon gives. `offline`: its steps have no network."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._log.open("w", encoding="utf-8") as log,
            told(f"{self._name}: the build was given up"),
        ):
            events = self._client.api.build(
                fileobj=io.BytesIO(tar),
                custom_context=True,
                buildargs=dict(arguments),
                labels=dict(labels),
                nocache=nocache,
                pull=False,
                rm=True,
                forcerm=True,
                decode=True,
                timeout=_BUILD_TIMEOUT_S,
                network_mode="none" if offline else None,
            )
            built = None
            for event in events:
                self._keep(log, str(event.get("stream") or event.get("error") or ""))
                if "error" in event:
                    raise ImageError(
                        f"{self._name}: its Dockerfile failed; the last lines of the build:\n"
                        + "\n".join(f"    {line}" for line in self._last)
                    )
                if isinstance(event.get("aux"), dict) and "ID" in event["aux"]:
                    built = event["aux"]["ID"]
                elif found := _BUILT.search(event.get("stream", "")):
                    built = built or found[1]
        if built is None:
            raise DockerError(f"{self._name}: the daemon built it and does not say its ID")
        return str(built)

    def _keep(self, log: IO[str], text: str) -> None:
        text = _COLOURS.sub("", text)
        log.write(text)
        for line in text.splitlines():
            if line.strip():
                self._say(line.rstrip())
                self._last = [*self._last[1 - LOG_LINES :], line.rstrip()]


def _in_one_form(
    client: Any, name: str, built: str, base: Mapping[str, Any] | None, epoch: int, record: Path
) -> str:
    """Bring a built image into its one form; return its ID. What was built is removed."""
    try:
        identity = _saved_and_loaded(client, name, built, base, epoch, record)
    except BaseException:
        # It has no tag: nobody would find it, and a full disk may be why this failed.
        with suppress(DockerException, RequestException):
            client.api.remove_image(built)
        raise
    return identity


def _saved_and_loaded(
    client: Any, name: str, built: str, base: Mapping[str, Any] | None, epoch: int, record: Path
) -> str:
    with (
        told(f"{name}: the built image cannot be saved and loaded"),
        folder_beside(record) as folder,
    ):
        saved, written = folder / "saved.tar", folder / "normal.tar"
        with saved.open("wb") as file:
            for block in client.api.get_image(built):
                file.write(block)
        normalise(saved, written, _base_of(client, base), epoch)
        with written.open("rb") as file:
            loaded = client.images.load(file)
        identity: str = loaded[0].id
        # The untagged image as it was built; the one that is kept has its layers' content.
        if identity != client.api.inspect_image(built)["Id"]:
            client.api.remove_image(built)
    return identity


def _base_of(client: Any, base: Mapping[str, Any] | None) -> Base:
    if base is None:
        return Base()
    layers = client.api.inspect_image(base["id"])["RootFS"]["Layers"]
    return Base(tuple(layers), len(client.api.history(base["id"])))


def _tag(client: Any, name: str, identity: str, tag: str) -> None:
    """Give an image its tag, unless that would take it from an image that was not built here."""
    with told(f"{name}: cannot be tagged {tag}"):
        try:
            before = client.api.inspect_image(tag)
        except ImageNotFound:
            before = None
        if before is not None and before["Id"] != identity:
            labels = before["Config"].get("Labels") or {}
            if IMAGE_LABEL not in labels:
                raise ImageError(
                    f"{name}: {tag} is the tag of another image, which was not built here "
                    f"({before['Id'][:19]}): give that one another tag, or set `tag` in {IMAGES}"
                )
        repository, _, label = tag.rpartition(":")
        client.api.tag(identity, repository, label)


def _repo_digests(client: Any, identity: str) -> list[str]:
    return sorted(client.api.inspect_image(identity).get("RepoDigests") or [])

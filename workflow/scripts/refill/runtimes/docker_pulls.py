"""Images that are pulled: looked for in the daemon first, pinned by what was found, with a warning
where their reference can mean another image tomorrow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import DockerException, ImageNotFound

from refill.evidence.records import read_json, write_json
from refill.images import SCHEMA
from refill.runtimes.docker_daemon import DockerError, daemon_record, told

# A tag that says major, minor and patch is meant to stay; all others move.
_ADDRESSES = re.compile(
    r'\w+ "?\w+://[^\s"]+"?:? ?|dial tcp(?: \S+:\d+)?: |lookup \S+ on \S+:\d+: |lookup \S+: '
)
_FIXED_TAG = re.compile(r"v?\d+\.\d+\.\d+")


@dataclass(frozen=True)
class Reference:
    """An image's reference, such as `valkey/valkey:8.1.10` or `valkey/valkey@sha256:...`."""

    repository: str
    tag: str | None
    digest: str | None

    @property
    def floating(self) -> bool:
        """Whether it is expected to mean another image after a while."""
        return self.digest is None and not _FIXED_TAG.match(self.tag or "")


def parse(reference: str) -> Reference:
    """Take a reference apart."""
    name, _, digest = reference.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # the colon of a port, or none
        repository, tag = name, ""
    return Reference(repository, tag or None, digest or None)


def resolve(
    client: Any, reference: str, key: str, say: Callable[[str], object] = print
) -> dict[str, Any]:
    """Return which image a reference means, pulling it if the daemon does not have it.

    Nothing goes over the network when the image is there.

    Args:
        client: a connected `docker.DockerClient`.
        reference: the image, by tag or digest.
        key: where the reference stands in the configuration, for messages.
        say: told what is done, and warnings.

    Returns:
        {"reference", "id", "pinned": "name@sha256:..." or None for an image of no registry,
        "floating", "repo_digests", "warnings", "os", "architecture"}.

    Raises:
        DockerError: it is not there and cannot be pulled, or is of another kind of machine.
    """
    parsed = parse(reference)
    with told(f"{key}: {reference}"):
        try:
            found = client.api.inspect_image(reference)
        except ImageNotFound:
            _pull(client, parsed, reference, key, say)
            found = client.api.inspect_image(reference)
        _check_platform(client, found, reference, key)
    digests: list[str] = sorted(found.get("RepoDigests") or [])
    own = [d for d in digests if _familiar(parse(d).repository) == _familiar(parsed.repository)]
    exact = [d for d in own if parse(d).digest == parsed.digest]
    pinned = next(iter(exact or own), None)
    warnings = _warnings(reference, parsed, pinned, key)
    for warning in warnings:
        say(f"warning: {warning}")
    return {
        "reference": reference,
        "id": found["Id"],
        "pinned": pinned,
        "floating": parsed.floating,
        "repo_digests": digests,
        "warnings": warnings,
        "os": found["Os"],
        "architecture": found["Architecture"],
    }


def record_pulled(
    client: Any, name: str, reference: str, record_path: Path, code: str
) -> dict[str, Any]:
    """Resolve a pulled image and write its record (schema refill.image/1); return the record.

    `name` is its key in the section `docker` of the configuration. Raises DockerError as `resolve`.
    """
    found = resolve(client, reference, f"docker.{name}.pull")
    record = {
        "schema": SCHEMA,
        "name": name,
        "runtime": "docker",
        "code": code,
        "daemon": daemon_record(client),
        **found,
    }
    write_json(record_path, record)
    return record


def present(client: Any, record: Mapping[str, Any], say: Callable[[str], object] = print) -> str:
    """Return the ID of a recorded image that is sure to be in the daemon.

    A pulled one that is gone is pulled again, by the digest that its record holds, so that it is
    the same. Never call it in a timed section.

    Raises:
        DockerError: it is gone, and was built here or is in no registry.
    """
    identity: str = record["id"]
    name, pinned = record["name"], record.get("pinned")
    with told(f"image {name}: {identity[:19]}"):
        try:
            client.api.inspect_image(identity)
            return identity
        except ImageNotFound:
            pass
    if pinned is None:
        raise DockerError(
            f"image {name}: {identity[:19]} is not in the daemon any more: delete "
            f"results/images/{name}.json and run again"
        )
    found = resolve(client, pinned, f"image {name}", say)
    if found["id"] != identity:
        raise DockerError(
            f"image {name}: {pinned} is {found['id'][:19]} here, its record says {identity[:19]}: "
            f"delete results/images/{name}.json and run again"
        )
    return identity


def all_present(client: Any, records: Iterable[Path], say: Callable[[str], object] = print) -> None:
    """See that the daemon has each image that is recorded, as `present` does.

    `records` are files: of images, or of native engines, which may have one and may not.

    Raises:
        DockerError: it has not, and what to do.
    """
    for path in records:
        content = read_json(path)
        image = content if content["schema"] == SCHEMA else content.get("image")
        if image is not None:
            present(client, image, say)


def _check_platform(client: Any, found: Mapping[str, Any], reference: str, key: str) -> None:
    """Refuse an image that would run under an emulator, or not at all."""
    version = client.version()
    here, its = (version["Os"], version["Arch"]), (found["Os"], found["Architecture"])
    if here != its:
        raise DockerError(
            f"{key}: {reference} is of {'/'.join(its)}, and the daemon's machine is "
            f"{'/'.join(here)}: remove it there (`docker image rm`) so that its own is pulled, or "
            "name an image that has it"
        )


def _pull(
    client: Any, parsed: Reference, reference: str, key: str, say: Callable[[str], object]
) -> None:
    say(f"pulling {reference}")
    failed: str | None = None
    try:
        events = client.api.pull(
            parsed.repository, tag=parsed.digest or parsed.tag or "latest", stream=True, decode=True
        )
        for event in events:
            if "error" in event:
                failed = str(event["error"])
            elif event.get("status", "").startswith(("Digest:", "Status:")):
                say(event["status"])
    except DockerException as error:
        failed = str(getattr(error, "explanation", None) or error)
    if failed is not None:
        raise DockerError(
            f"{key}: {reference} is not in the daemon and cannot be pulled ({_plain(failed)}): "
            "load or pull it by hand, or name another one"
        )


def _plain(words: str) -> str:
    """Take addresses out of the daemon's words: which registry and resolver is its own business."""
    return _ADDRESSES.sub("", words).strip()


def _familiar(repository: str) -> str:
    """Return a repository as the daemon lists it, without what stands for the default."""
    return repository.removeprefix("docker.io/").removeprefix("library/")


def _warnings(reference: str, parsed: Reference, pinned: str | None, key: str) -> list[str]:
    if not parsed.floating:
        return []
    if pinned is None:
        return [f"{key}: {reference} is in no registry: its ID alone says which image it is"]
    return [
        f"{key}: {reference} may mean another image tomorrow; today it is {pinned}: write that "
        "there to keep it"
    ]

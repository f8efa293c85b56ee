"""Pulled images on a real daemon and a real registry: pinned, warned of, and not fetched twice."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from daemon_fixture import cannot
from docker.errors import ImageNotFound
from refill.evidence.records import read_json
from refill.runtimes.docker_images import DockerError, present, record_pulled, resolve
from registry_fixture import PROGRAM, Registry
from service_process import PATH

pytestmark = pytest.mark.docker


@pytest.fixture
def registry(docker_client: Any, tmp_path: Path) -> Iterator[Registry]:
    if shutil.which(PROGRAM, path=PATH) is None:
        cannot(f"no {PROGRAM}: apt-get install docker-registry")
    with Registry(tmp_path) as running:
        yield running
        for image in docker_client.api.images():
            # What the daemon has only under names of this registry.
            names = [*(image["RepoTags"] or []), *(image["RepoDigests"] or [])]
            if any(name.startswith(running.host) for name in names):
                with suppress(ImageNotFound):
                    docker_client.api.remove_image(image["Id"], force=True)


def test_a_tag_is_pulled_and_recorded_with_its_digest(
    docker_client: Any, registry: Registry, tmp_path: Path
) -> None:
    reference, identity = registry.push(docker_client, "some/engine", "v8.1.10", "one")
    path = tmp_path / "results/images/valkey.json"
    record = record_pulled(docker_client, "valkey", reference, path, "code")
    assert read_json(path, "refill.image/1") == record
    pinned = f"{registry.host}/some/engine@{registry.digest('some/engine', 'v8.1.10')}"
    assert record["id"] == identity
    assert record["pinned"] == pinned
    assert record["repo_digests"] == [pinned]
    assert record["floating"] is False
    assert record["warnings"] == []
    assert record["runtime"] == "docker"
    assert record["daemon"]["version"] == docker_client.version()["Version"]


@pytest.mark.parametrize("tag", ["latest", "8", ""])
def test_a_floating_tag_is_pinned_with_a_warning(
    docker_client: Any, registry: Registry, tag: str
) -> None:
    reference, identity = registry.push(docker_client, "some/engine", tag or "latest", tag)
    said: list[str] = []
    given = reference if tag else reference.removesuffix(":latest")
    found = resolve(docker_client, given, "docker.valkey.pull", said.append)
    digest = registry.digest("some/engine", tag or "latest")
    assert found["id"] == identity
    assert found["floating"] is True
    assert found["pinned"] == f"{registry.host}/some/engine@{digest}"
    (warning,) = found["warnings"]
    assert f"docker.valkey.pull: {given} may mean another image tomorrow" in warning
    assert digest in warning
    assert f"warning: {warning}" in said


def test_an_image_that_is_there_needs_no_registry(docker_client: Any, registry: Registry) -> None:
    reference, _ = registry.push(docker_client, "some/engine", "1.0.0", "one")
    found = resolve(docker_client, reference, "key")
    asked = registry.log()
    said: list[str] = []
    assert resolve(docker_client, reference, "key", said.append) == found
    assert resolve(docker_client, found["pinned"], "key")["id"] == found["id"]
    assert registry.log() == asked
    registry.stop()
    assert resolve(docker_client, reference, "key", said.append) == found
    assert said == []


def test_a_digest_means_the_same_image_after_its_tag_moved(
    docker_client: Any, registry: Registry
) -> None:
    reference, identity = registry.push(docker_client, "some/engine", "1.0.0", "one")
    first = resolve(docker_client, reference, "key")
    record = {"name": "valkey", **first}
    assert present(docker_client, record) == identity
    docker_client.api.remove_image(identity, force=True)
    _, moved = registry.push(docker_client, "some/engine", "1.0.0", "two")
    assert moved != identity
    # Gone from the daemon: pulled again by what the record pinned, not by the tag.
    assert present(docker_client, record) == identity
    found = resolve(docker_client, first["pinned"], "key")
    assert (found["id"], found["floating"], found["pinned"]) == (identity, False, first["pinned"])


def test_a_record_of_an_image_that_is_lost_says_what_to_do(docker_client: Any) -> None:
    record = {"name": "gateway-old", "id": f"sha256:{'7' * 64}"}
    with pytest.raises(DockerError, match=r"gateway-old: .*delete results/images/gateway-old"):
        present(docker_client, record)


def test_what_cannot_be_pulled_is_told_with_its_key(docker_client: Any, registry: Registry) -> None:
    absent = f"{registry.host}/some/absent:1.0.0"
    with pytest.raises(DockerError) as caught:
        resolve(docker_client, absent, "docker.qdrant.pull")
    assert f"docker.qdrant.pull: {absent} is not in the daemon and cannot be pulled" in str(
        caught.value
    )
    registry.stop()
    with pytest.raises(DockerError, match="cannot be pulled"):
        resolve(docker_client, absent, "docker.qdrant.pull")


def test_an_image_of_no_registry_is_known_by_its_id(docker_client: Any, base_image: str) -> None:
    found = resolve(docker_client, base_image, "docker.base")
    assert found["pinned"] is None
    assert found["warnings"] == [
        f"docker.base: {base_image} is in no registry: its ID alone says which image it is"
    ]


def test_an_image_of_another_kind_of_machine_is_refused(docker_client: Any) -> None:
    """As one that was pulled for another platform by hand: the daemon takes it as it is there."""
    name, api = "refill-test/other:1.0.0", docker_client.api
    repository, _, tag = name.partition(":")
    with io.BytesIO() as layer:
        tarfile.open(fileobj=layer, mode="w").close()
        api.import_image_from_data(layer.getvalue(), repository=repository, tag=tag)
    mine = api.inspect_image(name)["Id"]
    try:
        api.load_image(of_another_machine(b"".join(api.get_image(name)), "s390x"))
        assert api.inspect_image(name)["Architecture"] == "s390x"
        with pytest.raises(DockerError, match=rf"docker\.valkey\.pull: {name} is of linux/s390x, "):
            resolve(docker_client, name, "docker.valkey.pull")
    finally:
        for image in (name, mine):
            with suppress(ImageNotFound):
                api.remove_image(image, force=True)


def of_another_machine(saved: bytes, architecture: str) -> bytes:
    """Give a saved image as it would be for another machine."""
    with tarfile.open(fileobj=io.BytesIO(saved)) as source, io.BytesIO() as made:
        files = {info.name: source.extractfile(info) for info in source if info.isfile()}
        texts = {path: file.read() for path, file in files.items() if file is not None}
        (entry,) = json.loads(texts["manifest.json"])
        config = json.loads(texts[entry["Config"]])
        texts[entry["Config"]] = json.dumps({**config, "architecture": architecture}).encode()
        with tarfile.open(fileobj=made, mode="w") as sink:
            for path, text in texts.items():
                info = tarfile.TarInfo(path)
                info.size = len(text)
                sink.addfile(info, io.BytesIO(text))
        return made.getvalue()

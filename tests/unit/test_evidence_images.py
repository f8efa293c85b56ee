"""Images of a daemon, verified without one: records that agree with themselves and each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refill.evidence import image_archives
from refill.evidence.hashes import sha256_tree
from refill.evidence.records import write_json

FILES = {"a.py": "1" * 64, "b.py": "2" * 64}
IMAGE, ROUND = "results/images/gateway-new.json", "results/rounds/on-main/new-1.json"


def built() -> dict[str, Any]:
    tree = sha256_tree(FILES)
    return {
        "schema": "refill.image/1", "name": "gateway-new", "runtime": "docker", "id": "sha256:ab",
        "files": FILES, "tree": tree,
        "docker": {"id": "sha256:ab", "labels": {"org.refill.tree": tree}},
    }  # fmt: skip


def differences(work: Path, record: dict[str, Any]) -> list[str]:
    write_json(work / IMAGE, record)
    return image_archives.differences(work, IMAGE)


def test_a_built_image_must_be_what_its_labels_and_files_say(tmp_path: Path) -> None:
    assert differences(tmp_path, built()) == []
    assert "docker.id" in differences(tmp_path, built() | {"id": "sha256:cd"})[0]
    changed = built() | {"files": {**FILES, "a.py": "3" * 64}}
    assert "its files give" in differences(tmp_path, changed)[0]
    assert "docker.labels" in differences(tmp_path, built() | {"tree": "4" * 64})[0]


def test_a_pulled_image_must_have_the_digest_that_it_is_pinned_by(tmp_path: Path) -> None:
    pulled = {
        "schema": "refill.image/1", "name": "valkey", "runtime": "docker", "id": "sha256:ab",
        "reference": "v:1", "pinned": "v@sha256:11", "repo_digests": ["v@sha256:11"],
    }  # fmt: skip
    assert differences(tmp_path, pulled) == []
    assert differences(tmp_path, pulled | {"pinned": None, "repo_digests": []}) == []
    assert "none of its repo_digests" in differences(tmp_path, pulled | {"pinned": "v@sha256:2"})[0]


@pytest.mark.parametrize("field", ["id", "tree"])
def test_a_measurement_of_another_image_is_found(tmp_path: Path, field: str) -> None:
    image = built()
    write_json(tmp_path / IMAGE, image)
    block = {key: image[key] for key in ("name", "id", "tree")}

    def found(block: dict[str, Any]) -> list[str]:
        write_json(
            tmp_path / ROUND,
            {"schema": "refill.round/1", "engines": {"gateway": {"image": block}, "valkey": {}}},
        )
        return image_archives.unlike_measured(tmp_path, [IMAGE], [ROUND])

    assert found(block) == []
    assert found(block | {field: "other"}) == [
        f"{ROUND}: engines.gateway.image.{field}: says other, {IMAGE} says {image[field]}"
    ]
    assert "which has no record" in found(block | {"name": "gateway-old"})[0]
    # A native engine's image stands in the record of the engine.
    assert found(block | {"name": "opensearch", "id": "sha256:99"}) == []

"""The one form of an image: what becomes the same, what is kept, from each `docker save`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from refill.docker_build.normal_form import Base, normalise
from refill.image_sources import ImageError

EPOCH = 1_000_000_000
MADE = "2001-09-09T01:46:40Z"


def layer(mtime: float, names: list[str], headers: Mapping[str, str] = {}) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.mtime = mtime  # type: ignore[assignment] # tarfile takes parts of seconds
            info.uname = "builder"
            info.uid = 33
            info.pax_headers = dict(headers)
            if name.endswith("/"):
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            elif name.endswith(".link"):
                info.type, info.linkname = tarfile.LNKTYPE, names[0]
                tar.addfile(info)
            else:
                info.size = 5
                tar.addfile(info, io.BytesIO(b"hello"))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


BASE_LAYER = layer(EPOCH + 500, ["etc/", "etc/base"])
BASE = Base((digest(BASE_LAYER),), 1)


def config(layers: list[bytes], builder: str) -> dict[str, Any]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "container": builder,
        "container_config": {"Hostname": builder},
        "created": f"{builder}-11-30T00:00:00.123Z",
        "docker_version": builder,
        "config": {
            "Entrypoint": ["run"], "Env": ["A=1"], "Labels": {"a": "b"}, "Image": builder,
            "Hostname": builder,
        },
        "history": [
            {"created": "2020-01-01T00:00:00Z", "created_by": "base"},
            {"created": f"{builder}-11-30T00:00:00Z", "created_by": "COPY"},
        ],
        "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
    }  # fmt: skip


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def legacy(path: Path, layers: list[bytes], builder: str) -> Path:
    """As Docker 20.10 saves: a layer that stands there twice is a symbolic link."""
    text = json.dumps(config(layers, builder)).encode()
    with tarfile.open(path, "w") as tar:
        names: dict[bytes, str] = {}
        listed = []
        for place, data in enumerate(layers):
            name = f"{builder}{place}/layer.tar"
            listed.append(name)
            if data in names:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, f"../{names[data]}"
                tar.addfile(info)
            else:
                names[data] = name
                add(tar, name, data)
        add(tar, f"{builder}.json", text)
        manifest = [{"Config": f"{builder}.json", "RepoTags": ["x:y"], "Layers": listed}]
        add(tar, "manifest.json", json.dumps(manifest).encode())
    return path


def oci(path: Path, layers: list[bytes], builder: str) -> Path:
    """As Docker 25 and later save: an OCI layout beside the manifest, perhaps with gzip."""
    text = json.dumps(config(layers, builder)).encode()
    blobs = [gzip.compress(layers[0]), *layers[1:]]
    with tarfile.open(path, "w") as tar:
        for blob in (text, *blobs):
            add(tar, f"blobs/sha256/{digest(blob)[7:]}", blob)
        add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add(tar, "index.json", b"{}")
        manifest = [
            {
                "Config": f"blobs/sha256/{digest(text)[7:]}",
                "RepoTags": None,
                "Layers": [f"blobs/sha256/{digest(blob)[7:]}" for blob in blobs],
            }
        ]
        add(tar, "manifest.json", json.dumps(manifest).encode())
    return path


Saved = Callable[[Path, list[bytes], str], Path]


def written(folder: Path, save: Saved, layers: list[bytes], builder: str) -> tuple[str, Path]:
    saved = save(folder / f"{builder}.tar", layers, builder)
    target = folder / f"{builder}-normal.tar"
    return normalise(saved, target, BASE, EPOCH), target


def read(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    with tarfile.open(path) as tar:
        contents = {member.name: tar.extractfile(member) for member in tar}
        data = {name: file.read() for name, file in contents.items() if file is not None}
    (manifest,) = json.loads(data["manifest.json"])
    return json.loads(data[manifest["Config"]]), [data[name] for name in manifest["Layers"]]


@pytest.mark.parametrize("save", [legacy, oci])
def test_two_builds_at_different_times_by_different_daemons_give_one_image(
    tmp_path: Path, save: Saved
) -> None:
    own = ["app/", "app/a", "app/a.link"]
    first = [BASE_LAYER, layer(EPOCH + 100.5, own), layer(EPOCH + 100.5, ["b"])]
    second = [BASE_LAYER, layer(EPOCH + 9999.25, own), layer(EPOCH + 9999.25, ["b"])]
    one, path = written(tmp_path, save, first, "2025")
    two, other = written(tmp_path, save, second, "2026")
    assert one == two
    assert path.read_bytes() == other.read_bytes()


def test_both_formats_of_save_give_one_image(tmp_path: Path) -> None:
    layers = [BASE_LAYER, layer(EPOCH + 1, ["a"])]
    assert written(tmp_path, legacy, layers, "2025")[0] == written(tmp_path, oci, layers, "2026")[0]


@pytest.mark.parametrize("save", [legacy, oci])
def test_the_base_stays_and_the_configuration_keeps_what_is_the_images_own(
    tmp_path: Path, save: Saved
) -> None:
    layers = [BASE_LAYER, layer(EPOCH + 1, ["a"])]
    identity, path = written(tmp_path, save, layers, "2025")
    found, contents = read(path)
    assert contents[0] == BASE_LAYER
    assert found["rootfs"]["diff_ids"] == [digest(data) for data in contents]
    assert found["config"] == {"Entrypoint": ["run"], "Env": ["A=1"], "Labels": {"a": "b"}}
    assert found["created"] == MADE
    assert [step["created"] for step in found["history"]] == ["2020-01-01T00:00:00Z", MADE]
    assert not {"container", "container_config", "docker_version"} & found.keys()
    text = json.dumps(found, sort_keys=True, separators=(",", ":")).encode()
    assert identity == digest(text)


def test_times_are_clamped_and_nothing_else_of_a_file_changes(tmp_path: Path) -> None:
    attribute = {"SCHILY.xattr.security.capability": "x\0y", "atime": "5.5"}
    own = layer(EPOCH + 10.5, ["new", "new.link"], attribute)
    old = layer(EPOCH - 10, ["old"])
    _, path = written(tmp_path, legacy, [BASE_LAYER, own, old], "2025")
    _, (_, new_layer, old_layer) = read(path)
    with tarfile.open(fileobj=io.BytesIO(new_layer)) as tar:
        member, link = tar.getmembers()
        assert (member.mtime, member.uid, member.uname) == (EPOCH, 33, "")
        assert member.pax_headers == {"SCHILY.xattr.security.capability": "x\0y"}
        assert (link.type, link.linkname) == (tarfile.LNKTYPE, "new")
        content = tar.extractfile("new")
        assert content is not None
        assert content.read() == b"hello"
    with tarfile.open(fileobj=io.BytesIO(old_layer)) as tar:
        assert tar.getmembers()[0].mtime == EPOCH - 10


def test_the_one_form_of_the_one_form_is_itself(tmp_path: Path) -> None:
    identity, path = written(tmp_path, legacy, [BASE_LAYER, layer(EPOCH + 1, ["a"])], "2025")
    again = tmp_path / "again.tar"
    assert normalise(path, again, BASE, EPOCH) == identity
    assert again.read_bytes() == path.read_bytes()


def test_a_difference_in_content_or_mode_is_kept(tmp_path: Path) -> None:
    ids = [
        written(tmp_path, legacy, [BASE_LAYER, layer(EPOCH, names)], f"202{place}")[0]
        for place, names in enumerate((["a"], ["b"], ["a/"], ["a", "a.link"], ["a", "b"]))
    ]
    assert len(set(ids)) == len(ids)


def test_an_empty_layer_and_a_layer_that_stands_there_twice(tmp_path: Path) -> None:
    empty, own = layer(0, []), layer(EPOCH, ["a"])
    _, path = written(tmp_path, legacy, [BASE_LAYER, own, empty, own], "2025")
    assert len(read(path)[1]) == 4
    assert read(path)[1][1] == read(path)[1][3]


def broken(change: Mapping[str, bytes | None]) -> Saved:
    def save(path: Path, layers: list[bytes], builder: str) -> Path:
        with tarfile.open(legacy(path, layers, builder)) as tar:
            data = {m.name: tar.extractfile(m) for m in tar}
            contents = {name: file.read() for name, file in data.items() if file is not None}
        with tarfile.open(path, "w") as tar:
            for name, content in (contents | change).items():
                if content is not None:
                    add(tar, name, content)
        return path

    return save


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"20251/layer.tar": b"\x28\xb5\x2f\xfd" + bytes(50)}, "zstd"),
        ({"20251/layer.tar": b"not a tar" * 100}, "cannot be read"),
        ({"20251/layer.tar": None}, r"has no 20251/layer\.tar"),
        ({"20250/layer.tar": layer(0, ["other"])}, "the image says"),
        ({"manifest.json": b"[]"}, "holds 0 images"),
        ({"manifest.json": None}, r"has no manifest\.json"),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, change: Mapping[str, bytes | None], said: str
) -> None:
    with pytest.raises(ImageError, match=said):
        written(tmp_path, broken(change), [BASE_LAYER, layer(EPOCH, ["a"])], "2025")


def test_an_image_on_another_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not built on the layers of its base"):
        written(tmp_path, legacy, [layer(0, ["other"])], "2025")

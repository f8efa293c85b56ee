"""Homes of native engines, whose files the manifest does not name, are held against records."""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.config import PROJECT, load_native
from refill.engines import elasticsearch
from refill.evidence.engine_homes import differences
from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import write_json

RECORD = "results/engines/elasticsearch.json"
HOME = "results/engines/elasticsearch/home"
JAR = "lib/server-1.jar"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An engine as it is put together, of one jar."""
    home = tmp_path / HOME
    (home / "lib").mkdir(parents=True)
    (home / JAR).write_bytes(b"a jar")
    elasticsearch.complete(home)
    for name, text in load_native(PROJECT / "config/native.yaml")["elasticsearch"]["files"].items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    record = {
        "schema": "refill.engine/1",
        "name": "elasticsearch",
        "status": "at hand",
        "source": "artifacts",
        "jars": {JAR: sha256_bytes(b"a jar")},
    }
    write_json(tmp_path / RECORD, record)
    return tmp_path


def test_a_home_as_it_was_put_together_differs_in_nothing(work: Path) -> None:
    assert differences(work, PROJECT, RECORD) == ([], [])


def test_every_file_of_a_home_is_looked_at(work: Path) -> None:
    files = [file for file in (work / HOME).rglob("*") if file.is_file()]
    assert len(files) == 4
    for file in files:
        good, path = file.read_bytes(), file.relative_to(work).as_posix()
        file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        (line,), notes = differences(work, PROJECT, RECORD)
        assert line.startswith(f"{path}: has changed: {RECORD} says SHA-256 ")
        file.unlink()
        (line,), notes = differences(work, PROJECT, RECORD)
        assert line.startswith(f"{path}: is missing; expected SHA-256 ")
        assert notes == []
        file.write_bytes(good)
    (work / HOME / "lib/more.jar").write_bytes(b"another")
    (line,), _ = differences(work, PROJECT, RECORD)
    assert line == f"{HOME}/lib/more.jar: is there, {RECORD} does not name it"


def test_what_is_not_looked_at_is_a_note(work: Path) -> None:
    java = work / HOME / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.write_bytes(b"java")
    found, (note,) = differences(work, PROJECT, RECORD)
    assert (found, note) == (
        [],
        f"{HOME}/jdk: nothing holds the hashes of its 1 files, not looked at",
    )
    (work / HOME).rename(work / "elsewhere")
    found, (note,) = differences(work, PROJECT, RECORD)
    assert found == []
    assert note.startswith(f"{HOME}: is not here: the 4 files of the engine that ")
    write_json(work / RECORD, {"schema": "refill.engine/1", "name": "x", "source": "artifacts"})
    (line,), _ = differences(work, PROJECT, RECORD)
    assert line == f"{RECORD}: its home cannot be looked at: KeyError: 'jars'"

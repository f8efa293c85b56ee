"""Homes of native engines, whose files the manifest does not name, are held against records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from refill.config import PROJECT, load_native
from refill.engines import elasticsearch, home_files
from refill.evidence.engine_homes import differences
from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import read_json, write_json

RECORD = "results/engines/elasticsearch.json"
HOME = "results/engines/elasticsearch/home"
JAR = "lib/server-1.jar"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An engine as it is put together, of one jar, and the project that pins it."""
    home = tmp_path / HOME
    (home / "lib").mkdir(parents=True)
    (home / JAR).write_bytes(b"a jar")
    elasticsearch.complete(home)
    texts = load_native(PROJECT / "config/native.yaml")["elasticsearch"]["files"]
    for name, text in texts.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    pin(tmp_path, {"lib": {"some.group:server:1": sha256_bytes(b"a jar")}})
    note(tmp_path)
    return tmp_path


def pin(work: Path, artifacts: dict[str, dict[str, str]]) -> None:
    """Write config/native.yaml with other artifacts."""
    config = yaml.safe_load((PROJECT / "config/native.yaml").read_text())
    config["engines"]["elasticsearch"]["artifacts"] = artifacts
    (work / "config").mkdir(exist_ok=True)
    (work / "config/native.yaml").write_text(yaml.safe_dump(config))


def note(work: Path, **other: Any) -> None:
    """Write the record of the home as it is."""
    record = {
        "schema": "refill.engine/2",
        "name": "elasticsearch",
        "status": "at hand",
        "source": "artifacts",
        "files": home_files.files_of(work / HOME),
    }
    write_json(work / RECORD, record | other)


def test_a_home_as_it_was_put_together_differs_in_nothing(work: Path) -> None:
    assert differences(work, work, RECORD) == ([], [])


def test_every_file_of_a_home_is_looked_at(work: Path) -> None:
    java = work / HOME / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.write_bytes(b"java")
    note(work)
    files = [file for file in (work / HOME).rglob("*") if file.is_file()]
    assert len(files) == 5
    for file in files:
        good, path = file.read_bytes(), file.relative_to(work).as_posix()
        file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        (line,), notes = differences(work, work, RECORD)
        assert line.startswith(f"{path}: has changed: {RECORD} says SHA-256 ")
        file.unlink()
        (line,), notes = differences(work, work, RECORD)
        assert line.startswith(f"{path}: is missing; expected SHA-256 ")
        assert notes == []
        file.write_bytes(good)
    (work / HOME / "lib/more.jar").write_bytes(b"another")
    (work / HOME / ".snakemake_timestamp").touch()
    (line,), _ = differences(work, work, RECORD)
    assert line == f"{HOME}/lib/more.jar: is there, {RECORD} does not name it"


def test_a_record_that_was_made_to_fit_another_home_is_held_against_the_pins(work: Path) -> None:
    (work / HOME / JAR).write_bytes(b"another")
    (work / HOME / "plugins/p").mkdir(parents=True)
    (work / HOME / "plugins/p/p.jar").write_bytes(b"p")
    note(work)
    (first, second), _ = differences(work, work, RECORD)
    assert first.startswith(f"{RECORD}: says SHA-256 {sha256_bytes(b'another')} of {JAR}, config/")
    assert second.endswith("of plugins/p/p.jar, config/native.yaml pins no such file")
    # Without its home, too.
    (work / HOME).rename(work / "elsewhere")
    found, (missing,) = differences(work, work, RECORD)
    assert found == [first, second]
    assert missing.startswith(f"{HOME}: is not here: the ")


def test_what_is_not_looked_at_is_a_note(work: Path) -> None:
    (work / HOME).rename(work / "elsewhere")
    found, (line,) = differences(work, work, RECORD)
    assert found == []
    assert line.startswith(f"{HOME}: is not here: the 4 files of the engine that ")
    (work / "elsewhere").rename(work / HOME)
    note(work, source="url")
    found, (line,) = differences(work, work, RECORD)
    assert (found, line) == ([], f"{HOME}: {RECORD} names no engine made there, not looked at")


def test_a_home_or_record_that_cannot_be_read_is_a_difference(work: Path) -> None:
    (work / HOME / "lib/gone.jar").symlink_to("/nowhere/gone.jar")
    (line,), _ = differences(work, work, RECORD)
    assert "its home cannot be looked at: EngineError: lib/gone.jar is a link to what is" in line
    record = read_json(work / RECORD)
    del record["files"]
    write_json(work / RECORD, record)
    (line,), _ = differences(work, work, RECORD)
    assert line == f"{RECORD}: its home cannot be looked at: KeyError: 'files'"

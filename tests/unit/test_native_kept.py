"""What was there of a native engine stays: artifacts, the home of a newer job, measured rounds."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from native_release import fake_java, program
from refill.config import PROJECT, load, load_native
from refill.engines import home_files, installations, java
from refill.evidence.engine_homes import differences
from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import RecordError, read_json, write_json
from refill.evidence.turns import preparing
from refill.phases import round_engines
from refill.told import SupersededError

NAME = "opensearch"
RECORD = Path(f"results/engines/{NAME}.json")
LIB = {"some.group:some-jar:1.0": sha256_bytes(b"x\n"), "g.h:m:2": sha256_bytes(b"y\n")}
JARS = "mkdir jars; echo x > jars/some-jar-1.0.jar; echo y > jars/m-2.jar\n"
UNREACHABLE = "echo '[ERROR] Unknown host'; exit 1\n"
NATIVE: dict[str, Any] = load(PROJECT / "config/config.yaml")["rounds"]["native"]


class Engine:
    """An engine of two small artifacts, below a folder; a program stands in Maven's place."""

    def __init__(self, root: Path) -> None:
        self.root, self.record = root, root / RECORD
        self.home = installations.home_of(self.record)
        self.spec: dict[str, Any] = {
            "version": "1",
            "java": {"least": 21},
            "absent": [],
            "artifacts": {"lib": dict(LIB)},
            "files": {"modules/m/text": "a text\n"},
        }
        self.settings = {**NATIVE, "java": str(fake_java(root / "java", "25.0.1").parents[1])}

    def maven(self, lines: str) -> None:
        program(self.root / "programs/mvn", f"echo called >> {self.root}/called\n{lines}")

    @property
    def calls(self) -> int:
        called = self.root / "called"
        return len(called.read_text().splitlines()) if called.exists() else 0

    def prepare(self, **more: Any) -> dict[str, Any]:
        return installations.prepare(
            self.root, NAME, self.spec, self.settings, self.home, self.record, "code", **more
        )


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:/bin:/usr/bin")
    return Engine(tmp_path)


def test_what_was_fetched_needs_no_network_again(engine: Engine) -> None:
    engine.maven(JARS)
    assert engine.prepare()["status"] == "at hand"
    engine.maven(UNREACHABLE)
    other = fake_java(engine.root / "other", "25.0.2").parents[1]
    engine.settings = {**engine.settings, "java": str(other)}
    made = engine.prepare()
    assert (made["status"], made["java"]["version"]) == ("at hand", "25.0.2")
    assert engine.calls == 1


def test_a_home_of_the_same_files_is_left_to_the_rounds_that_run_from_it(engine: Engine) -> None:
    engine.maven(JARS)
    engine.prepare()
    (engine.home / "data").mkdir()  # not of the engine; shows which folder it is
    engine.prepare()
    assert (engine.home / "data").is_dir()
    # One that was tampered with is made anew: only its other jar is what is pinned.
    (engine.home / "lib/m-2.jar").write_text("z\n")
    made = engine.prepare()
    assert not (engine.home / "data").exists()
    assert made["files"]["lib/m-2.jar"] == LIB["g.h:m:2"]
    assert home_files.files_of(engine.home) == made["files"]
    assert sorted(path.name for path in engine.home.parent.iterdir()) == ["home"]


def test_only_what_is_missing_is_fetched_and_a_failure_leaves_what_was_there(
    engine: Engine,
) -> None:
    engine.maven(JARS)
    before = engine.prepare()
    engine.spec["artifacts"]["lib"]["g.h:new:3"] = sha256_bytes(b"new\n")
    engine.maven(UNREACHABLE)
    made = engine.prepare()
    assert (made["status"], made["again"]) == ("not at hand", True)
    assert home_files.files_of(engine.home) == before["files"]
    assert sorted(path.name for path in engine.home.parent.iterdir()) == ["home"]
    # Had all been asked for, the two that are here could not be had.
    engine.maven("grep -q some-jar pom.xml && exit 1; mkdir jars; echo new > jars/new-3.jar\n")
    made = engine.prepare()
    assert made["status"] == "at hand"
    assert set(made["files"]) == {*before["files"], "lib/new-3.jar"}


def test_a_job_that_another_has_taken_over_leaves_the_others_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one still waits for Maven when the newer one has another version ready."""

    def node(name: str) -> None:
        monkeypatch.setenv("SLURM_JOB_ID", f"job-{name}")
        monkeypatch.setenv("SLURMD_NODENAME", name)

    newer = copy.copy(engine)
    newer.spec = {**engine.spec, "version": "2", "files": {"modules/m/text": "a newer text\n"}}

    def prepare(asked: Engine, meanwhile: Callable[[], object] = tuple) -> None:
        with preparing(engine.root, f"engines/{NAME}") as check:
            meanwhile()
            asked.prepare(check=check)

    node("n1")
    engine.maven(JARS)
    with pytest.raises(SupersededError, match="job job-n2 on n2"):
        prepare(engine, lambda: (node("n2"), prepare(newer), node("n1")))
    record = read_json(engine.record)
    assert record["version"] == "2"
    assert home_files.files_of(engine.home) == record["files"]
    assert (engine.home / "modules/m/text").read_text() == "a newer text\n"


def test_on_a_cluster_what_is_not_installed_is_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made where Snakemake was called, and says nothing of the job's node."""
    monkeypatch.setenv("PATH", "/nowhere")
    assert engine.prepare()["again"] is False
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    made = engine.prepare()
    assert "not on PATH" in made["why"]
    assert made["again"] is True


@pytest.mark.parametrize(
    "text",
    [
        "", '{"schema": "refill.eng', '{"schema": "refill.engine/1"}', "[]", "\xff",
        *(json.dumps({"schema": installations.SCHEMA, **content}) for content in (
            {}, {"status": "at hand"}, {"status": "at hand", "attempt": None, "source": "url"},
            {"status": "at hand", "attempt": True, "source": "url"},
            {"status": "at hand", "attempt": "x", "source": "url"}, {"status": 5, "attempt": 1},
            {"status": "not at hand", "attempt": 1}, {"status": "at hand", "attempt": 1},
            {"status": "at hand", "attempt": 1, "source": "artifacts", "files": []},
            {"status": "at hand", "attempt": 1, "source": "docker"},
        )),
    ],
)  # fmt: skip
def test_a_record_that_is_none_any_more_is_made_again(engine: Engine, text: str) -> None:
    engine.record.parent.mkdir(parents=True)
    engine.record.write_bytes(text.encode("latin-1"))
    assert installations.identity_of(engine.record) is None
    assert installations.next_attempt(engine.record) == 0
    with pytest.raises(RecordError):
        installations.is_at_hand(engine.record)
    engine.maven(JARS)
    engine.prepare(attempt=0)
    assert installations.next_attempt(engine.record) == 0
    assert differences(engine.root, PROJECT, str(RECORD))[0] != []  # its pins are of this test


def test_a_home_that_was_deleted_is_made_again(engine: Engine) -> None:
    engine.maven(JARS)
    engine.prepare()
    first = installations.identity_of(engine.record)
    assert installations.next_attempt(engine.record) == 1
    shutil.rmtree(engine.home)
    assert installations.next_attempt(engine.record) == 2
    engine.prepare(attempt=2)
    assert (engine.home / "lib/m-2.jar").is_file()
    assert installations.next_attempt(engine.record) == 2
    # For a round it is the engine that it was.
    assert installations.identity_of(engine.record) == first


PLAN = {"code": "a", "n": 1, "native": {"heap": "1g"}}
NOW: dict[str, str | None] = {NAME: None, "elasticsearch": "e2"}


def round_record(path: Path, status: str, **plan: Any) -> Path:
    asked = round_engines.asked_for({**PLAN, **plan, "installed": {NAME: "o1"}})
    natives = {NAME: {"status": status}}
    write_json(path, {"schema": round_engines.SCHEMA, "asked_for": asked, "natives": natives})
    return path


@pytest.mark.parametrize("status", ["measured", "failed"])
def test_a_round_asks_for_the_engine_that_it_measured_and_that_is_gone(
    tmp_path: Path, status: str
) -> None:
    record = round_record(tmp_path / "round.json", status)
    found = round_engines.installed(PLAN, NOW, record)
    assert found == {NAME: "o1", "elasticsearch": "e2"}
    # Another one that is at hand is worth a new measurement.
    assert round_engines.installed(PLAN, {NAME: "o2"}, record) == {NAME: "o2"}


def test_a_round_without_the_engine_or_of_another_plan_keeps_nothing(tmp_path: Path) -> None:
    record = tmp_path / "round.json"
    assert round_engines.installed(PLAN, NOW, record) == NOW
    assert round_engines.installed(PLAN, NOW, round_record(record, "not measured")) == NOW
    assert round_engines.installed(PLAN, NOW, round_record(record, "measured", code="b")) == NOW
    write_json(record, {"schema": round_engines.SCHEMA, "natives": {}})
    assert round_engines.installed(PLAN, NOW, record) == NOW


def test_a_java_that_cannot_be_fetched_is_told_without_pips_words(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pip is asked; nothing listens where it looks."""
    monkeypatch.setattr(java, "candidates_here", lambda: iter(()))
    monkeypatch.setenv("PIP_INDEX_URL", "http://some.body:pass@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    engine.maven(JARS)
    engine.settings = {**engine.settings, "java": "auto"}
    engine.spec["fetched_java"] = {**load_native()[NAME]["fetched_java"]}
    made = engine.prepare()
    assert (made["status"], made["again"]) == ("not at hand", True)
    assert made["why"].startswith("Java could not be fetched: the package registry cannot be reach")
    assert not [word for word in ("some.body", "pass", "127.0.0.1") if word in made["why"]]

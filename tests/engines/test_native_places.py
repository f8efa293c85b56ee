"""Real native engines in odd places: any folder's name, any locale, a Java that is out of reach."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from native_release import program
from refill.config import PROJECT, load, load_native
from refill.engines import native
from refill.engines.description import EngineError
from refill.engines.installations import DIALECTS, open_installation, prepare
from refill.evidence.scrub import SHORTENED, machine_folders, make_packable
from refill.runtimes.process import ProcessEngine
from refill.runtimes.users import other_user, take_copy

SPECS = load_native()
SETTINGS: dict[str, Any] = load(PROJECT / "config/config.yaml")["rounds"]["native"]
ODD = "a:b, c 'ü' #1 ${user.home} %20 日本 \U0001f600"


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the homes of the engines that are at hand here."""
    folder = tmp_path_factory.mktemp("homes")
    for name, spec in SPECS.items():
        made = prepare(folder, name, spec, SETTINGS, folder / name, folder / f"{name}.json", "test")
        if made["status"] != "at hand" and os.environ.get("CI") and name == "opensearch":
            pytest.fail(f"CI needs {name}, which is not at hand: {made['why']}")
    return folder


def node(homes: Path, name: str, folder: Path) -> native.Node:
    """Give a node of a release that lies in a folder, as a user would have unpacked it."""
    if not (homes / name / "lib").is_dir():
        pytest.skip(f"{name} is not at hand")
    release = folder / "release"
    shutil.copytree(homes / name, release, copy_function=os.link)
    settings = {**SETTINGS, name: {**SETTINGS[name], "home": str(release)}}
    asked = (name, SPECS[name], settings)
    record = folder / "engine.json"
    made = prepare(folder, *asked, folder / "home", record, "test")
    assert made["status"] == "at hand", made.get("why")
    found = open_installation(record, *asked, folder / "home")
    assert found.home is not None
    assert found.java is not None
    user, budget = SETTINGS["user"], native.Budget(len(os.sched_getaffinity(0)), "256m")
    return native.Node(
        found.home,
        found.java,
        budget,
        user,
        180,
        lambda source, copy: take_copy(source, copy, other_user(user)),
    )


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, so that a release in it is used where it lies."""
    with tempfile.TemporaryDirectory(prefix="refill-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_engine_runs_in_folders_of_any_name_and_in_any_locale(
    homes: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    folder = shared / ODD
    folder.mkdir()
    log = folder / "engine.log"
    description = native.describe(DIALECTS[name], node(homes, name, folder))
    with ProcessEngine(description, folder / "scratch", log) as engine:
        found = native.Api(name, engine.address).identity()
        assert found["version"] == SPECS[name]["version"]
    # Nothing was written into the release.
    before = {p.relative_to(homes / name) for p in (homes / name).rglob("*")}
    assert {p.relative_to(folder / "release") for p in (folder / "release").rglob("*")} == before
    make_packable(log, [folder])
    text = log.read_text()
    assert (str(shared) in text, list(machine_folders(text))) == (False, [])
    assert text.endswith(f"{SHORTENED}\n")


def test_a_failed_start_tells_its_first_error(homes: Path, tmp_path: Path) -> None:
    """A module that is not of this version: the trace below it is long."""
    asked = node(homes, "opensearch", tmp_path)
    descriptor = tmp_path / "release/plugins/p/plugin-descriptor.properties"
    descriptor.parent.mkdir(parents=True)
    descriptor.write_text("name=p\nversion=1\n")
    log = tmp_path / "engine.log"
    description = native.describe(DIALECTS["opensearch"], asked)
    with (
        pytest.raises(EngineError) as raised,
        ProcessEngine(description, tmp_path / "scratch", log),
    ):
        pass
    first = str(raised.value).splitlines()[1]
    assert "Exception" in first or "ERROR" in first
    assert str(raised.value).splitlines()[2] == "    ..."


def test_a_java_that_the_engines_user_cannot_reach_is_copied(homes: Path, tmp_path: Path) -> None:
    """It is one that writes what it was started with, at the place of a fetched one."""
    asked = node(homes, "opensearch", tmp_path)
    java = program(tmp_path / "closed/java/bin/java", 'echo "started as $0"; exit 3\n')
    (java.parents[1] / "lib").mkdir()
    (java.parents[1] / "lib/modules").touch()
    (tmp_path / "closed").chmod(0o700)
    changed = native.Java(java, 25, "25", "x", "x", False)
    description = native.describe(
        DIALECTS["opensearch"],
        native.Node(asked.home, changed, asked.budget, asked.user, 60, asked.readable),
    )
    log = tmp_path / "engine.log"
    with (
        pytest.raises(EngineError, match="started as ") as raised,
        ProcessEngine(description, tmp_path / "scratch", log),
    ):
        pass
    copied = other_user(SETTINGS["user"]) is not None
    assert ("closed" in str(raised.value)) is not copied

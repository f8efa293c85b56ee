"""Real native engines: put together from artifacts, measured in a real round, checked, ended."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from refill.config import PROJECT, ConfigError, load, load_native
from refill.engines import artifacts, maven, native
from refill.engines.description import EngineError
from refill.engines.installations import DIALECTS, open_installation, prepare
from refill.phases.measure_round import Files, measure
from refill.phases.round_record import unproven_native
from refill.progress import Progress
from refill.runtimes.process import ProcessEngine
from refill.runtimes.users import other_user, take_copy
from round_fixture import COUNTS, files, plan
from round_fixture import prepare as prepare_round

SPECS = load_native()
SETTINGS: dict[str, Any] = {
    **load(PROJECT / "config/config.yaml")["rounds"]["native"],
    "heap": "512m",
    "warm_up": 60,
}
OPENSEARCH, ELASTICSEARCH = "opensearch", "elasticsearch"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with documents, images and every native engine that is at hand."""
    folder = tmp_path_factory.mktemp("a project")
    prepare_round(folder)
    for name in (OPENSEARCH, ELASTICSEARCH):
        base = folder / "results/engines"
        prepare(
            folder, name, SPECS[name], SETTINGS, base / name / "home", base / f"{name}.json", "test"
        )
    return folder


def record_of(root: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((root / f"results/engines/{name}.json").read_text())
    return record


def needed(root: Path, name: str) -> None:
    """Go on only with an engine at hand; its absence is a failure where every change is checked."""
    record = record_of(root, name)
    if record["status"] == "at hand":
        return
    if os.environ.get("CI") and name == OPENSEARCH:
        pytest.fail(f"CI needs {name}, which is not at hand: {record['why']}")
    pytest.skip(f"{name} is not at hand: {record['why']}")


def small(image: str, n: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Give the plan of a round of one trial with OpenSearch beside the gateway."""
    return plan(
        "off-control",
        image,
        n,
        counts={"trials": 1, "clients": [1], "warm": 4, "cold_enabled": 4, "cold_disabled": 4},
        engines=["gateway", OPENSEARCH],
        native=settings,
        native_specs=SPECS,
    )


def run(asked: dict[str, Any], made: Files) -> dict[str, Any]:
    """Measure a round and give its record."""
    return measure(asked, made, Progress("test", None, io.StringIO()))


def completed(record: dict[str, Any]) -> None:
    """Check that a round went to its end and every answer was right.

    Not that it is valid: on a busy machine the driver's own pauses make it invalid, rightly.
    """
    assert record["outcome"] == "completed", record["invalid"]
    assert cells(record, "gateway")
    for cell in record["cells"]:
        for trial in cell["trials"]:
            assert trial["stats"]["ok"] == trial["stats"]["n"] == cell["requests"], trial["wrong"]


@pytest.fixture(scope="module")
def measured(root: Path) -> dict[str, Any]:
    """The record of one round with the gateway and both native engines."""
    needed(root, OPENSEARCH)
    asked = plan(
        "on-main",
        "new",
        engines=["gateway", OPENSEARCH, ELASTICSEARCH],
        native=SETTINGS,
        native_specs=SPECS,
    )
    made = files(root, "on-main", "new")
    engines = {n: root / f"results/engines/{n}.json" for n in (OPENSEARCH, ELASTICSEARCH)}
    return measure(
        asked,
        type(made)(**{**vars(made), "engines": engines}),
        Progress("test", None, io.StringIO()),
    )


def cells(record: dict[str, Any], engine: str) -> list[dict[str, Any]]:
    return [cell for cell in record["cells"] if cell["engine"] == engine]


@pytest.mark.parametrize("engine", [OPENSEARCH, ELASTICSEARCH])
def test_a_native_engine_answers_all_six_operations_right(
    root: Path, measured: dict[str, Any], engine: str
) -> None:
    needed(root, engine)
    found = cells(measured, engine)
    assert len(found) == 6 * len(COUNTS["clients"])  # type: ignore[arg-type]
    assert [c["operation"] for c in found] == [c["operation"] for c in cells(measured, "gateway")]
    completed(measured)
    for cell in found:
        for trial in cell["trials"]:
            # Nothing came from a cache of responses, and the gateway did nothing meanwhile.
            assert trial["natives"][engine]["request_cache_misses"] == 0
            assert trial["cache"]["qdrant_calls"] == 0
            assert trial["aof"]["bytes"] == 0


@pytest.mark.parametrize("engine", [OPENSEARCH, ELASTICSEARCH])
def test_the_record_says_what_ran_and_how(
    root: Path, measured: dict[str, Any], engine: str
) -> None:
    needed(root, engine)
    identity = measured["engines"][engine]
    assert identity["version"] == SPECS[engine]["version"]
    assert len(identity["build"]) == 40
    assert identity["jvm"]["heap_max_bytes"] == 512 << 20
    assert identity["java"] == record_of(root, engine)["java"]
    assert "-Xmx512m" in identity["flags"]
    assert identity["loaded"] == ["transport-netty4"]
    block = measured["natives"][engine]
    assert block["status"] == "measured"
    assert block["started_s"] > 0
    index = block["primed"]["index"]
    assert (index["health"], index["segments"]) == ("green", 1)
    assert index["settings"]["number_of_replicas"] == "0"
    assert index["settings"]["requests"] == {"cache": {"enable": "false"}}
    assert measured["configuration"]["native"]["heap"] == "512m"


def test_ledger_resources_and_profiles_tell_the_engines_apart(
    root: Path, measured: dict[str, Any]
) -> None:
    rows = pq.read_table(root / measured["ledger"]["path"]).to_pandas()
    assert (rows["status"] == "ok").all()
    timed = rows[rows["profile"] != "warm-up"]
    counted = timed.groupby("engine", observed=True).size()
    assert counted[OPENSEARCH] == counted["gateway"] == 12 * 12 * 2
    # The same requests in the same order, cold ones too.
    asked = {
        engine: timed[(timed["engine"] == engine) & (timed["clients"] == 1)]["request"].tolist()
        for engine in ("gateway", OPENSEARCH)
    }
    assert asked["gateway"] == asked[OPENSEARCH]
    for profile in measured["profiles"]:
        assert profile["requests"] == profile["native_requests"][OPENSEARCH]
    resources = json.loads((root / measured["resources"]["path"]).read_text())
    busy = next(
        p for p in resources["phases"] if p["phase"].startswith("warm, filtered-page, open")
    )
    assert busy["processes"][OPENSEARCH]["cpu_s"] > 0
    assert busy["processes"][OPENSEARCH]["rss_bytes"] > 100e6
    assert busy["natives"][OPENSEARCH]["gc_count"] >= 0


def test_nothing_is_left_of_the_engines(root: Path, measured: dict[str, Any]) -> None:
    assert measured["natives"][OPENSEARCH]["status"] == "measured"
    assert not list((root / "results/scratch").iterdir())
    marks = ("org.opensearch.bootstrap.OpenSearch", "org.elasticsearch.server/")
    for process in psutil.Process().children(recursive=True):
        assert not any(mark in word for word in process.cmdline() for mark in marks)


def test_an_engine_that_is_not_at_hand_leaves_the_round_valid(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record = root / "results/engines/absent.json"
    prepare(root, OPENSEARCH, SPECS[OPENSEARCH], SETTINGS, tmp_path / "home", record, "test")
    monkeypatch.undo()
    why = json.loads(record.read_text())["why"]
    assert "not on PATH" in why or "is needed" in why
    asked = small("old", 1, SETTINGS)
    made = files(root, "off-control", "old")
    found = run(asked, replace(made, engines={OPENSEARCH: record}))
    completed(found)
    assert found["natives"] == {OPENSEARCH: {"status": "not measured", "why": why}}
    assert cells(found, OPENSEARCH) == []


def test_an_engine_that_fails_takes_its_own_cells_alone(root: Path, tmp_path: Path) -> None:
    needed(root, OPENSEARCH)
    # Too little for Java to start with.
    asked = small("old", 2, {**SETTINGS, "heap": "1m"})
    made = files(root, "off-control", "old", 2)
    engines = {OPENSEARCH: root / "results/engines/opensearch.json"}
    found = measure(
        asked,
        type(made)(**{**vars(made), "engines": engines}),
        Progress("test", None, io.StringIO()),
    )
    assert found["natives"][OPENSEARCH]["status"] == "failed"
    assert not found["valid"]
    assert found["invalid"][-1].startswith("opensearch: opensearch has ended")
    assert str(root) not in json.dumps(found)
    completed(found)


def test_one_that_runs_already_is_measured_at_its_url_and_left_as_it_was(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(root, OPENSEARCH)
    kept = root / "results/engines/opensearch"
    installed = open_installation(
        kept.with_suffix(".json"), OPENSEARCH, SPECS[OPENSEARCH], SETTINGS, kept / "home"
    )
    assert installed.home is not None
    assert installed.java is not None
    node = native.Node(
        installed.home,
        installed.java,
        native.Budget(2, "512m"),
        SETTINGS["user"],
        120,
        lambda home, copy: take_copy(home, copy, other_user(SETTINGS["user"])),
    )
    described = native.describe(DIALECTS[OPENSEARCH], node)
    # One without security takes any name and word; what counts here is that no record holds them.
    monkeypatch.setenv("OPENSEARCH_USER", "reader-of-refill")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "word-of-refill")
    with ProcessEngine(described, tmp_path / "scratch", tmp_path / "log") as engine:
        url = engine.address.url
        settings = {**SETTINGS, OPENSEARCH: {**SETTINGS[OPENSEARCH], "url": url}}
        record = root / "results/engines/at-url.json"
        prepare(root, OPENSEARCH, SPECS[OPENSEARCH], settings, tmp_path / "home", record, "test")
        asked = small("new", 1, settings)
        made = files(root, "off-control", "new")
        found = run(asked, replace(made, engines={OPENSEARCH: record}))
        indices = native.Api(OPENSEARCH, engine.address).call("GET", "/_stats")["indices"]
    completed(found)
    identity = found["engines"][OPENSEARCH]
    assert (identity["runtime"], identity["version"]) == ("external", "3.9.0")
    assert found["natives"][OPENSEARCH]["started_s"] is None
    assert len(cells(found, OPENSEARCH)) == 1
    assert "flights" not in indices
    for path in (
        made.record,
        made.resources,
        record,
        *(root / "results/attempts").rglob("*.json*"),
    ):
        assert b"of-refill" not in path.read_bytes()


def test_a_jar_that_is_not_the_pinned_one_is_refused(root: Path, tmp_path: Path) -> None:
    if not maven.available():
        pytest.skip("Maven is not here")
    spec = {
        **SPECS[OPENSEARCH],
        "artifacts": {"lib": {"net.sf.jopt-simple:jopt-simple:5.0.4": "0" * 64}},
    }
    with pytest.raises(EngineError, match=r"jopt-simple:5\.0\.4: its SHA-256 is [0-9a-f]{64}, "):
        artifacts.assemble(spec, tmp_path / "home")


def test_an_artifact_that_nobody_published_is_named_without_addresses(tmp_path: Path) -> None:
    if not maven.available():
        pytest.skip("Maven is not here")
    with pytest.raises(EngineError, match=r"Maven: .*no-such-artifact") as raised:
        maven.copy(["net.sf.jopt-simple:no-such-artifact:5.0.4"], tmp_path)
    assert "://" not in str(raised.value)


def test_a_releases_folder_is_taken_as_it_is(root: Path, tmp_path: Path) -> None:
    needed(root, OPENSEARCH)
    release = root / "results/engines/opensearch/home"
    record = root / "results/engines/of-a-release.json"

    def prepared(home: Path) -> dict[str, Any]:
        settings = {**SETTINGS, OPENSEARCH: {**SETTINGS[OPENSEARCH], "home": str(home)}}
        asked = (root, OPENSEARCH, SPECS[OPENSEARCH], settings, tmp_path / "unused", record, "test")
        return prepare(*asked)

    made = prepared(release)
    assert (made["status"], made["source"], made["version"]) == ("at hand", "home", "3.9.0")
    assert made["files"] == record_of(root, OPENSEARCH)["files"]
    assert not list((tmp_path / "unused").iterdir())
    assert "give the folder of an unpacked release" in prepared(tmp_path)["why"]


def test_requests_served_from_a_request_cache_make_a_trial_invalid() -> None:
    idle = {"hits": 0, "misses": 0, "fills": 0, "bypassed": 0}
    served = {"request_cache_hits": 3.0, "request_cache_misses": 1.0}
    assert unproven_native(OPENSEARCH, idle, served, True) == []
    assert unproven_native(OPENSEARCH, idle, served, False) == [
        "opensearch looked 4 times into its request cache, which is off"
    ]
    none = {"request_cache_hits": 0.0, "request_cache_misses": 0.0}
    assert unproven_native(OPENSEARCH, idle, none, False) == []
    assert unproven_native(OPENSEARCH, {**idle, "hits": 2}, none, False) == [
        "the gateway counts 2 hits meanwhile"
    ]


def test_a_home_and_a_url_at_once_are_refused() -> None:
    both = {"rounds": {"native": {"opensearch": {"home": "x", "url": "http://127.0.0.1:9200"}}}}
    with pytest.raises(ConfigError, match=r"rounds\.native\.opensearch\.url: and `home` are both"):
        load(PROJECT / "config/config.yaml", [both])
    secret = {"rounds": {"native": {"opensearch": {"url": "http://me:word@127.0.0.1:9200"}}}}
    with pytest.raises(ConfigError, match="must not hold a user, password") as raised:
        load(PROJECT / "config/config.yaml", [secret])
    assert "word@" not in str(raised.value)

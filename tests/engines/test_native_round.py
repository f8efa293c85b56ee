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
from native_fixture import (
    ELASTICSEARCH,
    OPENSEARCH,
    SETTINGS,
    SPECS,
    cells,
    completed,
    needed,
    record_of,
    run,
    small,
)
from refill.config import PROJECT, ConfigError, load
from refill.engines import artifacts, maven
from refill.engines.description import EngineError
from refill.engines.installations import prepare
from refill.phases.measure_round import measure
from refill.phases.round_record import unproven_native
from refill.progress import Progress
from round_fixture import COUNTS, files, plan


@pytest.fixture(scope="module")
def measured(native_project: Path) -> dict[str, Any]:
    """The record of one round with the gateway and both native engines."""
    needed(native_project, OPENSEARCH)
    asked = plan(
        "on-main",
        "new",
        engines=["gateway", OPENSEARCH, ELASTICSEARCH],
        native=SETTINGS,
        native_specs=SPECS,
    )
    made = files(native_project, "on-main", "new")
    engines = {n: native_project / f"results/engines/{n}.json" for n in (OPENSEARCH, ELASTICSEARCH)}
    return measure(
        asked,
        type(made)(**{**vars(made), "engines": engines}),
        Progress("test", None, io.StringIO()),
    )


@pytest.mark.parametrize("engine", [OPENSEARCH, ELASTICSEARCH])
def test_a_native_engine_answers_all_six_operations_right(
    native_project: Path, measured: dict[str, Any], engine: str
) -> None:
    needed(native_project, engine)
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
    native_project: Path, measured: dict[str, Any], engine: str
) -> None:
    needed(native_project, engine)
    identity = measured["engines"][engine]
    assert identity["version"] == SPECS[engine]["version"]
    assert len(identity["build"]) == 40
    assert identity["jvm"]["heap_max_bytes"] == 512 << 20
    assert identity["java"] == record_of(native_project, engine)["java"]
    assert "-Xmx512m" in identity["flags"]
    assert identity["loaded"] == ["transport-netty4"]
    block = measured["natives"][engine]
    assert block["status"] == "measured"
    assert block["started_s"] > 0
    index = block["primed"]["index"]
    assert (index["health"], index["segments"]) == ("green", 1)
    # As the engine says them after the load, and nothing that was not asked for.
    assert index["settings"] == {
        "index.number_of_replicas": "0",
        "index.number_of_shards": "1",
        "index.queries.cache.enabled": "true",
        "index.refresh_interval": "-1",
        "index.requests.cache.enable": "false",
    }
    assert index["more"] == {}
    assert index["mapping"]["dynamic"] == "strict"
    assert index["mapping"]["properties"]["carrier"] == {"type": "keyword"}
    assert identity["budget"] == {"cpus": len(os.sched_getaffinity(0)), "heap": "512m"}
    assert identity["settings"]["discovery.type"] == "single-node"
    assert identity["differs"]["requests"] == identity["differs"]["mapping"] == []
    assert identity["differs"]["load"][0]["what"].endswith("then _refresh")
    assert identity["differs"]["node"] == []


def test_ledger_resources_and_profiles_tell_the_engines_apart(
    native_project: Path, measured: dict[str, Any]
) -> None:
    rows = pq.read_table(native_project / measured["ledger"]["path"]).to_pandas()
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
    resources = json.loads((native_project / measured["resources"]["path"]).read_text())
    busy = next(
        p for p in resources["phases"] if p["phase"].startswith("warm, filtered-page, open")
    )
    assert busy["processes"][OPENSEARCH]["cpu_s"] > 0
    assert busy["processes"][OPENSEARCH]["rss_bytes"] > 100e6
    assert busy["natives"][OPENSEARCH]["gc_count"] >= 0


def test_nothing_is_left_of_the_engines(native_project: Path, measured: dict[str, Any]) -> None:
    assert measured["natives"][OPENSEARCH]["status"] == "measured"
    assert not list((native_project / "results/scratch").glob("*"))
    marks = ("org.opensearch.bootstrap.OpenSearch", "org.elasticsearch.server/")
    for process in psutil.Process().children(recursive=True):
        assert not any(mark in word for word in process.cmdline() for mark in marks)


def test_an_engine_that_is_not_at_hand_leaves_the_round_valid(
    native_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record = native_project / "results/engines/absent.json"
    prepare(
        native_project, OPENSEARCH, SPECS[OPENSEARCH], SETTINGS, tmp_path / "home", record, "test"
    )
    monkeypatch.undo()
    why = json.loads(record.read_text())["why"]
    assert "not on PATH" in why or "is needed" in why
    asked = small("old", 1, SETTINGS)
    made = files(native_project, "off-control", "old")
    found = run(asked, replace(made, engines={OPENSEARCH: record}))
    completed(found)
    assert found["natives"] == {OPENSEARCH: {"status": "not measured", "why": why}}
    assert cells(found, OPENSEARCH) == []


def test_an_engine_that_is_not_any_more_what_its_record_says_makes_the_round_invalid(
    native_project: Path, tmp_path: Path
) -> None:
    """It was to be a gauge of drift in every round; one without it is not as good as planned."""
    needed(native_project, OPENSEARCH)
    record = tmp_path / "opensearch.json"
    # Its home stands beside the record, so this one's is gone.
    record.write_bytes((native_project / "results/engines/opensearch.json").read_bytes())
    found = run(
        small("old", 3, SETTINGS),
        replace(files(native_project, "off-control", "old", 3), engines={OPENSEARCH: record}),
    )
    completed(found)
    block = found["natives"][OPENSEARCH]
    assert block["status"] == "failed"
    assert "its folder is gone" in block["why"]
    assert f"opensearch: {block['why']}" in found["invalid"]
    assert not found["valid"]


def test_an_engine_that_fails_takes_its_own_cells_alone(
    native_project: Path, tmp_path: Path
) -> None:
    needed(native_project, OPENSEARCH)
    # Too little for Java to start with.
    asked = small("old", 2, {**SETTINGS, "heap": "1m"})
    made = files(native_project, "off-control", "old", 2)
    engines = {OPENSEARCH: native_project / "results/engines/opensearch.json"}
    found = measure(
        asked,
        type(made)(**{**vars(made), "engines": engines}),
        Progress("test", None, io.StringIO()),
    )
    assert found["natives"][OPENSEARCH]["status"] == "failed"
    assert not found["valid"]
    assert found["invalid"][-1].startswith("opensearch: opensearch has ended")
    assert str(native_project) not in json.dumps(found)
    completed(found)


def test_a_jar_that_is_not_the_pinned_one_is_refused(native_project: Path, tmp_path: Path) -> None:
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


def test_a_releases_folder_is_taken_as_it_is(native_project: Path, tmp_path: Path) -> None:
    needed(native_project, OPENSEARCH)
    release = native_project / "results/engines/opensearch/home"
    record = native_project / "results/engines/of-a-release.json"

    def prepared(home: Path) -> dict[str, Any]:
        settings = {**SETTINGS, OPENSEARCH: {**SETTINGS[OPENSEARCH], "home": str(home)}}
        asked = (
            native_project,
            OPENSEARCH,
            SPECS[OPENSEARCH],
            settings,
            tmp_path / "unused",
            record,
            "test",
        )
        return prepare(*asked)

    made = prepared(release)
    assert (made["status"], made["source"], made["version"]) == ("at hand", "home", "3.9.0")
    assert made["files"] == record_of(native_project, OPENSEARCH)["files"]
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

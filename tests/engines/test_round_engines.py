"""Whole rounds on the real gateway, the embedded Qdrant and a real Valkey, at small counts."""

from __future__ import annotations

import io
import json
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from edge_server import EdgeServer
from refill.engines import valkey
from refill.engines.description import EngineError
from refill.engines.gateway import Api
from refill.evidence.attempts import list_attempts
from refill.load.wire import Address
from refill.phases.measure_round import measure
from refill.progress import Progress, silent
from refill.runtimes import process as process_runtime
from round_fixture import COUNTS, QDRANT, Watcher, child, files, plan, prepare

PASSWORD = "a-password-that-must-not-be-recorded"
OPERATIONS = [
    "read-document", "filtered-page", "page-after-cursor", "terms-buckets", "filter-counts",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a round")
    prepare(folder)
    return folder


@pytest.fixture(autouse=True)
def own_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFILL_LOCK", str(root / "lock"))
    monkeypatch.setattr(valkey, "new_password", lambda: PASSWORD)


@pytest.fixture(scope="module")
def measured(root: Path) -> dict[str, dict[str, Any]]:
    """One round of each image and profile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFILL_LOCK", str(root / "lock"))
        patch.setattr(valkey, "new_password", lambda: PASSWORD)
        return {
            f"{profile}/{image}": measure(
                plan(profile, image), files(root, profile, image), silent("test")
            )
            for profile, image in (("on-main", "old"), ("on-main", "new"), ("off-control", "old"))
        }


def test_every_response_of_every_cell_is_right(measured: dict[str, dict[str, Any]]) -> None:
    for name, record in measured.items():
        assert record["valid"], record["invalid"]
        assert record["outcome"] == "completed"
        cells = [(c["profile"], c["operation"], c["clients"]) for c in record["cells"]]
        warm = [("warm", o, c) for o in OPERATIONS for c in (1, 3)]
        cold = [("cold", "cold-filtered-page", c) for c in (1, 3)]
        assert cells == ([*warm, *cold] if name.startswith("on") else cold)
        for cell in record["cells"]:
            assert [t["trial"] for t in cell["trials"]] == [1, 2]
            assert all(t["stats"]["ok"] == cell["requests"] for t in cell["trials"])


def test_warm_and_cold_are_proven_by_the_caches_counters(
    measured: dict[str, dict[str, Any]],
) -> None:
    for cell in measured["on-main/new"]["cells"]:
        for trial in cell["trials"]:
            cache = trial["cache"]
            if cell["profile"] == "warm":
                assert (cache["hits"], cache["misses"], trial["hit_ratio"]) == (12, 0, 1.0)
                assert cache["qdrant_calls"] == 0
            else:
                assert (cache["hits"], cache["misses"], cache["fills"]) == (0, 12, 12)
    for cell in measured["off-control/old"]["cells"]:
        assert [t["cache"]["bypassed"] for t in cell["trials"]] == [9, 9]


def test_only_the_durable_publication_is_in_the_log(measured: dict[str, dict[str, Any]]) -> None:
    def cold(name: str) -> dict[str, Any]:
        found: dict[str, Any] = measured[name]["profiles"][-1]
        return found

    fills = 2 * 2 * COUNTS["cold_enabled"]  # type: ignore[operator]
    old, new, off = cold("on-main/old"), cold("on-main/new"), cold("off-control/old")
    assert old["cache"]["fills"] == new["cache"]["fills"] == fills
    assert old["aof"]["bytes"] > 1000 * fills
    assert old["aof"]["replication_offset"] == fills
    assert new["aof"]["bytes"] == off["aof"]["bytes"] == 0
    assert new["aof"]["replication_offset"] == 0
    assert measured["on-main/old"]["profiles"][0]["aof"]["bytes"] == 0


def test_the_line_of_a_cell_tells_the_p50_of_its_last_trial(root: Path) -> None:
    said = io.StringIO()
    asked, made = plan("off-control", "new", 7), files(root, "off-control", "new", 7)
    record = measure(asked, made, Progress("test", None, said))
    rows = pd.read_parquet(root / record["ledger"]["path"])
    for clients, name in ((1, "1 client"), (3, "3 clients")):
        mine = rows[(rows["profile"] == "cold") & (rows["clients"] == clients)]
        last = mine[mine["trial"] == 2]
        p50 = ((last["done"] - last["sent"]) * 1e3).median()
        cell = f"cold, cold-filtered-page, gateway, {name}: 2 trials in "
        (line,) = [line for line in said.getvalue().splitlines() if cell in line]
        assert float(line.split(" ")[-2]) == pytest.approx(p50, abs=1e-3)


def test_ledger_raw_profiles_and_resources_stand_beside_the_record(
    root: Path, measured: dict[str, dict[str, Any]]
) -> None:
    record = measured["on-main/old"]
    rows = pd.read_parquet(root / record["ledger"]["path"])
    assert len(rows) == record["ledger"]["counts"]["issued"]
    assert (rows["status"] == "ok").all()
    timed = rows[rows["profile"] != "warm-up"]
    assert timed.groupby(["operation", "clients", "trial"], observed=True).size().eq(12).all()
    assert set(timed[timed["clients"] == 3]["client"]) == {0, 1, 2}
    cold = timed[timed["profile"] == "cold"]["request"]
    assert cold.is_unique
    assert not set(cold) & set(rows[rows["profile"] == "warm-up"]["request"])

    raw = json.loads((root / record["profiles"][1]["path"]).read_text())
    trial = raw["cells"][0]["trials"][0]
    assert sorted(trial["latencies_ms"])[5] == pytest.approx(trial["stats"]["p50_ms"], abs=1e-3)
    resources = json.loads((root / record["resources"]["path"]).read_text())
    names = [phase["phase"] for phase in resources["phases"]]
    assert names[:3] == ["primed", "clients started", "warmed up"]
    assert len(names) == 3 + 12
    primed = resources["phases"][0]["processes"]
    assert primed["qdrant"]["cpu_s"] > 0
    assert primed["valkey"]["rss_bytes"] > 1e6


def test_the_record_names_what_ran_and_no_secret(
    root: Path, measured: dict[str, dict[str, Any]]
) -> None:
    record = measured["on-main/new"]
    engines = record["engines"]
    assert engines["valkey"]["settings"] == {"appendonly": "yes", "appendfsync": "always"}
    assert engines["qdrant"]["embedded"] is True
    assert engines["gateway"]["serving"] is True
    assert engines["gateway"]["image"]["id"].startswith("sha256:")
    builds = {r["engines"]["gateway"]["build"] for r in measured.values()}
    assert len(builds) == 2
    assert record["primed"]["documents"] == 600
    assert not (root / "results/scratch/rounds-on-main-new-1").exists()
    found = [
        path
        for path in root.rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    assert found == []


@pytest.mark.parametrize(
    ("part", "words"),
    [("valkey", "valkey-server"), ("qdrant", "qdrant-edge.pyz"), ("gateway", "gateway-new.pyz")],
)
def test_a_killed_part_gives_an_invalid_record_that_says_so(
    root: Path, part: str, words: str
) -> None:
    def kill() -> None:
        process = child(words)
        process.send_signal(signal.SIGKILL)
        # A process with much memory is a while in dying; warm trials would go on meanwhile.
        _until(lambda: process.status() == psutil.STATUS_ZOMBIE)

    progress = Watcher("warm, filtered-page, gateway, 3 clients", kill)
    record = measure(plan("on-main", "new"), files(root, "on-main", "new", 2), progress)
    assert progress.acted
    assert record["outcome"] == "failed"
    assert not record["valid"]
    assert record["invalid"][0].startswith(f"{part} has ended (signal SIGKILL)")
    assert len(record["cells"]) == 4  # what was measured before stays on record
    assert [profile["valid"] for profile in record["profiles"]] == [False, False]
    last = list_attempts(root)[-1]
    assert last["outcome"] == "failed"
    assert last["files"].keys() == {
        path.relative_to(root).as_posix() for path in files(root, "on-main", "new", 2).written
    }


def test_a_kill_inside_a_timed_section_keeps_the_rows_that_there_are(root: Path) -> None:
    timers = []

    def kill_soon() -> None:
        timers.append(threading.Timer(0.2, child("valkey-server").kill))
        timers[0].start()

    # Long enough that the kill finds the next cell's trial under way.
    counts = {**COUNTS, "trials": 1, "clients": [3], "warm": 9000}
    progress = Watcher("warm, read-document, gateway, 3 clients", kill_soon)
    given = plan("on-main", "new", counts=counts)
    record = measure(given, files(root, "on-main", "new", 8), progress)
    timers[0].join()
    assert record["invalid"][0].startswith("valkey has ended (signal SIGKILL)")
    assert [cell["operation"] for cell in record["cells"]] == ["read-document"]
    rows = pd.read_parquet(root / record["ledger"]["path"])
    broken = rows[(rows["profile"] == "warm") & rows["operation"].isna()]
    assert 0 < len(broken) < 9000
    counted = record["ledger"]["counts"]
    assert counted["issued"] == len(rows) == sum(n for s, n in counted.items() if s != "issued")
    # Without Valkey the gateway answers 503: an error, never a response that looks right.
    assert set(broken["status"]) <= {"ok", "error"}
    assert (broken[broken["status"] == "error"]["http"] == 503).all()


@pytest.mark.parametrize(
    ("words", "cells"), [("primed", 0), ("warm, filter-counts, gateway, 3 clients", 10)]
)
def test_a_qdrant_that_stands_still_ends_the_round(
    root: Path, words: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that is stopped does not hear that it is to end, and is killed.
    monkeypatch.setattr(process_runtime, "STOP_TIMEOUT_S", 0.5)

    def stop() -> None:
        child("qdrant-edge.pyz").send_signal(signal.SIGSTOP)

    given = plan("on-main", "new", timeout_s=0.4)
    record = measure(given, files(root, "on-main", "new", 9), Watcher(words, stop))
    assert record["outcome"] == "failed"
    assert re.match(r"gateway: client \d had no answer for 1\.\d s", record["invalid"][0])
    assert len(record["cells"]) == cells
    lost = record["ledger"]["counts"]["timeout"] + record["ledger"]["counts"]["error"]
    assert 3 <= lost <= 3 * 4


def test_a_warm_up_that_takes_too_long_ends_the_round(root: Path) -> None:
    given = plan("on-main", "new", trial_limit_s=0.02)
    record = measure(given, files(root, "on-main", "new", 9), silent("test"))
    assert record["outcome"] == "failed"
    assert (
        "requests of a part of the warm-up were issued within rounds.trial_limit_s (0.02 s)"
        in (record["invalid"][0])
    )


def gateway_api() -> Api:
    """Give the control side of the gateway that runs under this process."""
    process = child("gateway-new.pyz")
    ports = [c.laddr.port for c in process.net_connections() if c.status == "LISTEN"]
    return Api(Address("127.0.0.1", ports[0]))


def test_one_wrong_response_makes_the_trial_invalid_and_is_shown(root: Path) -> None:
    """A document is changed behind the oracle's back, between the warm-up and the trials."""

    def change() -> None:
        api = gateway_api()
        lines = [
            f'{{"update": {{"_id": "{row}"}}}}\n{{"doc": {{"distance": 5000}}}}\n'
            for row in range(600)
        ]
        answer = api.call("POST", "/flights/_bulk", "".join(lines).encode())
        assert not answer["errors"]
        api.close()

    progress = Watcher("warm, page-after-cursor, gateway, 3 clients", change)
    record = measure(plan("on-main", "new"), files(root, "on-main", "new", 3), progress)
    assert progress.acted
    assert record["outcome"] == "completed"
    assert not record["valid"]
    cells = {(c["operation"], c["clients"]): c for c in record["cells"]}
    assert cells["read-document", 1]["valid"]
    cold = cells["cold-filtered-page", 1]
    assert not cold["valid"]
    trial = cold["trials"][0]
    assert "12 of 12 responses are wrong" in trial["invalid"][0]
    shown = trial["wrong"][0]
    assert shown["status"] == "wrong"
    assert shown["request"]["path"] == "/flights/_search"
    assert "cold-filtered-page" not in shown["request"]["body"]
    assert "expected" in shown["detail"]
    assert "5000" in shown["response"]
    # The writes made the cached responses stale, so the next warm trial was not warm either.
    assert any("not warm" in why for why in cells["terms-buckets", 1]["trials"][0]["invalid"])


def test_a_qdrant_at_a_url_is_used_and_left_as_it_was(root: Path, tmp_path: Path) -> None:
    with EdgeServer(tmp_path / "storage") as server:
        given = plan("on-main", "new", qdrant={**QDRANT, "image": None, "url": server.url})
        where = files(root, "on-main", "new", 7, edge=False)
        record = measure(given, where, silent("test"))
        assert record["valid"], record["invalid"]
        assert record["engines"]["qdrant"]["runtime"] == "external"
        assert record["engines"]["qdrant"]["embedded"] is True
        phases = json.loads((root / record["resources"]["path"]).read_text())["phases"]
        assert phases[0]["processes"]["qdrant"]["cpu_s"] is None
        assert server.result("GET", "/collections")["collections"] == []


def test_a_round_that_breaks_off_leaves_nothing_in_a_qdrant_at_a_url(
    root: Path, tmp_path: Path
) -> None:
    def kill() -> None:
        there.extend(names())
        process = child("gateway-new.pyz")
        process.send_signal(signal.SIGKILL)
        _until(lambda: process.status() == psutil.STATUS_ZOMBIE)

    def names() -> list[str]:
        listed = server.result("GET", "/collections")["collections"]
        return sorted(entry["name"] for entry in listed)

    there: list[str] = []
    with EdgeServer(tmp_path / "storage") as server:
        # Somebody's own, and what a round left that was killed or goes on elsewhere.
        others = ["own", "round0123abcd-x-1"]
        for name in others:
            body = {"vectors": {"size": 4, "distance": "Dot"}}
            server.result("PUT", f"/collections/{name}", body)
        given = plan("on-main", "new", qdrant={**QDRANT, "image": None, "url": server.url})
        where = files(root, "on-main", "new", 10, edge=False)
        record = measure(given, where, Watcher("primed", kill))
        assert names() == others
    assert record["outcome"] == "failed"
    assert len(there) == 3
    (warning,) = record["warnings"]
    assert "the collection round0123abcd-x-1 is there, of another round" in warning


def test_a_changed_archive_is_refused(root: Path) -> None:
    archive = root / "results/images/gateway-old.pyz"
    good = archive.read_bytes()
    archive.write_bytes(good + b"x")
    try:
        record = measure(plan("on-main", "old"), files(root, "on-main", "old", 4), silent("test"))
    finally:
        archive.write_bytes(good)
    assert record["outcome"] == "failed"
    assert "gateway-old.pyz has the SHA-256" in record["invalid"][0]
    assert record["engines"] == {}
    assert record["cells"] == []


def test_a_variable_that_would_change_the_gateway_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFILL_GATEWAY_TTL_S", "1")
    record = measure(plan("on-main", "old"), files(root, "on-main", "old", 5), silent("test"))
    assert "REFILL_GATEWAY_TTL_S would change what is measured" in record["invalid"][0]


def test_a_cache_that_is_too_small_is_no_warm_round(root: Path) -> None:
    """Nothing is published, so nothing can be warm: the counters say it, whatever the latency."""
    small = {"ttl_s": 300, "max_entry_bytes": 10, "start_timeout_s": 30}
    given = plan("on-main", "new", gateway=small)
    record = measure(given, files(root, "on-main", "new", 6), silent("test"))
    assert record["outcome"] == "completed"
    assert not record["valid"]
    trial = record["cells"][0]["trials"][0]
    assert trial["stats"]["ok"] == 12
    assert trial["invalid"][0] == "not warm: the cache counts 0 hits, 12 were expected"
    assert trial["cache"]["rejected_by_reason"] == {"too_large": 12}


def test_a_missing_valkey_is_an_error_with_words(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"rounds\.valkey\.binary: .*no such file"):
        valkey.find_binary(str(tmp_path / "missing"))


@pytest.fixture
def running_valkey(tmp_path: Path) -> Any:
    from refill.runtimes.process import ProcessEngine

    described = valkey.server([str(valkey.find_binary(None))], PASSWORD, 20.0)
    with ProcessEngine(described, tmp_path / "s", tmp_path / "log") as engine:
        yield engine


def test_valkey_listens_on_loopback_with_a_password_that_is_in_no_file(
    running_valkey: Any, tmp_path: Path
) -> None:
    client = valkey.connect(running_valkey.address, PASSWORD)
    client.set("a", "in the log")
    client.close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"in the log" in path.read_bytes() for path in written)
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]
    process = child("valkey-server")
    assert PASSWORD not in " ".join(process.cmdline())
    assert {c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"} == {"127.0.0.1"}
    with pytest.raises(EngineError, match="INFO"):
        valkey.Control(running_valkey.address, "wrong").aof()


def test_a_rewrite_of_the_log_hides_its_growth(running_valkey: Any) -> None:
    control = valkey.Control(running_valkey.address, PASSWORD)
    client = valkey.connect(running_valkey.address, PASSWORD)
    client.set("a", "x" * 1000)
    before = control.aof()
    client.set("b", "x" * 1000)
    grown = valkey.growth(before, control.aof())
    assert grown["bytes"] > 1000
    assert grown["replication_offset"] == 1
    assert not grown["rewritten"]

    client.bgrewriteaof()
    _until(lambda: control.aof().rewrites > before.rewrites)
    rewritten = valkey.growth(before, control.aof())
    assert rewritten["rewritten"]
    assert rewritten["bytes"] is None
    client.close()
    control.close()


def test_a_valkey_that_is_not_durable_is_refused(running_valkey: Any) -> None:
    client = valkey.connect(running_valkey.address, PASSWORD)
    client.config_set("appendfsync", "everysec")
    control = valkey.Control(running_valkey.address, PASSWORD)
    with pytest.raises(EngineError, match=r"everysec.*a round needs"):
        control.identity()
    client.close()
    control.close()


def _until(condition: Callable[[], bool]) -> None:
    from refill.processes import wait_for

    assert wait_for(condition, 20)

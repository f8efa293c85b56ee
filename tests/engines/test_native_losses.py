"""A native engine that ends, or stands still, in the middle of a round: its own rows say why."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from native_fixture import OPENSEARCH, SETTINGS, cells, needed, run, small
from refill.evidence.recounted import differences
from refill.phases import round_run
from refill.phases.round_system import GATEWAY, RoundSystem
from refill.processes import wait_for
from refill.report.rounds import CellKey, Expected, status_of
from round_fixture import Watcher, files

MAIN = "org.opensearch.bootstrap.OpenSearch"


def nodes() -> list[psutil.Process]:
    """Give the nodes that run below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        # One that has ended since has no command line.
        with suppress(psutil.NoSuchProcess):
            found += [process] if any(MAIN in word for word in process.cmdline()) else []
    return found


def lost(root: Path, n: int, progress: Any = None, **over: Any) -> dict[str, Any]:
    """Measure a round in which OpenSearch is lost, and check what holds of each such round."""
    made = files(root, "off-control", "old", n)
    engines = {OPENSEARCH: root / "results/engines/opensearch.json"}
    found = run(
        small("old", n, SETTINGS, timeout_s=2, **over), replace(made, engines=engines), progress
    )
    assert found["outcome"] == "completed", found["invalid"]
    assert nodes() == []
    block = found["natives"][OPENSEARCH]
    assert block["status"] == "failed"
    assert block["started_s"] > 0
    # A gauge of drift is gone, so the round is not what was planned; nothing of the gateway is.
    assert not found["valid"]
    assert f"opensearch: {block['why']}" in found["invalid"]
    assert [profile["valid"] for profile in found["profiles"]] == [True]
    assert all(cell["valid"] for cell in cells(found, GATEWAY))
    assert len(cells(found, GATEWAY)) == len(found["configuration"]["counts"]["clients"])
    assert found["ledger"]["conservation"]["violations"] == []
    assert differences(root, made.record.relative_to(root).as_posix()) == []
    return found


def status(found: dict[str, Any], engine: str) -> str:
    """Give what the table's row of an engine says."""
    cold = found["cells"][0]
    operation = {"id": cold["operation"], "title": cold["title"]}
    expected = Expected(
        operations={"warm": [], "cold": [operation]},
        clients=[1],
        engines=[GATEWAY, OPENSEARCH],
        profiles=["off-control"],
        blocks=1,
        margin=0.05,
        images={},
    )
    both = [
        {**found, "image": image, "repeat": number} for image in ("old", "new") for number in (1, 2)
    ]
    key = CellKey("off-control", "cold", cold["operation"], cold["title"], engine, 1)
    return status_of(key, both, expected)


def test_one_that_is_killed_in_its_own_trial_takes_that_cell_alone(
    native_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(native_project, OPENSEARCH)
    check = RoundSystem.check

    def kill(self: RoundSystem, engine: str = GATEWAY) -> None:
        if engine == OPENSEARCH and self.now.endswith("opensearch, 1 client, trial 2"):
            for node in nodes():
                node.kill()
            # Errors come at once, and its end a moment later: the trial must not be over by then.
            assert wait_for(lambda: nodes() == [], 30)
        check(self, engine)

    monkeypatch.setattr(RoundSystem, "check", kill)
    # Looked at all the time, so that a short trial is found under way.
    monkeypatch.setattr(round_run, "CHECK_S", 0.0)
    counts = {"trials": 3, "clients": [1], "warm": 4, "cold_enabled": 4, "cold_disabled": 40}
    found = lost(native_project, 51, counts=counts)
    assert found["natives"][OPENSEARCH]["during"].endswith("opensearch, 1 client, trial 2")
    (cell,) = cells(found, OPENSEARCH)
    assert [trial["stats"]["ok"] for trial in cell["trials"]] == [40]
    assert cell["invalid"][-1].startswith(
        "1 of 3 trials were run: opensearch has ended (signal SIGKILL)"
    )
    assert status(found, GATEWAY) == "completed"
    assert "opensearch has ended (signal SIGKILL)" in status(found, OPENSEARCH)


def test_one_that_stands_still_is_noticed_between_the_gateways_trials_and_ended(
    native_project: Path,
) -> None:
    needed(native_project, OPENSEARCH)

    def stop() -> None:
        for node in nodes():
            node.send_signal(signal.SIGSTOP)

    progress = Watcher("cold, cold-filtered-page, gateway, 1 client", stop)
    counts = {"trials": 2, "clients": [1, 2], "warm": 4, "cold_enabled": 4, "cold_disabled": 4}
    found = lost(native_project, 52, progress, counts=counts)
    assert progress.acted
    why = found["natives"][OPENSEARCH]["why"]
    # Two and a half of the round's timeouts, as for a request of a client.
    assert why == "opensearch: GET /_nodes/stats/jvm,indices: no answer within 5 s"
    assert cells(found, OPENSEARCH) == []
    assert why in status(found, OPENSEARCH)

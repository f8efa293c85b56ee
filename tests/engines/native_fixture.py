"""What rounds with native engines need: those at hand, put together once, and documents."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT, load, load_native
from refill.engines import native
from refill.engines.description import Description
from refill.engines.installations import DIALECTS, open_installation, prepare
from refill.phases.measure_round import Files, measure
from refill.progress import Progress
from refill.runtimes.users import other_user, take_copy
from round_fixture import plan
from round_fixture import prepare as prepare_round

SPECS = load_native()
SETTINGS: dict[str, Any] = {
    **load(PROJECT / "config/config.yaml")["rounds"]["native"],
    "heap": "512m",
    "warm_up": 60,
}
OPENSEARCH, ELASTICSEARCH = "opensearch", "elasticsearch"


@pytest.fixture(scope="session")
def native_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def small(image: str, n: int, settings: dict[str, Any], **over: Any) -> dict[str, Any]:
    """Give the plan of a round of one trial with OpenSearch beside the gateway."""
    counts = {"trials": 1, "clients": [1], "warm": 4, "cold_enabled": 4, "cold_disabled": 4}
    given = {"counts": counts, "engines": ["gateway", OPENSEARCH], **over}
    return plan("off-control", image, n, native=settings, native_specs=SPECS, **given)


def run(asked: dict[str, Any], made: Files, progress: Progress | None = None) -> dict[str, Any]:
    """Measure a round and give its record."""
    return measure(asked, made, progress or Progress("test", None, io.StringIO()))


def completed(record: dict[str, Any]) -> None:
    """Check that a round went to its end and every answer was right.

    Not that it is valid: on a busy machine the driver's own pauses make it invalid, rightly.
    """
    assert record["outcome"] == "completed", record["invalid"]
    assert cells(record, "gateway")
    for cell in record["cells"]:
        for trial in cell["trials"]:
            assert trial["stats"]["ok"] == trial["stats"]["n"] == cell["requests"], trial["wrong"]


def cells(record: dict[str, Any], engine: str) -> list[dict[str, Any]]:
    return [cell for cell in record["cells"] if cell["engine"] == engine]


def node_of(root: Path) -> Description:
    """Describe a node of OpenSearch, to be started beside a round."""
    kept = root / "results/engines/opensearch"
    installed = open_installation(
        kept.with_suffix(".json"), OPENSEARCH, SPECS[OPENSEARCH], SETTINGS, kept / "home"
    )
    assert installed.home is not None
    assert installed.java is not None
    user = SETTINGS["user"]
    node = native.Node(
        installed.home,
        installed.java,
        native.Budget(2, "512m"),
        user,
        120,
        lambda home, copy: take_copy(home, copy, other_user(user)),
    )
    return native.describe(DIALECTS[OPENSEARCH], node)

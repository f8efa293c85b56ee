"""What the record of a native engine says of it: its own settings with reasons, what is not so."""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.config import PROJECT, load
from refill.engines import elasticsearch, native, opensearch
from refill.phases.native_differences import differences

DIALECTS = [opensearch.DIALECT, elasticsearch.DIALECT]
SETTINGS = load(PROJECT / "config/config.yaml")["rounds"]["native"]


def released(home: Path) -> Path:
    """Make a folder that holds what a release has and artifacts have not."""
    for part in ("plugins/opensearch-security", "modules/x-pack-security", "modules/ingest-geoip"):
        (home / part).mkdir(parents=True)
    return home


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_every_difference_has_its_reason(dialect: native.Dialect, tmp_path: Path) -> None:
    alone = {**dialect.settings(released(tmp_path)), **dialect.image.variables}
    assert alone
    found = differences(dialect, SETTINGS, alone, False)
    assert found["requests"] == found["mapping"] == []
    assert {line["what"].partition(":")[0] for line in found["node"]} == alone.keys()
    assert [line["what"] for line in found["index"]] == [
        "index.refresh_interval: -1",
        "index.requests.cache.enable: false",
        "index.queries.cache.enabled: true",
    ]
    assert all(line["what"] and line["why"] for lines in found.values() for line in lines)
    at_url = differences(dialect, SETTINGS, {}, True)
    assert at_url["node"] == []
    assert at_url["requests"]
    assert at_url["mapping"]


def test_a_node_that_is_not_as_it_was_started_is_told() -> None:
    budget = native.Budget(2, "512m")
    asked = native.work_settings(2)
    assert native.departures(budget, asked, asked, 512 << 20) == []
    # The collector rounds up to whole regions.
    assert native.departures(budget, asked, asked, (512 << 20) + 4096) == []
    other = {**asked, "node.processors": "4"}
    del other["discovery.type"]
    assert native.departures(budget, asked, other, 1 << 30) == [
        "node.processors is 4, asked for was 2",
        "discovery.type is not set, asked for was single-node",
        "its heap is 1,073,741,824 bytes, asked for was 512m",
    ]
    assert "heap" in native.departures(budget, asked, asked, 256 << 20)[0]

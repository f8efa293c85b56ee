"""An engine at a URL: what is asked of it is read back, and nothing of a round stays there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from native_fixture import (
    OPENSEARCH,
    SETTINGS,
    SPECS,
    cells,
    completed,
    needed,
    node_of,
    run,
    small,
)
from refill.engines import native
from refill.engines.installations import prepare
from refill.engines.native_index import Stated
from refill.phases.url_index import UrlIndex, new_name
from refill.processes import module_environment
from refill.runtimes.owner import Owner
from refill.runtimes.process import ProcessEngine
from round_fixture import Watcher, child, files

BODY = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {"dynamic": "strict", "properties": {"carrier": {"type": "keyword"}}},
}
LABEL = "from refill.runtimes.owner import Owner; print(Owner.this_process().label)"


@pytest.fixture(scope="module")
def api(native_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[native.Api]:
    """An OpenSearch that runs already and is somebody's own."""
    needed(native_project, OPENSEARCH)
    folder = tmp_path_factory.mktemp("somebody's")
    with ProcessEngine(node_of(native_project), folder / "scratch", folder / "log") as engine:
        api = native.Api(OPENSEARCH, engine.address)
        yield api
        api.close()


@pytest.fixture(autouse=True)
def as_it_was(api: native.Api) -> Iterator[None]:
    """Hold every test to this: what was there is there, and nothing else."""
    api.create_index("flights", BODY)
    yield
    left = indices(api)
    for name in left:
        api.delete_index(name)
    assert left == ["flights"]


def indices(api: native.Api) -> list[str]:
    return sorted(api.mappings("*"))


def at_url(api: native.Api, root: Path, n: int, progress: Any = None) -> dict[str, Any]:
    """Measure a round with the engine at its URL; the home folder of `prepare` stays empty."""
    settings = {**SETTINGS, OPENSEARCH: {**SETTINGS[OPENSEARCH], "url": api.address.url}}
    record = root / f"results/engines/at-url-{n}.json"
    home = record.with_suffix("") / "home"
    prepare(root, OPENSEARCH, SPECS[OPENSEARCH], settings, home, record, "test")
    made = replace(files(root, "off-control", "new", n), engines={OPENSEARCH: record})
    return run(small("new", n, settings), made, progress)


def test_one_that_runs_already_is_measured_and_left_as_it_was(
    native_project: Path, api: native.Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One without security takes any name and word; what counts here is that no record holds them.
    monkeypatch.setenv("OPENSEARCH_USER", "reader-of-refill")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "word-of-refill")
    found = at_url(api, native_project, 41)
    completed(found)
    identity, block = found["engines"][OPENSEARCH], found["natives"][OPENSEARCH]
    assert (identity["runtime"], identity["version"]) == ("external", "3.9.0")
    assert block["started_s"] is None
    assert len(cells(found, OPENSEARCH)) == 1
    # Nobody here set its budget, so none is claimed; what it says of itself is.
    assert (identity["budget"], identity["flags"], identity["java"]) == (None, None, None)
    assert identity["jvm"]["heap_max_bytes"] == 512 << 20
    assert found["configuration"]["native"].keys() == {"warm_up", "request_cache", "query_cache"}
    assert block["primed"]["index"]["settings"]["index.number_of_replicas"] == "0"
    differs = identity["differs"]
    assert differs["started"] == "by whoever runs it"
    assert "a name of this round's own" in differs["requests"][0]["what"]
    for path in (
        native_project / "results/rounds/off-control/new-41.json",
        native_project / "results/engines/at-url-41.json",
        *(native_project / "results/attempts").rglob("*.json*"),
    ):
        assert b"of-refill" not in path.read_bytes()


def test_a_round_that_breaks_off_leaves_nothing_there(
    native_project: Path, api: native.Api
) -> None:
    there: list[str] = []

    def kill() -> None:
        there.extend(indices(api))
        child("gateway-new.pyz").kill()

    found = at_url(api, native_project, 42, Watcher("primed", kill))
    assert found["outcome"] == "failed"
    assert found["invalid"][0].startswith("gateway has ended (signal SIGKILL)")
    # It was there until then; `as_it_was` looks whether it is there still.
    assert [name[:15] for name in there] == ["flights", "refill-flights-"]


def test_a_mapping_that_a_template_changes_is_refused_with_what_it_changes(
    native_project: Path, api: native.Api
) -> None:
    more = {"properties": {"by_a_template": {"type": "keyword"}}}
    template = {"index_patterns": ["refill-*"], "template": {"mappings": more}}
    api.call("PUT", "/_index_template/of-a-user", json.dumps(template).encode())
    try:
        found = at_url(api, native_project, 43)
    finally:
        api.call("DELETE", "/_index_template/of-a-user")
    completed(found)
    block = found["natives"][OPENSEARCH]
    assert block["status"] == "failed"
    assert "the mapping's properties.by_a_template is {'type': 'keyword'}" in block["why"]
    assert not found["valid"]


def test_settings_are_read_back_and_others_are_told(api: native.Api) -> None:
    settings = {"index.codec": "best_compression", "number_of_replicas": 2}
    api.create_index("refill-asked", {**BODY, "settings": {**BODY["settings"], **settings}})
    stated = Stated.read(api, "refill-asked")
    api.delete_index("refill-asked")
    assert stated.differing(BODY) == ["index.number_of_replicas is 2, asked for was 0"]
    assert stated.more(BODY) == {"index.codec": "best_compression"}
    assert Stated.read(api, "flights").differing(BODY) == []
    assert Stated.read(api, "flights").plain(BODY) == {
        "settings": {"index.number_of_replicas": "0", "index.number_of_shards": "1"},
        "more": {},
        "mapping": BODY["mappings"],
    }


def mark(api: native.Api, name: str, owner: str) -> None:
    """Make an index as a round of some process would have."""
    meta = {"refill": {"run": name, "owner": owner}}
    api.create_index(name, {**BODY, "mappings": {**BODY["mappings"], "_meta": meta}})


def test_what_a_dead_run_left_is_removed_and_what_may_be_in_use_is_told(api: native.Api) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LABEL],
        env=module_environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    living = Owner.this_process()
    dead, lives, elsewhere, plain = (new_name("flights") for _ in range(4))
    mark(api, dead, done.stdout.strip())
    mark(api, lives, living.label)
    mark(api, elsewhere, replace(living, boot="another machine's").label)
    # Named as a round's and not marked as one's: somebody's own.
    api.create_index(plain, BODY)
    said: list[str] = []
    own = UrlIndex(api, new_name("flights"), said.append)
    own.sweep()
    left = indices(api)
    for name in (lives, elsewhere, plain):
        api.delete_index(name)
    assert left == sorted(["flights", lives, elsewhere, plain])
    assert f"opensearch: removed the index {dead}, which a killed run left" in said
    assert len(own.left) == 2
    assert all(any(name in line for line in own.left) for name in (elsewhere, plain))


def test_an_index_that_is_not_this_runs_is_not_deleted(api: native.Api) -> None:
    name = new_name("flights")
    own = UrlIndex(api, name, lambda _: None)
    own.remove()
    assert own.left == []  # there was none to remove
    mark(api, name, "1/2/three/4")
    own.remove()
    assert name in indices(api)
    api.delete_index(name)
    (line,) = own.left
    assert f"the index {name} could not be deleted (it has not the mark of this run)" in line
    api.create_index(name, own.marked(BODY))
    own.remove()

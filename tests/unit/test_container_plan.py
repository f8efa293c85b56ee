"""`runtime: docker` in the configuration: what is refused, and what plans hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT, ConfigError, load
from refill.container_plan import ContainerPlan
from refill.engines import elasticsearch, native, opensearch, qdrant, valkey
from refill.engines.description import Place
from refill.engines.installations import SCHEMA
from refill.evidence.records import write_json
from refill.phases.containers import departures
from refill.phases.measure_round import Files, _budgets
from refill.report.containers_view import sentences
from refill.workflow import Plans

BASE, DOCKER = PROJECT / "config/config.yaml", PROJECT / "config/docker.yaml"
BUILT = {"valkey": {"image": "valkey"}, "qdrant": {"image": "qdrant-edge"}}


def configured(**docker: Any) -> dict[str, Any]:
    return load(BASE, [DOCKER, {"docker": docker}] if docker else [DOCKER])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"docker": {"valkey": {"image": "valkey", "pull": "v:1"}}}, "docker.valkey: needs"),
        ({"docker": {"valkey": {"pull": None}}}, "docker.valkey: .* has none: give one of them"),
        ({"docker": {"qdrant": {"image": "gateway-old"}}}, "docker.qdrant.image: gateway-old has"),
        ({"docker": {"valkey": {"image": "valky"}}}, "docker.valkey.image: no image 'valky'"),
        ({"qdrant": {"url": "http://h:1", "image": None}}, "qdrant.url: is not used with"),
        ({"rounds": {"native": {"opensearch": {"home": "/x"}}}}, "opensearch.home: is not used"),
        ({"docker": {"budget": {"cpus": 0}}}, "docker.budget.cpus: must be >= 1"),
    ],
)  # fmt: skip
def test_what_containers_cannot_do_is_refused(changes: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(BASE, [DOCKER, changes])


def test_an_image_for_containers_alone_is_refused_elsewhere(tmp_path: Any) -> None:
    import shutil

    shutil.copytree(PROJECT / "config", tmp_path / "config")
    images = tmp_path / "config/images.yaml"
    text = images.read_text()
    kept, edge = text.split("  qdrant-edge:\n")
    images.write_text(f"{kept}  qdrant-edge:\n" + edge.replace("python-archive", "docker", 1))
    with pytest.raises(ConfigError, match=r"qdrant\.image: qdrant-edge has `runtime: docker`"):
        load(BASE, project=tmp_path)


def test_a_project_in_a_folder_that_python_cannot_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a:b: .*PYTHONPATH: move the project"):
        Plans(load(BASE), [BASE], tmp_path / "a:b")


def test_published_images_are_pulled_and_built_ones_are_named_as_in_the_list() -> None:
    plan = ContainerPlan(configured())
    assert (plan.qdrant, plan.valkey) == ("qdrant", "valkey")
    assert plan.pulled == {"qdrant": "qdrant/qdrant:v1.19.2", "valkey": "valkey/valkey:8.1.10"}
    assert plan.image("qdrant")["pull"] == "qdrant/qdrant:v1.19.2"
    built = ContainerPlan(configured(**BUILT))
    assert (built.qdrant, built.valkey, built.pulled) == ("qdrant-edge", "valkey", {})
    assert built.image("valkey")["docker"]["base"] == "python:3.11.14-slim-bookworm"
    processes = ContainerPlan(load(BASE))
    assert (processes.qdrant, processes.valkey) == ("qdrant-edge", None)
    assert processes.measurement("host", "budget") == {}


def test_a_daemon_is_needed_by_measurements_and_images_and_not_on_a_cluster() -> None:
    plan = ContainerPlan(configured())
    assert plan.needs_daemon(["tables", "optimizer"])
    assert not plan.needs_daemon(["tables", "report", "corpus"])
    assert not ContainerPlan(load(BASE)).needs_daemon(["optimizer"])
    assert not ContainerPlan(load(BASE, [DOCKER, {"node_cpus": 8}])).needs_daemon(["optimizer"])


def test_plans_of_rounds_have_the_budget_and_those_of_optimizers_none() -> None:
    plans = Plans(configured(**BUILT), [BASE, DOCKER], PROJECT)
    asked = plans.round("on-main", "new", 1)
    assert (asked["runtime"], asked["cpus"]) == ("docker", 2)
    assert asked["docker"]["budget"]["memory_bytes"] == 4 << 30
    assert (asked["qdrant_image"], asked["valkey_image"]) == ("qdrant-edge", "valkey")
    assert "budget" not in plans.optimizer("A1", 1)["docker"]
    assert plans.proof()["images"]["valkey"] == "valkey"
    assert "runtime" not in Plans(load(BASE), [BASE], PROJECT).round("on-main", "new", 1)


def test_an_engine_at_a_url_takes_no_budget_of_this_machine(tmp_path: Path) -> None:
    records = {name: tmp_path / f"{name}.json" for name in ("opensearch", "elasticsearch")}
    for name, path in records.items():
        content = {"name": name, "attempt": 1, "status": "at hand", "source": "url"}
        write_json(path, {"schema": SCHEMA, **content})
    files = Files(*[Path()] * 3, None, *[Path()] * 3, {}, records)
    url = {"opensearch": {"url": "http://h:9200"}}
    for native_settings, count in (({}, 3), (url, 2)):
        config = load(BASE, [DOCKER, {"rounds": {"native": native_settings}}])
        plan = Plans(config, [BASE, DOCKER], PROJECT).round("on-main", "new", 1)
        assert _budgets(plan, files) == count


@pytest.mark.parametrize(
    ("dialect", "options"),
    [(opensearch.DIALECT, "OPENSEARCH_JAVA_OPTS"), (elasticsearch.DIALECT, "ES_JAVA_OPTS")],
)
def test_a_published_node_is_told_by_variables_alone(dialect: native.Dialect, options: str) -> None:
    described = native.container(dialect, native.Budget(2, "512m"), 60)
    place = Place(7654, PROJECT, "0.0.0.0")
    variables = described.variables_at(place)
    assert list(described.command(place)) == []
    assert variables[options] == "-Xms512m -Xmx512m"
    assert variables["http.port"] == "7654"
    assert variables["network.host"] == "0.0.0.0"
    assert variables["discovery.type"] == "single-node"
    assert described.data == f"/usr/share/{dialect.name}/data"
    off = {"DISABLE_SECURITY_PLUGIN": "true"}.items(), {"xpack.security.enabled": "false"}.items()
    assert any(switch <= variables.items() for switch in off)


def test_a_published_image_keeps_its_data_where_it_always_does() -> None:
    pulled: dict[str, Any] = {"reference": "x:1"}
    assert valkey.container(pulled, "secret", 5).data == "/data"
    assert qdrant.container(pulled, 2, 5).data == "/qdrant/storage"
    assert qdrant.container({}, 2, 5).data is None
    place = Place(7654, PROJECT, "0.0.0.0")
    assert "secret" not in str(valkey.container(pulled, "secret", 5).variables_at(place))


def test_a_relaxed_budget_is_said_in_records_and_on_the_page() -> None:
    daemon = {"version": "20.10", "storage_driver": "overlay2", "name": "Docker"}
    told = {"daemon": daemon, "budget": "relaxed", "why": ["too little memory"], "cpus": "shared"}
    assert departures(told) == ["budget: relaxed: too little memory"]
    assert departures({**told, "budget": "exact"}) == departures(None) == []
    found = sentences([{"containers": told, "engines": {}}, {"containers": None}])
    assert "The budget could not be had, so it is relaxed: too little memory." in found
    assert sentences([{"engines": {}}]) == []

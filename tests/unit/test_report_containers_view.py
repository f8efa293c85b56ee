"""What the page says of containers: who ran them, what the network costs, how budgets were had."""

from __future__ import annotations

from typing import Any

from refill.report.containers_view import sentences


def record(network: dict[str, Any], **more: Any) -> dict[str, Any]:
    daemon = {"name": "Podman", "version": "4.3.1", "storage_driver": "overlay"}
    containers = {
        "daemon": daemon, "cpus": "CPUs of its own for every budget", "network": network,
        "budget": "exact", "why": [], **more,
    }  # fmt: skip
    return {"containers": containers, "engines": {}}


def cost(microseconds: float) -> dict[str, Any]:
    return {"way": "published port", "cost_us": microseconds}


def test_the_daemon_is_named_once_and_what_is_no_container_says_nothing() -> None:
    told = sentences([record({}), record({}), {"containers": None}])
    assert len(told) == 1
    assert "containers of Podman 4.3.1 (overlay)" in told[0]
    assert sentences([{"containers": None}]) == []


def test_the_cost_of_a_published_port_is_told_over_all_records() -> None:
    told = sentences([record({"qdrant": cost(61.4)}), record({"qdrant": cost(48.0)})])
    assert any("port of qdrant costs a client 48 to 61 µs a round trip" in line for line in told)
    (only,) = [line for line in sentences([record({"valkey": cost(54.0)})]) if "port of" in line]
    assert "costs a client 54 µs" in only


def test_a_cost_that_could_not_be_measured_says_why() -> None:
    told = sentences([record({"valkey": {"way": "published port", "not_measured": "refused"}})])
    assert "What the published port of valkey costs a client: not measured (refused)." in told


def test_a_relaxed_budget_is_told() -> None:
    told = sentences([record({}, budget="relaxed", why=["run without root"])])
    assert any("relaxed: run without root" in line for line in told)

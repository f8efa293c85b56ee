"""Which machines are one, and what it takes to compare runs of two."""

from __future__ import annotations

from typing import Any

import pytest
from refill.report.machine import allow, described, mixed, noted


def record(**host: Any) -> dict[str, Any]:
    known = {
        "node": "n1",
        "cpu": {"model": "Some CPU"},
        "memory": {"total_bytes": 16_000_000_000, "available_bytes": 1},
        "load": {"1min": 0.1},
    }
    return {"code": "c", "host": {**known, **host}, "warnings": []}


def test_nodes_of_one_hardware_are_one_machine_and_are_still_named() -> None:
    records = [record(), record(node="n2"), record(memory={"total_bytes": 16_030_000_000})]
    assert mixed(records) == []
    assert described(records[1]["host"])["node"] == "n2"
    assert noted(records) == ""
    assert allow(records, "any") == records


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ({"cpu": {"model": "Other"}}, "cpu.model"),
        ({"memory": {"total_bytes": 17_000_000_000}}, "memory.total_bytes"),
        ({"memory": {"total_bytes": None}}, "memory.total_bytes"),
        ({"kernel": "6.1"}, "kernel"),
    ],
)
def test_other_hardware_is_refused_unless_told_and_then_it_is_said(
    host: dict[str, Any], name: str
) -> None:
    records = [record(), record(**host)]
    assert mixed(allow(records, "same")) == [f"machine ({name})"]
    assert noted(allow(records, "same")) == ""
    told = allow(records, "any")
    assert mixed(told) == []
    says = f"measured on different machines ({name}), and compared because compare.machines is any"
    assert noted(told) == says
    assert [r["warnings"] for r in told] == [[says], [says]]
    # The facts themselves stay, and so does the refusal of other code.
    assert [described(r["host"]) for r in told] == [described(r["host"]) for r in records]
    assert mixed([told[0], {**told[1], "code": "d"}]) == ["code"]
    assert records[0]["warnings"] == []

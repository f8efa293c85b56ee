"""Ledgers and proof records that no run writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refill.evidence.ledger_rows import impossible
from refill.evidence.proof_recount import unequal_parts
from refill.evidence.scrub import scrub
from refill.proofs.suite import CHECKS

ROW = {
    "client": 0, "window": 0, "planned": 1.0, "sent": 1.0, "done": 2.0, "status": "ok",
    "http": 200, "detail": "", "recall": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"http": 500}, {"sent": 7.0}, {"planned": 1.5}, {"done": float("inf")}, {"detail": "x"},
        {"status": "fine"}, {"client": -1}, {"recall": 1.5}, {"sent": float("nan")},
    ],
)  # fmt: skip
def test_a_row_that_no_driver_writes_is_found(change: dict[str, Any]) -> None:
    assert list(impossible(pd.DataFrame([ROW, ROW]))) == []
    found = list(impossible(pd.DataFrame([ROW, {**ROW, **change}])))
    assert found
    assert {where for where, _, _ in found} == {"ledger, row 1"}


def test_a_proof_of_a_few_checks_is_none() -> None:
    record: dict[str, Any] = {
        "checks": [], "servers": [{"name": "valkey-8.1"}], "engines": {"valkey-8.1": {}},
        "counts": {}, "invalid": [], "valid": True, "outcome": "completed",
    }  # fmt: skip
    places = [where for where, _, _ in unequal_parts(record)]
    assert len([p for p in places if p.startswith("checks[")]) == 2 * len(CHECKS)
    assert {"valid", "outcome"} <= set(places)


def test_a_project_that_is_the_folder_one_is_in_hides_no_dot() -> None:
    scrub({"a": "it ended. And then"}, Path(), {})

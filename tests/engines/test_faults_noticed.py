"""Every fault of the table, put between the driver and real engines, is noticed by its check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from edge_server import EdgeServer
from fault_fixture import KeptSystem, optimizer_run, prepare_corpus
from refill.faults.process import FaultProxy
from refill.faults.table import CASES, OPTIMIZER, ROUND, Case
from refill.load.wire import Address
from round_fixture import prepare


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    prepare(folder, documents=400)
    prepare_corpus(folder)
    return folder


@pytest.fixture(autouse=True)
def own_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFILL_LOCK", str(root / "lock"))


@pytest.fixture(scope="module")
def qdrant(root: Path) -> Iterator[Address]:
    with EdgeServer(root / "qdrant") as server:
        yield Address.from_url(server.url)


@pytest.fixture(scope="module")
def system(root: Path) -> Iterator[KeptSystem]:
    kept = KeptSystem(root)
    yield kept
    kept.close()


def check(case: Case, root: Path, record: dict[str, Any], proxy: FaultProxy) -> None:
    put_in = proxy.put_in()
    assert bool(put_in) == (case.fault != "none")
    if case.check is None:
        assert record["valid"], record["invalid"]
        return
    found = [text for text in record[case.where] if re.search(case.words, text)]
    assert found, (case.words, record["invalid"], record["warnings"])
    assert record["valid"] == (case.where == "warnings")
    ledger = pd.read_parquet(root / record["ledger"]["path"])
    assert not case.detail or ledger["detail"].str.contains(case.detail).any()
    if not case.status:
        return
    flagged = int((ledger["status"] == case.status).sum())
    # Searches without an index are asked outside of the ledger.
    for phase in record.get("phases", []):
        flagged += phase.get("exact", {}).get(case.status, 0)
    assert flagged == len(put_in)
    assert set(ledger["status"]) == {"ok", case.status}


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.experiment == OPTIMIZER], ids=lambda case: case.name
)
def test_a_fault_before_qdrant_is_noticed(case: Case, root: Path, qdrant: Address) -> None:
    check(case, root, *optimizer_run(root, qdrant, case))


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.experiment == ROUND], ids=lambda case: case.name
)
def test_a_fault_before_the_gateway_is_noticed(case: Case, root: Path, system: KeptSystem) -> None:
    check(case, root, *system.measure(case))

"""Small measurements of both experiments with the fault proxy between driver and engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from refill.corpora.documents import Documents
from refill.corpora.prepare import prepare as prepare_vectors
from refill.engines import gateway
from refill.evidence.hashes import sha256_file
from refill.faults.kinds import STALL
from refill.faults.process import FaultProxy
from refill.faults.table import Case
from refill.load.wire import Address
from refill.phases import measure_optimizer, measure_round
from refill.phases.round_stack import GatewayStack, Parts
from refill.progress import silent
from round_fixture import QDRANT, Watcher, files, plan

POINTS, QUERIES, DIMENSION = 1500, 100, 8
TIMEOUT_S = 1.5
# No optimizer has work at this size, so that a drain is a few polls long and searches are exact.
OPTIMIZERS: dict[str, Any] = {
    "repeat": 1,
    "group": "F",
    "label": "a small run",
    "description": "Defaults.",
    "scale": "test",
    "seed": 1,
    "cpus": 2,
    "defaults": {},
    "hnsw_defaults": {},
    "override": None,
    "code": "test",
    "upload": {"batch": 15, "clients": 1, "points_per_s": 0, "verify_timeout_s": 1.5},
    "search": {"limit": 10, "timeout_s": TIMEOUT_S},
    "draining": {
        "open_per_s": 50,
        "open_window_s": 0.1,
        "closed_window_s": 0.05,
        "poll_s": 0.05,
        "idle_polls": 2,
        "limit_s": 30,
    },
    "steady": {"passes": 2, "open_per_s": 200, "open_passes": 2, "poll_s": 0.05},
}
COUNTS = {"trials": 1, "clients": [2], "warm": 50, "cold_enabled": 50, "cold_disabled": 50}


def prepare_corpus(root: Path) -> None:
    """Prepare a small corpus of vectors below a folder."""
    rng = np.random.default_rng(3)
    path = root / "small.npy"
    np.save(path, rng.standard_normal((POINTS + QUERIES, DIMENSION)).astype(np.float32))
    spec = {"kind": "npy", "path": str(path), "distance": "Cosine", "sha256": sha256_file(path)}
    out = root / "results/corpora/small"
    prepare_vectors(spec, "small", POINTS, QUERIES, 1, out, path, say=lambda _: None)


def optimizer_run(root: Path, engine: Address, case: Case) -> tuple[dict[str, Any], FaultProxy]:
    """Measure a small optimizer run on an engine behind the proxy."""
    name = case.name
    entry: dict[str, Any] = {"id": name, "group": "F", "label": "x", "description": "x"}
    if case.run == "delete":
        entry["followup"] = {"delete": {"share": 0.25}}
    base = root / "results/optimizers" / name
    paths = measure_optimizer.Files(
        root, root / "results/corpora/small", None,
        base / "1.json", base / "1.parquet", base / "1.polls.parquet",
    )  # fmt: skip
    with FaultProxy(engine, case.fault, root / f"{name}.log", **case.options) as proxy:
        qdrant = {**QDRANT, "image": None, "url": proxy.address.url}
        wanted = {**OPTIMIZERS, "id": name, "entry": entry, "qdrant": qdrant}
        stalls = Watcher("steady begins", proxy.stall)
        progress = stalls if case.fault == STALL else silent("test")
        return measure_optimizer.measure(wanted, paths, progress), proxy


class KeptSystem:
    """One real system for many rounds: started and primed once, lent to each through a proxy.

    Args:
        root: the project's folder, with corpus and images.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._rounds = 0
        self.stack: GatewayStack | None = None
        self.primed: dict[str, Any] | None = None

    def measure(self, case: Case) -> tuple[dict[str, Any], FaultProxy]:
        """Measure a small round whose driver asks the gateway through the proxy."""
        lent: list[LentStack] = []

        def make(parts: Parts, scratch: Path, logs: Path, _: object = None) -> LentStack:
            if self.stack is None:
                self.stack = GatewayStack(parts, scratch, logs)
                self.stack.__enter__()
            lent.append(LentStack(self, self.stack, case, self._root / f"{case.name}.log"))
            return lent[0]

        # Each round has a number of its own, so that its cold requests are new to the cache.
        self._rounds += 1
        wanted = plan("on-main", "new", self._rounds, counts=COUNTS, timeout_s=TIMEOUT_S)
        paths = files(self._root, "on-main", "new", self._rounds)
        stalls = Watcher("warm, read-document", lambda: lent[0].proxy.stall())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measure_round, "GatewayStack", make)
            progress = stalls if case.fault == STALL else silent("test")
            return measure_round.measure(wanted, paths, progress), lent[0].proxy

    def close(self) -> None:
        """End the system."""
        if self.stack is not None:
            self.stack.__exit__(None, None, None)


class LentStack:
    """The kept system as one round sees it: the same in all but where the timed requests go."""

    def __init__(self, system: KeptSystem, stack: GatewayStack, case: Case, log: Path) -> None:
        self._system, self._stack, self._case = system, stack, case
        self.proxy = FaultProxy(stack.address, case.fault, log, **case.options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def __enter__(self) -> Self:
        self.address = self.proxy.__enter__().address
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.proxy.__exit__(None, None, None)

    def prime(self, documents: Documents) -> dict[str, Any]:
        if self._case.run == "prime":
            return self._prime_through_the_proxy(documents)
        if self._system.primed is None:
            self._system.primed = self._stack.prime(documents)
        return self._system.primed

    def _prime_through_the_proxy(self, documents: Documents) -> dict[str, Any]:
        """Load a second index, so that the first one keeps its documents."""
        parts, api = self._stack._parts, self._stack.api
        self._stack._parts = dataclasses.replace(parts, index="second")
        self._stack.api = gateway.Api(self.address)
        try:
            return self._stack.prime(documents)
        finally:
            self._stack.api.close()
            self._stack._parts, self._stack.api = parts, api

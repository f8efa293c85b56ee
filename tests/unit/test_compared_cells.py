"""Two results held against each other: what the noise of optimizer runs is made of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from refill.evidence import compared_cells
from refill.stats.repeats import Noise, noise
from refill.stats.verdict import Value
from report_fixture import make_run


def test_a_twins_repeats_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results with two repeats of A1, C2 and B1: 4 identical runs a side, 2 of B1."""
    old = [make_run(id_, repeat=n, scale=0.1).record for id_ in ("A1", "C2", "B1") for n in (1, 2)]
    new: list[dict[str, Any]] = copy.deepcopy(old)
    counted: list[list[int]] = []

    def counting(
        same: Sequence[Value], repeats: Sequence[Sequence[Value]], relative: bool
    ) -> Noise:
        counted.append([len(same), *map(len, repeats)])
        return noise(same, repeats, relative)

    monkeypatch.setattr(compared_cells, "noise", counting)
    compared_cells.table(old, new)
    a1, c2, b1 = counted[0], counted[5], counted[10]
    assert a1 == c2 == [4, 4, 0, 0]
    assert b1 == [4, 4, 2, 2]

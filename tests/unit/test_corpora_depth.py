"""How many neighbours must be known: enough survive a deletion, and what cannot be is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from refill.config import PROJECT, ConfigError, load, load_optimizers
from refill.corpora.depth import MAX_DEPTH, truth_depth, wanted_depth
from refill.workflow import Plans

BASE = PROJECT / "config/config.yaml"


def deleting(share: float) -> dict[str, Any]:
    return {"followup": {"delete": {"share": share}}}


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("limit", [1, 10, 100])
def test_enough_neighbours_survive_every_one_of_many_deletions(limit: int, share: float) -> None:
    points = 100_000
    depth = wanted_depth(limit, share, points)
    gone = np.random.default_rng(3).hypergeometric(
        round(share * points), points - round(share * points), depth, 20_000
    )
    assert (depth - gone).min() >= limit


def test_the_depth_fits_all_configurations_within_the_points() -> None:
    assert truth_depth(10, load_optimizers().values(), 100_000) == 100
    assert truth_depth(100, load_optimizers().values(), 100_000) == 276
    assert truth_depth(100, [{}], 100_000) == 100
    assert truth_depth(10, [deleting(0.25), deleting(0.5)], 100_000) == 148
    assert truth_depth(10, [deleting(0.5)], 120) == 120
    assert truth_depth(5, [deleting(0.25)], 60) == 60
    # What no corpus can fit is refused with the run, and makes no other corpus deeper.
    assert truth_depth(10, [deleting(0.9999)], 10_000_000) == 100


def test_a_plan_of_a_corpus_asks_for_the_depth() -> None:
    config = yaml.safe_load(BASE.read_text())
    config["optimizers"]["search"]["limit"] = 100
    assert Plans(config, [BASE], PROJECT).corpus("glove-50d")["depth"] == 276


def test_a_deletion_that_leaves_too_few_points_is_refused() -> None:
    config = {"corpus": {"points": 110}, "optimizers": {"search": {"limit": 100}, "runs": ["D1"]}}
    with pytest.raises(
        ConfigError,
        match=r"optimizers\.runs\[0\]: D1 deletes 0\.25 of corpus\.points \(110\), which leaves "
        r"fewer than optimizers\.search\.limit \(100\)",
    ):
        load(BASE, [config])


def test_a_deletion_beyond_the_greatest_depth_is_refused(tmp_path: Path) -> None:
    assert wanted_depth(10, 0.995, 100_000) > MAX_DEPTH
    shutil.copytree(PROJECT / "config", tmp_path / "config")
    catalog = tmp_path / "config/optimizers.yaml"
    catalog.write_text(catalog.read_text().replace("share: 0.25", "share: 0.995", 1))
    with pytest.raises(ConfigError, match=r"runs\[9\]: D1 deletes 0\.995 .*at most 10000 are"):
        load(BASE, project=tmp_path)

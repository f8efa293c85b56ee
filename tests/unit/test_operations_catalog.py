"""config/operations.yaml: what it says, and what is refused in it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from refill.config import PROJECT, ConfigError
from refill.operations import load_operations
from refill.operations.catalog import names

OWN = yaml.safe_load((PROJECT / "config/operations.yaml").read_text())
# Titles of shared tables of the published experiment, in their order.
TITLES = [
    "read one document",
    "filtered, sorted page",
    "page after a sort cursor",
    "keyword terms buckets",
    "two filter counts",
]


def test_the_published_operations_and_counts() -> None:
    operations = load_operations()
    assert [operation.title for operation in operations.warm] == TITLES
    assert operations.cold.title == "cold filtered, sorted page"
    assert operations.counts == {
        "trials": 3,
        "clients": [1, 8],
        "warm": 200,
        "cold_enabled": 200,
        "cold_disabled": 100,
    }
    # 3 engines, 4 rounds a profile: the published totals.
    responses = {
        profile: cells * len(operations.counts["clients"]) * 3 * 4 * 3 * operations.counts[profile]
        for profile, cells in (("warm", 5), ("cold_enabled", 1), ("cold_disabled", 1))
    }
    assert responses == {"warm": 72_000, "cold_enabled": 14_400, "cold_disabled": 7_200}


def test_the_cold_operation_is_the_warm_page_under_new_keys() -> None:
    operations = load_operations()
    page = next(operation for operation in operations.warm if operation.id == "filtered-page")
    assert operations.cold.body == page.body
    assert operations.cold.path == page.path


def test_names_in_templates() -> None:
    assert names({"a": ["${x}", {"b": "is ${y}, ${z}"}], "c": 1}) == {"x", "y", "z"}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("counts.warm", 0, "must be >= 1"),
        ("counts.wram", 1, "did you mean 'warm'"),
        ("operations.filtered-page.cache", "cold", "exactly one must have `cache: cold`"),
        ("operations.cold-filtered-page.cache", "warm", "these have: none"),
        ("operations.filtered-page.title", "read one document", "too: give another"),
        ("operations.filtered-page.path", "/other/_search", "must match the pattern"),
        ("operations.terms-buckets.body.query.range.distance.gte", "${mile}", "'miles'?"),
        ("operations.terms-buckets.body.query.range.distance.gte", 100, "miles: is not used"),
        ("operations.terms-buckets.values.miles.to", 100, r"must be >= from (200), is 100"),
        ("operations.terms-buckets.values.miles.unique", True, "here are 1"),
        ("operations.cold-filtered-page.values.miles.unique", False, "here are 0"),
        ("operations.terms-buckets.values.miles.kind", "nubmer", "did you mean 'number'"),
        ("operations.page-after-cursor.body.search_after", ["${after}"], ""),
        ("operations.terms-buckets.values.miles", {"kind": "cursor", "from": 1, "to": 2}, "cursor"),
    ],
)
def test_what_is_refused(tmp_path: Path, path: str, value: Any, words: str) -> None:
    changed = copy.deepcopy(json.loads(json.dumps(OWN)))
    *parents, last = path.split(".")
    part = changed
    for key in parents:
        part = part[key]
    part[last] = value
    file = tmp_path / "operations.yaml"
    file.write_text(yaml.safe_dump(changed))
    if not words:
        load_operations(file)
        return
    with pytest.raises(ConfigError) as caught:
        load_operations(file)
    assert words in str(caught.value)
    assert "operations.yaml: " in str(caught.value)

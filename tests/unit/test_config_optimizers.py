"""From an optimizer configuration to Qdrant's numbers."""

from __future__ import annotations

from typing import Any

import pytest
from refill.config import ConfigError, load_optimizers, resolve_optimizers

# 100,000 x 50 float32: 100,000 * 50 * 4 / 1,024 KB.
DATA_KB = 19531.25


def resolve(
    entry: dict[str, Any] | str,
    defaults: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    points: int = 100_000,
    dimension: int = 50,
    cpus: int = 2,
) -> dict[str, Any]:
    whole = load_optimizers()[entry] if isinstance(entry, str) else {"id": "X1", **entry}
    return resolve_optimizers(whole, defaults or {}, overrides or {}, points, dimension, cpus)


def applied(*arguments: Any, **named: Any) -> dict[str, Any]:
    values: dict[str, Any] = resolve(*arguments, **named)["applied"]["optimizers"]
    return values


def test_a_share_is_of_the_vectors_in_kilobytes() -> None:
    settings = {"indexing_threshold": {"share": 0.1}, "max_segment_size": {"share": 10}}
    assert applied({"optimizers": settings}) == {
        "indexing_threshold": round(0.1 * DATA_KB),
        "max_segment_size": round(10 * DATA_KB),
    }
    assert applied({"optimizers": {"indexing_threshold": {"share": 0.5}}}, dimension=100) == {
        "indexing_threshold": round(DATA_KB)
    }


def test_a_tiny_share_is_one_kilobyte_and_not_the_zero_that_switches_off() -> None:
    settings = {"indexing_threshold": {"share": 0.001}}
    assert applied({"optimizers": settings}, points=100) == {"indexing_threshold": 1}


def test_per_core_counts_the_engines_cpus() -> None:
    assert applied("B3", cpus=2) == {"default_segment_number": 8}
    assert applied("B3", cpus=16) == {"default_segment_number": 64}
    settings = {"default_segment_number": {"per_core": 0.1}}
    assert applied({"optimizers": settings}, cpus=1) == {"default_segment_number": 1}


def test_settings_merge_defaults_then_entry_then_override() -> None:
    defaults = {"indexing_threshold": 1, "max_segment_size": 2, "memmap_threshold": 3}
    entry = {"optimizers": {"max_segment_size": 20, "memmap_threshold": 30}}
    result = resolve(entry, defaults, {"X1": {"memmap_threshold": 300}, "X2": {"m": 1}})
    assert result["applied"]["optimizers"] == {
        "indexing_threshold": 1,
        "max_segment_size": 20,
        "memmap_threshold": 300,
    }
    assert result["requested"]["optimizers"] == result["applied"]["optimizers"]
    assert any("memmap_threshold: 300 by this scale in place of 30" in n for n in result["notes"])


def test_null_leaves_a_setting_to_qdrant() -> None:
    defaults = {"indexing_threshold": {"share": 0.1}}
    assert applied("C2", {"indexing_threshold": None}) == {}
    assert applied({"optimizers": {"indexing_threshold": None}}, defaults) == {}
    assert applied("B2", {}, {"B2": None}) == {}


def test_default_is_the_scales_value_else_qdrants() -> None:
    settings = {"optimizers": {"indexing_threshold": {"default": True}}}
    assert applied(settings, {"indexing_threshold": {"share": 0.1}}) == {"indexing_threshold": 1953}
    assert applied(settings) == {}


def test_a_change_back_to_the_default_is_a_number() -> None:
    def changed(defaults: dict[str, Any]) -> Any:
        return resolve("E1", defaults)["applied"]["followup"]["reconfigure"]

    assert changed({"indexing_threshold": {"share": 0.1}}) == {
        "optimizers": {"indexing_threshold": 1953}
    }
    # Qdrant's own 10,000 KB: leaving the key out of a PATCH would change nothing.
    assert changed({}) == {"optimizers": {"indexing_threshold": 10000}}
    assert changed({"indexing_threshold": None}) == {"optimizers": {"indexing_threshold": 10000}}


def test_a_default_that_cannot_be_asked_for_is_an_error() -> None:
    change = {"optimizers": {"max_segment_size": {"default": True}}}
    with pytest.raises(ConfigError, match=r"X1: followup.*max_segment_size.*write the number"):
        resolve({"followup": {"reconfigure": change}})
    with pytest.raises(ConfigError, match=r"X1: followup.*hnsw\.m.*write the number"):
        resolve({"followup": {"reconfigure": {"hnsw": {"m": None}}}})


def test_a_deletion_is_a_number_of_points() -> None:
    assert resolve("D1")["applied"]["followup"] == {"delete": {"points": 25_000}}
    assert resolve("D1", points=10)["applied"]["followup"] == {"delete": {"points": 2}}
    with pytest.raises(ConfigError, match=r"D1: followup\.delete\.share: 0\.25 of 2 points is 0"):
        resolve("D1", points=2)


def test_vacuum_below_qdrants_minimum_is_an_error() -> None:
    settings = {"vacuum_min_vector_number": 99}
    with pytest.raises(ConfigError, match=r"X1: optimizers\.vacuum_min_vector_number: .*>= 100"):
        resolve({"optimizers": settings})
    with pytest.raises(ConfigError, match=r"vacuum_min_vector_number: .*>= 100"):
        resolve("A1", {}, {"A1": settings})
    assert applied({"optimizers": {"vacuum_min_vector_number": 100}}) == {
        "vacuum_min_vector_number": 100
    }


def test_an_unknown_setting_names_the_entry_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"optimizers": {"vacum_min_vector_number": 100}})
    assert "X1: optimizers.vacum_min_vector_number: unknown key" in str(caught.value)
    assert "did you mean 'vacuum_min_vector_number'" in str(caught.value)


def test_what_was_worked_out_is_noted() -> None:
    notes = resolve("B3", {"indexing_threshold": {"share": 0.1}})["notes"]
    assert "optimizers.indexing_threshold: {share: 0.1} is 1953 KB (19531 KB of vectors)" in notes
    assert "optimizers.default_segment_number: {per_core: 4} is 8 (2 CPUs)" in notes
    assert resolve("A3", {})["notes"] == []


def test_identical_configurations_resolve_to_the_same() -> None:
    defaults = {"indexing_threshold": {"share": 0.1}}
    values = [resolve(name, defaults)["applied"] for name in ("A1", "B2", "C2")]
    assert values[0] == values[1] == values[2]


def test_inputs_stay_as_they_are() -> None:
    entry = {"id": "X1", "optimizers": {"indexing_threshold": {"share": 0.1}}}
    defaults: dict[str, Any] = {"max_segment_size": {"share": 1}}
    resolve_optimizers(entry, defaults, {}, 10, 10, 1)
    assert entry == {"id": "X1", "optimizers": {"indexing_threshold": {"share": 0.1}}}
    assert defaults == {"max_segment_size": {"share": 1}}


@pytest.mark.parametrize("bad", [{"points": 0}, {"dimension": 0}, {"cpus": 0}])
def test_a_scale_of_nothing_is_an_error(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="needs at least one point"):
        resolve("A1", **bad)  # type: ignore[arg-type]


def test_hnsw_settings_of_the_scale_stand_back_behind_those_of_the_entry() -> None:
    entry = {"id": "X1", "hnsw": {"m": 8}}
    scale = {"m": 32, "full_scan_threshold": {"share": 0.5}}
    applied = resolve_optimizers(entry, {}, {}, 1024, 10, 1, scale)["applied"]
    assert applied["hnsw"] == {"m": 8, "full_scan_threshold": 20}

"""The figures of `make bench` at a small size: they are measured, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from refill.oracle.bench import exact_topk_ratio, stream_memory


def test_exact_search_against_a_product() -> None:
    figures = exact_topk_ratio(points=2000, dimension=8, queries=20, repeats=1)
    assert (figures["points"], figures["dimension"], figures["queries"]) == (2000, 8, 20)
    assert figures["exact_s"] > 0
    assert figures["ratio"] > 0
    assert figures["ratio_in_place"] > 0


def test_memory_of_each_step(tmp_path: Path) -> None:
    figures = stream_memory(tmp_path, points=3000, dimension=16, queries=100)
    rows = {step: figures["steps"][step]["rows"] for step in figures["steps"]}
    assert rows == {"read": 3000, "prepare": 3000, "upload": 2900}
    # An interpreter with NumPy and Arrow takes some 100 MB: less would not be a measurement.
    assert figures["peak_bytes"] > 50_000_000
    assert figures["peak_bytes"] == max(s["peak_bytes"] for s in figures["steps"].values())
    assert list(tmp_path.iterdir()) == []

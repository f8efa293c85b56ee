"""Published event logs: the cases that are known of them, and what is no such log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_log import IDLE, INDEXING, EventLog
from refill.published.__main__ import main
from refill.published.events import LogError, read
from refill.published.figures import Expected, examine, time_weighted
from refill.stats.quantiles import nearest_rank

EXPECTED = Expected(queries=100, passes=5)


def log(
    steady: int = 500, drain: int = 200, last: dict[str, Any] = IDLE, drain_s: float = 0.0
) -> EventLog:
    """A benchmark in which nothing is wrong, unless something else is asked for."""
    made = EventLog()
    made.change("draining")
    made.searches("draining", drain, 4.0)
    made.lose(drain_s)
    made.look(last)
    made.memory("draining")
    made.change("steady")
    made.searches("steady", steady, 4.0)
    return made


def flags(made: EventLog, tmp_path: Path, expected: Expected = EXPECTED) -> dict[str, list[str]]:
    record = examine(read(made.write(tmp_path / "bench.jsonl")), expected)
    found: dict[str, list[str]] = {}
    for flag in record["flags"]:
        found.setdefault(flag["check"], []).append(f"{flag['phase']}: {flag['words']}")
    return found


def test_a_good_log_has_figures_and_no_flag(tmp_path: Path) -> None:
    made = log()
    record = examine(read(made.write(tmp_path / "bench.jsonl")), EXPECTED)
    assert record["flags"] == []
    assert [(p["phase"], p["n"]) for p in record["phases"]] == [("draining", 200), ("steady", 500)]
    steady = record["phases"][1]
    latencies = [e["latency_ms"] for e in made.events[-500:]]
    assert steady["p50_ms"] == pytest.approx(nearest_rank(latencies, 0.5))
    assert steady["max_ms"] == pytest.approx(max(latencies))
    assert (record["optimizer_polls"], record["memory_polls"]) == (1, 1)


def test_lost_samples_are_counted_and_found_in_the_gaps(tmp_path: Path) -> None:
    """A2: 4,988 of 5,000, each lost call about 10 s."""
    made = log(steady=200)
    for _ in range(12):
        made.lose(10.02)
        made.searches("steady", 24, 4.0)
    found = flags(made, tmp_path)
    assert found.keys() == {"lost samples", "gaps", "coordinated omission"}
    assert found["lost samples"] == [
        "steady: 488 of 500 searches: 12 failed and left no line, only 12 gaps of 120.2 s together"
    ]
    assert "12 of them are about the client's limit of 10 s" in found["gaps"][0]


def test_a_log_that_ends_early_is_not_one_that_lost_samples(tmp_path: Path) -> None:
    found = flags(log(steady=200), tmp_path)
    assert found == {
        "stopped early": [
            "steady: 200 of 500 searches: no gap accounts for 300 of those that are missing: it "
            "ended, or they failed at once"
        ]
    }
    made = log(steady=0)
    del made.events[-1]
    assert flags(made, tmp_path) == {
        "stopped early": ["steady: the log ends before the steady phase begins"]
    }


def test_steady_while_an_optimizer_works_is_mislabelled(tmp_path: Path) -> None:
    """B1: the drain reached its limit of 3,600 s with indexing still running."""
    found = flags(log(last=INDEXING), tmp_path)
    assert found["mislabelled phase"] == [
        "steady: the last look at the optimizers says: 1 running (indexing)"
    ]
    words = flags(log(last=INDEXING, drain_s=3600), tmp_path)["mislabelled phase"]
    assert "its limit is 3,600 s: it was given up" in words[1]
    assert "mislabelled phase" not in flags(log(drain_s=3500), tmp_path)


def test_a_look_within_steady_counts(tmp_path: Path) -> None:
    made = log()
    made.look(IDLE | {"queued_optimizations": 2}, "steady")
    assert flags(made, tmp_path)["mislabelled phase"] == [
        "steady: an optimizer worked in 1 looks: 2 queued"
    ]


def test_no_look_at_the_optimizers_is_no_evidence(tmp_path: Path) -> None:
    made = log()
    made.events = [event for event in made.events if event["kind"] != "optimizer"]
    assert "no look at the optimizers" in flags(made, tmp_path)["mislabelled phase"][0]


def test_samples_of_another_phase_are_mislabelled(tmp_path: Path) -> None:
    made = log()
    made.events[-1]["phase"] = made.events[-2]["phase"] = "draining"
    assert (
        "draining: 2 searches carry its name outside of it"
        in (flags(made, tmp_path)["mislabelled phase"])
    )


def test_too_many_searches_are_two_runs_in_one(tmp_path: Path) -> None:
    words = flags(log(steady=501), tmp_path)["mislabelled phase"]
    assert words == ["steady: 501 searches, 500 were to be made"]


def test_a_fast_end_hides_a_slow_drain_from_the_closed_loop(tmp_path: Path) -> None:
    """B2, C2, D1: half of the samples come from the last moments."""
    made = EventLog()
    made.change("draining")
    made.searches("draining", 100, 900.0)
    made.searches("draining", 150, 4.0)
    made.look(IDLE)
    made.change("steady")
    made.searches("steady", 500, 4.0)
    found = flags(made, tmp_path)
    assert found.keys() == {"coordinated omission"}
    assert found["coordinated omission"][0].startswith(
        "draining: half of the samples took at most 4.0 ms, but half of the time went to searches "
        "of 90"
    )


def test_steady_that_still_speeds_up_is_not_steady(tmp_path: Path) -> None:
    made = log(steady=250)
    made.searches("steady", 250, 1.0)
    assert "p50 of the halves differs" in flags(made, tmp_path)["not steady"][0]


def test_time_weighted_quantiles_are_those_of_a_random_moment() -> None:
    # 3 s of 4 belong to the one long search.
    assert time_weighted([0.5, 3.0, 0.5], 0.5) == 3.0
    assert time_weighted([0.5, 3.0, 0.5], 0.25) == 0.5
    rng = np.random.default_rng(1)
    latency = rng.exponential(size=4000)
    moments = rng.uniform(0, latency.sum(), size=40_000)
    met = latency[np.searchsorted(np.cumsum(latency), moments)]
    assert time_weighted(latency, 0.5) == pytest.approx(nearest_rank(met, 0.5), rel=0.05)
    with pytest.raises(ValueError, match="need one at least"):
        time_weighted([], 0.5)


FOLLOWUP = [f"round {r} query {q} latency {q + 1}.5ms" for r in range(5) for q in range(100)]


def followup(lines: list[str], tmp_path: Path) -> list[str]:
    path = tmp_path / "bench-post.log"
    path.write_text("\n".join(lines) + "\n")
    record = examine(read(path), EXPECTED)
    return [f"{flag['check']}: {flag['words']}" for flag in record["flags"]]


def test_a_followup_that_stops_is_said(tmp_path: Path) -> None:
    """E1: 1,998 of 5,000 searches, and no summary; it was left out of the report."""
    summary = "search: n=500 min=1.5ms p50=50ms p95=95ms p99=99ms max=100ms mean=50ms (20 qps)"
    assert followup([*FOLLOWUP, summary], tmp_path) == []
    stopped = followup(FOLLOWUP[:198], tmp_path)
    assert stopped == [
        "stopped early: 198 of 500 searches: it ends at round 1, query 97, without the summary"
    ]
    lost = followup([*FOLLOWUP[:50], *FOLLOWUP[52:], summary.replace("500", "498")], tmp_path)
    assert lost == ["lost samples: 498 of 500 searches: 2 are missing before the last one"]


def test_durations_are_read_as_rust_prints_them(tmp_path: Path) -> None:
    path = tmp_path / "post.log"
    path.write_text("".join(
        f"round 0 query {n} latency {text}\n"
        for n, text in enumerate(["250ns", "1.5µs", "3us", "12.25ms", "1.050087139s"])
    ))  # fmt: skip
    seconds = [search.latency_s for search in read(path).searches]
    assert seconds == pytest.approx([250e-9, 1.5e-6, 3e-6, 0.01225, 1.050087139])


GOOD = {"kind": "search", "t": 1.0, "phase": "steady", "latency_ms": 2.0}
LOOK = {"kind": "optimizer", "t": 1.0, "phase": "draining", **IDLE}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (GOOD | {"kind": "upload"}, "bench.jsonl:2: kind 'upload': must be one of phase_change"),
        ({"t": 1.0, "phase": "steady"}, "bench.jsonl:2: kind None"),
        ({k: v for k, v in GOOD.items() if k != "latency_ms"}, ":2: latency_ms is missing"),
        (GOOD | {"latency_ms": "2"}, ":2: latency_ms '2': must be a number"),
        (GOOD | {"latency_ms": -1}, ":2: latency_ms -1: must be 0 or more"),
        (GOOD | {"t": float("nan")}, ":2: t nan: must be 0 or more"),
        (GOOD | {"phase": "upload"}, ":2: phase 'upload' of kind search"),
        ({k: v for k, v in LOOK.items() if k != "running"}, ":2: running is missing"),
        (LOOK | {"running_optimizers": 1}, ":2: running_optimizers of kind optimizer"),
        ('{"kind": "sea', ":2: not a JSON object"),
        ("[1]", ":2: not a JSON object but list"),
        (json.dumps(GOOD).replace("1.0", "9" * 400), ":2: t: must be at most"),
        (GOOD | {"latency_ms": 1e308}, ":2: latency_ms: must be at most"),
        (LOOK | {"queued_optimizations": 0.9}, "queued_optimizations 0.9: must be a whole number"),
        ("[" * 100_000, ":2: not an event: it is nested too deeply"),
    ],
)
def test_a_line_that_is_not_of_the_format_is_named(line: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(json.dumps(GOOD) + "\n" + text + "\n")
    with pytest.raises(LogError) as caught:
        read(path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "post.log: it is empty"),
        ("round 0 query 0 latency 3 ms\n", "post.log:1: neither"),
        ("round 0 query 0 latency 3ms\nsearch: n=2 min=3ms\n", "post.log:2: the summary counts 2"),
    ],
)
def test_a_followup_that_is_not_one_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "post.log"
    path.write_text(text)
    with pytest.raises(LogError) as caught:
        read(path)
    assert words in str(caught.value)


def test_the_command_prints_and_records_and_says_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = log(steady=200).write(tmp_path / "a.jsonl"), tmp_path / "b.jsonl"
    bad.write_text('{"kind": "other"}\n')
    options = ["--queries", "100", "--output", str(tmp_path / "out")]
    assert main(["import", str(good), *options]) == 0
    assert main(["import", str(bad), str(good), *options]) == 1
    shown = capsys.readouterr()
    assert "steady: n 200, p50_ms 4.01" in shown.out
    assert "! stopped early: steady: 200 of 500 searches" in shown.out
    assert "b.jsonl:1: kind 'other'" in shown.err
    record = json.loads((tmp_path / "out/a.jsonl.json").read_text())
    assert record["schema"] == "refill.published/1"
    assert len(record["sha256"]) == 64
    assert [flag["check"] for flag in record["flags"]] == ["stopped early"]


def _drain(tmp_path: Path, fill: Callable[[EventLog], None]) -> dict[str, list[str]]:
    made = EventLog()
    made.change("draining")
    fill(made)
    made.change("steady")
    made.searches("steady", 500, 4.0)
    return flags(made, tmp_path)


def test_a_drain_in_which_every_search_failed_is_flagged(tmp_path: Path) -> None:
    def fill(made: EventLog) -> None:
        made.lose(42.0)
        made.look(IDLE)

    found = _drain(tmp_path, fill)
    assert found["lost samples"] == ["draining: no search succeeded in 42.0 s"]
    assert "for 42.0 to 42.0 s" in found["gaps"][0]


def test_the_time_from_the_last_search_to_the_next_phase_is_a_gap(tmp_path: Path) -> None:
    def fill(made: EventLog) -> None:
        made.searches("draining", 100, 4.0)
        made.lose(30.0)
        made.look(IDLE)

    assert "for 30.0 to 30.0 s" in _drain(tmp_path, fill)["gaps"][0]


def test_a_last_look_long_before_the_steady_phase_is_no_evidence(tmp_path: Path) -> None:
    def fill(made: EventLog) -> None:
        made.look(IDLE)
        made.searches("draining", 100, 200.0)

    words = _drain(tmp_path, fill)["mislabelled phase"]
    assert words == ["steady: the last look at the optimizers was 20.1 s before it began"]


def test_named_optimizers_run_whatever_their_number_says(tmp_path: Path) -> None:
    words = flags(log(last=IDLE | {"running_optimizers": ["merge"]}), tmp_path)
    assert words["mislabelled phase"][0].endswith("says: 0 running, yet merge is named")


@pytest.mark.parametrize(
    ("spoil", "check", "words"),
    [
        (lambda e: e[-1].update(latency_ms=900.0), "impossible times", "before the last one was"),
        (lambda e: e.append(dict(e[-1])), "duplicated lines", "1 searches stand there more"),
        (lambda e: e[-1].update(latency_ms=0), "impossible times", "1 searches took 0 ms"),
        (lambda e: e.insert(300, e.pop(310)), "impossible times", "goes back, first in line 302"),
        (lambda e: e[201].update(t=e[0]["t"] - 5), "impossible times", "goes back"),
    ],
)
def test_times_that_one_client_cannot_have_are_flagged(
    spoil: Callable[[list[dict[str, Any]]], None], check: str, words: str, tmp_path: Path
) -> None:
    made = log()
    spoil(made.events)
    if words == "goes back":  # of the looks alone: a second one before the first
        made.events.insert(1, dict(made.events[201], t=made.events[0]["t"] + 1))
    found = flags(made, tmp_path)
    assert any(words in one for one in found[check])


def test_latencies_of_zero_are_no_coordinated_omission(tmp_path: Path) -> None:
    made = log()
    for event in made.events:
        if event["kind"] == "search":
            event["latency_ms"] = 0
    found = flags(made, tmp_path)
    assert "coordinated omission" not in found
    assert "steady: 500 searches took 0 ms" in found["impossible times"]


def test_equal_names_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(str(log().write(tmp_path / folder / "x.jsonl")))
    assert main(["import", *paths, "--output", str(tmp_path / "out")]) == 1
    assert "x.jsonl: several files have this name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["import", *paths, "--queries", "100"]) == 0


@pytest.mark.parametrize(
    ("option", "text"),
    [("--timeout-s", "nan"), ("--timeout-s", "0"), ("--queries", "-1"), ("--passes", "0"),
     ("--drain-limit-s", "inf")],
)  # fmt: skip
def test_options_out_of_range_are_refused(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log().write(tmp_path / "x.jsonl")
    with pytest.raises(SystemExit):
        main(["import", str(path), f"{option}={text}"])
    assert f"argument {option}: {text!r}: must be" in capsys.readouterr().err


def test_text_that_is_not_utf8_is_named_and_the_next_file_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, marked = tmp_path / "bad.jsonl", tmp_path / "marked.jsonl"
    bad.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\n")
    good = log().write(tmp_path / "good.jsonl")
    marked.write_bytes(b"\xef\xbb\xbf" + good.read_bytes())
    assert main(["import", str(bad), str(good), str(marked), "--queries", "100"]) == 1
    shown = capsys.readouterr()
    assert "bad.jsonl:2: not UTF-8 text" in shown.err
    assert shown.out.count("nothing to flag") == 2

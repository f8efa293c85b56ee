"""The checks that notice faults, each alone: scores, short answers, silence, exact searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from refill.corpora.prepare import prepare
from refill.corpora.store import Corpus
from refill.evidence.hashes import sha256_file
from refill.load.loops import Row
from refill.oracle.exact import score64
from refill.oracle.scores import RightScores
from refill.phases.judge import OptimizerJudge
from refill.phases.optimizer_record import _short_though_visible, _silence, judged
from refill.phases.round_record import warned
from refill.stats.silence import is_long, longest_silence

POINTS, QUERIES, DIMENSION = 600, 5, 24


def corpus(folder: Path, distance: str, depth: int = 20) -> Corpus:
    rows = np.random.default_rng(4).standard_normal((POINTS + QUERIES, DIMENSION))
    path = folder / "small.npy"
    np.save(path, (rows * 3).astype(np.float32))
    spec = {"kind": "npy", "path": str(path), "distance": distance, "sha256": sha256_file(path)}
    out = folder / "corpus"
    prepare(spec, "small", POINTS, QUERIES, 1, out, path, say=lambda _: None, depth=depth)
    return Corpus.open(out)


@pytest.mark.parametrize("distance", ["Cosine", "Dot", "Euclid"])
def test_a_score_belongs_to_one_point_and_one_query(distance: str, tmp_path: Path) -> None:
    small = corpus(tmp_path, distance)
    right, truth = RightScores(small), small.truth(10)
    vectors, _ = small.rows(0, POINTS)
    for query in range(QUERIES):
        # Beyond what is known, too, and as float32 sums would give them.
        ids = [*truth.ids[query][:5].tolist(), 599, 3, 250]
        asked = np.broadcast_to(small.queries()[query], (len(ids), DIMENSION))
        scores = (score64(vectors[ids], asked, distance) * (1 + 1e-5)).tolist()
        assert right.problem(query, ids, scores) is None
        assert right.problem((query + 1) % QUERIES, ids, scores) is not None
        for place in (0, len(ids) - 1):
            changed = [*scores]
            changed[place] += 0.1 * abs(scores[0])
            found = right.problem(query, ids, changed)
            assert found is not None
            assert found.startswith(f"point {ids[place]} has the score ")
    assert right.problem(0, [7], [float("nan")]) is not None


@pytest.mark.parametrize("distance", ["Cosine", "Euclid"])
def test_an_answer_to_another_query_is_wrong(distance: str, tmp_path: Path) -> None:
    small = corpus(tmp_path, distance)
    truth, low = small.truth(10), distance == "Euclid"
    judge = OptimizerJudge(truth, POINTS, 10, low, scores=RightScores(small))

    def answer(query: int, of: int) -> Row:
        sign = -1 if low else 1
        pairs = zip(truth.ids[of][:10].tolist(), truth.scores[of][:10].tolist(), strict=True)
        points = [{"id": point, "score": sign * score} for point, score in pairs]
        body = orjson.dumps({"result": {"points": points}})
        return Row("steady", "closed", 0, 0, query, 0.0, 0.0, 0.1, "answered", 200, body, "")

    assert judge(answer(2, of=2)) == ("ok", 10, 1.0, "")
    status, _, _, detail = judge(answer(2, of=3))
    assert status == "wrong"
    assert "has the score" in detail


def test_the_longest_silence_counts_only_while_someone_waits() -> None:
    # Planned every 0.1 s; between 0.3 and 0.9 nothing is answered.
    asked = [0.0, 0.1, 0.2, 0.3, 0.4, 2.0]
    done = [0.01, 0.11, 0.21, 0.9, 0.91, 2.02]
    found = longest_silence(asked, done)
    assert found is not None
    assert (found.at, found.seconds) == pytest.approx((0.3, 0.6))
    shuffled = longest_silence(asked[::-1], done[::-1])
    assert shuffled == found
    # Another request waited since 0, though the one that was answered first had just been sent.
    overtaken = longest_silence([5.0, 0.0], [5.5, 5.6])
    assert overtaken is not None
    assert (overtaken.at, overtaken.seconds) == pytest.approx((0.0, 5.5))
    assert longest_silence([], []) is None
    with pytest.raises(ValueError, match="NaN"):
        longest_silence([0.0], [float("nan")])


def test_a_silence_is_long_for_an_engine_that_is_fast() -> None:
    assert is_long(1.0, 0.001)
    assert not is_long(0.9, 0.001)
    assert not is_long(3.0, 0.4)
    assert is_long(3.0, None)


def searches(sent: list[float], done: list[float], hits: list[int], loop: str) -> pd.DataFrame:
    return pd.DataFrame(
        {"sent": sent, "planned": sent, "done": done, "hits": hits, "loop": loop, "status": "ok"}
    )


def test_a_stall_is_waited_out_by_all_of_an_open_loop_and_one_of_a_closed_one() -> None:
    planned = [n / 10 for n in range(30)]
    done = [max(t + 0.001, 2.0) if t >= 0.5 else t + 0.001 for t in planned]
    open_loop = _silence(searches(planned, done, [10] * 30, "open"))
    assert open_loop is not None
    assert open_loop["longest_s"] == pytest.approx(1.5)
    assert open_loop["waited"] == {"open": 15, "closed": 0}
    closed = _silence(searches([0.0, 0.1, 1.6], [0.1, 1.6, 1.7], [10] * 3, "closed"))
    assert closed is not None
    assert closed["waited"] == {"open": 0, "closed": 1}


def polls(*moments: tuple[float, float], error: str = "") -> pd.DataFrame:
    return pd.DataFrame(
        [{"t": t, "poll_ms": 10.0, "visible": visible, "error": error} for t, visible in moments]
    )


def test_a_short_answer_counts_when_polls_on_both_sides_saw_enough_points() -> None:
    row = searches([1.0], [1.1], [4], "open")
    full = searches([1.0], [1.1], [10], "open")
    assert _short_though_visible(row, polls((0.5, 100), (1.5, 100)), 10) == 1
    assert _short_though_visible(full, polls((0.5, 100), (1.5, 100)), 10) == 0
    # Hidden before it: prevent_unoptimized. Hidden after it, not polled, or not answered: unknown.
    assert _short_though_visible(row, polls((0.5, 0), (1.5, 100)), 10) == 0
    assert _short_though_visible(row, polls((0.5, 100), (1.5, 3)), 10) == 0
    assert _short_though_visible(row, polls((0.5, 100)), 10) == 0
    assert _short_though_visible(row, polls((0.995, 100), (1.5, 100)), 10) == 0
    failed = polls((0.5, 100), (1.5, 100), error="no answer")
    assert _short_though_visible(row, failed, 10) == 0


STATS = {"n": 9, "wrong": 0, "error": 0, "timeout": 0, "p50_ms": 1.0}


def steady(**changes: Any) -> dict[str, Any]:
    phase = {
        "name": "steady",
        "open": STATS,
        "closed": STATS,
        "recall": {"mean": 0.9},
        "visible_share": {"min": 1.0, "last": 1.0},
        "stationary": {"ok": True},
        "silence": {"at_s": 1.0, "longest_s": 0.2, "waited": {"open": 3, "closed": 1}},
        "short_though_visible": 0,
        "exact": exact(),
    }
    return phase | changes


def exact(**changes: Any) -> dict[str, Any]:
    found = {"queries": 20, "ok": 20, "wrong": 0, "error": 0, "recall_mean": 1.0, "detail": ""}
    return found | changes


def verdict(*phases: dict[str, Any], **counts: int) -> tuple[list[str], list[str]]:
    kept = {"violations": [], "counts": counts}
    return judged(phases, ["steady"], kept, [], None)[1:]


def test_a_run_with_nothing_to_say() -> None:
    assert verdict(steady()) == ([], [])


def test_exact_searches_must_find_all_that_is_visible() -> None:
    half = exact(recall_mean=0.5)
    assert "find 0.500 of the nearest points" in verdict(steady(exact=half))[0][0]
    hidden = steady(exact=half, visible_share={"min": 0.4, "last": 0.5})
    assert verdict(hidden) == ([], [])
    failed = exact(error=2, wrong=1, detail="502: <html>")
    assert verdict(steady(exact=failed))[0] == [
        "steady: 1 of 20 searches without an index are wrong: 502: <html>",
        "steady: 2 of 20 searches without an index failed: 502: <html>",
    ]


def test_a_long_silence_is_a_warning_of_a_steady_phase_alone() -> None:
    silence = {"at_s": 1.0, "longest_s": 3.0, "waited": {"open": 99, "closed": 1}}
    invalid, warnings = verdict(steady(silence=silence))
    assert invalid == []
    assert "no search was answered for 3.00 s" in warnings[0]
    assert "99 of the open loop and 1 of the closed one waited" in warnings[0]
    draining = steady(name="draining", silence=silence)
    del draining["stationary"]
    assert verdict(draining, steady())[1] == []


def test_bad_answers_outside_of_all_figures_count_too() -> None:
    """While polls confirm that a drain is over, searches go on and stand in no figure."""
    bad = STATS | {"wrong": 1, "error": 2}
    assert verdict(steady(), wrong=1, error=2)[0] == [
        "while the end of a drain was confirmed: 1 answers are wrong",
        "while the end of a drain was confirmed: 2 requests failed",
    ]
    inside = verdict(steady(open=bad), wrong=1, error=2)[0]
    assert [text for text in inside if "confirmed" in text] == []


def test_a_silence_in_a_trial_of_a_round_is_a_warning() -> None:
    silence = {"at_s": 5.0, "longest_s": 1.5}
    trial = {"trial": 2, "lost": [], "silence": silence, "stats": {"p50_ms": 0.3}}
    cell = {"profile": "warm", "operation": "o", "engine": "gateway", "clients": 1}
    found = warned([cell | {"trials": [trial, trial | {"silence": None}]}])
    assert len(found) == 1
    assert found[0].startswith("warm, o, gateway, 1 client, trial 2: no response came for 1.50 s")

"""What the oracle of an optimizer run accepts as an answer, and what it calls wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from refill.load.loops import Row
from refill.oracle.recall import Truth
from refill.phases.judge import OptimizerJudge


def truth() -> Truth:
    ids = np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], np.int64)
    scores = np.array([[9, 8, 7, 6, 5], [9, 8, 7, 6, 5]], np.float32)
    return Truth(ids, scores, 3)


def search(points: Any, http: int = 200, query: int = 0) -> Row:
    body = points if isinstance(points, bytes) else json.dumps({"result": {"points": points}})
    data = body if isinstance(body, bytes) else body.encode()
    return Row("steady", "closed", 0, 0, query, 0.0, 0.0, 0.1, "answered", http, data, "")


def hits(*ids: int) -> list[dict[str, Any]]:
    return [{"id": point, "score": 1.0 - n / 10} for n, point in enumerate(ids)]


@pytest.fixture
def judge() -> OptimizerJudge:
    return OptimizerJudge(truth(), points=10, limit=3)


def test_recall_is_the_share_of_the_nearest_that_were_found(judge: OptimizerJudge) -> None:
    assert judge(search(hits(0, 1, 2))) == ("ok", 3, 1.0, "")
    assert judge(search(hits(0, 1, 9))).recall == pytest.approx(2 / 3)
    assert judge(search(hits(5, 6, 7), query=1)).recall == 1.0


def test_few_or_no_hits_are_a_low_recall_not_an_error(judge: OptimizerJudge) -> None:
    """With prevent_unoptimized a search sees fewer points; that is what is measured."""
    assert judge(search(hits(0)))[:2] == ("ok", 1)
    assert judge(search([])) == ("ok", 0, 0.0, "")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (hits(0, 1, 2, 3), "4 hits, 3 were asked for"),
        (hits(0, 0), "twice"),
        (hits(0, 10), "never uploaded"),
        (hits(-1), "never uploaded"),
        ([{"id": 0, "score": 0.1}, {"id": 1, "score": 0.9}], "not in order"),
        ([{"id": 0, "score": None}], "not a search's answer"),
        ([{"id": "x", "score": 1}], "not a search's answer"),
        (b"<html>", "not a search's answer"),
        (b'{"result": null}', "not a search's answer"),
    ],
)
def test_a_wrong_answer_is_called_wrong(judge: OptimizerJudge, points: Any, words: str) -> None:
    verdict = judge(search(points))
    assert verdict.status == "wrong"
    assert words in verdict.detail


def test_a_deleted_point_must_not_come_back(judge: OptimizerJudge) -> None:
    judge.truth, judge.deleted = judge.truth.without([1]), frozenset([1])
    assert judge(search(hits(0, 1))).detail == "deleted point 1 came back"
    assert judge(search(hits(0, 2, 3))).recall == 1.0


def test_distances_rise_and_scores_fall(judge: OptimizerJudge) -> None:
    rising = [{"id": 0, "score": 0.1}, {"id": 1, "score": 0.9}]
    assert OptimizerJudge(truth(), 10, 3, best_is_low=True)(search(rising)).status == "ok"


def test_an_error_page_is_an_error_with_the_engines_words(judge: OptimizerJudge) -> None:
    body = b'{"status": {"error": "Service internal error: disk full"}, "time": 0}'
    verdict = judge(search(body, http=500))
    assert verdict.status == "error"
    assert verdict.detail == "500: Service internal error: disk full"


def test_uploads_must_be_acknowledged(judge: OptimizerJudge) -> None:
    def upload(body: str) -> str:
        row = Row("upload", "upload", 0, 0, 0, 0, 0, 0.1, "answered", 200, body.encode(), "")
        return judge(row).status

    assert upload('{"result": {"status": "acknowledged"}}') == "ok"
    assert upload('{"result": {"status": "completed"}}') == "ok"
    assert upload('{"result": {"status": "wait_timeout"}}') == "wrong"
    assert upload("{}") == "wrong"


def test_an_api_key_that_comes_back_is_not_kept() -> None:
    judge = OptimizerJudge(truth(), 10, 3, key="s3cret-key")
    body = b'{"status": {"error": "bad api-key s3cret-key"}}'
    assert judge(search(body, http=403)).detail == "403: bad api-key <API key>"
    assert "s3cret" not in judge(search(b"<html>s3cret-key")).detail

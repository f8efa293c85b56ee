"""When an engine that answers nothing any more ends a round."""

from __future__ import annotations

import pytest
from refill.engines.description import EngineError
from refill.load.loops import Row
from refill.phases.unanswered import Unanswered


def row(client: int, outcome: str, seconds: float, http: int = 0) -> Row:
    return Row("cold", "closed", 1, client, 0, 1.0, 1.0, 1.0 + seconds, outcome, http, b"", "")


def test_three_timeouts_in_a_row_of_one_client_are_the_end() -> None:
    watch = Unanswered(10)
    watch.note("gateway", [row(0, "timeout", 10), row(0, "timeout", 10)])
    with pytest.raises(
        EngineError, match=r"^gateway: client 0 had no answer for 30\.0 s .*timeout"
    ):
        watch.note("gateway", [row(0, "timeout", 10)])


def test_late_errors_are_as_good_as_timeouts_and_quick_ones_are_not() -> None:
    watch = Unanswered(10)
    watch.note("gateway", [row(0, "answered", 0.001, 503)] * 1000)
    with pytest.raises(EngineError, match="status 503"):
        watch.note("gateway", [row(0, "answered", 9.5, 503)] * 3)


def test_a_pause_that_ends_is_no_end() -> None:
    watch = Unanswered(10)
    for _ in range(5):
        # Eight clients that waited out the same pause, twice.
        watch.note("gateway", [row(client, "timeout", 10) for client in range(8)] * 2)
        watch.note("gateway", [row(client, "answered", 0.01, 200) for client in range(8)])


def test_what_another_engine_answers_is_no_answer_of_this_one() -> None:
    watch = Unanswered(10)
    watch.note("gateway", [row(0, "timeout", 10)] * 2)
    watch.note("opensearch", [row(0, "answered", 0.01, 200)])
    with pytest.raises(EngineError, match=r"^gateway: "):
        watch.note("gateway", [row(0, "timeout", 10)])

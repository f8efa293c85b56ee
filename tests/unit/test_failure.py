"""The failure that came first is what a record says."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from refill.engines.description import EngineError
from refill.phases.failure import first_failure


def failing(words: str) -> None:
    try:
        raise OSError("refused")
    except OSError as error:
        raise EngineError(words) from error


def failing_twice_and_at_its_end() -> None:
    with ExitStack() as stack:
        stack.callback(failing, "valkey cannot be removed")
        stack.callback(failing, "gateway cannot be removed")
        try:
            failing("gateway: no answer")
        except EngineError as error:
            raise EngineError("gateway: has ended (seen as: gateway: no answer)") from error


def test_what_fails_at_the_end_does_not_hide_what_failed_before() -> None:
    with pytest.raises(EngineError) as caught:
        failing_twice_and_at_its_end()
    assert str(caught.value) == "valkey cannot be removed"
    assert first_failure(caught.value) == (
        "gateway: has ended (seen as: gateway: no answer) (and behind that: valkey cannot be "
        "removed)"
    )


def test_one_failure_has_its_own_words() -> None:
    with pytest.raises(EngineError) as caught:
        failing("gateway: no answer")
    assert first_failure(caught.value) == "gateway: no answer"

"""A context of parts: what fails while it is closed hides nothing that came before."""

from __future__ import annotations

import pytest
from refill.contexts import OpensParts
from refill.processes import StoppedError
from refill.told import with_notes


class Parts(OpensParts):
    """Two parts that do not close, and perhaps a third that does not open."""

    def __init__(self, opens: bool = True) -> None:
        super().__init__()
        self._opens = opens

    def _start(self) -> None:
        for name in ("first", "second"):
            self._open.callback(self._fail, name)
        if not self._opens:
            raise KeyError("third")

    def _fail(self, name: str) -> None:
        raise OSError(f"{name} is in use")


NOTES = [
    "then, while cleaning up: OSError: second is in use",
    "then, while cleaning up: OSError: first is in use",
]


@pytest.mark.parametrize("error", [ValueError("wrong"), StoppedError("stopped by SIGTERM")])
def test_an_error_is_not_replaced_by_what_fails_behind_it(error: BaseException) -> None:
    with pytest.raises(type(error)) as told, Parts():
        raise error
    assert told.value is error
    assert told.value.__notes__ == NOTES
    assert with_notes(error) == "; ".join((str(error), *NOTES))


def test_an_error_of_the_start_is_not_replaced_either() -> None:
    with pytest.raises(KeyError) as told, Parts(opens=False):
        pass
    assert told.value.__notes__ == NOTES


def test_what_alone_fails_at_the_end_is_raised() -> None:
    with pytest.raises(OSError, match="first is in use"), Parts():
        pass


def test_an_error_that_was_handled_before_is_not_told_again() -> None:
    error = ValueError("wrong")
    error.__context__ = KeyError("handled")
    with pytest.raises(ValueError, match="wrong"), Parts():
        raise error
    assert error.__notes__ == NOTES

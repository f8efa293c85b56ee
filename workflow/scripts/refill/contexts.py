"""A context that is made of parts, each of which may fail to start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from types import TracebackType
from typing import Self


class OpensParts(ABC):
    """Opens its parts in turn. Used as a context: leaving it closes them, the last one first.

    A subclass opens them in `_start` and gives each to `_open`. When one of them does not start,
    or the run is stopped meanwhile, those before it are closed.
    """

    def __init__(self) -> None:
        self._open = ExitStack()

    @abstractmethod
    def _start(self) -> None:
        """Open all parts."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self._close_after(error)
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._close_after(error)

    def _close_after(self, error: BaseException | None) -> None:
        """Close all parts; what fails then is added to the error that was there before.

        In its place it would hide why the parts are closed, and even that the run was stopped.
        """
        try:
            self._open.close()
        except Exception as another:
            if error is None:
                raise
            # Of several parts that did not close only the last one's error is raised.
            for each in reversed(_chain(another, error)):
                error.add_note(f"then, while cleaning up: {type(each).__name__}: {each}")


def _chain(error: BaseException | None, first: BaseException) -> list[BaseException]:
    """Give an error and what was handled when it came, the latest first, up to `first`."""
    found: list[BaseException] = []
    while error is not None and error is not first and error not in found:
        found.append(error)
        error = error.__context__
    return found

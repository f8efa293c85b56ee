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
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._open.close()

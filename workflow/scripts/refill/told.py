"""Errors whose text is all that there is to know: what is wrong, where, and what to do."""

from __future__ import annotations


class ToldError(Exception):
    """Something given from outside (configuration, data, record) cannot be used; the text says why.

    Where the code stood when it noticed helps nobody, so no traceback is shown of it.
    """


class SupersededError(ToldError):
    """Another attempt has this target now; the text says which, and where it runs or ran."""


def with_notes(error: BaseException) -> str:
    """Give an error's text, and what was added on its way, such as what could not be removed."""
    return "; ".join((str(error), *getattr(error, "__notes__", ())))

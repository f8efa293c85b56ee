"""The error of everything that reads or prepares a corpus."""

from __future__ import annotations

from refill.told import ToldError


class CorpusError(ToldError):
    """A corpus cannot be used as it is.

    Args:
        corpus: its name, a key of `corpora` in the configuration.
        file: the file that is wrong, as the configuration or the archive names it.
        key: the key of the corpus's entry that says so.
        problem: what is wrong.
        remedy: what to do.
    """

    def __init__(self, corpus: str, file: str, key: str, problem: str, remedy: str) -> None:
        super().__init__(f"corpora.{corpus}.{key}: {file}: {problem}; {remedy}")
        self.key = key


class UnreachableError(CorpusError):
    """The package registry could not be reached."""

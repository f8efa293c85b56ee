"""Problems of a configuration, put so that a newcomer can mend them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refill.told import ToldError

Where = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One problem: the key it is at, and what is wrong and what to do."""

    where: Where
    text: str


class ConfigError(ToldError, ValueError):
    """A configuration cannot be used; the text has one line for each problem.

    A line reads `<file>: <key>: <what is wrong>: <what to do>`. `problems` holds the lines.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def key_text(where: Where) -> str:
    """Return a key's path as it is written in messages: `optimizers.runs[2]`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "(whole file)"


def nearest(word: object, known: Iterable[str]) -> str:
    """Return "did you mean 'x'? " for the known word that is nearest, or "" when none is near."""
    words = sorted(known)
    lower = {w.lower(): w for w in words}
    found = difflib.get_close_matches(str(word).lower(), lower, n=1, cutoff=0.6)
    return f"did you mean {lower[found[0]]!r}? " if found else ""

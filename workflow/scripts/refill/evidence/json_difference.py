"""Where two JSON values differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

Unequal = tuple[str, Any, Any]

# A sum over many floats depends in its last bits on how wide the processor adds.
_RELATIVE = 1e-9


def unequal(says: Any, gives: Any, where: str = "") -> Iterator[Unequal]:
    """Give each place in which two JSON values differ: its keys, and both values.

    Numbers are equal when they are to nine digits. `where` starts with "." or "[".
    """
    if isinstance(says, Mapping) and isinstance(gives, Mapping):
        for key in [*says, *(key for key in gives if key not in says)]:
            yield from unequal(says.get(key), gives.get(key), f"{where}.{key}")
    elif isinstance(says, list | tuple) and isinstance(gives, list | tuple):
        for n, (one, other) in enumerate(itertools.zip_longest(says, gives)):
            yield from unequal(one, other, f"{where}[{n}]")
    elif not _equal(says, gives):
        yield where, says, gives


def _equal(says: Any, gives: Any) -> bool:
    numbers = (int, float)
    if isinstance(says, bool) or isinstance(gives, bool):
        return says is gives
    if isinstance(says, numbers) and isinstance(gives, numbers):
        return math.isclose(says, gives, rel_tol=_RELATIVE, abs_tol=1e-12)
    return bool(says == gives)

"""What broke a measurement off, in words, although ending its engines failed behind that."""

from __future__ import annotations

from refill.engines.description import EngineError
from refill.told import with_notes


def first_failure(error: EngineError) -> str:
    """Return the words of the failure that came first.

    An engine whose runtime is gone cannot be ended either, and what that says hides why the
    measurement broke off.
    """
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None:
        chain.append(seen)
        seen = seen.__context__
    # What another one was made of stands in that one's words.
    made_of = {id(one.__cause__) for one in chain}
    said = [
        with_notes(one) for one in chain if isinstance(one, EngineError) and id(one) not in made_of
    ]
    first = said[-1]
    return first if len(said) == 1 else f"{first} (and behind that: {said[0]})"

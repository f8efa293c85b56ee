"""An engine that answers nothing any more, although its process is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from refill.engines.description import EngineError
from refill.load.loops import Row

# So many timeouts long may a client be without a right status: a pause of the engine that ends is
# measured as it is, three timeouts in a row are no pause.
PATIENCE_TIMEOUTS = 2.5
RIGHT = 200


class Unanswered:
    """Watches how long each client has been without an answer.

    Args:
        timeout_s: limit of one request.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lost_s: dict[tuple[str, int], float] = defaultdict(float)
        self._lost: dict[tuple[str, int], int] = defaultdict(int)

    def note(self, engine: str, rows: Sequence[Row]) -> None:
        """Take the rows of requests to an engine, in the order of each client.

        Raises:
            EngineError: a client's requests had no answer or an error, one after the other, for
                longer than `PATIENCE_TIMEOUTS` timeouts.
        """
        for row in rows:
            place = engine, row.client
            if row.outcome == "answered" and row.http == RIGHT:
                self._lost[place], self._lost_s[place] = 0, 0.0
                continue
            self._lost[place] += 1
            self._lost_s[place] += row.done - row.sent
            if self._lost_s[place] > PATIENCE_TIMEOUTS * self._timeout_s:
                last = f"status {row.http}" if row.outcome == "answered" else row.outcome
                raise EngineError(
                    f"{engine}: client {row.client} had no answer for {self._lost_s[place]:.1f} s "
                    f"(limit of one request: {self._timeout_s:g} s): its last "
                    f"{self._lost[place]} requests failed, the last one with {last}. The engine or "
                    "what it works on stands still: look at its log, then measure again"
                )

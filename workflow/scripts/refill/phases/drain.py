"""When is a drain over? Never on a flag alone: on several quiet polls in a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from refill.phases.polls import Poll


@dataclass
class Drain:
    """Watches polls until the optimizers are idle for good, or the limit is reached.

    Idle means `idle_polls` polls in a row without a reason to be busy and with the same number of
    indexed vectors. The drain lasted until the first of them; the rest is confirmation.

    Attributes:
        start: seconds, when the drain began.
        idle_polls: how many quiet polls in a row are asked for.
        limit_s: after this time the drain is given up, as an outcome of its own.
    """

    start: float
    idle_polls: int
    limit_s: float
    quiet: list[Poll] = field(default_factory=list)
    last: Poll | None = None
    polls: int = 0
    outcome: str | None = None

    def see(self, poll: Poll) -> str | None:
        """Take the next poll; give `idle` or `drain_limit` when the drain is over, else None."""
        self.polls += 1
        if poll.busy:
            self.quiet.clear()
        elif self.quiet and poll.indexed != self.quiet[-1].indexed:
            self.quiet = [poll]
        else:
            self.quiet.append(poll)
        self.last = poll
        if len(self.quiet) >= self.idle_polls:
            self.outcome = "idle"
        elif poll.t - self.start >= self.limit_s:
            self.outcome = "drain_limit"
        return self.outcome

    @property
    def end(self) -> float:
        """Seconds: the first quiet poll, or the last poll when there was no quiet end."""
        if self.outcome == "idle":
            return self.quiet[0].t
        return self.last.t if self.last else self.start

    def evidence(self) -> dict[str, Any]:
        """Say what ended the drain."""
        last = self.last
        return {
            "reason": self.outcome or "stopped",
            "idle_polls": len(self.quiet),
            "idle_polls_wanted": self.idle_polls,
            "indexed": _known(last.indexed) if last else None,
            "queued": _known(last.queued) if last else None,
            "deferred": _known(last.deferred) if last else None,
            "color": last.color if last else None,
            "busy": (last.busy or None) if last else None,
            "limit_s": self.limit_s,
        }


def _known(value: float) -> float | None:
    return None if value != value else value

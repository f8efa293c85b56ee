"""Finding one figure in a record, with the reason when it is not there."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from refill.report import text
from refill.stats.quantiles import is_lower_bound
from refill.stats.verdict import Value

SHARES = ("recall_mean", "visible_share_min")
"""Statistics that are compared by difference; all others by factor."""

NOT_MEASURED = "not measured"

# What the driver's clock and its calls can tell apart. Not the clock's own step of 1 ns: two calls
# of it from Python lie about this far from each other.
CLOCK_S = 1e-6


def phase_of(record: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return the phase `name` of a record, or None where the run did not come to it."""
    found: Mapping[str, Any] | None = next(
        (phase for phase in record.get("phases", []) if phase["name"] == name), None
    )
    return found


def timeout_s(record: Mapping[str, Any]) -> float:
    """Return the limit at which a request of this run was given up, in seconds."""
    return float(record["sampler"]["timeout_s"])


def status_of(record: Mapping[str, Any]) -> str:
    """Return what a reader must know first: completed, drain limit, invalid or failed and why."""
    reasons = "; ".join(record.get("invalid", [])) or "no reason was recorded"
    if record["outcome"] == "failed":
        return f"failed: {reasons}"
    if not record["valid"]:
        return f"invalid: {reasons}"
    return "drain limit reached" if record["outcome"] == "drain_limit" else "completed"


def drain_text(record: Mapping[str, Any]) -> str:
    """Return the drain time in seconds as it may be printed, with "≥" or "≤" for a bound."""
    found = figure(record, "drain_s", None, None)
    return text.value(found) if isinstance(found, Value) else text.NONE


def usable(record: Mapping[str, Any]) -> bool:
    """Return whether the figures of a record may be shown: it is valid and did not fail."""
    return bool(record["valid"]) and record["outcome"] != "failed"


def figure(
    record: Mapping[str, Any], statistic: str, phase: str | None, loop: str | None
) -> Value | str:
    """Return one figure, or the reason in words why there is none.

    `statistic` is a latency or `recall_mean` (of `loop` in `phase`), `visible_share_min` (of
    `phase`), `drain_s` (of the first draining, or of `followup-draining`) or `upload_s`. A drain
    shorter than the time between two polls is known as at most that. The resolution of a value is
    the time between two polls, the clock's, one point of a share or one hit of all that were asked
    for.
    """
    name = f"{record['id']} repeat {record['repeat']}"
    if not usable(record):
        return f"{name} is {status_of(record)}"
    if statistic == "upload_s" or (statistic == "drain_s" and phase != "followup-draining"):
        phase = "draining" if statistic == "drain_s" else "upload"
    block = phase_of(record, phase or "")
    if block is None:
        return f"{name} has no phase {phase}"
    if statistic == "drain_s":
        measured = (block if phase == "followup-draining" else record).get("drain_s")
        if measured is None:
            return f"{name} has no drain time in {phase}"
        resolved, drain = float(record["sampler"]["draining"]["poll_s"]), float(measured)
        if drain < resolved and block.get("outcome") != "drain_limit":
            return Value(resolved, at_most=True)
        return _value(drain, resolved, name, statistic, block.get("outcome") == "drain_limit")
    if statistic == "upload_s":
        paced = block["upload"].get("paced_at")
        if paced:
            return f"the upload of {name} is paced at {paced:,} points/s"
        return _value(block["seconds"], CLOCK_S, name, statistic)
    if statistic == "visible_share_min":
        share = block.get("visible_share")
        if not share:
            return f"{name} has no visible count in {phase}"
        return _value(share["min"], 1 / record["corpus"]["points"], name, statistic)
    stats = block.get(loop or "")
    if not stats or stats.get(statistic) is None:
        return f"{name} has no {loop}-loop answer in {phase}"
    if statistic == "recall_mean":
        asked_for = stats["n"] * record["sampler"]["limit"]
        return _value(stats[statistic], 1 / asked_for, name, statistic)
    bound = is_lower_bound(stats, statistic, timeout_s(record))
    return _value(stats[statistic], CLOCK_S * 1e3, name, statistic, bound)


def _value(
    number: float, resolution: float, name: str, statistic: str, bound: bool = False
) -> Value | str:
    if not isfinite(number):
        return f"{name} has {statistic} {number}, which is no number"
    return Value(float(number), bound, resolution=resolution)


def optimizer_seen(record: Mapping[str, Any], phase: str, optimizer: str) -> bool | str:
    """Return whether `optimizer` was seen in `phase`, or the reason why none can tell.

    Seen is what ran in a poll or had been completed since the phase began. That it was not there
    needs as many polls as a drain needs to be called idle.
    """
    name = f"{record['id']} repeat {record['repeat']}"
    if not usable(record):
        return f"{name} is {status_of(record)}"
    block = phase_of(record, phase)
    if block is None:
        return f"{name} has no phase {phase}"
    if not block.get("polls"):
        return f"{name} was not polled in {phase}"
    if optimizer in block["optimizers_seen"]:
        return True
    polls, wanted = block["polls"], record["sampler"]["draining"]["idle_polls"]
    if polls < wanted:
        return f"{name} was polled {polls} times in {phase}: {wanted} at least tell what is idle"
    return False

"""All checks of the proof, in their order, and what their outcomes make of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from refill.proofs import (
    crash_gateway,
    crash_server,
    damage,
    fills,
    power,
    published,
    refusals,
    tracing,
    whole,
)
from refill.proofs.findings import FAIL, NOT_RUN, PASS, VOID, Check, entry, run_check
from refill.proofs.servers import DEFAULT
from refill.proofs.subject import Scale, Subject

SCALES = {
    "smoke": Scale("smoke", 100, 20, {"new": 20, "old": 20}, other_kills=10, cut_s=0.5),
    "full": Scale("full", 1000, 200, {"new": 200, "old": 200}, other_kills=50, cut_s=2.5),
}
CHECKS: tuple[Check, ...] = (
    *published.CHECKS,
    *refusals.CHECKS,
    *fills.CHECKS,
    *damage.CHECKS,
    *tracing.CHECKS,
    *whole.CHECKS,
    *crash_server.CHECKS,
    *crash_gateway.CHECKS,
    *power.CHECKS,
)


def run_all(
    subjects: Iterable[Subject], say: Callable[[str], None], at: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run every check on every subject; the entries of the record, in that order.

    Args:
        subjects: the images on the servers that there are.
        say: told of every check that did not pass.
        at: told where the proof is.
    """
    entries = []
    for subject in subjects:
        for check in CHECKS:
            where = f"{subject.image} on {subject.server_name}: {check.id}"
            at(where)
            subject.tell = partial(_tell, at, where)
            if check.default_only and subject.server_name != DEFAULT:
                why = f"tried on {DEFAULT} only"
                entries.append(entry(check, subject, NOT_RUN, why, {}, 0.0))
                continue
            made = run_check(check, subject)
            entries.append(made)
            if made["outcome"] != PASS:
                say(f"{where}: {made['outcome'].upper()}: {made['why']}")
    return with_void_controls(entries)


def _tell(at: Callable[[str], None], where: str, text: str) -> None:
    at(f"{where}: {text}")


def with_void_controls(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a power cut's check void when a control of the same disk lost nothing."""
    voids = {
        (e["image"], e["server"], _disk_of(e["id"]))
        for e in entries
        if e["id"].startswith("power-cut-") and e["outcome"] == VOID
    }
    return [
        {**e, "outcome": VOID, "why": "its control lost nothing, so the cut may cut nothing"}
        if (e["image"], e["server"], _disk_of(e["id"])) in voids and e["outcome"] == PASS
        else e
        for e in entries
    ]


def _disk_of(id_: str) -> str:
    return id_.removeprefix("power-cut-").rpartition("-")[0]


def judge(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give why the proof is not valid; [] when it is.

    What counts is the default server: each of its checks must pass. A check that needs what this
    machine does not have (root, strace) may be `not run`; a check that is void says nothing, and
    that is no proof. Other servers are told of, and decide nothing.
    """
    found = []
    for made in entries:
        if made["server"] != DEFAULT or made["outcome"] == PASS:
            continue
        if made["outcome"] in (FAIL, VOID) or made["required"]:
            found.append(f"{made['id']} ({made['image']}): {made['outcome']}: {made['why']}")
    if not any(made["server"] == DEFAULT for made in entries):
        found.append(f"nothing was tried on {DEFAULT}")
    return found

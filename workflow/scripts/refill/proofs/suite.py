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
    gateway_scripts,
    power,
    published,
    refusals,
    tracing,
    two_gateways,
    whole,
)
from refill.proofs.findings import (
    FAIL,
    HARNESS,
    IMAGES,
    NOT_RUN,
    PASS,
    VOID,
    Check,
    entry,
    run_check,
)
from refill.proofs.servers import DEFAULT
from refill.proofs.subject import Scale, Subject

SCALES = {
    "smoke": Scale("smoke", 100, 20, {"new": 20, "old": 3}, other_kills=10, cut_s=0.5),
    "full": Scale("full", 1000, 200, {"new": 200, "old": 200}, other_kills=50, cut_s=2.5),
}
CHECKS: tuple[Check, ...] = (
    *published.CHECKS,
    *refusals.CHECKS,
    *fills.CHECKS,
    *damage.CHECKS,
    *tracing.CHECKS,
    *whole.CHECKS,
    *gateway_scripts.CHECKS,
    *two_gateways.CHECKS,
    *crash_server.CHECKS,
    *crash_gateway.CHECKS,
    *power.CHECKS,
)
_POWER_CONTROLS = {c.id for c in power.CHECKS if not c.id.endswith("-always")}


def run_all(
    subjects: Iterable[Subject],
    say: Callable[[str], None],
    at: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Run every check on every subject; the entries of the record, in that order.

    Args:
        subjects: the images on the servers that there are.
        say: told of every check that did not pass.
        at: told where the proof is.
        keep: takes each entry when it is there, as the proof may not come to its end.
    """
    entries = []
    for subject in subjects:
        for check in CHECKS:
            where = f"{subject.image} on {subject.server_name}: {check.id}"
            at(where)
            subject.tell = partial(_tell, at, where)
            if why := _left_out(check, subject):
                made = entry(check, subject, NOT_RUN, why, {}, 0.0)
                keep(made)
                entries.append(made)
                continue
            made = run_check(check, subject)
            keep(made)
            entries.append(made)
            if made["outcome"] != PASS:
                say(f"{where}: {made['outcome'].upper()}: {made['why']}{_beside(subject)}")
    return with_void_controls(entries)


def _left_out(check: Check, subject: Subject) -> str:
    """Say why a check is not tried with a subject; empty where it is."""
    if check.default_only and subject.server_name != DEFAULT:
        return f"tried on {DEFAULT} only"
    if check.full_only and subject.scale.name == "smoke":
        return "waits for a grace: tried in the full form only"
    return ""


def _beside(subject: Subject) -> str:
    """Say that what a server does is told of and decides nothing, where it is so."""
    return "" if subject.server_name == DEFAULT else f" (decides nothing: that is {DEFAULT}'s)"


def _tell(at: Callable[[str], None], where: str, text: str) -> None:
    at(f"{where}: {text}")


def with_void_controls(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a power cut's check void unless every control of the same disk was seen to lose."""
    seen = {(*_cut_of(made), made["id"]): made["outcome"] for made in entries}
    unseen: dict[tuple[str, str, str], list[str]] = {}
    for cut in {_cut_of(made) for made in entries if made["id"].startswith("power-cut-")}:
        for control in sorted(c for c in _POWER_CONTROLS if _disk_of(c) == cut[-1]):
            if (outcome := seen.get((*cut, control), "no entry")) != PASS:
                unseen.setdefault(cut, []).append(f"{control}: {outcome}")
    return [
        {
            **made,
            "outcome": VOID,
            "why": "the cut may cut nothing, as its controls were not seen to lose: "
            + ", ".join(unseen[_cut_of(made)]),
        }
        if made["id"].startswith("power-cut-")
        and made["id"] not in _POWER_CONTROLS
        and made["outcome"] == PASS
        and _cut_of(made) in unseen
        else made
        for made in entries
    ]


def _cut_of(made: Mapping[str, Any]) -> tuple[str, str, str]:
    return made["image"], made["server"], _disk_of(made["id"])


def _disk_of(id_: str) -> str:
    return id_.removeprefix("power-cut-").rpartition("-")[0]


def judge(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give why the proof is not valid; [] when it is.

    What counts is the default server: each of its checks must be there and pass. A check that needs
    what this machine does not have (root, strace) may be `not run`, but not for a fault of the
    proof itself; a check that is void says nothing, and that is no proof. Other servers are told
    of, and decide nothing.
    """
    there = {(made["id"], made["image"]) for made in entries if made["server"] == DEFAULT}
    found = [
        f"{check.id} ({image}): is not in the proof"
        for check in CHECKS
        for image in IMAGES
        if there and (check.id, image) not in there
    ]
    for made in entries:
        if made["server"] != DEFAULT or made["outcome"] == PASS:
            continue
        faulty = made["why"].startswith(f"{HARNESS}:")
        if made["outcome"] in (FAIL, VOID) or made["required"] or faulty:
            found.append(f"{made['id']} ({made['image']}): {made['outcome']}: {made['why']}")
    if not any(made["server"] == DEFAULT for made in entries):
        found.append(f"nothing was tried on {DEFAULT}")
    return found

"""Fault by fault, the named check that notices it. The tests run each row on real engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refill.faults.kinds import (
    FAULTS,
    OUTDATED,
    STALE,
    STALL,
    UPLOAD,
)

OPTIMIZER, ROUND = "optimizer run", "gateway round"

STATUS, JUDGED, CENSORED = "request status", "answer judged", "time-out censored"
SCORES, DELETED = "scores recomputed", "deleted points"
COUNTED, PRIMED = "points counted", "documents counted"
NOTHING, SHORT, EXACT = "nothing found", "short answers", "exact searches"
SILENCE, CACHE = "longest silence", "cache counters"

CHECKS: Mapping[str, str] = {
    STATUS: "a request without a complete answer of status 200 is an `error` row; any of them "
    "makes the measurement invalid",
    JUDGED: "every body is read and compared with what is right, after the timed section",
    SCORES: "every hit's score is compared with the one of that point for that query",
    DELETED: "no id may come back once the engine has counted its deletion",
    CENSORED: "a request over the limit is a row with at least the limit as its latency",
    COUNTED: "the upload ends when the engine holds every point, and all can be read",
    PRIMED: "as many documents must be counted as were acknowledged and as there are",
    NOTHING: "searches find a right point as soon as the engine says that points are visible",
    SHORT: "no answer is shorter than asked for while enough points are visible",
    EXACT: "after a steady phase, searches without an index must find the nearest of all points",
    SILENCE: "the longest time without an answer while a request waited",
    CACHE: "the cache's own hits, misses and fills must be those of a warm or cold profile",
}


@dataclass(frozen=True)
class Case:
    """One row: a fault in an experiment, and what notices it.

    Attributes:
        fault: its name.
        experiment: `optimizer run` or `gateway round`.
        check: a name of `CHECKS`; None: nothing is wrong, and the measurement is valid.
        words: a regular expression that an entry of the record's field matches.
        where: the field of the record, `invalid` or `warnings`.
        status: the status in the ledger of each request that was hit, one to one; empty: the
            fault is not one of single requests.
        detail: a regular expression that the ledger's words on some row match.
        variant: what is special in this row.
        options: further options of the proxy.
        run: what is measured: `plain`, `delete` (with a deletion as its follow-up), or `prime` (a
            round's loading goes through the proxy).
    """

    fault: str
    experiment: str
    check: str | None
    words: str = ""
    where: str = "invalid"
    status: str = ""
    detail: str = ""
    variant: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    run: str = "plain"

    @property
    def name(self) -> str:
        """Its name in tests."""
        experiment = "optimizer" if self.experiment == OPTIMIZER else "round"
        return "-".join(filter(None, [experiment, self.fault, self.variant.replace(" ", "-")]))


_UPLOADS = {"on": UPLOAD}
_CLOSED = "the server closed the connection"
_FAILED, _WRONG = r"\d+ of \d+ (requests|responses) failed", r"are wrong$"
# Stalls above and below the limit of a request in the small measurements of the tests.
_OVER, _UNDER = {"at": 0, "seconds": 2.2}, {"at": 0, "seconds": 1.2}
_REACHED = r"steady, open loop: \d+ of \d+ requests reached the limit"
_WAITED = r"steady: no search was answered for .*; [1-9]\d+ of the open loop and [01] of"

CASES: tuple[Case, ...] = (
    Case("none", OPTIMIZER, None),
    Case("drop", OPTIMIZER, STATUS, _FAILED, status="error", detail=_CLOSED),
    Case("drop", OPTIMIZER, STATUS, _FAILED, status="error", variant="upload", options=_UPLOADS),
    Case("corrupt-json", OPTIMIZER, JUDGED, _WRONG, status="wrong", detail="not a search's answer"),
    Case("corrupt-value", OPTIMIZER, SCORES, _WRONG, status="wrong", detail="has the score"),
    Case(
        "corrupt-value", OPTIMIZER, JUDGED, _WRONG, status="wrong", detail="update's status is",
        variant="upload", options=_UPLOADS,
    ),
    Case("truncate", OPTIMIZER, STATUS, _FAILED, status="error", detail=_CLOSED),
    Case("cut", OPTIMIZER, JUDGED, _WRONG, status="wrong", detail="not a search's answer"),
    Case(STALL, OPTIMIZER, CENSORED, _REACHED, "warnings", variant="over the limit", options=_OVER),
    Case(STALL, OPTIMIZER, SILENCE, _WAITED, "warnings", variant="under it", options=_UNDER),
    Case("page-200", OPTIMIZER, JUDGED, _WRONG, status="wrong", detail="<!DOCTYPE html>"),
    Case("page-502", OPTIMIZER, STATUS, _FAILED, status="error", detail="^502: <!DOCTYPE html>"),
    Case(STALE, OPTIMIZER, SCORES, _WRONG, status="wrong", detail="has the score"),
    Case(OUTDATED, OPTIMIZER, None, variant="nothing changed"),
    Case(
        OUTDATED, OPTIMIZER, DELETED, _WRONG, detail=r"deleted point \d+ came back",
        variant="after a deletion", run="delete",
    ),
    Case("empty", OPTIMIZER, NOTHING, "no search found one right point"),
    Case(
        "empty", OPTIMIZER, SHORT, "steady: [1-9]\\d* answers hold fewer hits",
        variant="1 percent", options={"share": 0.01},
    ),
    Case("half", OPTIMIZER, EXACT, r"searches without an index find 0\.[3-7]"),
    Case("swallow", OPTIMIZER, COUNTED, "holds [\\d,]+ points, 1,500 were expected"),
    Case("none", ROUND, None),
    Case("drop", ROUND, STATUS, _FAILED, status="error", detail=_CLOSED),
    Case("corrupt-json", ROUND, JUDGED, _WRONG, status="wrong", detail="^not JSON"),
    Case("corrupt-value", ROUND, JUDGED, _WRONG, status="wrong", detail=r"expected \S+, got \S+"),
    Case("truncate", ROUND, STATUS, _FAILED, status="error", detail=_CLOSED),
    Case("cut", ROUND, JUDGED, _WRONG, status="wrong", detail="^not JSON"),
    Case(STALL, ROUND, CENSORED, r"\d+ of \d+ responses timed out", variant="over the limit",
         options=_OVER),
    Case(STALL, ROUND, SILENCE, r"no response came for \d+\.\d+ s", "warnings", variant="under it",
         options=_UNDER),
    Case("page-200", ROUND, JUDGED, _WRONG, status="wrong", detail="<!DOCTYPE html>"),
    Case("page-200", ROUND, CACHE, r"not warm: the cache counts \d+ hits, 50 were expected",
         variant="10 percent", options={"share": 0.1}),
    Case("page-502", ROUND, STATUS, _FAILED, status="error", detail="^status 502"),
    Case(STALE, ROUND, JUDGED, _WRONG, detail="expected .*, got"),
    Case(OUTDATED, ROUND, None, variant="nothing changed"),
    Case("empty", ROUND, JUDGED, "warm-up: .*\\d+ wrong"),
    Case("half", ROUND, JUDGED, "warm-up: \\d+ wrong"),
    Case("swallow-bulk", ROUND, PRIMED, "were acknowledged, [\\d,]+ are counted", run="prime"),
)  # fmt: skip


def markdown() -> str:
    """Give the table of all rows, and below it what each check is."""
    lines = ["| fault | what happens | in | noticed by | in the record |", "|---|---|---|---|---|"]
    for case in CASES:
        variant = f", {case.variant}" if case.variant else ""
        if case.check is None:
            noticed, where = "nothing: every answer is right", "`valid` is true"
        else:
            noticed, where = case.check, f"`{case.where}`"
            if case.status:
                where += f"; each request that was hit is `{case.status}` in the ledger"
        words = FAULTS[case.fault].words
        lines.append(
            f"| `{case.fault}`{variant} | {words} | {case.experiment} | {noticed} | {where} |"
        )
    lines += ["", "| check | what it says |", "|---|---|"]
    lines += [f"| {name} | {words} |" for name, words in CHECKS.items()]
    return "\n".join(lines) + "\n"

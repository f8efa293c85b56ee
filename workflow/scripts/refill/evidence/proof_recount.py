"""The record of the proof held against the suite of checks, and its verdict against its checks.

Nothing lies below a check's outcome that could be counted again; but which checks there are, on
which image and server, is the suite's to say, and the counts and the verdict follow from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from refill.evidence.json_difference import Unequal, unequal
from refill.proofs.findings import IMAGES, NOT_RUN, OUTCOMES, PASS, Check
from refill.proofs.servers import DEFAULT
from refill.proofs.suite import CHECKS, judge, with_void_controls

_OWN = ("id", "image", "server", "title", "source", "expected", "required", "needs")


def unequal_parts(record: Mapping[str, Any]) -> Iterator[Unequal]:
    """Give each place in which a proof's record is not what its checks and the suite make of it.

    Raises KeyError, TypeError or AttributeError for a record of another form.
    """
    checks = record["checks"]
    tried = [server for server in record["servers"] if server["name"] in record["engines"]]
    expected = [
        (check, image, server["name"])
        for server in tried
        for image in reversed(IMAGES)
        for check in CHECKS
    ]
    for number, (made, wanted) in enumerate(zip_longest(checks, expected)):
        where = f"checks[{number}]"
        if made is None or wanted is None:
            of = made["id"] if made else wanted[0].id
            yield where, of if made else None, None if made else of
            continue
        check, image, server = wanted
        yield from _check(made, check, image, server, f"{where} ({check.id}, {image}, {server})")
    yield from unequal(checks, with_void_controls(checks), "checks")
    counts = {}
    for server in record["servers"]:
        seen = Counter(made["outcome"] for made in checks if made["server"] == server["name"])
        counts[server["name"]] = {outcome: seen[outcome] for outcome in OUTCOMES}
    yield from unequal(record["counts"], counts, "counts")
    invalid = judge(checks)
    yield from unequal(record["invalid"], invalid, "invalid")
    yield from unequal(record["valid"], not invalid, "valid")
    yield from unequal(record["outcome"], "failed" if invalid else "completed", "outcome")


def _check(
    made: Mapping[str, Any], check: Check, image: str, server: str, where: str
) -> Iterator[Unequal]:
    own = {
        "id": check.id,
        "image": image,
        "server": server,
        "title": check.title,
        "source": check.source,
        "expected": check.expectation(image),
        "required": not check.needs,
        "needs": check.needs,
    }
    yield from unequal({key: made[key] for key in _OWN}, own, where)
    if made["outcome"] not in OUTCOMES:
        yield f"{where}.outcome", made["outcome"], f"one of {', '.join(OUTCOMES)}"
    if check.default_only and server != DEFAULT and made["outcome"] != NOT_RUN:
        yield f"{where}.outcome", made["outcome"], NOT_RUN
    if (made["outcome"] == PASS) != (made["why"] == ""):
        yield f"{where}.why", made["why"], "empty for what passed, and else the reason"

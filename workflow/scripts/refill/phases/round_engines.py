"""Which native engines a round asks for: those that are at hand, and those that it has measured.

What a round measured is worth more than a record without it: an engine that is not at hand any more
(its Java was removed, its folder cannot be read) is no reason to measure the round again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refill.evidence.hashes import sha256_bytes
from refill.evidence.records import RecordError, canonical_json, read_json

SCHEMA = "refill.round/1"
INSTALLED = "installed"
# Of an engine that was not at hand when the round began.
NOT_MEASURED = "not measured"


def asked_for(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a record says of its plan.

    Args:
        plan: of a round; `installed` holds, by native engine, the SHA-256 of what it was, or None.

    Returns:
        `plan`, the SHA-256 of all else in it, and `installed`.
    """
    rest = {key: value for key, value in plan.items() if key != INSTALLED}
    return {
        "plan": sha256_bytes(canonical_json(rest).encode()),
        INSTALLED: dict(plan.get(INSTALLED, {})),
    }


def installed(
    plan: Mapping[str, Any], now: Mapping[str, str | None], record: Path
) -> dict[str, str | None]:
    """Give, by native engine, what a round asks for.

    Args:
        plan: of the round, without `installed`.
        now: by engine, the SHA-256 of what is at hand now; None: it is not.
        record: the round's, if it has been measured. One that was asked for anything else, or by
            other code, counts for nothing: it is measured again anyway.
    """
    try:
        content = read_json(record, SCHEMA)
        before, natives = content["asked_for"], content["natives"]
        had = before[INSTALLED] if before["plan"] == asked_for(plan)["plan"] else {}
        kept = {name: had[name] for name in had if natives[name]["status"] != NOT_MEASURED}
    except (RecordError, LookupError, TypeError, AttributeError):
        kept = {}
    return {name: identity or kept.get(name) for name, identity in now.items()}

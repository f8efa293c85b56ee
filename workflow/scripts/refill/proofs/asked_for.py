"""What a proof was asked to be, in its record, held against what the configuration asks for.

A record of a few kills, or of other images, says in its own words that it holds; it must not stand
in the place of the one that was configured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from refill.evidence.json_difference import Unequal, unequal
from refill.evidence.proof_recount import unequal_parts
from refill.evidence.records import RecordError
from refill.evidence.scrub import without_paths
from refill.proofs.findings import IMAGES

# So many places of a record that does not add up are named.
_NAMED = 3
# What a record says of itself a second time.
_OWN = ("scale", "form", "seed", "runtime")


def asked_for(
    plan: Mapping[str, Any], images: Mapping[str, Mapping[str, Any]], root: Path
) -> dict[str, Any]:
    """Give what a record says it was asked to be.

    Args:
        plan: of the proof.
        images: blocks of the images that are there, by their part.
        root: the working folder, which is taken out of paths.
    """
    return {
        "scale": plan["scale"],
        "form": plan["form"],
        "seed": plan["seed"],
        "runtime": plan.get("runtime", "process"),
        "servers": _without(plan["servers"], root),
        "images": {part: images[part]["name"] for part in IMAGES},
    }


def unlike(
    record: Mapping[str, Any], wanted: Mapping[str, Any] | None, root: Path
) -> Iterator[Unequal]:
    """Give each place in which a record was asked to be another one than the configured.

    Args:
        record: of a proof.
        wanted: by the configuration (`refill.table_plan.proof`); None: it asks for no proof.
        root: the working folder.
    """
    if wanted is None:
        yield ".asked_for", record.get("asked_for"), None
        return
    wanted = {**wanted, "servers": _without(wanted["servers"], root)}
    yield from unequal(record.get("asked_for"), wanted, ".asked_for")
    yield from unequal({key: record.get(key) for key in _OWN}, {key: wanted[key] for key in _OWN})


def refuse_others(
    records: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any] | None, root: Path
) -> None:
    """Refuse a proof that is not the one of the configuration, or not what its checks make of it.

    Args:
        records: of proofs.
        wanted: by the configuration (`refill.table_plan.proof`).
        root: the working folder.

    Raises:
        RecordError: with the place in the record and what to do.
    """
    for record in records:
        path = f"results/{record['id']}.json"
        for where, says, gives in unlike(record, wanted, root):
            raise RecordError(
                f"{path}: {where.lstrip('.')}: is {says!r}, the configuration asks for {gives!r}: "
                f"it is another proof: `rm {path}`, and run again"
            )
        wrong = [
            f"{where.lstrip('.')} is {says!r}, should be {gives!r}"
            for where, says, gives in islice(unequal_parts(record), _NAMED)
        ]
        if wrong:
            raise RecordError(
                f"{path}: is not the whole of a proof by this workflow: {'; '.join(wrong)}: "
                f"`rm {path}`, and run again"
            )


def _without(servers: Mapping[str, str | None], root: Path) -> dict[str, str | None]:
    return {n: None if p is None else without_paths(p, [root]) for n, p in servers.items()}

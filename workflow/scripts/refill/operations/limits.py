"""What a round can ask for at most, checked on the configuration alone, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refill.config.errors import Problem
from refill.operations.catalog import Operations

# A unique number is a whole one plus so many billionths: 9,999 rounds, 100,000 requests in each.
FRACTIONS, ROUNDS = 100_000, 9_999
# Which count says how many cold requests a trial of a profile has.
COLD = {"on-main": "cold_enabled", "off-control": "cold_disabled"}


def problems(operations: Operations, rounds: Mapping[str, Any]) -> Iterator[Problem]:
    """Give what the rounds of a checked configuration ask for and no round can have.

    Args:
        operations: as in config/operations.yaml.
        rounds: `rounds` of the configuration, with its defaults.
    """
    counts = {**operations.counts, **rounds["counts"]}
    trials, clients, warm_up = counts["trials"], len(counts["clients"]), rounds["warm_up"]
    for profile in rounds["profiles"]:
        each = counts[COLD[profile]]
        asked = warm_up + trials * clients * each
        if asked > FRACTIONS:
            yield Problem(
                ("rounds", "counts", COLD[profile]),
                f"is {each}, with {trials} trials at {clients} numbers of clients and a warm-up of "
                f"{warm_up} these are {asked:,} cold requests in one round, at most {FRACTIONS:,} "
                "can be new: ask for fewer",
            )
    documents = rounds["corpus"]["documents"]
    for operation in operations.all:
        for how in operation.values.values():
            if how["kind"] == "cursor" and how["to"] > documents:
                yield Problem(
                    ("rounds", "corpus", "documents"),
                    f"is {documents}, {operation.id} of config/operations.yaml needs a search with "
                    f"{how['to']} hits: ask for more documents",
                )
            if how["kind"] == "document" and operations.bodies > documents:
                yield Problem(
                    ("rounds", "corpus", "documents"),
                    f"is {documents}, {operation.id} of config/operations.yaml needs "
                    f"{operations.bodies} distinct ones (`bodies`): ask for more documents",
                )

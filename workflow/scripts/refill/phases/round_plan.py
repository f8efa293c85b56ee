"""What a round measures: its cells, its counts, and the operations as plain values of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from refill.operations.catalog import Operation, Operations

# Two rounds of each arm make a block. A drift that is linear within a block meets both arms alike,
# and since every second block is turned round, so does one that is the same in every block.
ABBA = ("old", "new", "new", "old")
BAAB = ("new", "old", "old", "new")


def order(blocks: int) -> tuple[tuple[str, int], ...]:
    """Give the rounds of a profile, (arm, number), in the order in which they run.

    Odd blocks run ABBA, even ones BAAB. The rounds of an arm are numbered on, so block k holds the
    numbers 2 k - 1 and 2 k of both, and more blocks leave the names of the first ones as they are.
    """
    return tuple(
        (arm, 2 * block + number)
        for block in range(blocks)
        for arm, number in zip(BAAB if block % 2 else ABBA, (1, 1, 2, 2), strict=True)
    )


@dataclass(frozen=True)
class Cell:
    """One operation of one engine at one number of clients, `warm` or `cold` (its profile)."""

    engine: str
    profile: str
    operation: str
    title: str
    clients: int
    requests: int

    @property
    def name(self) -> str:
        """Its name in messages."""
        clients = "client" if self.clients == 1 else "clients"
        return f"{self.profile}, {self.operation}, {self.engine}, {self.clients} {clients}"


@dataclass(frozen=True)
class Settings:
    """What a round does.

    Attributes:
        cells: what is measured, in this order.
        trials: trials of each cell.
        warm_up: requests of the cold operation, with keys of their own, before anything is timed.
        timeout_s: limit of one request.
        trial_limit_s: a trial that takes longer ends there, and is invalid; a part of the warm-up
            that does ends the round.
        native_warm_up: requests of all operations in turn to each native engine, before anything
            is timed.
    """

    cells: Sequence[Cell]
    trials: int
    warm_up: int
    timeout_s: float
    trial_limit_s: float
    native_warm_up: int = 0


def cells(operations: Operations, engines: Sequence[str], serving: bool) -> tuple[Cell, ...]:
    """Give the cells of a round: the warm ones first, if the cache serves, then the cold ones.

    Args:
        operations: what is measured, with the counts that hold.
        engines: the engines that are measured.
        serving: whether the cache serves in this round.
    """
    counts = operations.counts
    warm, cold = counts["warm"], counts["cold_enabled" if serving else "cold_disabled"]
    measured = [(o, warm) for o in operations.warm] if serving else []
    measured.append((operations.cold, cold))
    return tuple(
        Cell(engine, operation.cache, operation.id, operation.title, clients, requests)
        for operation, requests in measured
        for engine in engines
        for clients in counts["clients"]
    )


def plain(operations: Operations) -> dict[str, Any]:
    """Give operations as values that stand in the parameters of a rule."""
    return {
        "warm": [asdict(operation) for operation in operations.warm],
        "cold": asdict(operations.cold),
        "bodies": operations.bodies,
    }


def from_plain(values: Mapping[str, Any], counts: Mapping[str, Any]) -> Operations:
    """Give the operations of a plan, with the counts that hold in it."""
    warm = tuple(Operation(**entry) for entry in values["warm"])
    return Operations(warm, Operation(**values["cold"]), values["bodies"], counts)

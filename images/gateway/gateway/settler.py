"""What this gateway still owes: releases that failed, and writes whose outcome is not known."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from gateway.catalog import Catalog
from gateway.errors import ApiError
from gateway.qdrant import Qdrant

log = logging.getLogger(__name__)

# How long a request that was cut off may take to reach Qdrant's queue of updates.
GRACE_S = 1.0
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Debt:
    """A writer that is still admitted.

    Attributes:
        unsettled: Qdrant may still be applying its write: before the release, wait until Qdrant
            has applied all that it took.
        not_before: time of the event loop before which it is not tried.
    """

    index: str
    incarnation: str
    token: str
    unsettled: bool
    not_before: float


class Settler:
    """Pays debts in the background; until then no response of the index is served or published."""

    def __init__(self, catalog: Catalog, qdrant: Qdrant) -> None:
        self._catalog = catalog
        self._qdrant = qdrant
        self._debts: list[Debt] = []
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def debts(self) -> int:
        """How many writers wait for their release."""
        return len(self._debts)

    def owe(self, index: str, incarnation: str, token: str, unsettled: bool) -> None:
        """Take a debt on."""
        due = asyncio.get_running_loop().time() + (GRACE_S if unsettled else 0.0)
        self._debts.append(Debt(index, incarnation, token, unsettled, due))
        self._more.set()

    def start(self) -> None:
        """Begin to pay."""
        self._task = asyncio.get_running_loop().create_task(self._pay_forever())

    async def stop(self) -> None:
        """Pay what can be paid now, and stop; the rest is left to `recover`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if any(debt.unsettled for debt in self._debts):
            await asyncio.sleep(GRACE_S)
        await self._pay_all(everything=True)
        for debt in self._debts:
            log.warning(
                "index %s: a writer is not released; run `recover`: token %s",
                debt.index,
                debt.token,
            )

    async def _pay_forever(self) -> None:
        while True:
            await self._more.wait()
            await self._pay_all(everything=False)
            if self._debts:
                await asyncio.sleep(_PAUSE_S)
            else:
                self._more.clear()

    async def _pay_all(self, everything: bool) -> None:
        now = asyncio.get_running_loop().time()
        for debt in list(self._debts):
            if debt.not_before > now and not everything:
                continue
            try:
                if debt.unsettled:
                    await self._qdrant.barrier(debt.incarnation)
                await self._catalog.release(debt.index, debt.incarnation, debt.token)
            except ApiError as error:
                log.info("index %s: a release still waits: %s", debt.index, error.reason)
                continue
            self._debts.remove(debt)

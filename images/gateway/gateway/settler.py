"""What this gateway still owes: releases and claims of which the outcome is not known."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum

from gateway.catalog import Catalog
from gateway.errors import ApiError, UnclaimedError
from gateway.qdrant import Qdrant

log = logging.getLogger(__name__)

_PAUSE_S = 0.2


@dataclass
class WriterDebt:
    """A writer that is still admitted.

    Attributes:
        unsettled: Qdrant may still be applying its write: before the release, wait until Qdrant
            has applied all that it took.
        due: time of the event loop from which on the write cannot come any more; None: Qdrant has
            not answered since, so that time has not begun.
    """

    index: str
    incarnation: str
    token: str
    unsettled: bool
    due: float | None = None

    def __str__(self) -> str:
        return f"index {self.index}: a writer is not released; token {self.token}"


class Step(Enum):
    """What is left to do about a claim."""

    ABORT = "give it back: nothing was done under it"
    UNDO = "delete the collection that may have been created, and give it back"
    COMPLETE = "delete the collection, and commit"
    COMMIT = "commit: Qdrant has done its part"
    REMOVE = "delete the collection: the claim itself was given up by a recovery"


@dataclass
class ClaimDebt:
    """A claim that still stands, or may.

    Attributes:
        mapping, settings: of the index, for the commit of a create.
        open: False once it is resolved.
        due: as of a WriterDebt, for what was asked of Qdrant under the claim.
    """

    index: str
    token: str
    kind: str
    collection: str
    step: Step
    mapping: bytes = b""
    settings: bytes = b""
    open: bool = True
    due: float | None = None

    def __str__(self) -> str:
        return f"index {self.index}: a claim to {self.kind} is not resolved; token {self.token}"


Debt = WriterDebt | ClaimDebt


class Settler:
    """Pays debts in the background; until then the index is not cached, or answers 503.

    A new connection to Valkey ends the one before it for good, so what is sent here comes behind
    all that had no answer. Qdrant has no such order: what it was sent and did not answer has
    `settle_s` from when it answers again.
    """

    def __init__(self, catalog: Catalog, qdrant: Qdrant, settle_s: float) -> None:
        self._catalog = catalog
        self._qdrant = qdrant
        self._settle_s = settle_s
        self._debts: list[Debt] = []
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def writers(self) -> int:
        """How many writers wait for their release."""
        return sum(isinstance(debt, WriterDebt) for debt in self._debts)

    @property
    def claims(self) -> int:
        """How many claims wait for their resolution."""
        return len(self._debts) - self.writers

    def owe(self, index: str, incarnation: str, token: str, unsettled: bool) -> None:
        """Take a writer's release on."""
        self._take(WriterDebt(index, incarnation, token, unsettled))

    def owe_claim(self, debt: ClaimDebt) -> None:
        """Take a claim's resolution on."""
        self._take(debt)

    def _take(self, debt: Debt) -> None:
        self._debts.append(debt)
        self._more.set()

    def start(self) -> None:
        """Begin to pay."""
        self._task = asyncio.get_running_loop().create_task(self._pay_forever())

    async def stop(self) -> None:
        """Pay what can be paid now, and stop; the rest is left to `recover`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._pay_all()
        if any(debt.due is not None for debt in self._debts):
            await asyncio.sleep(self._settle_s)
            await self._pay_all()
        for debt in self._debts:
            log.warning("%s; run `recover`", debt)

    async def _pay_forever(self) -> None:
        while True:
            await self._more.wait()
            await self._pay_all()
            if self._debts:
                await asyncio.sleep(_PAUSE_S)
            else:
                self._more.clear()

    async def _pay_all(self) -> None:
        for debt in list(self._debts):
            try:
                if isinstance(debt, WriterDebt):
                    paid = await self._release(debt)
                else:
                    paid = await self._resolve(debt)
            except ApiError as error:
                log.info("%s: it still waits: %s", debt, error.reason)
                continue
            if paid:
                self._debts.remove(debt)

    async def _release(self, debt: WriterDebt) -> bool:
        if debt.unsettled:
            await self._qdrant.barrier(debt.incarnation)
            if not self._over(debt):
                return False
        await self._catalog.release(debt.index, debt.incarnation, debt.token)
        return True

    async def _resolve(self, debt: ClaimDebt) -> bool:
        index, token, kind, collection = debt.index, debt.token, debt.kind, debt.collection
        if debt.step in (Step.UNDO, Step.COMPLETE, Step.REMOVE):
            await self._qdrant.delete_collection(collection)
            # A create that comes late, behind this delete, is deleted by the next one.
            if debt.step is not Step.COMPLETE and not self._over(debt):
                return False
        if debt.step in (Step.ABORT, Step.UNDO):
            await self._catalog.abort(index, token)
        elif debt.step is not Step.REMOVE:
            try:
                await self._catalog.commit(
                    index, kind, token, collection, debt.mapping, debt.settings
                )
            except UnclaimedError:
                if kind == "create":
                    debt.step = Step.REMOVE
                    return False
        log.warning("index %s: the claim to %s of this gateway is resolved", index, kind)
        return True

    def _over(self, debt: Debt) -> bool:
        """Whether what was cut off has come or never will; Qdrant has answered just now."""
        now = asyncio.get_running_loop().time()
        if debt.due is None:
            debt.due = now + self._settle_s
        return now >= debt.due

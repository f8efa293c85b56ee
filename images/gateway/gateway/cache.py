"""Reads through the cache: serve what is valid, or ask Qdrant and publish the answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b

from gateway.catalog import Catalog, Miss, MovedError, View
from gateway.errors import ApiError, UnavailableError
from gateway.locks import Locks
from gateway.mapping import IndexMapping
from gateway.qdrant import CollectionGoneError, Qdrant
from gateway.settings import Settings

log = logging.getLogger(__name__)

# An answer that took several calls is made again when the index moved meanwhile, so often.
_ROUNDS = 4
_PAUSE_S = 0.01
_SWEEP_S = 1.0
_SWEEP_KEYS = 500
# Beyond this the scan has to find them.
_REMEMBERED = 1_000_000
_MOVED = ("epoch", "claim", "incarnation", "generation", "writer")

# Computes an answer in a state of the index: status and body.
Compute = Callable[[View, IndexMapping], Awaitable[tuple[int, bytes]]]


@dataclass
class Counters:
    """What `/_refill/stats` tells of the cache."""

    hits: int
    misses: Counter[str]
    fills: int
    rejected: Counter[str]
    bypassed: int
    repeated: int
    unsettled: int
    swept: int


class Cache:
    """The response cache.

    Attributes:
        counters: hits; misses by reason; fills published; publications rejected by reason; reads
            with serving off; answers made again; answers given while others wrote; fills swept.
    """

    def __init__(self, settings: Settings, catalog: Catalog, qdrant: Qdrant, locks: Locks) -> None:
        self._settings = settings
        self._catalog = catalog
        self._qdrant = qdrant
        self._locks = locks
        self._published: deque[tuple[float, str]] = deque(maxlen=_REMEMBERED)
        self._task: asyncio.Task[None] | None = None
        self.counters = Counters(0, Counter(), 0, Counter(), 0, 0, 0, 0)

    def fill_key(self, index: str, operation: bytes, query: bytes, body: bytes) -> str:
        """The key of a response: what was asked, byte for byte, of which index."""
        digest = blake2b(b"%b\0%d\0%b\0" % (operation, len(query), query), digest_size=16)
        digest.update(body)
        return f"{self._catalog.fill_prefix}{index}:{digest.hexdigest()}"

    async def answer(
        self, index: str, fill: str | None, miss: Miss | None, compute: Compute
    ) -> tuple[int, bytes]:
        """Compute an answer, and publish it if nothing moved meanwhile.

        Args:
            fill: the key to publish under; None: never publish.
            miss: the lookup that found nothing; None: there was none.

        Raises:
            ApiError: what the computation raises; 404 or 503 from the catalog.
        """
        view = None if miss is None else miss.view
        answer: tuple[int, bytes] | None = None
        for round_ in range(_ROUNDS):
            if round_:
                self.counters.repeated += 1
                await asyncio.sleep(_PAUSE_S * round_)
            async with self._locks.of(index).shared() as waited:
                if view is None or waited or view.writers:
                    view = await self._catalog.view(index)
                try:
                    mapping = await self._catalog.mapping(index, view)
                except MovedError:
                    view = None
                    continue
                calls = self._qdrant.calls
                try:
                    answer = await compute(view, mapping)
                except CollectionGoneError:
                    # Deleted under the read, or lost.
                    if (await self._catalog.view(index)).incarnation == view.incarnation:
                        raise self._catalog.presence.lose(index, view.incarnation) from None
                    view = None
                    continue
                except ApiError as error:
                    if error.status in (400, 503):
                        raise
                    # The index may have been changed under the read.
                    if await self._catalog.view(index) == view:
                        raise
                    view = None
                    continue
                single = self._qdrant.calls - calls <= 1
                if await self._settled(index, fill, view, answer, single):
                    return answer
            view = None
        if answer is None:
            raise UnavailableError(f"index [{index}] changes faster than it can be read; try again")
        self.counters.unsettled += 1
        return answer

    async def _settled(
        self, index: str, fill: str | None, view: View, answer: tuple[int, bytes], single: bool
    ) -> bool:
        """Publish an answer, or at least see whether the index is still in the same state.

        An answer of a single call is of one state in any case, so it needs no second look.
        """
        status, body = answer
        if fill and self._settings.serving and status == 200 and not view.writers:
            if len(body) <= self._settings.entry_bytes:
                outcome = await self._catalog.publish(index, fill, view, body)
                if outcome == "published":
                    self.counters.fills += 1
                    self._remember(fill)
                    return True
                self.counters.rejected[outcome] += 1
                return single or outcome not in _MOVED
            self.counters.rejected["too_large"] += 1
        if single:
            return True
        after = await self._catalog.view(index)
        return after.generation == view.generation and after.writers == view.writers == 0

    def _remember(self, fill: str) -> None:
        expiry = asyncio.get_running_loop().time() + self._settings.ttl_ms / 1000
        self._published.append((expiry, fill))

    def start(self) -> None:
        """Begin to sweep."""
        self._task = asyncio.get_running_loop().create_task(self._sweep_forever())

    async def stop(self) -> None:
        """Stop to sweep."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        # The keys that this gateway knows of go in time; a scan finds those of earlier ones.
        pause = max(self._settings.grace_ms / 2000, _SWEEP_S)
        next_scan = loop.time()
        while True:
            await asyncio.sleep(_SWEEP_S)
            # A little late: the entry's expiry is by Valkey's clock.
            now = loop.time() - _SWEEP_S
            fills = []
            while self._published and self._published[0][0] <= now:
                fills.append(self._published.popleft()[1])
            try:
                if loop.time() >= next_scan:
                    fills += await self._catalog.scan(f"{self._catalog.fill_prefix}*")
                    next_scan = loop.time() + pause
                for start in range(0, len(fills), _SWEEP_KEYS):
                    part = fills[start : start + _SWEEP_KEYS]
                    self.counters.swept += await self._catalog.sweep(part)
            except UnavailableError as error:
                # The next scan finds them; Valkey's own expiry is the backstop.
                log.info("sweep: %s", error.reason)

"""A lock per index: many readers or one writer, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway import deadline
from gateway.errors import UnavailableError


class IndexLock:
    """Readers see no half of a write that goes through this gateway.

    An answer that takes several calls to Qdrant is thereby of one state; and a write that reads a
    document first (create, update, versions) does so undisturbed.

    Whoever waits for as long as its request may take, while nobody before it gets on, gets an
    UnavailableError.
    """

    def __init__(self) -> None:
        self._readers = 0
        self._writing = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()
        # When somebody last did what the lock was taken for.
        self._got_on = float("-inf")

    @property
    def idle(self) -> bool:
        """Nobody holds it or waits for it."""
        return not self._readers and not self._writing and not self._waiting

    def shared(self) -> _Shared:
        """Hold it as a reader; gives whether it had to be waited for."""
        return _Shared(self)

    async def take_shared(self) -> bool:
        """Take it as a reader, as `shared`."""
        if self._writing or self._waiting:
            await self._wait(False)
            return True
        self._readers += 1
        return False

    def leave_shared(self, got_on: bool) -> None:
        """Give it back as a reader; `got_on`: Valkey and Qdrant have answered."""
        self._readers -= 1
        if got_on and self._waiting:
            self._got_on = asyncio.get_running_loop().time()
        self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold it as the writer."""
        if self._writing or self._readers or self._waiting:
            await self._wait(True)
        else:
            self._writing = True
        got_on = True
        try:
            yield
        except UnavailableError:
            got_on = False
            raise
        finally:
            self._writing = False
            if got_on and self._waiting:
                self._got_on = asyncio.get_running_loop().time()
            self._wake()

    async def _wait(self, exclusive: bool) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((exclusive, future))
        end = deadline.renew(self._got_on)
        try:
            while end is not None and not future.done():
                await asyncio.wait((future,), timeout=end - loop.time())
                # Whoever waits its turn in a queue that moves has the full time from each move on.
                end = deadline.renew(self._got_on)
                if not future.done() and end is not None and end <= loop.time():
                    future.set_exception(_overdue())
                    # Those behind may have waited for this one alone.
                    self._wake()
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give_back(exclusive)
            future.cancel()
            raise

    def _give_back(self, exclusive: bool) -> None:
        if exclusive:
            self._writing = False
        else:
            self._readers -= 1
        self._wake()

    def _wake(self) -> None:
        """Hand the lock on to whoever is first, and to the readers right behind a reader."""
        while self._waiting and not self._writing:
            exclusive, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if exclusive and self._readers:
                return
            self._waiting.popleft()
            if exclusive:
                self._writing = True
            else:
                self._readers += 1
            future.set_result(None)


def _overdue() -> UnavailableError:
    return UnavailableError(
        "the index is busy: requests before this one have not ended in time, as Qdrant or Valkey "
        "does not answer them; nothing was done, try again"
    )


class _Shared:
    """A lock that is held as a reader. Every page takes one: a generator would cost more."""

    __slots__ = ("_lock",)

    def __init__(self, lock: IndexLock) -> None:
        self._lock = lock

    async def __aenter__(self) -> bool:
        return await self._lock.take_shared()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._lock.leave_shared(not isinstance(error, UnavailableError))


class Locks:
    """The locks of all indices that are in use."""

    def __init__(self) -> None:
        self._locks: dict[str, IndexLock] = {}

    def of(self, index: str) -> IndexLock:
        """The lock of an index."""
        lock = self._locks.get(index)
        if lock is None:
            if len(self._locks) > 10_000:
                self._locks = {n: held for n, held in self._locks.items() if not held.idle}
            lock = self._locks[index] = IndexLock()
        return lock

"""A lock per index: many readers or one writer, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class IndexLock:
    """Readers see no half of a write that goes through this gateway.

    An answer that takes several calls to Qdrant is thereby of one state; and a write that reads a
    document first (create, update, versions) does so undisturbed.
    """

    def __init__(self) -> None:
        self._readers = 0
        self._writing = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

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

    def leave_shared(self) -> None:
        """Give it back as a reader."""
        self._readers -= 1
        self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold it as the writer."""
        if self._writing or self._readers or self._waiting:
            await self._wait(True)
        else:
            self._writing = True
        try:
            yield
        finally:
            self._writing = False
            self._wake()

    async def _wait(self, exclusive: bool) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((exclusive, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(exclusive)
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


class _Shared:
    """A lock that is held as a reader. Every page takes one: a generator would cost more."""

    __slots__ = ("_lock",)

    def __init__(self, lock: IndexLock) -> None:
        self._lock = lock

    async def __aenter__(self) -> bool:
        return await self._lock.take_shared()

    async def __aexit__(self, *_: object) -> None:
        self._lock.leave_shared()


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

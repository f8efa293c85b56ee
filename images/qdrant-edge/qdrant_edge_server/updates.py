"""The queue of a collection's write operations, applied one after the other, in small steps."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .errors import ApiError, from_engine
from .stack import LayerStack

log = logging.getLogger(__name__)

# Operations, and bytes of their request bodies, that may wait before the next request is made to
# wait itself. Their points are in memory, and not durable.
CAPACITY = 64
CAPACITY_BYTES = 64 * 1024 * 1024


@dataclass
class _Operation:
    apply: Callable[[], Awaitable[None]]
    done: asyncio.Future[None]
    waited_for: bool
    size: int


class UpdateQueue:
    """Applies operations in the order of their arrival, under the stack's lock."""

    def __init__(self, stack: LayerStack, applied: Callable[[], None]) -> None:
        self._stack = stack
        self._applied = applied
        self._waiting: deque[_Operation] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._busy = False
        self._size = 0
        self._number = 0
        self._task = asyncio.create_task(self._work(), name="update queue")

    @property
    def length(self) -> int:
        """Operations that are not applied yet."""
        return len(self._waiting) + self._busy

    @property
    def number(self) -> int:
        """The number of the newest operation."""
        return self._number

    async def submit(self, apply: Callable[[], Awaitable[None]], wait: bool, size: int) -> int:
        """Queue an operation; with `wait`, return when it is applied. Returns its number.

        `size` is that of its request's body in bytes.

        Raises ApiError if the operation failed and is waited for. One that is not waited for
        is logged when it fails, as in Qdrant.
        """
        while not self._room.is_set():
            await self._room.wait()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number += 1
        number = self._number
        self._waiting.append(_Operation(apply, done, wait, size))
        self._size += size
        self._set_room()
        self._arrived.set()
        if wait:
            # The operation is applied even if the client goes away.
            await asyncio.shield(done)
        return number

    async def close(self) -> None:
        """Apply what is queued, then stop."""
        while self.length:
            await asyncio.sleep(0.001)
        self.abandon()

    def abandon(self) -> None:
        """Stop without applying what is queued (the collection is deleted)."""
        self._task.cancel()
        for operation in self._waiting:
            operation.done.cancel()
        self._waiting.clear()
        self._room.set()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            self._busy = True
            operation = self._waiting.popleft()
            self._size -= operation.size
            self._set_room()
            try:
                async with self._stack.lock:
                    await operation.apply()
            except Exception as error:  # noqa: BLE001 - reported to the client
                self._report(operation, error)
            else:
                operation.done.set_result(None)
            finally:
                self._busy = False
            self._applied()

    def _set_room(self) -> None:
        if len(self._waiting) >= CAPACITY or self._size >= CAPACITY_BYTES:
            self._room.clear()
        else:
            self._room.set()

    def _report(self, operation: _Operation, error: Exception) -> None:
        if not isinstance(error, ApiError):
            if type(error) is not Exception:
                # The wheel raises plain Exception: anything else is a fault of this server.
                log.error("an update failed", exc_info=error)
                error = ApiError(500, f"Service internal error: {type(error).__name__}: {error}")
            else:
                error = from_engine(error)
        if operation.waited_for and not operation.done.cancelled():
            operation.done.set_exception(error)
        else:
            log.warning("an update that nobody waits for failed: %s", error)
            operation.done.cancel()

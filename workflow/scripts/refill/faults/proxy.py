"""The proxy between a driver and an engine: raw HTTP/1.1 on kept connections, with one fault.

One request of each block of 1/share is hit, at a place in the block that the seed draws, so a run
has its share of faults however short it is. Each fault that was put in is one line of the log.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import orjson

from refill.faults.kinds import (
    ALL,
    FAULTS,
    OUTDATED,
    STALE,
    STALL,
    Earlier,
    Fault,
    Sent,
    kind_of,
)
from refill.faults.messages import MAX_HEAD_BYTES, Message, MessageError, read
from refill.load.wire import Address


@dataclass(frozen=True)
class Options:
    """What the proxy does.

    Attributes:
        to: the engine.
        fault: a name of `FAULTS`.
        seed: draws which requests are hit, and how.
        share: the share of the requests that is hit; None: the fault's own.
        kind: the requests that are concerned; None: the fault's own.
        at: the first request (from 1, of those concerned) that can be hit; a stall begins there,
            or, at 0, when the process gets SIGUSR1.
        seconds: length of a stall.
    """

    to: Address
    fault: str
    seed: int = 1
    share: float | None = None
    kind: str | None = None
    at: int = 1
    seconds: float = 10.0


class Proxy:
    """Serves connections; one upstream connection for each of the clients'."""

    def __init__(self, options: Options, log: IO[str]) -> None:
        self._options = options
        self._log = log
        self._fault: Fault = FAULTS[options.fault]
        self._kind = options.kind or self._fault.kind
        share = self._fault.share if options.share is None else options.share
        self._block = round(1 / share) if share > 0 else 0
        self._rng = random.Random(options.seed)
        self._place = 0
        self._due = False
        self._seen = 0
        self._earlier = Earlier()
        self._stalled = False
        self._open = asyncio.Event()
        self._open.set()

    async def run(self, port: int, ready: Callable[[int], None]) -> None:
        """Serve until cancelled; `ready` gets the port."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._stall, "SIGUSR1")
        server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, limit=MAX_HEAD_BYTES, backlog=128
        )
        ready(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine = _Upstream(self._options.to)
        try:
            while (request := await read(reader)) is not None:
                sent = await self._exchange(engine, request)
                await self._open.wait()
                if sent.message is None:
                    break
                writer.write(sent.message.data(sent.claimed))
                await writer.drain()
                if sent.message.closes or request.closes:
                    break
        except (MessageError, OSError) as error:
            # To the client this is a connection that broke, as it is without a proxy.
            sys.stderr.write(f"a connection ended: {type(error).__name__}: {error}\n")
        finally:
            engine.close()
            writer.close()
            with suppress(OSError):  # closed by the other side already
                await writer.wait_closed()

    async def _exchange(self, engine: _Upstream, request: Message) -> Sent:
        """Answer one request, with the fault if it is its turn."""
        concerned = self._kind in (ALL, kind_of(request))
        if not concerned or not self._turn(request):
            response = await engine.ask(request)
            if concerned:
                self._earlier.keep(request, response)
            return Sent(response)
        fault = self._fault
        if fault.instead is not None:
            self._put_in(request)
            return Sent(fault.instead(request))
        response = await engine.ask(fault.request(request) if fault.request else request)
        found = self._changed(request, response)
        if found is None:
            self._earlier.keep(request, response)
            return Sent(response)
        self._put_in(request)
        return found

    def _changed(self, request: Message, response: Message) -> Sent | None:
        """Give the answer with the fault in it; None when it cannot be put into this one."""
        if b" 200 " not in response.start + b" ":
            return None
        if self._fault.response is not None:
            return self._fault.response(request, response, self._rng)
        choose = {STALE: self._earlier.other, OUTDATED: self._earlier.same}[self._options.fault]
        old = choose(request)
        return None if old is None else Sent(old)

    def _turn(self, request: Message) -> bool:
        """Count a request that is concerned, and say whether the fault is due."""
        self._seen += 1
        if self._options.fault == STALL:
            if self._seen == self._options.at:
                self._stall(f"{request.method} {request.path}")
            return False
        if not self._block or self._seen < self._options.at:
            return False
        place = (self._seen - self._options.at) % self._block
        if place == 0:
            self._place = self._rng.randrange(self._block)
            self._due = False
        # A fault that could not be put in where it was due is put in at the next chance.
        self._due = self._due or place == self._place
        return self._due

    def _put_in(self, request: Message) -> None:
        self._due = False
        self._note(f"{request.method} {request.path}")

    def _stall(self, why: str) -> None:
        if self._options.fault != STALL or self._stalled:
            return
        self._stalled = True
        self._open.clear()
        self._note(why)
        asyncio.get_running_loop().call_later(self._options.seconds, self._open.set)

    def _note(self, request: str) -> None:
        line = {"fault": self._options.fault, "number": self._seen, "request": request}
        self._log.write(orjson.dumps({**line, "t": time.time()}).decode() + "\n")
        self._log.flush()


class _Upstream:
    """A kept connection to the engine; a new one after a failure, and nothing is retried."""

    def __init__(self, to: Address) -> None:
        self._to = to
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Message) -> Message:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._to.host, self._to.port, limit=MAX_HEAD_BYTES
            )
        reader, writer = self._streams
        writer.write(request.data())
        await writer.drain()
        response = await read(reader)
        if response is None:
            raise MessageError("the engine closed the connection")
        if response.closes:
            self.close()
        return response

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

"""Start, run and stop the server."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

import uvloop

from .http_protocol import HttpProtocol
from .identity import TITLE
from .optimizer import OptimizerProcess
from .routes import Router
from .storage import Storage, StorageInUseError, StorageLock

log = logging.getLogger(__name__)

# How long a clean stop waits for answers that are under way.
_GRACE_SECONDS = 5.0
# Python's default is 700.
_GC_OBJECTS = 20_000


def run(options: argparse.Namespace, archive: Path) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 0 after a clean stop."""
    try:
        lock = StorageLock(options.storage)
    except StorageInUseError as error:
        print(f"qdrant-edge: error: {error}", file=sys.stderr)
        return 1
    try:
        return uvloop.run(_serve(options, archive))
    finally:
        lock.release()


async def _serve(options: argparse.Namespace, archive: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    storage = Storage(options.storage.resolve(), OptimizerProcess(archive))
    try:
        storage.open()
    except ValueError as error:
        print(f"qdrant-edge: error: {error}", file=sys.stderr)
        return 1
    router = Router(storage, options.api_key)
    connections: set[HttpProtocol] = set()
    try:
        server = await loop.create_server(
            lambda: HttpProtocol(router.handle, options.body_limit, connections),
            options.host,
            options.port,
        )
    except OSError as error:
        print(
            f"qdrant-edge: error: cannot listen on {options.host}:{options.port}: {error}",
            file=sys.stderr,
        )
        await storage.close()
        return 1
    # What was made so far stays: Python's cycle collector need not look at it again and again. And
    # a page of points is hundreds of objects, none of them in a cycle: look for those less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS, 20, 20)
    port = server.sockets[0].getsockname()[1]
    print(f"qdrant-edge listening on http://{options.host}:{port} - {TITLE}", flush=True)
    await stop.wait()
    log.info("stopping")
    server.close()
    await _finish(connections)
    await storage.close()
    return 0


async def _finish(connections: set[HttpProtocol]) -> None:
    """Let the answers that are under way go out, then close all connections."""
    for connection in list(connections):
        connection.close()
    deadline = asyncio.get_running_loop().time() + _GRACE_SECONDS
    while connections and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)

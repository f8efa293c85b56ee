"""The running gateway: its parts, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable

from gateway.cache import Cache
from gateway.catalog import Catalog
from gateway.documents import Documents
from gateway.http_server import HttpProtocol
from gateway.indices import Indices
from gateway.locks import Locks
from gateway.opening import Opening
from gateway.presence import Presence
from gateway.qdrant import Qdrant
from gateway.routes import Routes
from gateway.scripts import Scripts
from gateway.settings import Settings
from gateway.settler import Settler
from gateway.valkey import Valkey

log = logging.getLogger(__name__)

_STOP_S = 15.0
# Python's default is 700.
_GC_OBJECTS = 20_000


async def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; gives the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    scripts = Scripts()
    qdrant = Qdrant(settings)
    opening = Opening(settings, qdrant, scripts)
    valkey = connection(settings, opening.prepare)
    catalog = Catalog(settings, valkey, scripts, Presence(settings.namespace, qdrant))
    opening.catalog = catalog
    locks = Locks()
    settler = Settler(catalog, qdrant, settings.settle_s)
    cache = Cache(settings, catalog, qdrant, locks)
    routes = Routes(
        settings,
        catalog,
        qdrant,
        Indices(catalog, qdrant, locks, settler, settings),
        Documents(catalog, qdrant, settler, locks, settings),
        cache,
        settler,
    )
    connections: set[HttpProtocol] = set()
    try:
        server = await loop.create_server(
            lambda: HttpProtocol(
                routes.handle, settings.limits.body_bytes, connections, settings.request_timeout_s
            ),
            settings.host,
            settings.port,
        )
    except OSError as error:
        log.error("cannot listen on %s:%d: %s", settings.host, settings.port, error)
        return 1
    valkey.start()
    keeping = loop.create_task(opening.keep_open())
    cache.start()
    settler.start()
    # What was made so far stays: Python's cycle collector need not look at it again and again. And
    # a page is hundreds of objects, none of them in a cycle: look for those less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS, 20, 20)
    port = server.sockets[0].getsockname()[1]
    print(
        f"gateway listening on http://{settings.host}:{port} "
        f"(serving {'on' if settings.serving else 'off'}, build {settings.build})",
        flush=True,
    )
    await stop.wait()
    log.info("stopping")
    server.close()
    for open_connection in list(connections):
        open_connection.close()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    if routes.tasks:
        await asyncio.wait(routes.tasks, timeout=_STOP_S)
    await cache.stop()
    await settler.stop()
    await valkey.close()
    qdrant.close()
    return 0


def connection(settings: Settings, prepare: Callable[[Valkey], Awaitable[None]]) -> Valkey:
    """The connection to Valkey.

    Args:
        prepare: awaited whenever it is made.
    """
    return Valkey(
        settings.valkey_host,
        settings.valkey_port,
        settings.valkey_user,
        settings.valkey_password,
        settings.valkey_timeout_s,
        prepare,
    )

"""The running gateway: its parts, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal

from gateway.cache import Cache
from gateway.catalog import Catalog
from gateway.documents import Documents
from gateway.errors import ApiError
from gateway.http_server import HttpProtocol
from gateway.identity import new_token
from gateway.indices import Indices
from gateway.locks import Locks
from gateway.qdrant import Qdrant
from gateway.routes import Routes
from gateway.scripts import Scripts
from gateway.settings import Settings
from gateway.settler import Settler
from gateway.valkey import Valkey

log = logging.getLogger(__name__)

_OPEN_PAUSE_S = 0.1
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
    valkey = connection(settings, scripts)
    catalog = Catalog(settings, valkey, scripts)
    qdrant = Qdrant(settings)
    locks = Locks()
    settler = Settler(catalog, qdrant)
    cache = Cache(settings, catalog, qdrant, locks)
    routes = Routes(
        settings,
        catalog,
        qdrant,
        Indices(catalog, qdrant, locks, settings),
        Documents(catalog, qdrant, settler, locks, settings.limits),
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
    opening = loop.create_task(_open(settings, catalog, qdrant))
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
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    if routes.tasks:
        await asyncio.wait(routes.tasks, timeout=_STOP_S)
    await cache.stop()
    await settler.stop()
    await valkey.close()
    qdrant.close()
    return 0


def connection(settings: Settings, scripts: Scripts) -> Valkey:
    """The connection to Valkey, with the scripts loaded whenever it is made."""
    return Valkey(
        settings.valkey_host,
        settings.valkey_port,
        settings.valkey_user,
        settings.valkey_password,
        settings.valkey_timeout_s,
        scripts.load,
    )


async def _open(settings: Settings, catalog: Catalog, qdrant: Qdrant) -> None:
    """Open the catalog as soon as Valkey, and Qdrant for a new one, can be asked."""
    said = ""
    while True:
        try:
            epoch = await catalog.open("", "read")
            if not epoch:
                epoch = await _new_epoch(settings, catalog, qdrant)
            catalog.epoch = epoch or None
            if catalog.epoch is not None:
                await _warn(settings, catalog)
                return
        except ApiError as error:
            catalog.not_open = error.reason
        if catalog.not_open != said:
            said = catalog.not_open
            log.warning("not serving yet: %s", said)
        await asyncio.sleep(_OPEN_PAUSE_S)


async def _new_epoch(settings: Settings, catalog: Catalog, qdrant: Qdrant) -> str:
    """Begin a catalog, unless Qdrant's collections tell that there was one."""
    prefix = f"{settings.namespace}-"
    orphans = [name for name in await qdrant.collections() if name.startswith(prefix)]
    if orphans:
        catalog.not_open = (
            f"Valkey has no catalog but Qdrant has {len(orphans)} collections of one: Valkey lost "
            "its data set, or is the wrong one. Restore it; or give the catalog up with "
            "`recover --new-epoch --drop-orphans`"
        )
        return ""
    return await catalog.open(new_token(), "create")


async def _warn(settings: Settings, catalog: Catalog) -> None:
    """Say what an earlier gateway left; it is for `recover` to resolve, as it may be alive."""
    for kind in ("claim", "writers"):
        for key in await catalog.scan(f"{settings.namespace}:{kind}:*"):
            log.warning(
                "index %s has unresolved %s; if no other gateway is at work, run `recover`",
                key.split(":", 2)[2],
                "claims" if kind == "claim" else "writers",
            )

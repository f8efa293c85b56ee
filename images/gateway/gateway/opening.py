"""The catalog is opened when Valkey and Qdrant fit together, and closed while they do not."""

from __future__ import annotations

import asyncio
import logging

from gateway.catalog import Catalog
from gateway.durability import check_durability
from gateway.errors import ApiError, UnavailableError
from gateway.identity import new_token
from gateway.qdrant import CollectionGoneError, Qdrant
from gateway.scripts import Scripts
from gateway.settings import Settings
from gateway.valkey import Valkey, ValkeyDownError, ValkeyError

log = logging.getLogger(__name__)

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
# Between two looks at what an open catalog rests on.
_WATCH_S = 1.0
# Indices that are compared with Qdrant at a time.
_AT_ONCE = 8


class Opening:
    """Opens the catalog of a server process that was not met before, and watches over an open one.

    Attributes:
        catalog: to be set before anything is awaited.
    """

    catalog: Catalog

    def __init__(self, settings: Settings, qdrant: Qdrant, scripts: Scripts) -> None:
        self._settings = settings
        self._qdrant = qdrant
        self._scripts = scripts
        self._began_with = ""
        self._run_id = ""
        self._warned = False

    async def prepare(self, valkey: Valkey) -> None:
        """Make a new connection to Valkey ready, before anything else is sent on it.

        Raises:
            ValkeyDownError, ValkeyError: it is none that the catalog may rest on.
        """
        await check_durability(valkey.ask, self._settings.durable)
        await self._scripts.load(valkey)
        if self.catalog.epoch is not None and valkey.run_id != self._run_id:
            # It was started again, or is another one: it may have less than it had.
            self.catalog.suspend("valkey was started again: its data set is compared with Qdrant's")

    async def keep_open(self) -> None:
        """Open the catalog as soon as Valkey and Qdrant can be asked; for good."""
        said, pause = "", _PAUSE_S
        while True:
            try:
                if self.catalog.epoch is None:
                    await self._open()
                else:
                    await self._watch()
            except ApiError as error:
                self.catalog.suspend(error.reason)
            if self.catalog.epoch is not None:
                if said:
                    log.warning("serving")
                said, pause = "", _PAUSE_S
                await asyncio.sleep(_WATCH_S)
                continue
            if self.catalog.not_open != said:
                said = self.catalog.not_open
                log.warning("not serving: %s", said)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)

    async def _open(self) -> None:
        catalog = self.catalog
        run_id = catalog.valkey.run_id
        epoch = await catalog.open("", "read")
        if self._began_with and epoch != self._began_with:
            raise catalog.refusal("", "epoch")
        if not epoch:
            epoch = await self._new_epoch()
        if not self._warned:
            await self._warn()
            self._warned = True
        await self._compare()
        if catalog.valkey.run_id != run_id:
            # Not the process that was compared.
            return
        self._began_with, self._run_id, catalog.epoch = epoch, run_id, epoch

    async def _watch(self) -> None:
        valkey = self.catalog.valkey
        if not valkey.ready:
            # Every request says so itself; the next connection is looked at when it is made.
            return
        try:
            await check_durability(valkey.call, self._settings.durable)
        except (ValkeyDownError, ValkeyError) as error:
            if valkey.ready:
                raise UnavailableError(str(error)) from error
            return
        if self.catalog.presence.gone:
            try:
                await self.catalog.presence.look_for_gone()
            except UnavailableError as error:
                log.info("%s", error.reason)

    async def _new_epoch(self) -> str:
        """Begin a catalog, unless Qdrant's collections tell that there was one."""
        prefix = f"{self._settings.namespace}-"
        orphans = [n for n in await self._qdrant.collections() if n.startswith(prefix)]
        if orphans:
            raise UnavailableError(
                f"Valkey has no catalog but Qdrant has {len(orphans)} collections of one: Valkey "
                "lost its data set, or is the wrong one. Restore it; or give the catalog up with "
                "`recover --new-epoch --drop-orphans`"
            )
        return await self.catalog.open(new_token(), "create")

    async def _compare(self) -> None:
        """See that no index of the catalog is older than its documents.

        Raises:
            UnavailableError: one is.
        """
        catalog = self.catalog
        catalog.presence.rolled_back = ""
        incarnations = await catalog.incarnations()
        turn = asyncio.Semaphore(_AT_ONCE)

        async def compare(index: str, incarnation: str) -> None:
            async with turn:
                await self._compare_one(index, incarnation)

        await asyncio.gather(*(compare(*entry) for entry in incarnations.items()))

    async def _compare_one(self, index: str, incarnation: str) -> None:
        catalog = self.catalog
        try:
            highest = await self._qdrant.highest(incarnation)
        except CollectionGoneError:
            if (await catalog.incarnations()).get(index) == incarnation:
                log.error("%s", catalog.presence.lose(index, incarnation).reason)
            return
        # Only now: whoever writes meanwhile has its numbers before Qdrant has them.
        state = await catalog.state(index)
        if state is None or state[0] != incarnation:
            return
        _, generation, version, sequence = state
        if highest >= sequence:
            raise catalog.presence.went_back(
                f"index [{index}] has a document with number {highest} in Qdrant, Valkey has given "
                f"out numbers up to {sequence - 1}"
            )
        refusal = catalog.presence.of(index, incarnation, generation, version)
        if catalog.presence.rolled_back and refusal is not None:
            raise refusal

    async def _warn(self) -> None:
        """Say what an earlier gateway left; it is for `recover` to resolve, as it may be alive."""
        space = self._settings.namespace
        for kind in ("claim", "writers"):
            for key in await self.catalog.scan(f"{space}:{kind}:*"):
                log.warning(
                    "index %s has unresolved %s; if no other gateway is at work, run `recover`",
                    key.split(":", 2)[2],
                    "claims" if kind == "claim" else "writers",
                )

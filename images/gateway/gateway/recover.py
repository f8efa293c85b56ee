"""`recover`: resolve what a dead gateway left, and print it.

A claim to create is undone: its collection is deleted and the claim given back. A claim to delete
is completed. A dead writer is released once Qdrant has applied whatever it had taken from it, so
that nothing that is published afterwards can become stale. What is on its way to Qdrant and takes
longer than the grace is not seen: Qdrant has no means to refuse it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from gateway.catalog import Catalog
from gateway.errors import ApiError
from gateway.identity import new_token
from gateway.presence import Presence
from gateway.qdrant import CollectionGoneError, Qdrant
from gateway.scripts import Scripts
from gateway.service import connection
from gateway.settings import Settings


@dataclass(frozen=True)
class Options:
    """What to resolve.

    Attributes:
        older_than_s: leave what is younger: its gateway may be alive.
        grace_s: how long a request that was cut off may take to reach a Qdrant that answers.
        new_epoch: give up every fill, and begin a catalog where Valkey has none.
        drop_orphans: delete collections that no index and no claim has.
    """

    older_than_s: int
    grace_s: float
    new_epoch: bool
    drop_orphans: bool


async def recover(settings: Settings, options: Options) -> int:
    """Resolve; gives the exit status: 0, or 1 when something could not be done."""
    scripts = Scripts()
    valkey = connection(settings, scripts.load)
    qdrant = Qdrant(settings)
    catalog = Catalog(settings, valkey, scripts, Presence(settings.namespace, qdrant))
    try:
        valkey.start()
        for _ in range(int(settings.valkey_timeout_s * 20) + 1):
            if valkey.ready:
                break
            await asyncio.sleep(0.05)
        return await _Recovery(settings, options, catalog, qdrant).run()
    except ApiError as error:
        print(f"recover: {error.reason}", file=sys.stderr)
        return 1
    finally:
        await valkey.close()
        qdrant.close()


class _Recovery:
    def __init__(
        self, settings: Settings, options: Options, catalog: Catalog, qdrant: Qdrant
    ) -> None:
        self._settings = settings
        self._options = options
        self._catalog = catalog
        self._qdrant = qdrant
        self._now = 0

    async def run(self) -> int:
        if not await self._open():
            return 1
        self._now = int((await self._catalog.command("TIME"))[0])
        if self._options.new_epoch:
            await self._correct_counters()
        claims = await self._claims()
        writers = await self._writers()
        orphans = await self._orphans()
        if not (claims or writers or orphans):
            _say("nothing to recover")
        return 0

    async def _open(self) -> bool:
        epoch = await self._catalog.open("", "read")
        if self._options.new_epoch:
            self._catalog.epoch = await self._catalog.open(new_token(), "replace")
            _say(f"epoch {epoch or '(none)'}: replaced by {self._catalog.epoch}; restart gateways")
            return True
        if not epoch:
            print(
                "recover: Valkey has no catalog; restore its data set, or begin one with "
                "--new-epoch",
                file=sys.stderr,
            )
            return False
        self._catalog.epoch = epoch
        return True

    async def _correct_counters(self) -> None:
        """Raise the counters that stand below what Qdrant has: Valkey went back in time."""
        for index, incarnation in (await self._catalog.incarnations()).items():
            try:
                highest = await self._qdrant.highest(incarnation)
            except CollectionGoneError:
                _say(f"{self._catalog.presence.lose(index, incarnation).reason}")
                continue
            state = await self._catalog.state(index)
            if state is not None and state[0] == incarnation and state[3] <= highest:
                # No gateway writes: the epoch is new.
                key = self._catalog.keys(index)[1]
                await self._catalog.command("HSET", key, "seq", highest + 1)
                _say(
                    f"index {index}: sequence numbers go on from {highest + 1}, were at "
                    f"{state[3]}; its mapping may be older than its documents, too: fields that it "
                    "lacks come back when a document with them is written"
                )

    async def _claims(self) -> int:
        keys = await self._catalog.scan(f"{self._settings.namespace}:claim:*")
        for key in sorted(keys):
            index = key.split(":", 2)[2]
            reply = await self._catalog.command(
                "HMGET", key, "token", "kind", "collection", "instance", "at"
            )
            if reply[0] is None:
                continue
            token, kind, collection, instance, at = (part.decode() for part in reply)
            what = f"index {index}: claim to {kind} by {instance}, {self._age(at)} s old"
            if self._age(at) < self._options.older_than_s:
                _say(f"{what}: left, younger than {self._options.older_than_s} s")
                continue
            # The grace begins when Qdrant answers.
            await self._qdrant.delete_collection(collection)
            await asyncio.sleep(self._options.grace_s)
            await self._qdrant.delete_collection(collection)
            if kind == "create":
                await self._catalog.abort(index, token)
                _say(f"{what}: undone, collection {collection} deleted")
            else:
                await self._catalog.commit(index, kind, token, collection, b"", b"")
                _say(f"{what}: completed, collection {collection} deleted")
        return len(keys)

    async def _writers(self) -> int:
        found = 0
        for key in sorted(await self._catalog.scan(f"{self._settings.namespace}:writers:*")):
            index = key.split(":", 2)[2]
            flat = await self._catalog.command("HGETALL", key)
            incarnation = await self._catalog.command(
                "HGET", self._catalog.keys(index)[1], "incarnation"
            )
            dead = []
            for token, value in zip(flat[::2], flat[1::2], strict=True):
                found += 1
                _, at, instance = value.decode().split(" ", 2)
                what = (
                    f"index {index}: writer {token.decode()} of {instance}, {self._age(at)} s old"
                )
                if self._age(at) < self._options.older_than_s:
                    _say(f"{what}: left, younger than {self._options.older_than_s} s")
                else:
                    dead.append((token.decode(), what))
            if not dead:
                continue
            if incarnation is None:
                await self._catalog.command("DEL", key)
                _say(f"index {index}: it is gone, {len(dead)} writers removed")
                continue
            await self._qdrant.barrier(incarnation.decode())
            await asyncio.sleep(self._options.grace_s)
            await self._qdrant.barrier(incarnation.decode())
            for token, what in dead:
                await self._catalog.release(index, incarnation.decode(), token)
                _say(f"{what}: released, generation advanced")
        return found

    async def _orphans(self) -> int:
        """Collections of this namespace that belong to nothing, such as of a lost catalog."""
        space = self._settings.namespace
        # In this order: what is made meanwhile is not in the list, and what was being made when
        # the list was has a claim, or is an index by then.
        collections = sorted(await self._qdrant.collections())
        known = set()
        for kind, field in (("claim", "collection"), ("index", "incarnation")):
            for key in await self._catalog.scan(f"{space}:{kind}:*"):
                known.add(await self._catalog.command("HGET", key, field))
        names = {name.decode() for name in known if name is not None}
        orphans = [n for n in collections if n.startswith(f"{space}-") and n not in names]
        for name in orphans:
            documents = await self._catalog.presence.documents(name)
            if self._options.drop_orphans or not documents:
                await self._qdrant.delete_collection(name)
                _say(
                    f"collection {name}: belongs to no index, deleted with its {documents} "
                    "documents"
                )
            else:
                _say(
                    f"collection {name}: belongs to no index; --drop-orphans deletes it with its "
                    f"{documents} documents"
                )
        return len(orphans)

    def _age(self, at: str) -> int:
        return max(0, self._now - int(at))


def _say(text: str) -> None:
    print(text, flush=True)

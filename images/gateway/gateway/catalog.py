"""The catalog and coordination in Valkey: what each script is told, and what its answer means."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import ApiError, ClaimedError, UnavailableError, UnclaimedError, no_index
from gateway.mapping import IndexMapping
from gateway.presence import Presence
from gateway.scripts import Scripts
from gateway.settings import Settings
from gateway.valkey import Valkey, ValkeyDownError, ValkeyError


@dataclass(frozen=True)
class View:
    """The state of an index that an answer is bound to.

    Attributes:
        incarnation: of the index, also the name of its collection.
        writers: how many writers are active.
    """

    incarnation: str
    generation: int
    mapping_version: int
    writers: int


@dataclass(frozen=True)
class Hit:
    """A response that may be served."""

    body: bytes


@dataclass(frozen=True)
class Miss:
    """There is nothing to serve: why, and the state that an answer from Qdrant will have.

    `view` is None when it has to be looked up first.
    """

    reason: str
    view: View | None


class MovedError(Exception):
    """The index is not what it was when it was looked at: look again."""


class Catalog:
    """Everything that is asked of Valkey, in the catalog's epoch.

    Every method raises UnavailableError when Valkey cannot be asked or its data set was replaced.

    Attributes:
        epoch: of the data set that the gateway began with; None while nothing may be served.
        not_open: why there is no epoch.
        presence: the state of indices as far as it was seen, and what was seen to be lost.
    """

    def __init__(
        self, settings: Settings, valkey: Valkey, scripts: Scripts, presence: Presence
    ) -> None:
        self._settings = settings
        self.valkey = valkey
        self._scripts = scripts
        self.presence = presence
        self._names: dict[str, tuple[str, str, str, str]] = {}
        self._lookups: dict[str, tuple[bytes, bytes]] = {}
        self._mappings: dict[str, tuple[str, int, IndexMapping]] = {}
        self.epoch: str | None = None
        self.not_open = "the gateway has not opened the catalog yet"
        space = settings.namespace
        self.epoch_key = f"{space}:epoch"
        self.indices_key = f"{space}:indices"
        self.fill_prefix = f"{space}:fill:"

    def keys(self, index: str) -> tuple[str, str, str, str]:
        """The keys of epoch, index, claim and writers."""
        found = self._names.get(index)
        if found is None:
            if len(self._names) > 10_000:
                self._names.clear()
                self._lookups.clear()
            space = self._settings.namespace
            found = self._names[index] = (
                self.epoch_key,
                f"{space}:index:{index}",
                f"{space}:claim:{index}",
                f"{space}:writers:{index}",
            )
        return found

    async def run(self, name: str, keys: Any, arguments: Any) -> Any:
        """Run a script.

        Raises:
            UnavailableError: Valkey did not answer, or with an error.
        """
        try:
            return await self._scripts.run(self.valkey, name, keys, arguments)
        except ValkeyDownError as error:
            raise UnavailableError(str(error)) from error
        except ValkeyError as error:
            raise UnavailableError(f"valkey: {error}") from error

    async def command(self, *arguments: bytes | str | int) -> Any:
        """Run a plain command; errors as `run`."""
        try:
            return await self.valkey.call(*arguments)
        except ValkeyDownError as error:
            raise UnavailableError(str(error)) from error
        except ValkeyError as error:
            raise UnavailableError(f"valkey: {error}") from error

    def opened(self) -> str:
        """The epoch; raises UnavailableError while there is none."""
        if self.epoch is None:
            raise UnavailableError(self.not_open)
        return self.epoch

    def suspend(self, why: str) -> None:
        """Serve nothing until the catalog is opened again."""
        self.epoch, self.not_open = None, why

    def lookup(
        self, index: str, fill: str, callback: Callable[[Hit | Miss | Exception], None]
    ) -> None:
        """Look a response up; the callback gets what was found, or the error to answer with."""
        if self.epoch is None:
            callback(UnavailableError(self.not_open))
            return

        def replied(reply: Any) -> None:
            if type(reply) is list and reply[0] == 1:
                callback(self._entry(index, name, reply[1]))
            else:
                found = self._looked(index, reply)
                reason = reply[1].decode() if isinstance(found, View) else ""
                callback(Miss(reason, found) if isinstance(found, View) else found)

        keys = (*self.keys(index), fill)
        arguments = (self.epoch, self._settings.build)
        name = fill.encode()
        encoded = self._lookups.get(index)
        if encoded is None:
            # All but the fill is the same for every lookup in an index: encode it once.
            whole = self._scripts.by_name["lookup"].command(keys, arguments)
            head, _, tail = whole.rpartition(b"$%d\r\n%b\r\n" % (len(name), name))
            encoded = self._lookups[index] = (head, tail)
        command = b"%b$%d\r\n%b\r\n%b" % (encoded[0], len(name), name, encoded[1])
        self._scripts.send(self.valkey, "lookup", keys, arguments, replied, command)

    def _entry(self, index: str, fill: bytes, entry: bytes) -> Hit | Miss | Exception:
        """What an entry comes to that the lookup has found valid."""
        start = entry.index(b"\n") + 1
        head = entry[: entry.rindex(b" ", 0, start) + 1]
        body = entry[start + _CHECKSUM_BYTES :]
        if entry[start : start + _CHECKSUM_BYTES] != _checksum(fill, head, body):
            return Miss("damaged", None)
        refusal = self.presence.of_head(index, head)
        return Hit(body) if refusal is None else self._refused(refusal)

    def _refused(self, refusal: UnavailableError) -> UnavailableError:
        if self.presence.rolled_back:
            self.suspend(self.presence.rolled_back)
        return refusal

    async def view(self, index: str) -> View:
        """Look at the state of an index.

        Raises:
            ApiError: 404, there is no such index; 503, it is lost, or claimed.
        """
        found = await self._view(index)
        if isinstance(found, ApiError) and found.status == 404:
            collections = await self.presence.collections_of(index)
            if collections:
                # Of an index that was created just now, or of one that the catalog has lost.
                found = await self._view(index)
                if isinstance(found, ApiError) and found.status == 404:
                    await self.presence.confirm_missing(index, collections)
        if isinstance(found, View):
            return found
        raise found

    async def _view(self, index: str) -> View | Exception:
        reply = await self.run("view", self.keys(index), (self.opened(),))
        return self._looked(index, reply)

    def _looked(self, index: str, reply: Any) -> View | Exception:
        if isinstance(reply, Exception):
            return UnavailableError(
                str(reply) if isinstance(reply, ValkeyDownError) else f"valkey: {reply}"
            )
        if reply[0] == 0:
            incarnation, generation, version = (part.decode() for part in reply[2:5])
            view = View(incarnation, int(generation), int(version), reply[5])
            refusal = self.presence.of(index, incarnation, view.generation, view.mapping_version)
            return view if refusal is None else self._refused(refusal)
        return self.refusal(index, reply[1].decode())

    def refusal(self, index: str, reason: str) -> ApiError:
        """The error for a script's refusal."""
        if reason == "epoch":
            return UnavailableError(
                "the data set in Valkey is not the one that this gateway began with: restore it, "
                "or restart the gateway and follow what it says"
            )
        if reason in ("claim", "claimed"):
            return ClaimedError(
                f"index [{index}] has a claim: it is being created or deleted, or a gateway died "
                "over it; if this stays, run the gateway's `recover` command"
            )
        if reason == "missing":
            return no_index(index)
        if reason == "unclaimed":
            return UnclaimedError(
                f"index [{index}]: a recovery has given this claim up while it stood; try again"
            )
        return UnavailableError(f"index [{index}]: valkey refused: {reason}")

    async def publish(self, index: str, fill: str, view: View, body: bytes) -> str:
        """Publish a response; gives "published", or why it was refused.

        Nothing is raised: an answer is right whether it can be kept or not.
        """
        try:
            epoch, build = self.opened(), self._settings.build
            head = f"{epoch} {view.incarnation} {view.generation} {build} ".encode()
            reply = await self._scripts.run(
                self.valkey,
                "publish",
                (*self.keys(index), fill),
                (
                    epoch,
                    view.incarnation,
                    view.generation,
                    build,
                    self._settings.ttl_ms,
                    self._settings.grace_ms,
                    _checksum(fill.encode(), head, body) + body,
                    self.fill_prefix,
                ),
            )
        except ValkeyDownError:
            return "valkey_down"
        except (ValkeyError, UnavailableError) as error:
            return "out_of_memory" if str(error).startswith("OOM") else "error"
        return "published" if reply[0] == 1 else reply[1].decode()

    async def mapping(self, index: str, view: View) -> IndexMapping:
        """The mapping of an index in the state that was looked at.

        Raises:
            MovedError: it has another one by now.
        """
        known = self._mappings.get(index)
        if known is not None and known[:2] == (view.incarnation, view.mapping_version):
            return known[2]
        reply = await self.command(
            "HMGET", self.keys(index)[1], "incarnation", "mapping_version", "mapping"
        )
        if reply[0] is None or (reply[0].decode(), int(reply[1])) != (
            view.incarnation,
            view.mapping_version,
        ):
            raise MovedError
        mapping = IndexMapping(orjson.loads(reply[2]))
        self._remember(index, view.incarnation, view.mapping_version, mapping)
        return mapping

    def _remember(self, index: str, incarnation: str, version: int, mapping: IndexMapping) -> None:
        if len(self._mappings) >= 1000:
            self._mappings.clear()
        self._mappings[index] = (incarnation, version, mapping)

    async def describe(self, index: str) -> dict[str, Any]:
        """An index's mapping, settings and time of creation.

        Raises:
            ApiError: 404, there is no such index.
        """
        for _ in range(3):
            view = await self.view(index)
            try:
                mapping = await self.mapping(index, view)
            except MovedError:
                continue
            reply = await self.command("HMGET", self.keys(index)[1], "settings", "created")
            if reply[0] is not None:
                return {
                    "mapping": mapping.shown(),
                    "settings": orjson.loads(reply[0]),
                    "created": int(reply[1]),
                    "incarnation": view.incarnation,
                }
        raise UnavailableError(f"index [{index}] changes faster than it can be read; try again")

    async def names(self) -> list[str]:
        """The names of all indices."""
        return sorted(name.decode() for name in await self.command("SMEMBERS", self.indices_key))

    async def incarnations(self) -> dict[str, str]:
        """All indices that have no claim, with their incarnations."""

        async def of(name: str) -> bytes | None:
            _, key, claim, _ = self.keys(name)
            incarnation, claimed = await asyncio.gather(
                self.command("HGET", key, "incarnation"), self.command("EXISTS", claim)
            )
            found: bytes | None = None if claimed else incarnation
            return found

        names = await self.names()
        found = await asyncio.gather(*map(of, names))
        return {n: part.decode() for n, part in zip(names, found, strict=True) if part is not None}

    async def state(self, index: str) -> tuple[str, int, int, int] | None:
        """An index's incarnation, generation, mapping version and next sequence number."""
        fields = ("incarnation", "generation", "mapping_version", "seq")
        found = await self.command("HMGET", self.keys(index)[1], *fields)
        if None in found:
            return None
        return found[0].decode(), int(found[1]), int(found[2]), int(found[3])

    async def check(self) -> None:
        """See that Valkey has the data set that this gateway began with.

        Raises:
            UnavailableError: it has another one, or cannot be asked.
        """
        if self.opened() != await self.open("", "read"):
            raise self.refusal("", "epoch")

    async def claim(
        self, index: str, kind: str, token: str, collection: str
    ) -> tuple[str | None, str, str]:
        """Claim a name: the collection, or None and why not."""
        epoch, key, claim, _ = self.keys(index)
        reply = await self.run(
            "claim",
            (epoch, key, claim, self.indices_key),
            (
                self.opened(),
                kind,
                token,
                collection,
                self._settings.instance,
                self._settings.limits.indices,
            ),
        )
        if reply[0] == 1:
            return reply[1].decode(), "", ""
        return None, reply[1].decode(), reply[2].decode()

    async def commit(
        self, index: str, kind: str, token: str, collection: str, mapping: bytes, settings: bytes
    ) -> None:
        """Resolve a claim. Safe to repeat.

        Raises:
            UnclaimedError: the claim was given up by a recovery meanwhile.
        """
        epoch, key, claim, writers = self.keys(index)
        reply = await self.run(
            "commit",
            (epoch, key, claim, self.indices_key, writers),
            (self.opened(), token, kind, collection, index, mapping, settings),
        )
        if reply[0] != 1:
            raise self.refusal(index, reply[1].decode())

    async def writers(self, index: str) -> set[bytes]:
        """The tokens of the active writers."""
        return set(await self.command("HKEYS", self.keys(index)[3]))

    async def abort(self, index: str, token: str) -> None:
        """Give a claim back."""
        epoch, _, claim, _ = self.keys(index)
        reply = await self.run("abort", (epoch, claim), (self.opened(), token))
        if reply[0] != 1:
            raise self.refusal(index, reply[1].decode())

    async def admit(self, index: str, view: View, token: str, count: int) -> int:
        """Admit a writer; gives the first of its sequence numbers.

        Raises:
            MovedError: the index has another incarnation or mapping than was looked at.
        """
        reply = await self.run(
            "admit",
            self.keys(index),
            (
                self.opened(),
                view.incarnation,
                view.mapping_version,
                token,
                count,
                self._settings.instance,
            ),
        )
        if reply[0] == 1:
            return int(reply[1])
        if reply[1] == b"moved":
            raise MovedError
        raise self.refusal(index, reply[1].decode())

    async def release(self, index: str, incarnation: str, token: str) -> None:
        """Release a writer and advance the generation; nothing to do when the index is gone."""
        epoch, key, _, writers = self.keys(index)
        reply = await self.run(
            "release", (epoch, key, writers), (self.opened(), incarnation, token)
        )
        if reply[0] == 1:
            self.presence.advanced(index, incarnation, int(reply[1]))
        elif reply[1] != b"missing":
            raise self.refusal(index, reply[1].decode())

    async def extend(self, index: str, view: View, token: str, mapping: IndexMapping) -> View:
        """Put a larger mapping into the catalog, as an admitted writer.

        Raises:
            MovedError: another gateway was first.
        """
        epoch, key, _, writers = self.keys(index)
        reply = await self.run(
            "extend",
            (epoch, key, writers),
            (self.opened(), view.incarnation, token, view.mapping_version, mapping.stored()),
        )
        if reply[0] != 1:
            if reply[1] == b"moved":
                raise MovedError
            raise self.refusal(index, reply[1].decode())
        version = int(reply[1])
        self._remember(index, view.incarnation, version, mapping)
        return View(view.incarnation, view.generation, version, view.writers)

    async def sweep(self, fills: list[str]) -> int:
        """Remove those of these fills that have expired; gives how many."""
        return int(await self.run("sweep", fills, (self.fill_prefix,)))

    async def open(self, candidate: str, how: str) -> str:
        """Read the epoch, or set it: "read", "create" or "replace"; empty when there is none."""
        reply = await self.run("epoch", (self.epoch_key,), (candidate, how))
        epoch: str = reply.decode()
        return epoch

    async def scan(self, pattern: str) -> list[str]:
        """All keys that match."""
        found: list[str] = []
        cursor = b"0"
        while True:
            cursor, keys = await self.command("SCAN", cursor, "MATCH", pattern, "COUNT", 500)
            found += [key.decode() for key in keys]
            if cursor == b"0":
                return found
            # A long scan must not hold up what is asked meanwhile.
            await asyncio.sleep(0)


# Valkey's log has no checksum of its own: after a flipped bit it starts with wrong data.
_CHECKSUM_BYTES = 8


def _checksum(fill: bytes, head: bytes, body: bytes) -> bytes:
    """CRC-32 of a response, its key and what it is bound to, as it stands before the body."""
    return b"%08x" % zlib.crc32(body, zlib.crc32(head, zlib.crc32(fill)))

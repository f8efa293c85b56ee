"""Indices: created and deleted under a claim."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from gateway import deadline
from gateway.catalog import Catalog
from gateway.durability import check_durability
from gateway.errors import (
    ApiError,
    UnavailableError,
    UnclaimedError,
    illegal,
    no_index,
    parsing,
    unsupported,
)
from gateway.identity import check_new_index, new_token
from gateway.locks import Locks
from gateway.mapping import IndexMapping, index_keys
from gateway.qdrant import Json, Qdrant, UnsettledError
from gateway.settings import Settings
from gateway.settler import ClaimDebt, Settler, Step
from gateway.valkey import ValkeyDownError, ValkeyError

# Settings of an index that change nothing in what it answers.
_NEUTRAL = ("number_of_shards", "number_of_replicas", "refresh_interval", "codec")
# So long another gateway's claim is waited for, and so often it is looked at meanwhile.
CLAIM_WAIT_S, CLAIM_PAUSE_S = 2.0, 0.02


class Indices:
    """Creates, deletes and describes indices.

    Create and delete are: claim the name, act on Qdrant, commit. A claim whose outcome is not known
    (Valkey or Qdrant did not answer) blocks the name until the settler has resolved it; that of a
    gateway that died, until `recover` does.
    """

    def __init__(
        self, catalog: Catalog, qdrant: Qdrant, locks: Locks, settler: Settler, settings: Settings
    ) -> None:
        self._catalog = catalog
        self._qdrant = qdrant
        self._locks = locks
        self._settler = settler
        self._settings = settings

    async def create(self, index: str, body: Any) -> Json:
        """Create an index.

        Raises:
            ApiError: 400, the name, the mapping or the settings are wrong, or it is there.
        """
        check_new_index(index)
        mapping, settings = self._read(body)
        deadline.begin(self._settings.qdrant_admin_timeout_s)
        async with self._locks.of(index).exclusive():
            collection = f"{self._catalog.presence.prefix(index)}{secrets.token_hex(8)}"
            debt = ClaimDebt(
                index, new_token(), "create", collection, Step.ABORT,
                mapping.stored(), orjson.dumps(settings),
            )  # fmt: skip
            await self._claim(debt)
            with self._owing(debt):
                await self._create(debt, index_keys(mapping.fields.values()))
        return {"acknowledged": True, "shards_acknowledged": True, "index": index}

    async def _create(self, debt: ClaimDebt, keys: dict[str, str]) -> None:
        presence = self._catalog.presence
        try:
            # Under the claim nobody else makes one. Those that are there were an index that the
            # catalog has lost, or came late of a create that was given up: without a document.
            for name in await presence.collections_of(debt.index):
                await presence.refuse_documents(debt.index, name)
                await self._qdrant.delete_collection(name)
        except ApiError:
            await self._abort(debt)
            raise
        # From here on the outcome may be unknown.
        debt.step = Step.UNDO
        try:
            await self._qdrant.create_collection(debt.collection)
        except UnsettledError:
            raise
        except ApiError:
            await self._abort(debt)
            raise
        try:
            for key, kind in {"seq": "integer", **keys}.items():
                await self._qdrant.create_index(debt.collection, key, kind)
        except UnsettledError:
            raise
        except ApiError:
            await self._qdrant.delete_collection(debt.collection)
            await self._abort(debt)
            raise
        debt.step = Step.COMMIT
        await self._commit(debt)

    async def _commit(self, debt: ClaimDebt) -> None:
        try:
            await self._catalog.commit(
                debt.index, debt.kind, debt.token, debt.collection, debt.mapping, debt.settings
            )
        except UnclaimedError:
            if debt.kind == "create":
                # Nobody knows of this collection any more.
                debt.step = Step.REMOVE
                await self._qdrant.delete_collection(debt.collection)
            debt.open = False
            raise

    async def _abort(self, debt: ClaimDebt) -> None:
        debt.step = Step.ABORT
        await self._catalog.abort(debt.index, debt.token)
        debt.open = False

    async def delete(self, index: str) -> Json:
        """Delete an index.

        Raises:
            ApiError: 404, there is none.
        """
        deadline.begin(self._settings.qdrant_admin_timeout_s)
        async with self._locks.of(index).exclusive():
            debt = ClaimDebt(index, new_token(), "delete", "", Step.ABORT)
            await self._claim(debt)
            with self._owing(debt):
                await self._delete(debt)
        self._catalog.presence.gone.pop(index, None)
        return {"acknowledged": True}

    async def _delete(self, debt: ClaimDebt) -> None:
        debt.step = Step.COMPLETE
        try:
            await self._qdrant.delete_collection(debt.collection)
        except UnsettledError:
            raise
        except ApiError:
            await self._abort(debt)
            raise
        debt.step = Step.COMMIT
        await self._commit(debt)

    @contextmanager
    def _owing(self, debt: ClaimDebt) -> Iterator[None]:
        """Leave a claim to the settler when what is done under it ends without an outcome."""
        try:
            yield
        except BaseException:
            if debt.open:
                self._settler.owe_claim(debt)
            raise

    async def _claim(self, debt: ClaimDebt) -> None:
        """Claim a name, or wait a little for whoever has claimed it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CLAIM_WAIT_S
        while True:
            self._catalog.opened()
            with self._owing(debt):
                found, reason, detail = await self._catalog.claim(
                    debt.index, debt.kind, debt.token, debt.collection
                )
            if found is not None:
                debt.collection = found
                return
            if reason != "claimed" or loop.time() >= end:
                break
            await asyncio.sleep(CLAIM_PAUSE_S)
        if reason == "exists":
            raise ApiError(
                400,
                "resource_already_exists_exception",
                f"index [{debt.index}/{detail}] already exists",
                index=debt.index,
            )
        if reason == "missing":
            # Raises, unless it was created just now.
            await self._catalog.view(debt.index)
            raise no_index(debt.index)
        if reason == "full":
            raise illegal(f"there are [{detail}] indices, no more are allowed; delete some")
        raise self._catalog.refusal(debt.index, reason)

    async def exists(self, index: str) -> bool:
        """Whether there is such an index."""
        try:
            await self._catalog.view(index)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def describe(self, index: str) -> Json:
        """An index's mapping and settings, as `GET /{index}` gives them."""
        found = await self._catalog.describe(index)
        settings: Json = {
            "number_of_shards": "1",
            "number_of_replicas": "0",
            **found["settings"],
            "provided_name": index,
            "creation_date": str(found["created"] * 1000),
            "uuid": found["incarnation"],
        }
        return {
            index: {"aliases": {}, "mappings": found["mapping"], "settings": {"index": settings}}
        }

    async def mapping(self, index: str) -> Json:
        """An index's mapping, as `GET /{index}/_mapping` gives it."""
        found = await self._catalog.describe(index)
        return {index: {"mappings": found["mapping"]}}

    async def check(self, index: str | None) -> None:
        """See that what was acknowledged is there: of one index, or of all.

        Raises:
            ApiError: 404, there is no such index; 503, something is lost, or cannot be asked.
        """
        if index is None:
            _, missing = await self._look()
            if missing:
                raise self._catalog.presence.lose(*min(missing.items()))
            return
        view = await self._catalog.view(index)
        if view.incarnation in await self._qdrant.collections():
            return
        # Deleted meanwhile, or lost.
        if (await self._catalog.view(index)).incarnation == view.incarnation:
            raise self._catalog.presence.lose(index, view.incarnation)

    async def _look(self) -> tuple[int, dict[str, str]]:
        """How many indices there are, and those whose collections are not in Qdrant.

        Raises:
            UnavailableError: Valkey or Qdrant cannot be asked, or is not what it was.
        """
        await self._catalog.check()
        try:
            await check_durability(self._catalog.valkey.call, self._settings.durable)
        except (ValkeyDownError, ValkeyError) as error:
            raise UnavailableError(str(error)) from error
        before, collections = await asyncio.gather(
            self._catalog.incarnations(), self._qdrant.collections()
        )
        known = set(collections)
        missing = {name: found for name, found in before.items() if found not in known}
        if missing:
            # Deleted meanwhile? An index that is being deleted has a claim.
            after = await self._catalog.incarnations()
            missing = {name: found for name, found in missing.items() if after.get(name) == found}
        return len(before), missing

    async def health(self) -> Json:
        """The state of the whole: red while Valkey or Qdrant is away, or lacks something."""
        count, missing = 0, 0
        status = "green"
        try:
            count, lost = await self._look()
            missing = len(lost)
        except UnavailableError:
            status = "red"
        if missing:
            status = "red"
        return {
            "cluster_name": "refill-gateway",
            "status": status,
            "timed_out": False,
            "number_of_nodes": 1,
            "number_of_data_nodes": 1,
            "active_primary_shards": count - missing,
            "active_shards": count - missing,
            "relocating_shards": 0,
            "initializing_shards": 0,
            "unassigned_shards": missing,
            "delayed_unassigned_shards": 0,
            "number_of_pending_tasks": 0,
            "number_of_in_flight_fetch": 0,
            "task_max_waiting_in_queue_millis": 0,
            "active_shards_percent_as_number": (
                100.0 if status == "green" else 100.0 * (count - missing) / (count or 1)
            ),
        }

    def _read(self, body: Any) -> tuple[IndexMapping, Json]:
        if body is None:
            body = {}
        if not isinstance(body, dict):
            raise parsing("the body must be an object")
        for name, value in body.items():
            if name == "aliases" and value:
                raise unsupported("aliases")
            if name not in ("mappings", "settings", "aliases"):
                raise parsing(f"unknown key [{name}] for create index")
        mappings = body.get("mappings")
        mapping = IndexMapping.from_request(
            {} if mappings is None else mappings, self._settings.limits.fields
        )
        return mapping, _read_settings(body.get("settings"))


def _read_settings(settings: Any) -> Json:
    """Read an index's settings into one flat object of strings."""
    flat: Json = {}

    def walk(value: Any, prefix: str) -> None:
        if not isinstance(value, dict):
            raise parsing("[settings] must be an object")
        for name, inner in value.items():
            path = prefix + name
            if isinstance(inner, dict) and inner:
                walk(inner, f"{path}.")
                continue
            plain = path.removeprefix("index.")
            if plain == "number_of_shards" and str(inner) != "1":
                raise unsupported(f"number_of_shards: {inner}", "an index has one shard here")
            if plain not in _NEUTRAL:
                raise unsupported(f"index setting {plain}")
            flat[plain] = str(inner)

    walk({} if settings is None else settings, "")
    return flat

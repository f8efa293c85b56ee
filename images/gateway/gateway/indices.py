"""Indices: created and deleted under a claim."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any

import orjson

from gateway.catalog import Catalog
from gateway.errors import ApiError, UnavailableError, illegal, no_index, parsing, unsupported
from gateway.identity import check_new_index, new_token
from gateway.locks import Locks
from gateway.mapping import IndexMapping, index_keys
from gateway.qdrant import Json, Qdrant, UnsettledError
from gateway.settings import Settings

# Settings of an index that change nothing in what it answers.
_NEUTRAL = ("number_of_shards", "number_of_replicas", "refresh_interval", "codec")


class Indices:
    """Creates, deletes and describes indices.

    Create and delete are: claim the name, act on Qdrant, commit. A claim that is not resolved (the
    gateway died, Qdrant did not answer) stays and blocks the name until `recover` resolves it.
    """

    def __init__(self, catalog: Catalog, qdrant: Qdrant, locks: Locks, settings: Settings) -> None:
        self._catalog = catalog
        self._qdrant = qdrant
        self._locks = locks
        self._settings = settings

    async def create(self, index: str, body: Any) -> Json:
        """Create an index.

        Raises:
            ApiError: 400, the name, the mapping or the settings are wrong, or it is there.
        """
        check_new_index(index)
        mapping, settings = self._read(body)
        async with self._locks.of(index).exclusive():
            token = new_token()
            collection = f"{self._settings.namespace}-{secrets.token_hex(8)}"
            await self._claim(index, "create", token, collection)
            await self._first_call(index, token, self._qdrant.create_collection(collection))
            try:
                for key, kind in {"seq": "integer", **index_keys(mapping.fields.values())}.items():
                    await self._qdrant.create_index(collection, key, kind)
            except UnsettledError:
                # Qdrant may still be at it: the claim stays, `recover` removes what there is.
                raise
            except ApiError:
                await self._undo(index, token, collection)
                raise
            await self._catalog.commit(
                index, "create", token, collection, mapping.stored(), orjson.dumps(settings)
            )
        return {"acknowledged": True, "shards_acknowledged": True, "index": index}

    async def _first_call(self, index: str, token: str, call: Coroutine[Any, Any, None]) -> None:
        """Act on Qdrant first under a claim, and give the claim back if that had no effect."""
        try:
            await call
        except UnsettledError:
            raise
        except ApiError:
            await self._catalog.abort(index, token)
            raise

    async def _undo(self, index: str, token: str, collection: str) -> None:
        await self._qdrant.delete_collection(collection)
        await self._catalog.abort(index, token)

    async def delete(self, index: str) -> Json:
        """Delete an index.

        Raises:
            ApiError: 404, there is none.
        """
        async with self._locks.of(index).exclusive():
            token = new_token()
            collection = await self._claim(index, "delete", token, "")
            await self._first_call(index, token, self._qdrant.delete_collection(collection))
            await self._catalog.commit(index, "delete", token, collection, b"", b"")
        return {"acknowledged": True}

    async def _claim(self, index: str, kind: str, token: str, collection: str) -> str:
        found, reason, detail = await self._catalog.claim(index, kind, token, collection)
        if found is not None:
            return found
        if reason == "exists":
            raise ApiError(
                400,
                "resource_already_exists_exception",
                f"index [{index}/{detail}] already exists",
                index=index,
            )
        if reason == "missing":
            raise no_index(index)
        if reason == "full":
            raise illegal(f"there are [{detail}] indices, no more are allowed; delete some")
        raise self._catalog.refusal(index, reason)

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

    async def health(self) -> Json:
        """The state of the whole: red while Valkey or Qdrant cannot be asked."""
        status = "green"
        names: list[str] = []
        try:
            self._catalog.opened()
            names, _ = await asyncio.gather(self._catalog.names(), self._qdrant.collections())
        except UnavailableError:
            status = "red"
        return {
            "cluster_name": "refill-gateway",
            "status": status,
            "timed_out": False,
            "number_of_nodes": 1,
            "number_of_data_nodes": 1,
            "active_primary_shards": len(names),
            "active_shards": len(names),
            "relocating_shards": 0,
            "initializing_shards": 0,
            "unassigned_shards": 0,
            "delayed_unassigned_shards": 0,
            "number_of_pending_tasks": 0,
            "number_of_in_flight_fetch": 0,
            "task_max_waiting_in_queue_millis": 0,
            "active_shards_percent_as_number": 100.0 if status == "green" else 0.0,
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

"""The calls to Qdrant's REST API that the gateway makes."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any
from urllib.parse import quote

import orjson

from gateway import deadline
from gateway.errors import ApiError, UnavailableError
from gateway.http_client import HttpClient, NoAnswerError, NotSentError
from gateway.settings import Settings

Json = dict[str, Any]
Condition = dict[str, Any]

# Documents have no vector; Qdrant's embedded engine wants at least one to be declared.
_VECTORS = {"unused": {"size": 1, "distance": "Dot"}}
# No document has this id: `document_id` makes UUIDs of version 5 only.
_NO_POINT = "00000000-0000-0000-0000-000000000000"


class UnsettledError(UnavailableError):
    """A write was sent and has no answer: Qdrant may apply it now, later, or never."""


class RefusedError(ApiError):
    """Qdrant answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        # Whatever it is, the gateway made the request: the fault is not the client's.
        super().__init__(
            503 if status >= 500 else 500, "qdrant_exception", f"qdrant: {status}: {text}"
        )
        self.qdrant_status = status


class CollectionGoneError(RefusedError):
    """Qdrant has no such collection: the index was deleted, or Qdrant has lost its data."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = 503
        self.kind = "unavailable_shards_exception"


class Qdrant:
    """Qdrant, through its REST API.

    Every method raises UnavailableError when Qdrant cannot be asked, RefusedError when it says no,
    CollectionGoneError when it has not got the collection; those that write raise UnsettledError
    when it is not known what became of the write. A request's deadline holds for all but what is
    done to collections and payload indexes, which have a limit of their own.
    """

    def __init__(self, settings: Settings) -> None:
        key = settings.qdrant_api_key
        self._http = HttpClient(
            settings.qdrant_host,
            settings.qdrant_port,
            f"api-key: {key}\r\n" if key else "",
            settings.qdrant_connections,
        )
        self._timeout_s = settings.qdrant_timeout_s
        # Collections and payload indexes are made rarely, and take the longer the more there is.
        self._admin_timeout_s = settings.qdrant_admin_timeout_s
        self.calls = 0

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    async def _call(
        self, method: str, path: str, body: Any, write: bool, admin: bool = False
    ) -> Any:
        self.calls += 1
        limit = self._admin_timeout_s if admin else deadline.left(self._timeout_s)
        if limit <= 0:
            raise UnavailableError("qdrant: has not answered in time what had to come before")
        data = None if body is None else orjson.dumps(body)
        began = monotonic()
        try:
            status, answer = await self._http.call(method, path, data, not write, limit)
            if admin:
                deadline.extend(monotonic() - began)
        except NotSentError as error:
            raise UnavailableError(f"qdrant: {error}") from error
        except NoAnswerError as error:
            if write:
                raise UnsettledError(f"qdrant: {error}; the write may have been made") from error
            raise UnavailableError(f"qdrant: {error}") from error
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError:
            document = {}
        if status == 200:
            return document.get("result")
        text = document.get("status")
        shown = text.get("error") if isinstance(text, dict) else text
        if write and status >= 500:
            raise UnsettledError(f"qdrant: {status}: {shown}; the write may have been made")
        if status == 404 and path.startswith("/collections/"):
            raise CollectionGoneError(status, str(shown)[:300])
        raise RefusedError(status, str(shown)[:300])

    async def collections(self) -> list[str]:
        """All collections' names."""
        result = await self._call("GET", "/collections", None, False)
        return [entry["name"] for entry in result["collections"]]

    async def create_collection(self, name: str) -> None:
        """Create a collection; not an error when it is there."""
        try:
            await self._call("PUT", _path(name), {"vectors": _VECTORS}, True, True)
        except RefusedError as error:
            if error.qdrant_status != 409 and "already exists" not in error.reason:
                raise

    async def delete_collection(self, name: str) -> None:
        """Delete a collection; not an error when it is gone."""
        try:
            await self._call("DELETE", _path(name), None, True, True)
        except RefusedError as error:
            if error.qdrant_status != 404:
                raise

    async def create_index(self, collection: str, key: str, kind: str) -> None:
        """Create a payload index: keyword, integer or float."""
        body = {"field_name": key, "field_schema": kind}
        await self._call("PUT", _path(collection, "/index?wait=true"), body, True, True)

    async def upsert(self, collection: str, points: Sequence[Json]) -> None:
        """Write points and wait until they are applied."""
        path = _path(collection, "/points?wait=true")
        await self._call("PUT", path, {"points": points}, True)

    async def delete(self, collection: str, ids: Sequence[str]) -> None:
        """Delete points and wait until it is applied."""
        path = _path(collection, "/points/delete?wait=true")
        await self._call("POST", path, {"points": ids}, True)

    async def delete_older(self, collection: str, ids: Sequence[str], sequence: int) -> None:
        """As `delete`, of those points only that stand at a lower sequence number.

        A delete that comes late, behind the end of the gateway that sent it, thereby leaves what
        others have written since.
        """
        older = {"key": "seq", "range": {"lt": sequence}}
        path = _path(collection, "/points/delete?wait=true")
        body = {"filter": {"must": [{"has_id": ids}, older]}}
        await self._call("POST", path, body, True)

    async def highest(self, collection: str) -> int:
        """The highest sequence number of a document; -1: there is none."""
        order = {"key": "seq", "direction": "desc"}
        found = await self.scroll(collection, {}, 1, ["seq"], order)
        return int(found[0]["payload"]["seq"]) if found else -1

    async def barrier(self, collection: str) -> None:
        """Wait until Qdrant has applied every write that it had taken before.

        A collection's updates are applied in order, so a waited-for delete of nothing tells.
        """
        try:
            await self.delete(collection, [_NO_POINT])
        except RefusedError as error:
            if error.qdrant_status != 404:
                raise

    async def retrieve(self, collection: str, ids: Sequence[str], keys: Any) -> list[Json]:
        """Points by id, in any order; those that are not there are left out."""
        body = {"ids": ids, "with_payload": keys}
        result: list[Json] = await self._call("POST", _path(collection, "/points"), body, False)
        return result

    async def scroll(
        self,
        collection: str,
        conditions: Json,
        limit: int,
        keys: Any,
        order_by: Json | None,
        offset: str | None = None,
    ) -> list[Json]:
        """Points that match, in the order of a payload key or of their ids."""
        body: Json = {"filter": conditions, "limit": limit, "with_payload": keys}
        if order_by is not None:
            body["order_by"] = order_by
        if offset is not None:
            body["offset"] = offset
        result = await self._call("POST", _path(collection, "/points/scroll"), body, False)
        points: list[Json] = result["points"]
        return points

    async def count(self, collection: str, conditions: Json) -> int:
        """How many points match, exactly."""
        body = {"filter": conditions, "exact": True}
        result = await self._call("POST", _path(collection, "/points/count"), body, False)
        return int(result["count"])

    async def facet(
        self, collection: str, conditions: Json, key: str, limit: int
    ) -> list[tuple[str | int, int]]:
        """The values of a payload key with how many points have them, exactly."""
        body = {"key": key, "filter": conditions, "limit": limit, "exact": True}
        result = await self._call("POST", _path(collection, "/facet"), body, False)
        return [(hit["value"], hit["count"]) for hit in result["hits"]]


def _path(collection: str, rest: str = "") -> str:
    return f"/collections/{quote(collection, safe='')}{rest}"

"""The routes: from method and path to what answers it."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
import qdrant_edge as edge

from . import reads
from .checks import Json, listing, only, parse, required, text
from .collection import Collection
from .configuration import parse_create, parse_patch
from .errors import ApiError, from_engine, missing_point, unsupported
from .filters import PointId, point_id, point_ids
from .http_protocol import TEXT, Request, Response, path_parts, success
from .identity import TITLE, VERSION, WHEEL_VERSION
from .payload_index import parse_schema
from .points import payload_change, selector
from .search_requests import (
    parse_count,
    parse_facet,
    parse_retrieve,
    parse_scroll,
    parse_search,
)
from .storage import Storage

Answer = Response | Awaitable[Response]
_PUBLIC = frozenset(("/", "/healthz", "/livez", "/readyz"))
_READ_PARAMETERS = frozenset(("timeout", "consistency"))
_WRITE_PARAMETERS = frozenset(("wait", "ordering", "timeout"))
_ORDERINGS = frozenset(("weak", "medium", "strong"))
_OPTIMIZATION_PARTS = frozenset(("queued", "completed", "idle_segments"))


class Router:
    """Answers requests on a storage's collections."""

    def __init__(self, storage: Storage, api_key: str | None) -> None:
        self._storage = storage
        self._api_key = None if api_key is None else api_key.encode()
        self._collection_routes: dict[tuple[str, str], Callable[[Request, Collection], Answer]] = {
            ("GET", ""): self._info,
            ("PATCH", ""): self._patch,
            ("GET", "optimizations"): self._optimizations,
            ("PUT", "index"): self._create_index,
            ("PUT", "points"): self._upsert,
            ("POST", "points"): self._retrieve,
            ("POST", "points/delete"): self._delete_points,
            ("POST", "points/query"): self._query,
            ("POST", "points/query/batch"): self._query_batch,
            ("POST", "points/scroll"): self._scroll,
            ("POST", "points/count"): self._count,
            ("POST", "facet"): self._facet,
            ("POST", "points/payload"): self._set_payload,
            ("PUT", "points/payload"): self._overwrite_payload,
            ("POST", "points/payload/delete"): self._delete_payload,
            ("POST", "points/payload/clear"): self._clear_payload,
            ("PUT", "points/vectors"): self._update_vectors,
            ("POST", "points/vectors/delete"): self._delete_vectors,
        }

    def handle(self, request: Request) -> Answer:
        """The answer to a request; raises ApiError."""
        path = request.path
        if self._api_key is not None and path not in _PUBLIC:
            self._authorize(request)
        parts = path_parts(path)
        method = request.method
        if parts[0] == "collections":
            if len(parts) == 1 and method == "GET":
                names = [{"name": name} for name in self._storage.names()]
                return success({"collections": names}, request.started)
            if len(parts) == 2 and method in ("PUT", "DELETE"):
                return self._create_or_delete(request, parts[1])
            if len(parts) == 3 and parts[2] == "exists" and method == "GET":
                return success({"exists": self._storage.exists(parts[1])}, request.started)
            if len(parts) > 1:
                return self._in_collection(request, parts[1], parts[2:])
        elif method == "GET" and len(parts) == 1:
            if parts[0] == "":
                identity: Json = {"title": TITLE, "version": VERSION, "commit": None}
                # The one answer of Qdrant's that has no envelope.
                return Response(200, orjson.dumps(identity))
            if path in _PUBLIC:
                return Response(200, f"{parts[0]} check passed".encode(), TEXT)
        elif method == "GET" and len(parts) == 3 and parts[:2] == ("edge", "collections"):
            collection = self._storage.get(parts[2])
            return success(
                {"engine": f"qdrant-edge-py {WHEEL_VERSION}", "layers": collection.layers_json()},
                request.started,
            )
        raise _unknown_route(request)

    def _in_collection(self, request: Request, name: str, rest: Sequence[str]) -> Answer:
        route = self._collection_routes.get((request.method, "/".join(rest)))
        if route is None:
            if request.method == "GET" and len(rest) == 2 and rest[0] == "points":
                return self._get_point(request, self._storage.get(name), rest[1])
            if request.method == "DELETE" and len(rest) == 2 and rest[0] == "index":
                return self._delete_index(request, self._storage.get(name), rest[1])
            raise _unknown_route(request)
        collection = self._storage.get(name)
        try:
            return route(request, collection)
        except Exception as error:
            # The wheel raises plain Exception for requests that it refuses.
            if type(error) is Exception:
                raise from_engine(error) from error
            raise

    def _authorize(self, request: Request) -> None:
        given = request.headers.get("api-key")
        if given is None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            given = token if scheme.lower() == "bearer" else None
        if given is None:
            raise ApiError(401, "Must provide an API key or an Authorization bearer token")
        assert self._api_key is not None
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._api_key):
            raise ApiError(401, "Invalid API key or JWT")

    # Collections

    async def _create_or_delete(self, request: Request, name: str) -> Response:
        _parameters(request, frozenset(("timeout",)))
        if request.method == "DELETE":
            return success(await self._storage.delete(name), request.started)
        await self._storage.create(name, parse_create(parse(request.body)))
        return success(True, request.started)

    def _info(self, request: Request, collection: Collection) -> Response:
        return success(collection.info(), request.started)

    async def _patch(self, request: Request, collection: Collection) -> Response:
        _parameters(request, frozenset(("timeout",)))
        await collection.reconfigure(parse_patch(parse(request.body), collection.stack.config))
        return success(True, request.started)

    def _optimizations(self, request: Request, collection: Collection) -> Response:
        values = _parameters(request, frozenset(("with", "completed_limit")))
        parts = {part for part in values.get("with", "").split(",") if part}
        unknown = parts - _OPTIMIZATION_PARTS
        if unknown:
            raise ApiError(
                400,
                f"Format error in query: unknown parts {sorted(unknown)} of `with`, "
                f"expected some of {sorted(_OPTIMIZATION_PARTS)}",
            )
        return success(collection.optimizations.as_json(parts), request.started)

    def _create_index(self, request: Request, collection: Collection) -> Awaitable[Response]:
        fields = only(parse(request.body), ("field_name", "field_schema"))
        required(fields, "field_name")
        field = text(fields, "field_name") or ""
        schema = parse_schema(required(fields, "field_schema"))
        return self._update(
            request,
            collection,
            lambda: collection.change_index(lambda: collection.stack.create_index(field, schema)),
            adds_points=False,
        )

    def _delete_index(
        self, request: Request, collection: Collection, field: str
    ) -> Awaitable[Response]:
        return self._update(
            request,
            collection,
            lambda: collection.change_index(lambda: collection.stack.delete_index(field)),
            adds_points=False,
        )

    # Writes

    def _upsert(self, request: Request, collection: Collection) -> Awaitable[Response]:
        points = collection.reader.upserts(parse(request.body))
        return self._update(request, collection, lambda: collection.stack.upsert(points))

    def _delete_points(self, request: Request, collection: Collection) -> Awaitable[Response]:
        fields = only(parse(request.body), ("points", "filter", "shard_key"))
        _no_shard_key(fields)
        ids, condition = selector(fields)

        async def apply() -> None:
            # The filter is looked up when the operation's turn comes.
            found = ids
            if found is None:
                assert condition is not None
                found = await collection.stack.matching(condition)
            await collection.stack.delete(found)

        return self._update(request, collection, apply, adds_points=False)

    def _set_payload(self, request: Request, collection: Collection) -> Awaitable[Response]:
        return self._write_payload(request, collection, edge.UpdateOperation.set_payload)

    def _overwrite_payload(self, request: Request, collection: Collection) -> Awaitable[Response]:
        return self._write_payload(request, collection, edge.UpdateOperation.overwrite_payload)

    def _write_payload(
        self, request: Request, collection: Collection, operation: Any
    ) -> Awaitable[Response]:
        body = parse(request.body)
        payload, key = payload_change(body)
        _no_shard_key(body)
        return self._change(
            request, collection, body, lambda ids: operation(ids, payload=payload, key=key)
        )

    def _delete_payload(self, request: Request, collection: Collection) -> Awaitable[Response]:
        fields = only(parse(request.body), ("keys", "points", "filter", "shard_key"))
        _no_shard_key(fields)
        required(fields, "keys")
        keys = listing(fields, "keys") or []
        return self._change(
            request,
            collection,
            fields,
            lambda ids: edge.UpdateOperation.delete_payload(ids, keys),
        )

    def _clear_payload(self, request: Request, collection: Collection) -> Awaitable[Response]:
        fields = only(parse(request.body), ("points", "filter", "shard_key"))
        _no_shard_key(fields)
        return self._change(request, collection, fields, edge.UpdateOperation.clear_payload)

    def _update_vectors(self, request: Request, collection: Collection) -> Awaitable[Response]:
        updates = dict(collection.reader.vector_updates(parse(request.body)))
        return self._change(
            request,
            collection,
            {"points": list(updates)},
            lambda ids: edge.UpdateOperation.update_vectors([updates[found] for found in ids]),
        )

    def _delete_vectors(self, request: Request, collection: Collection) -> Awaitable[Response]:
        fields = only(parse(request.body), ("vector", "points", "filter", "shard_key"))
        _no_shard_key(fields)
        required(fields, "vector")
        names = listing(fields, "vector") or []
        return self._change(
            request,
            collection,
            fields,
            lambda ids: edge.UpdateOperation.delete_vectors(ids, names),
        )

    def _change(
        self,
        request: Request,
        collection: Collection,
        fields: Json,
        operation: Callable[[list[PointId]], edge.UpdateOperation],
    ) -> Awaitable[Response]:
        ids, condition = selector(fields)
        return self._update(
            request, collection, lambda: collection.change_points(ids, condition, operation)
        )

    async def _update(
        self,
        request: Request,
        collection: Collection,
        apply: Callable[[], Awaitable[None]],
        adds_points: bool = True,
    ) -> Response:
        values = _parameters(request, _WRITE_PARAMETERS)
        ordering = values.get("ordering", "weak")
        if ordering not in _ORDERINGS:
            raise ApiError(400, f"Format error in query: unknown ordering `{ordering}`")
        wait = values.get("wait", "false")
        if wait not in ("true", "false"):
            raise ApiError(400, f"Format error in query: wait `{wait}` is not true or false")
        result = await collection.update(
            apply, wait == "true", _timeout(values), len(request.body), adds_points
        )
        return success(result, request.started)

    # Reads

    def _query(self, request: Request, collection: Collection) -> Response:
        _parameters(request, _READ_PARAMETERS)
        search = parse_search(parse(request.body))
        return success({"points": reads.search(collection.stack, search)}, request.started)

    def _query_batch(self, request: Request, collection: Collection) -> Response:
        _parameters(request, _READ_PARAMETERS)
        fields = only(parse(request.body), ("searches",))
        required(fields, "searches")
        bodies = listing(fields, "searches") or []
        searches = [parse_search(body, f"searches[{n}]") for n, body in enumerate(bodies)]
        answers = reads.search_batch(collection.stack, searches)
        return success([{"points": points} for points in answers], request.started)

    def _scroll(self, request: Request, collection: Collection) -> Response:
        _parameters(request, _READ_PARAMETERS)
        return success(
            reads.scroll(collection.stack, parse_scroll(parse(request.body))), request.started
        )

    def _count(self, request: Request, collection: Collection) -> Response:
        _parameters(request, _READ_PARAMETERS)
        number = reads.count(collection.stack, parse_count(parse(request.body)))
        return success({"count": number}, request.started)

    def _facet(self, request: Request, collection: Collection) -> Response:
        _parameters(request, _READ_PARAMETERS)
        hits = reads.facet(collection.stack, parse_facet(parse(request.body)))
        return success({"hits": hits}, request.started)

    def _retrieve(self, request: Request, collection: Collection) -> Response:
        _parameters(request, _READ_PARAMETERS)
        ids, with_payload, with_vector = parse_retrieve(parse(request.body))
        found = reads.retrieve(collection.stack, point_ids(ids, "ids"), with_payload, with_vector)
        return success(found, request.started)

    def _get_point(self, request: Request, collection: Collection, name: str) -> Response:
        wanted = point_id(int(name) if name.isascii() and name.isdigit() else name, "id")
        found = reads.retrieve(collection.stack, [wanted], True, True)
        if not found:
            raise missing_point(wanted)
        return success(found[0], request.started)


def _parameters(request: Request, allowed: frozenset[str]) -> Mapping[str, str]:
    for name in request.query:
        if name not in allowed:
            raise ApiError(
                400,
                f"Format error in query: unknown parameter `{name}`, expected one of "
                + ", ".join(f"`{parameter}`" for parameter in sorted(allowed)),
            )
    return request.query


def _timeout(values: Mapping[str, str]) -> float | None:
    value = values.get("timeout")
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise ApiError(
            400, f"Format error in query: timeout `{value}` is not a number of seconds from 1"
        )
    return float(value)


def _no_shard_key(fields: Json) -> None:
    if fields.get("shard_key") is not None:
        raise unsupported("shard_key")


def _unknown_route(request: Request) -> ApiError:
    return ApiError(
        404, f"Not found: {request.method} {request.path} is not served by the embedded Qdrant"
    )

"""From a request's method and path to what answers it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine
from typing import Any

import orjson

from gateway import deadline
from gateway.bulk import SubSearch, make_operation, read_msearch
from gateway.cache import Cache, Compute
from gateway.catalog import Catalog, Hit, Miss, View
from gateway.documents import Documents
from gateway.errors import ApiError, UnavailableError, illegal, unsupported
from gateway.http_server import Request, Respond
from gateway.identity import check_id, check_index
from gateway.indices import Indices
from gateway.mapping import IndexMapping
from gateway.parameters import (
    check_content_type,
    only_neutral,
    path_text,
    read_json,
    read_parameters,
    read_refresh,
)
from gateway.qdrant import Json, Qdrant
from gateway.search import Searcher
from gateway.settings import Settings
from gateway.settler import Settler
from gateway.source_filter import SourceFilter, read_source_parameters
from gateway.writing import Writing

log = logging.getLogger(__name__)
requests = logging.getLogger("gateway.requests")

Answer = tuple[int, bytes]
Answering = Coroutine[Any, Any, Answer]

_INFO: Json = {
    "name": "refill-gateway",
    "cluster_name": "refill-gateway",
    "cluster_uuid": "refill-gateway",
    "version": {
        "number": "8.15.0",
        "build_flavor": "default",
        "build_type": "refill-gateway",
        "build_snapshot": False,
        "lucene_version": "9.11.1",
        "minimum_wire_compatibility_version": "7.17.0",
        "minimum_index_compatibility_version": "7.0.0",
    },
    "tagline": "You Know, for Search",
}


class Routes:
    """Answers requests."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        qdrant: Qdrant,
        indices: Indices,
        documents: Documents,
        cache: Cache,
        settler: Settler,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._catalog = catalog
        self._qdrant = qdrant
        self._indices = indices
        self._documents = documents
        self._writing = Writing(documents, indices, settings)
        self._cache = cache
        self._settler = settler
        self._began = time.time()
        self.tasks: set[asyncio.Task[None]] = set()

    def handle(self, request: Request, respond: Respond) -> None:
        """Answer a request, now or later."""
        if self._settings.log_requests:
            respond = _logged(request, respond)
        try:
            self._route(request, respond)
        except ApiError as error:
            respond(error.status, error.body())

    def _route(self, request: Request, respond: Respond) -> None:
        path = request.path
        # The two paths of every cached answer come first.
        if path.endswith(b"/_search") and request.method in (b"POST", b"GET"):
            index = _index_of(path[1:-8])
            check_content_type(request)
            compute = self._search(index, request.body, read_parameters(request))
            self._read(index, b"search", request.query, request.body, compute, respond)
            return
        if request.method == b"GET" and b"/_doc/" in path:
            name, _, id_ = path.rstrip(b"/")[1:].partition(b"/_doc/")
            index = _index_of(name)
            compute = self._get(index, check_id(path_text(id_)), read_parameters(request))
            self._read(index, b"get " + id_, request.query, b"", compute, respond)
            return
        check_content_type(request)
        parts = [path_text(part) for part in path.split(b"/") if part]
        if len(parts) == 2 and parts[1] == "_count" and request.method in (b"POST", b"GET"):
            index = check_index(parts[0])
            compute = self._count(index, request.body, read_parameters(request))
            self._read(index, b"count", request.query, request.body, compute, respond)
            return
        handler = self._plain(request.method.decode("latin-1"), parts, request)
        self._spawn(handler, respond)

    # Reads that go through the cache

    def _read(
        self,
        index: str,
        operation: bytes,
        query: bytes,
        body: bytes,
        compute: Compute,
        respond: Respond,
    ) -> None:
        """Answer from the cache at once, or in a task from Qdrant."""
        cache = self._cache
        fill = cache.fill_key(index, operation, query, body)
        if not self._settings.serving:
            cache.counters.bypassed += 1
            self._spawn(cache.answer(index, fill, None, compute), respond)
            return

        def looked(found: Hit | Miss | Exception) -> None:
            if isinstance(found, Hit):
                cache.counters.hits += 1
                respond(200, found.body)
            elif isinstance(found, Miss):
                cache.counters.misses[found.reason] += 1
                self._spawn(cache.answer(index, fill, found, compute), respond)
            elif isinstance(found, ApiError) and self._catalog.epoch:
                # Perhaps a claim of this gateway's own: wait for its lock and look again. And that
                # there is no such index has to be confirmed.
                self._spawn(cache.answer(index, fill, None, compute), respond)
            else:
                self._fail(found, respond)

        self._catalog.lookup(index, fill, looked)

    def _search(self, index: str, body: bytes, parameters: dict[str, str]) -> Compute:
        async def compute(view: View, mapping: IndexMapping) -> Answer:
            searcher = self._searcher(index, view, mapping)
            search = searcher.read(read_json(body), parameters)
            return 200, orjson.dumps(await searcher.search(search))

        return compute

    def _count(self, index: str, body: bytes, parameters: dict[str, str]) -> Compute:
        only_neutral(parameters)

        async def compute(view: View, mapping: IndexMapping) -> Answer:
            return 200, orjson.dumps(
                await self._searcher(index, view, mapping).count(read_json(body))
            )

        return compute

    def _get(self, index: str, id_: str, parameters: dict[str, str]) -> Compute:
        source = read_source_parameters(parameters) or SourceFilter(True)
        only_neutral(parameters, "_source", "_source_includes", "_source_excludes")

        async def compute(view: View, _: IndexMapping) -> Answer:
            status, answer = await self._documents.read(index, view.incarnation, id_, source)
            return status, orjson.dumps(answer)

        return compute

    def _searcher(self, index: str, view: View, mapping: IndexMapping) -> Searcher:
        return Searcher(self._qdrant, index, view.incarnation, mapping, self._limits)

    # Everything else

    def _plain(self, method: str, parts: list[str], request: Request) -> Answering:
        parameters = read_parameters(request)
        if not parts and method in ("GET", "HEAD"):
            only_neutral(parameters)
            return _done(_INFO)
        if not parts:
            raise _no_route(method, parts)
        if parts[0].startswith("_"):
            return self._global(method, parts, parameters, request)
        index = check_index(parts[0])
        if len(parts) == 1:
            return self._index(method, index, parameters, request)
        kind = parts[1]
        if kind in ("_doc", "_create", "_update", "_source") and len(parts) <= 3:
            id_ = check_id(parts[2]) if len(parts) == 3 else None
            return self._document(method, index, kind, id_, parameters, request)
        if len(parts) == 2:
            if kind == "_bulk" and method in ("POST", "PUT"):
                return self._writing.bulk(request, index, parameters)
            if kind == "_msearch" and method in ("POST", "GET"):
                return self._msearch(request, index, parameters)
            if kind == "_refresh" and method in ("POST", "GET"):
                only_neutral(parameters)
                return self._refresh(index)
            if kind == "_mapping" and method == "GET":
                only_neutral(parameters)
                return _document(self._indices.mapping(index))
        raise _no_route(method, parts)

    def _global(
        self, method: str, parts: list[str], parameters: dict[str, str], request: Request
    ) -> Answering:
        name = "/".join(parts)
        if name == "_bulk" and method in ("POST", "PUT"):
            return self._writing.bulk(request, None, parameters)
        if name == "_msearch" and method in ("POST", "GET"):
            return self._msearch(request, None, parameters)
        if name == "_refresh" and method in ("POST", "GET"):
            only_neutral(parameters)
            return self._refresh(None)
        if name == "_cluster/health" and method == "GET":
            only_neutral(parameters, "wait_for_status", "level")
            if parameters.get("level", "cluster") != "cluster":
                raise unsupported(f"_cluster/health with level {parameters['level']}")
            return _document(self._indices.health())
        if name == "_refill/stats" and method == "GET":
            only_neutral(parameters)
            return _done(self.stats())
        raise _no_route(method, parts)

    def _index(
        self, method: str, index: str, parameters: dict[str, str], request: Request
    ) -> Answering:
        only_neutral(parameters, "wait_for_active_shards", "features", "flat_settings")
        if "features" in parameters or parameters.get("flat_settings", "false") != "false":
            raise unsupported("features or flat_settings of an index")
        if method == "PUT":
            return _document(self._indices.create(index, read_json(request.body)))
        if method == "DELETE":
            return _document(self._indices.delete(index))
        if method == "HEAD":
            return self._exists(index)
        if method == "GET":
            return _document(self._indices.describe(index))
        raise _no_route(method, [index])

    async def _exists(self, index: str) -> Answer:
        return (200 if await self._indices.exists(index) else 404), b""

    def _document(
        self,
        method: str,
        index: str,
        kind: str,
        id_: str | None,
        parameters: dict[str, str],
        request: Request,
    ) -> Answering:
        if kind in ("_doc", "_source") and method in ("GET", "HEAD") and id_ is not None:
            return self._look(method, index, kind, id_, parameters)
        action = None
        if kind == "_doc":
            action = {"PUT": "index", "POST": "index", "DELETE": "delete"}.get(method)
        elif kind == "_create" and method in ("PUT", "POST"):
            action = "create"
        elif kind == "_update" and method == "POST":
            action = "update"
        if action is None or (id_ is None and (action != "index" or method != "POST")):
            raise _no_route(method, [index, kind, *([] if id_ is None else [id_])])
        parameters = dict(parameters)
        op_type = parameters.pop("op_type", "index")
        if action == "index" and op_type == "create":
            action = "create"
        elif op_type != "index":
            raise illegal(f"opType must be 'create' or 'index', found: [{op_type}]")
        parameters.pop("retry_on_conflict", None)
        refresh = read_refresh(parameters)
        operation = make_operation(action, id_, request.body)
        return self._writing.one(index, operation, refresh)

    async def _look(
        self, method: str, index: str, kind: str, id_: str, parameters: dict[str, str]
    ) -> Answer:
        """HEAD of a document, and its bare source: not cached."""
        source = read_source_parameters(parameters) or SourceFilter(True)
        only_neutral(parameters, "_source", "_source_includes", "_source_excludes")

        async def compute(view: View, _: IndexMapping) -> Answer:
            status, answer = await self._documents.read(index, view.incarnation, id_, source)
            return status, orjson.dumps(answer)

        status, body = await self._cache.answer(index, None, None, compute)
        if method == "HEAD" or kind == "_doc":
            return status, body
        if status == 404:
            error = ApiError(
                404, "resource_not_found_exception", f"Document not found [{index}]/[{id_}]"
            )
            return 404, error.body()
        return 200, orjson.dumps(orjson.loads(body)["_source"])

    async def _msearch(
        self, request: Request, index: str | None, parameters: dict[str, str]
    ) -> Answer:
        only_neutral(parameters, "typed_keys", "rest_total_hits_as_int")
        for name in ("typed_keys", "rest_total_hits_as_int"):
            if parameters.get(name, "false") != "false":
                raise unsupported(f"the parameter {name}")
        began = time.monotonic()
        searches = read_msearch(request.body, index, self._limits)
        answers = await asyncio.gather(*(self._sub_search(search) for search in searches))
        took = int((time.monotonic() - began) * 1000)
        return 200, b'{"took":%d,"responses":[%b]}' % (took, b",".join(answers))

    async def _sub_search(self, search: SubSearch) -> bytes:
        """One search of several, through the same cache as if it came alone."""
        if search.error is not None:
            return search.error.body()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def respond(status: int, body: bytes) -> None:
            future.set_result((status, body))

        try:
            compute = self._search(search.index, search.body, {})
            self._read(search.index, b"search", b"", search.body, compute, respond)
        except ApiError as error:
            return error.body()
        status, body = await future
        if status == 503:
            raise ApiError(503, **_cause(body))
        return body[:-1] + b',"status":200}' if status == 200 else body

    async def _refresh(self, index: str | None) -> Answer:
        """All that was acknowledged is visible: see only that it is there."""
        await self._indices.check(index)
        return 200, orjson.dumps({"_shards": {"total": 1, "successful": 1, "failed": 0}})

    def stats(self) -> Json:
        """The counters since the start."""
        counters = self._cache.counters
        return {
            "build": self._settings.build,
            "serving": self._settings.serving,
            "epoch": self._catalog.epoch,
            "uptime_s": round(time.time() - self._began, 3),
            "hits": counters.hits,
            "misses": counters.misses.total(),
            "misses_by_reason": dict(counters.misses),
            "fills": counters.fills,
            "rejected": counters.rejected.total(),
            "rejected_by_reason": dict(counters.rejected),
            "bypassed": counters.bypassed,
            "repeated": counters.repeated,
            "unsettled": counters.unsettled,
            "swept": counters.swept,
            "writes": self._documents.writes,
            "unreleased_writers": self._settler.writers,
            "unresolved_claims": self._settler.claims,
            "qdrant_calls": self._qdrant.calls,
        }

    def _spawn(self, answer: Answering, respond: Respond) -> None:
        """Answer with what a coroutine gives, or with its error."""
        task = asyncio.get_running_loop().create_task(self._answer(answer, respond))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, answer: Answering, respond: Respond) -> None:
        deadline.begin(self._settings.qdrant_timeout_s)
        try:
            status, body = await answer
        except asyncio.CancelledError:
            self._fail(UnavailableError("the gateway is stopping"), respond)
            raise
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is not an ApiError
            self._fail(error, respond)
        else:
            respond(status, body)

    def _fail(self, error: BaseException, respond: Respond) -> None:
        if not isinstance(error, ApiError):
            log.error("a request failed", exc_info=error)
            error = ApiError(500, "exception", "internal error of the gateway; its log has more")
        respond(error.status, error.body())


def _logged(request: Request, respond: Respond) -> Respond:
    began = time.monotonic()

    def logged(status: int, body: bytes) -> None:
        requests.info(
            "%s %s %d %.3f ms id=%s",
            request.method.decode("latin-1"),
            request.path.decode("latin-1"),
            status,
            (time.monotonic() - began) * 1000,
            request.opaque_id.decode("latin-1") or "-",
        )
        respond(status, body)

    return logged


async def _done(answer: Json) -> Answer:
    return 200, orjson.dumps(answer)


async def _document(answer: Awaitable[Json]) -> Answer:
    return 200, orjson.dumps(await answer)


def _index_of(name: bytes) -> str:
    index = path_text(name)
    if not index or "/" in index:
        raise unsupported("a search without an index", "name one index")
    return check_index(index)


def _cause(body: bytes) -> dict[str, str]:
    error = orjson.loads(body)["error"]
    return {"kind": error["type"], "reason": error["reason"]}


def _no_route(method: str, parts: list[str]) -> ApiError:
    path = "/".join(parts)
    return illegal(
        f"no handler found for uri [/{path}] and method [{method}]: this part of Elasticsearch is "
        "not supported by this gateway"
    )

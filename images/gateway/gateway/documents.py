"""Documents: written under a writer's token, read by id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.catalog import Catalog, MovedError, View
from gateway.errors import ApiError, UnavailableError, parsing, unsupported
from gateway.identity import new_token, point_id
from gateway.locks import Locks
from gateway.mapping import Analysed, IndexMapping, analyse, index_keys
from gateway.qdrant import CollectionGoneError, Json, Qdrant, RefusedError
from gateway.settings import Limits, Settings
from gateway.settler import Settler
from gateway.source_filter import SourceFilter

_SHARDS = {"total": 1, "successful": 1, "failed": 0}
# Rounds of looking again when another gateway changes the index at the same time.
_ROUNDS = 5
# Between two looks at whether another writer has been released.
_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
# Tokens of dead writers that are remembered.
_REMEMBERED = 10_000


@dataclass
class Operation:
    """One write.

    Attributes:
        action: index, create, delete or update.
        fresh: the id was made just now, so no document has it.
        text: the source as it was sent; for index and create.
        document: the source as an object; for index and create.
        update: the body of an update.
    """

    action: str
    id: str
    fresh: bool = False
    text: str = ""
    document: Json | None = None
    update: Json | None = None


@dataclass
class Outcome:
    """What became of one write: an answer with its status, or an error."""

    status: int
    answer: Json
    error: ApiError | None = None


@dataclass
class _State:
    """A document as it will be after the operations before this one; version 0: there is none."""

    version: int
    sequence: int
    text: str
    analysed: Analysed | None = None
    dirty: bool = False
    stored: bool = False


class Documents:
    """Writes and reads documents.

    A write is: look, work out, admit the writer, write to Qdrant, release the writer. It is
    acknowledged after the release only, so a cached response never outlives an acknowledgement.
    """

    def __init__(
        self, catalog: Catalog, qdrant: Qdrant, settler: Settler, locks: Locks, settings: Settings
    ) -> None:
        self._catalog = catalog
        self._qdrant = qdrant
        self._settler = settler
        self._locks = locks
        self._limits = settings.limits
        self._settle_s = settings.settle_s
        # Writers that are not released and whose writes have come, or never will.
        self._outwaited: set[bytes] = set()
        self.writes = 0

    async def write(self, index: str, operations: Sequence[Operation]) -> list[Outcome]:
        """Make several writes in one index, in order; each has an outcome of its own.

        Raises:
            ApiError: 404, no such index; 503, Valkey or Qdrant failed: the writes may have been
                made, or some of them.
        """
        async with self._locks.of(index).exclusive():
            for _ in range(_ROUNDS):
                view = await self._catalog.view(index)
                try:
                    if view.writers:
                        await self._outwait(index, view.incarnation)
                    mapping = await self._catalog.mapping(index, view)
                    plan = _Plan(index, view.incarnation, mapping, self._limits)
                    await self._read(plan, operations)
                    plan.work_out(operations)
                    if plan.writing:
                        await self._make(index, view, plan)
                except MovedError:
                    continue
                except CollectionGoneError:
                    # Deleted under the write, or lost.
                    if (await self._catalog.view(index)).incarnation == view.incarnation:
                        raise self._catalog.presence.lose(index, view.incarnation) from None
                    continue
                return plan.outcomes
        raise UnavailableError(f"index [{index}] is changed by others all the time; try again")

    async def _outwait(self, index: str, incarnation: str) -> None:
        """Let the writes of others come first: of other gateways, dead or alive, and of this one.

        A writer that is alive is released soon. Of one that is not, the request may still be on its
        way: from when Qdrant answers it has `settle_s` to get there, and is not to be applied over
        this write. It is waited for once.
        """
        others = await self._catalog.writers(index) - self._outwaited
        if not others:
            return
        await self._qdrant.barrier(incarnation)
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._settle_s, _PAUSE_S
        while others and (rest := end - loop.time()) > 0:
            await asyncio.sleep(min(pause, rest))
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            others &= await self._catalog.writers(index)
        if others:
            await self._qdrant.barrier(incarnation)
            if len(self._outwaited) > _REMEMBERED:
                self._outwaited.clear()
            self._outwaited |= others

    async def _read(self, plan: _Plan, operations: Sequence[Operation]) -> None:
        """Read what the operations meet."""
        ids = list(dict.fromkeys(o.id for o in operations if not o.fresh))
        if not ids:
            return
        payload = ["id", "v", "seq"]
        if any(operation.action == "update" for operation in operations):
            payload.append("src")
        points = [point_id(plan.collection, id_) for id_ in ids]
        for point in await self._qdrant.retrieve(plan.collection, points, payload):
            found = point["payload"]
            plan.states[found["id"]] = _State(
                found["v"], found["seq"], found.get("src", ""), stored=True
            )

    async def _make(self, index: str, view: View, plan: _Plan) -> None:
        token = new_token()
        try:
            first = await self._catalog.admit(index, view, token, plan.writing)
        except (UnavailableError, asyncio.CancelledError):
            # It may have been admitted without our knowing.
            self._settler.owe(index, view.incarnation, token, unsettled=False)
            raise
        try:
            await self._apply(index, view, token, plan, first)
        except (RefusedError, MovedError):
            await self._release(index, view.incarnation, token)
            raise
        except BaseException:
            self._settler.owe(index, view.incarnation, token, unsettled=True)
            raise
        await self._release(index, view.incarnation, token)
        self.writes += plan.writing

    async def _release(self, index: str, incarnation: str, token: str) -> None:
        try:
            await self._catalog.release(index, incarnation, token)
        except (UnavailableError, asyncio.CancelledError):
            self._settler.owe(index, incarnation, token, unsettled=False)
            raise

    async def _apply(self, index: str, view: View, token: str, plan: _Plan, first: int) -> None:
        if plan.mapping is not plan.read_mapping:
            known = index_keys(plan.read_mapping.fields.values())
            for key, kind in index_keys(plan.mapping.fields.values()).items():
                if key not in known:
                    await self._qdrant.create_index(plan.collection, key, kind)
            await self._catalog.extend(index, view, token, plan.mapping)
        points, gone = plan.points(first)
        if points:
            await self._qdrant.upsert(plan.collection, points)
        if gone:
            await self._qdrant.delete_older(plan.collection, gone, first)

    async def read(
        self, index: str, collection: str, id_: str, source: SourceFilter
    ) -> tuple[int, Json]:
        """Read a document: 200 with it, or 404."""
        found = await self._qdrant.retrieve(
            collection, [point_id(collection, id_)], ["id", "v", "seq", "src"]
        )
        answer: Json = {"_index": index, "_id": id_}
        if not found:
            return 404, {**answer, "found": False}
        payload = found[0]["payload"]
        answer.update(_version=payload["v"], _seq_no=payload["seq"], _primary_term=1, found=True)
        if source.wanted:
            answer["_source"] = source.apply(payload["src"])
        return 200, answer


class _Plan:
    """What operations come to, worked out before anything is written.

    Attributes:
        mapping: with what the documents add to it.
        writing: how many operations write, each of which gets a sequence number.
    """

    def __init__(self, index: str, collection: str, mapping: IndexMapping, limits: Limits) -> None:
        self.index = index
        self.collection = collection
        self.read_mapping = mapping
        self.mapping = mapping
        self.states: dict[str, _State] = {}
        self.outcomes: list[Outcome] = []
        self.writing = 0
        self._limits = limits
        self._numbered: list[Json] = []

    def work_out(self, operations: Sequence[Operation]) -> None:
        """Work out all outcomes and final states."""
        for operation in operations:
            try:
                outcome = self._one(operation)
            except ApiError as error:
                outcome = Outcome(error.status, {}, error)
            self.outcomes.append(outcome)

    def points(self, first: int) -> tuple[list[Json], list[str]]:
        """The points to write and the ids of those to delete; numbers all answers."""
        for answer in self._numbered:
            answer["_seq_no"] += first
        points, gone = [], []
        for id_, state in self.states.items():
            if not state.dirty:
                continue
            point = point_id(self.collection, id_)
            if state.version == 0 or state.analysed is None:
                if state.stored:
                    gone.append(point)
                continue
            payload: Json = {
                "id": id_,
                "v": state.version,
                "seq": first + state.sequence,
                "src": state.text,
                "f": state.analysed.payload,
            }
            if state.analysed.names:
                payload["n"] = state.analysed.names
            points.append({"id": point, "vector": {}, "payload": payload})
        return points, gone

    def _one(self, operation: Operation) -> Outcome:
        id_ = operation.id
        before = self.states.get(id_)
        exists = before is not None and before.version > 0
        if operation.action == "delete":
            return self._delete(id_, before if exists else None)
        if operation.action == "update":
            return self._update(operation, before if exists else None)
        if operation.action == "create" and exists and before is not None:
            raise ApiError(
                409,
                "version_conflict_engine_exception",
                f"[{id_}]: version conflict, document already exists (current version "
                f"[{before.version}])",
                index=self.index,
            )
        assert operation.document is not None
        return self._store(id_, before, operation.text, operation.document)

    def _store(self, id_: str, before: _State | None, text: str, document: Json) -> Outcome:
        analysed = self._analyse(document, id_)
        exists = before is not None and before.version > 0
        state = _State(
            version=(before.version if before else 0) + 1,
            sequence=self.writing,
            text=text,
            analysed=analysed,
            dirty=True,
            stored=before is not None and before.stored,
        )
        self.states[id_] = state
        return self._written(
            id_, state.version, "updated" if exists else "created", 200 if exists else 201
        )

    def _delete(self, id_: str, before: _State | None) -> Outcome:
        if before is None:
            answer = {**self._answer(id_, 1, "not_found"), "_seq_no": -2, "_primary_term": 0}
            return Outcome(404, answer)
        self.states[id_] = _State(0, self.writing, "", dirty=True, stored=before.stored)
        return self._written(id_, before.version + 1, "deleted", 200)

    def _update(self, operation: Operation, before: _State | None) -> Outcome:
        id_, body = operation.id, operation.update or {}
        if before is None:
            upsert = body.get("doc") if body.get("doc_as_upsert") else body.get("upsert")
            if upsert is None:
                raise ApiError(
                    404,
                    "document_missing_exception",
                    f"[{id_}]: document missing",
                    index=self.index,
                )
            return self._store(id_, self.states.get(id_), orjson.dumps(upsert).decode(), upsert)
        old = orjson.loads(before.text)
        new = _merged(old, body["doc"])
        if body.get("detect_noop", True) and _as_text(new) == _as_text(old):
            answer = self._answer(id_, before.version, "noop")
            answer["_primary_term"] = 1
            answer["_seq_no"] = before.sequence
            if before.dirty:
                self._numbered.append(answer)
            return Outcome(200, answer)
        return self._store(id_, before, orjson.dumps(new).decode(), new)

    def _analyse(self, document: Json, id_: str) -> Analysed:
        found = analyse(self.mapping, document, id_, self._limits.depth)
        if found.definitions or found.multi:
            extended = self.mapping.extended(found.definitions, found.multi)
            if found.definitions:
                extended.check_size(self._limits.fields)
            again = analyse(extended, document, id_, self._limits.depth)
            if again.multi:
                extended = extended.extended({}, again.multi)
            # Only now: a document that is refused leaves no trace in the mapping.
            self.mapping = extended
            return again
        return found

    def _written(self, id_: str, version: int, result: str, status: int) -> Outcome:
        answer = {**self._answer(id_, version, result), "_seq_no": self.writing}
        answer["_primary_term"] = 1
        self._numbered.append(answer)
        self.writing += 1
        return Outcome(status, answer)

    def _answer(self, id_: str, version: int, result: str) -> Json:
        return {
            "_index": self.index,
            "_id": id_,
            "_version": version,
            "result": result,
            "_shards": _SHARDS,
        }


def _as_text(document: Json) -> bytes:
    """A document as text: unlike Python's, its equality tells 1, 1.0 and true apart."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def _merged(old: Json, change: Json) -> Json:
    """A document with a partial one merged into it, objects key by key."""
    out = dict(old)
    for name, value in change.items():
        known = out.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            out[name] = _merged(known, value)
        else:
            out[name] = value
    return out


def update_body(body: Any) -> Json:
    """Check the body of an update.

    Raises:
        ApiError: 400, it is wrong, or a script.
    """
    if not isinstance(body, dict):
        raise parsing("the body of an update must be an object")
    for name in body:
        if name in ("script", "scripted_upsert", "_source", "if_seq_no", "if_primary_term"):
            raise unsupported(f"update with {name}")
        if name not in ("doc", "doc_as_upsert", "upsert", "detect_noop"):
            raise parsing(f"[UpdateRequest] unknown field [{name}]")
    if not isinstance(body.get("doc"), dict):
        raise parsing("an update needs a [doc] that is an object")
    if not isinstance(body.get("upsert", {}), dict):
        raise parsing("[upsert] of an update must be an object")
    for name in ("doc_as_upsert", "detect_noop"):
        if not isinstance(body.get(name, False), bool):
            raise parsing(f"[{name}] of an update must be a boolean")
    return body

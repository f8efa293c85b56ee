"""Requests that write: one document, or many in a bulk request."""

from __future__ import annotations

import asyncio
import time

import orjson

from gateway import deadline
from gateway.bulk import BulkItem, read_bulk
from gateway.documents import Documents, Operation, Outcome
from gateway.errors import ApiError, ClaimedError
from gateway.http_server import Request
from gateway.indices import CLAIM_PAUSE_S, CLAIM_WAIT_S, Indices
from gateway.parameters import read_refresh
from gateway.qdrant import Json
from gateway.settings import Settings

Answer = tuple[int, bytes]

# So many operations, or so many bytes of sources, are written under one token and one lock.
_CHUNK_OPERATIONS = 1000
_CHUNK_BYTES = 4 << 20


class Writing:
    """Answers requests that write."""

    def __init__(self, documents: Documents, indices: Indices, settings: Settings) -> None:
        self._documents = documents
        self._indices = indices
        self._limits = settings.limits
        self._timeout_s = settings.qdrant_timeout_s

    async def one(self, index: str, operation: Operation, refresh: bool) -> Answer:
        """Make one write.

        Raises:
            ApiError: it was refused, or Valkey or Qdrant failed.
        """
        (outcome,) = await self._write(index, [operation])
        if outcome.error is not None:
            raise outcome.error
        if refresh:
            outcome.answer["forced_refresh"] = True
        return outcome.status, orjson.dumps(outcome.answer)

    async def _write(self, index: str, operations: list[Operation]) -> list[Outcome]:
        """Write; an index that is not there is created first, as Elasticsearch does by default.

        Another gateway may be about to create it, or to delete it: that is waited for, but not for
        long, as its claim may have been left by a gateway that died.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + CLAIM_WAIT_S
        while True:
            try:
                return await self._documents.write(index, operations)
            except ClaimedError:
                if loop.time() >= end:
                    raise
                await asyncio.sleep(CLAIM_PAUSE_S)
                continue
            except ApiError as error:
                only_deletes = all(operation.action == "delete" for operation in operations)
                if error.status != 404 or only_deletes or loop.time() >= end:
                    raise
            try:
                await self._indices.create(index, None)
            except ApiError as error:
                if error.kind != "resource_already_exists_exception":
                    raise
            deadline.begin(self._timeout_s)

    async def bulk(self, request: Request, index: str | None, parameters: dict[str, str]) -> Answer:
        """Make a bulk request's writes; each has an answer of its own.

        Raises:
            ApiError: 400 or 413, the request as a whole is wrong; 503, nothing could be done.
        """
        began = time.monotonic()
        refresh = read_refresh(dict(parameters))
        items = read_bulk(request.body, index, self._limits)
        answers: list[Json | None] = [None] * len(items)
        groups: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            if item.error is not None:
                answers[number] = _bulk_error(item, item.error)
            else:
                groups.setdefault(item.index, []).append(number)
        failures: list[ApiError] = []
        late: ApiError | None = None
        for name, numbers in groups.items():
            for chunk in _chunks(items, numbers):
                if late is None:
                    deadline.begin(self._timeout_s)
                    await self._bulk_chunk(name, items, chunk, answers, failures, refresh)
                    if failures and deadline.left(1.0) <= 0:
                        late = failures[-1]
                else:
                    # What did not answer in time would not answer the others either.
                    for number in chunk:
                        answers[number] = _bulk_error(items[number], late)
                        failures.append(late)
        if failures and len(failures) == len(items):
            # Nothing at all could be done: as for any other request.
            raise failures[0]
        shown = [answer for answer in answers if answer is not None]
        failed = any("error" in entry for answer in shown for entry in answer.values())
        took = int((time.monotonic() - began) * 1000)
        return 200, orjson.dumps({"errors": failed, "took": took, "items": shown})

    async def _bulk_chunk(
        self,
        index: str,
        items: list[BulkItem],
        numbers: list[int],
        answers: list[Json | None],
        failures: list[ApiError],
        refresh: bool,
    ) -> None:
        found = (items[number].operation for number in numbers)
        operations = [operation for operation in found if operation is not None]
        try:
            outcomes = await self._write(index, operations)
        except ApiError as error:
            for number in numbers:
                answers[number] = _bulk_error(items[number], error)
                if error.status == 503:
                    failures.append(error)
            return
        for number, outcome in zip(numbers, outcomes, strict=True):
            if outcome.error is not None:
                answers[number] = _bulk_error(items[number], outcome.error)
                continue
            if refresh:
                outcome.answer["forced_refresh"] = True
            answers[number] = {items[number].action: {**outcome.answer, "status": outcome.status}}


def _chunks(items: list[BulkItem], numbers: list[int]) -> list[list[int]]:
    chunks: list[list[int]] = [[]]
    size = 0
    for number in numbers:
        operation = items[number].operation
        length = len(operation.text) if operation is not None else 0
        if chunks[-1] and (len(chunks[-1]) >= _CHUNK_OPERATIONS or size + length > _CHUNK_BYTES):
            chunks.append([])
            size = 0
        chunks[-1].append(number)
        size += length
    return chunks


def _bulk_error(item: BulkItem, error: ApiError) -> Json:
    return {
        item.action: {
            "_index": item.index,
            "_id": item.id or None,
            "status": error.status,
            "error": error.cause(),
        }
    }

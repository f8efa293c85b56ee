"""Requests that write: one document, or many in a bulk request."""

from __future__ import annotations

import time

import orjson

from gateway.bulk import BulkItem, read_bulk
from gateway.documents import Documents, Operation, Outcome
from gateway.errors import ApiError
from gateway.http_server import Request
from gateway.indices import Indices
from gateway.parameters import read_refresh
from gateway.qdrant import Json
from gateway.settings import Limits

Answer = tuple[int, bytes]

# So many operations, or so many bytes of sources, are written under one token and one lock.
_CHUNK_OPERATIONS = 1000
_CHUNK_BYTES = 4 << 20


class Writing:
    """Answers requests that write."""

    def __init__(self, documents: Documents, indices: Indices, limits: Limits) -> None:
        self._documents = documents
        self._indices = indices
        self._limits = limits

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
        """Write; an index that is not there is created first, as Elasticsearch does by default."""
        try:
            return await self._documents.write(index, operations)
        except ApiError as error:
            if error.status != 404 or all(o.action == "delete" for o in operations):
                raise
        try:
            await self._indices.create(index, None)
        except ApiError as error:
            if error.kind != "resource_already_exists_exception":
                raise
        return await self._documents.write(index, operations)

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
        for name, numbers in groups.items():
            for chunk in _chunks(items, numbers):
                await self._bulk_chunk(name, items, chunk, answers, failures, refresh)
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

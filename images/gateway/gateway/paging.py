"""Pages of sorted documents, from an engine that orders by one key at a time.

Qdrant scrolls in the order of one numeric payload key. A page sorted by several keys is made of
such scrolls: the first key gives the documents up to the value at which the page is full; only
among the documents with just that value does the next key decide, and so on; the last key is
always the sequence number, which no two documents share. So a page costs at most one scroll of
`need + 1` documents a key, however many documents share a value. Keywords cannot be ordered by:
there a facet gives the values in use, and the values in order give the groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import illegal
from gateway.fields import Field, Value
from gateway.qdrant import Json, Qdrant
from gateway.query import NEVER, conjunction, empty, equal
from gateway.sorting import SEQUENCE, SortKey, in_order

Cursor = tuple[Value | None, ...]


class Pager:
    """Reads sorted documents of one collection.

    Args:
        keys: the sort; the sequence number is added.
        payload: which payload keys to read.
        distinct: most values of a keyword that is sorted by.
    """

    def __init__(
        self,
        qdrant: Qdrant,
        collection: str,
        keys: Sequence[SortKey],
        payload: list[str],
        distinct: int,
    ) -> None:
        self._qdrant = qdrant
        self._collection = collection
        self._keys = [*keys, SEQUENCE]
        self._payload = payload
        self._distinct = distinct

    async def page(self, conditions: Json, need: int, after: Cursor | None) -> list[Json]:
        """The payloads of the first `need` documents in order, after a cursor.

        A cursor of as many values as there are keys stands behind all documents with these
        values; one more value, a sequence number, places it among them.
        """
        if after is None:
            return await self._first(conditions, 0, need)
        return await self._after(conditions, 0, need, after)

    async def _first(self, conditions: Json, level: int, need: int) -> list[Json]:
        """The first documents in the order of the keys from `level` on."""
        key = self._keys[level]
        if need <= 0:
            return []
        if key.field is None:
            return await self._by_sequence(conditions, key, need, None)
        if key.missing == "first":
            found = await self._without(conditions, level, need)
            return found + await self._values(conditions, level, need - len(found), None)
        found = await self._values(conditions, level, need, None)
        if key.missing == "last":
            return found + await self._without(conditions, level, need - len(found))
        # Documents without a value stand among the others: both may fill the page.
        found += await self._without(conditions, level, need)
        return in_order(found, self._keys[level:])[:need]

    async def _after(self, conditions: Json, level: int, need: int, after: Cursor) -> list[Json]:
        """The first documents in the order of the keys from `level` on, behind a cursor."""
        if need <= 0 or level == len(after):
            return []
        key, value = self._keys[level], after[level]
        if key.field is None:
            assert value is not None
            return await self._by_sequence(conditions, key, need, int(value))
        without = conjunction(conditions, {"must": [empty(key.field)]})
        if value is None and key.missing in ("last", "first"):
            found = await self._after(without, level + 1, need, after)
            if key.missing == "last":
                return found
            return found + await self._values(conditions, level, need - len(found), None)
        standing = key.missing if value is None else value
        same = conjunction(conditions, self._same(key, standing))
        if key.field.multi and not key.field.numeric:
            before = await self._passed(conditions, key, standing)
            same = conjunction(same, _none_of(key.field, before))
        found = await self._after(same, level + 1, need, after)
        if key.missing in ("last", "first"):
            found += await self._values(conditions, level, need - len(found), standing)
            if key.missing == "last":
                found += await self._without(conditions, level, need - len(found))
            return found
        found += await self._values(conditions, level, need, standing)
        if key.missing == standing:
            found += await self._after(without, level + 1, need, after)
        elif (key.missing < standing) == key.descending:  # type: ignore[operator]
            found += await self._without(conditions, level, need)
        return in_order(found, self._keys[level:])[:need]

    async def _without(self, conditions: Json, level: int, need: int) -> list[Json]:
        field = self._keys[level].field
        assert field is not None
        return await self._first(conjunction(conditions, {"must": [empty(field)]}), level + 1, need)

    async def _by_sequence(
        self, conditions: Json, key: SortKey, need: int, after: int | None
    ) -> list[Json]:
        if after is not None:
            bound = "lt" if key.descending else "gt"
            conditions = conjunction(
                conditions, {"must": [{"key": "seq", "range": {bound: after}}]}
            )
        return await self._scroll(conditions, key, need)

    async def _values(
        self, conditions: Json, level: int, need: int, after: Value | None
    ) -> list[Json]:
        """Documents that have a value of the key, behind a value, in order."""
        field = self._keys[level].field
        assert field is not None
        if need <= 0:
            return []
        if not field.numeric:
            return await self._keywords(conditions, field, level, need, after)
        key = self._keys[level]
        found: list[Json] = []
        while True:
            behind = conjunction(conditions, self._behind(key, after))
            limit = need - len(found) + 1
            documents = await self._scroll(behind, key, limit)
            unique = documents
            if field.multi:
                unique = list({payload["seq"]: payload for payload in documents}.values())
            # Of a document with equal values Qdrant drops the repeats after it has cut the scroll
            # to the limit: there a short scroll is no end, only an empty one is.
            if not documents or (len(documents) < limit and not field.multi):
                return (found + in_order(unique, self._keys[level:]))[:need]
            # The group of the last value may go on behind this scroll.
            if field.multi:
                last = self._last(key, documents)
                head = [payload for payload in unique if self._before(key, payload, last)]
            else:
                values = list(map(key.value, documents))
                assert values[-1] is not None
                last = values[-1]
                head = [d for d, value in zip(documents, values, strict=True) if value != last]
            found += in_order(head, self._keys[level:])
            if len(found) < need:
                same = conjunction(conditions, self._same(key, last))
                found += await self._first(same, level + 1, need - len(found))
            if len(found) >= need:
                return found[:need]
            after = last

    async def _keywords(
        self, conditions: Json, field: Field, level: int, need: int, after: Value | None
    ) -> list[Json]:
        key = self._keys[level]
        values = await self._distinct_values(conditions, key)
        passed: list[Value] = []
        if isinstance(after, str):
            beyond = [
                entry
                for entry in values
                if (str(entry[0]) < after if key.descending else str(entry[0]) > after)
            ]
            passed = [value for value, _ in values[: len(values) - len(beyond)]]
            values = beyond
        found: list[Json] = []
        at = 0
        while len(found) < need and at < len(values):
            # All values whose documents fit as a whole in one scroll; then the one that does not.
            room, heads = need - len(found), []
            while at < len(values) and values[at][1] <= room:
                room -= values[at][1]
                heads.append(values[at][0])
                at += 1
            if heads:
                group = conjunction(conditions, _any_of(field, heads), _none_of(field, passed))
                limit = need - len(found)
                documents = await self._qdrant.scroll(
                    self._collection, group, limit, self._payload, None
                )
                found += in_order([d["payload"] for d in documents], self._keys[level:])
                passed += heads
            if len(found) < need and at < len(values):
                value = values[at][0]
                group = conjunction(conditions, _any_of(field, [value]), _none_of(field, passed))
                found += await self._first(group, level + 1, need - len(found))
                passed.append(value)
                at += 1
        return found[:need]

    async def _distinct_values(self, conditions: Json, key: SortKey) -> list[tuple[Value, int]]:
        """The values in use with their numbers of documents, in the key's order."""
        assert key.field is not None
        counts = await self._qdrant.facet(
            self._collection, conditions, key.field.key, self._distinct + 1
        )
        if len(counts) > self._distinct:
            raise illegal(
                f"sort by the keyword [{key.field.path}]: the matches have more than "
                f"[{self._distinct}] distinct values; narrow the query or sort by a number or date"
            )
        return sorted(counts, key=lambda entry: str(entry[0]), reverse=key.descending)

    async def _passed(self, conditions: Json, key: SortKey, value: Value) -> list[Value]:
        """The keywords in front of a value: a document that has one of them stands there."""
        values = [v for v, _ in await self._distinct_values(conditions, key)]
        if key.descending:
            return [v for v in values if str(v) > str(value)]
        return [v for v in values if str(v) < str(value)]

    async def _scroll(self, conditions: Json, key: SortKey, limit: int) -> list[Json]:
        order = {"key": key.payload_key, "direction": "desc" if key.descending else "asc"}
        documents = await self._qdrant.scroll(
            self._collection, conditions, limit, self._payload, order
        )
        return [document["payload"] for document in documents]

    def _same(self, key: SortKey, value: Value) -> Json:
        """Documents that stand at a value: the least of theirs, or the greatest, is this one."""
        field = key.field
        assert field is not None
        if field.index_kind == "integer" and isinstance(value, float):
            if not value.is_integer():
                return {"must": [NEVER]}
            value = int(value)
        out: Json = {"must": [equal(field, value)]}
        if field.multi and field.numeric:
            # A value in front of this one would decide the document's place.
            bound = "gt" if key.descending else "lt"
            out["must_not"] = [{"key": field.key, "range": {bound: value}}]
        return out

    def _behind(self, key: SortKey, value: Value | None) -> Json:
        """Documents that have a value, and stand behind one."""
        field = key.field
        assert field is not None
        if value is None:
            # Qdrant leaves those without a value out of an ordered scroll.
            return {}
        bound, other = ("lt", "gte") if key.descending else ("gt", "lte")
        out: Json = {"must": [{"key": field.key, "range": {bound: value}}]}
        if field.multi:
            out["must_not"] = [{"key": field.key, "range": {other: value}}]
        return out

    def _last(self, key: SortKey, documents: list[Json]) -> Value:
        """Where an ordered scroll over several values a document has got to.

        A document comes once for each of its values; only its first coming is its place, and the
        places that the scroll is sure of are those up to the furthest place.
        """
        places = [value for value in map(key.value, documents) if value is not None]
        return min(places) if key.descending else max(places)

    def _before(self, key: SortKey, payload: Json, last: Value) -> bool:
        value = key.value(payload)
        assert value is not None
        # Both are values of one field, so of one type.
        return bool(value > last if key.descending else value < last)  # type: ignore[operator]


def _any_of(field: Field, values: Sequence[Value]) -> Json:
    return {"must": [{"key": field.key, "match": {"any": list(values)}}]}


def _none_of(field: Field, values: Sequence[Value]) -> Json:
    if not field.multi or not values:
        return {}
    return {"must_not": [{"key": field.key, "match": {"any": list(values)}}]}

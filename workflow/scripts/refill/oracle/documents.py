"""Right answers to requests for documents, from the documents alone, and the judge of answers.

The oracle reads the part of Elasticsearch's REST API that the rounds use and refuses the rest; it
knows no engine. Source of the semantics: Elasticsearch 8's reference (query DSL, sort,
`search_after`, terms and filters aggregations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from refill.corpora.documents import Documents
from refill.load.ledger import Judgement
from refill.oracle.columns import Bools, Column, OracleError

Json = dict[str, Any]
Rows = NDArray[np.int64]

NOTHING = float("nan")
# A right answer of the rounds has some 10 kB; more is refused unread.
MAX_BODY_BYTES = 1 << 20
# A wrong answer is shown so far: where it differs, the request, what is right, what came.
PART_BYTES = 480
# A value within such a part.
VALUE_BYTES = 160
DEFAULT_SIZE = 10


@dataclass(frozen=True)
class Some:
    """A part of an answer that may be any value of a kind."""

    words: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True)
class Expected:
    """The right answer to one request.

    Attributes:
        answer: the JSON body, with a `Some` where engines may differ.
        hits: how many documents it holds; -1 where it is no list of documents.
        summary: what is right in few words: total, ids, buckets.
    """

    answer: Json
    hits: int
    summary: str


class Asked(Protocol):
    """What the judge needs of a request."""

    @property
    def method(self) -> str:
        """Method of HTTP."""
        ...

    @property
    def path(self) -> str:
        """Path with the index."""
        ...

    @property
    def body(self) -> bytes:
        """Body, empty without one."""
        ...

    @property
    def expected(self) -> Expected:
        """The right answer."""
        ...


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_shards(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"total", "successful", "skipped", "failed"}:
        return False
    counted = all(_is_whole(count) for count in value.values())
    return counted and value["total"] == value["successful"] and value["failed"] == 0


COUNT = Some("a whole number from 0", _is_whole)
# What a native engine may say beside a right answer. OpenSearch says `terminated_early` where it
# read counts from the index instead of going through the documents; totals and buckets are
# checked all the same.
NATIVE_ALSO = {"terminated_early": Some("true or false", lambda value: isinstance(value, bool))}
SHARDS = Some("an object that says that no shard failed", _is_shards)


class DocumentOracle:
    """Answers requests from documents.

    Args:
        documents: the corpus as it is loaded.
        index: name of the index that it is loaded into.

    Attributes:
        ids: `_id` of each document.
    """

    def __init__(self, documents: Documents, index: str) -> None:
        self._documents = documents
        self._index = index
        frame = documents.frame()
        self._columns = {
            name: Column.read(name, kind, frame[name]) for name, kind in documents.fields.items()
        }
        self.ids = documents.ids
        self._rows = {id_: row for row, id_ in enumerate(documents.ids)}
        self._orders: dict[bytes, tuple[Rows, list[tuple[Column, bool]]]] = {}
        self._hits: dict[tuple[bytes, int], Json] = {}

    def expected(self, method: str, path: str, body: Json | None) -> Expected:
        """Give the right answer to a request: a document by its id, or a search.

        Raises:
            OracleError: another request, or something in it that the oracle does not know.
        """
        document, search = f"/{self._index}/_doc/", f"/{self._index}/_search"
        if method == "GET" and path.startswith(document) and body is None:
            return self._document(path.removeprefix(document))
        if method == "POST" and path == search and body is not None:
            return self._search(body)
        raise OracleError(f"{method} {path}: the oracle knows GET {document}ID and POST {search}")

    def matching(self, query: Json) -> Bools:
        """Tell which documents match a query: shape (documents,)."""
        name, body = _single(query, "query")
        if name == "match_all" and body == {}:
            return np.ones(self._documents.count, np.bool_)
        if name == "bool":
            return self._bool(body)
        if name == "exists":
            return self._column(_single(body, name, "field")[1]).present
        field, value = _single(body, name)
        column = self._column(field)
        if name == "term":
            return column.equal(value)
        if name == "terms" and isinstance(value, list):
            none = np.zeros(self._documents.count, np.bool_)
            return reduce(np.logical_or, (column.equal(v) for v in value), none)
        if name == "range" and isinstance(value, dict):
            return column.within(value)
        raise OracleError(f"the oracle does not know the query {name!r} of this form")

    def frequent(self, field: str, count: int) -> list[str]:
        """Give the most frequent values of a keyword field, at most `count`."""
        everything = np.ones(self._documents.count, np.bool_)
        return [word for word, _ in self._counts(self._column(field), everything)[:count]]

    def page(self, body: Json) -> list[tuple[int, list[Any]]]:
        """Give the rows of a search's hits in their order, each with its sort values."""
        rows, keys = self._order(body.get("sort"))
        rows = rows[self.matching(body["query"])[rows]]
        if "search_after" in body:
            rows = rows[self._behind(rows, keys, body["search_after"])]
        return [
            (int(row), [column.shown(row, descending) for column, descending in keys])
            for row in rows[: body.get("size", DEFAULT_SIZE)]
        ]

    def _document(self, id_: str) -> Expected:
        row = self._rows.get(id_)
        if row is None:
            raise OracleError(f"no document has the _id {id_!r}")
        answer = {
            "_index": self._index,
            "_id": id_,
            "found": True,
            "_source": self._documents.sources[row],
            # A round loads a new index of one shard: each document once, in the corpus's order.
            "_version": 1,
            "_seq_no": row,
            "_primary_term": 1,
        }
        return Expected(answer, 1, _summary(self._documents.sources[row]))

    def _search(self, body: Json) -> Expected:
        known = {"query", "sort", "size", "search_after", "track_total_hits", "aggs"}
        if unknown := body.keys() - known:
            raise OracleError(f"the oracle does not know {sorted(unknown)} in a search")
        if body.get("track_total_hits") is not True:
            raise OracleError("track_total_hits: must be true, for every total is checked")
        matching = self.matching(body["query"])
        total = int(matching.sum())
        hits: list[Json] = []
        if body.get("size", DEFAULT_SIZE) > 0:
            order = orjson.dumps(body["sort"])
            hits = [self._hit(order, row, values) for row, values in self.page(body)]
        answer: Json = {
            "took": COUNT,
            "timed_out": False,
            "_shards": SHARDS,
            "hits": {
                "total": {"value": total, "relation": "eq"},
                "max_score": None,
                "hits": hits,
            },
        }
        summary: Json = {"total": total}
        if hits:
            summary["ids"] = [hit["_id"] for hit in hits]
        if "aggs" in body:
            summary["aggregations"] = answer["aggregations"] = {
                name: self._aggregation(part, matching) for name, part in body["aggs"].items()
            }
        return Expected(answer, len(hits) if hits else -1, _summary(summary))

    def _hit(self, order: bytes, row: int, values: list[Any]) -> Json:
        # A hit is the same in every answer of one sort; thousands of answers share them.
        if (known := self._hits.get((order, row))) is not None:
            return known
        hit = {
            "_index": self._index,
            "_id": self._documents.ids[row],
            "_score": None,
            "_source": self._documents.sources[row],
            "sort": values,
        }
        self._hits[order, row] = hit
        return hit

    def _bool(self, body: Json) -> Bools:
        if unknown := body.keys() - {"filter", "must", "must_not", "should"}:
            raise OracleError(f"the oracle does not know {sorted(unknown)} in a bool query")
        clauses = {
            name: [self.matching(q) for q in (part if isinstance(part, list) else [part])]
            for name, part in body.items()
        }
        mask = np.ones(self._documents.count, np.bool_)
        for matching in [*clauses.get("filter", []), *clauses.get("must", [])]:
            mask &= matching
        for matching in clauses.get("must_not", []):
            mask &= ~matching
        if "should" in clauses and not {"filter", "must"} & clauses.keys():
            mask &= reduce(np.logical_or, clauses["should"])
        return mask

    def _order(self, sort: Any) -> tuple[Rows, list[tuple[Column, bool]]]:
        """Give all rows in the order of a sort, and its keys: column and whether descending.

        Raises:
            OracleError: two documents have the same place, so that no order is right.
        """
        if not isinstance(sort, list) or not sort:
            raise OracleError("sort: must be a list of keys, for without one no order is right")
        known = orjson.dumps(sort)
        if known in self._orders:
            return self._orders[known]
        keys = []
        for item in sort:
            field, options = _single(item, "sort")
            direction = _single(options, "sort", "order")[1]
            if direction not in ("asc", "desc"):
                raise OracleError(f"sort: {field}: the order {direction!r} is neither asc nor desc")
            keys.append((self._column(field), direction == "desc"))
        places = np.stack([column.places(descending) for column, descending in keys])
        rows = np.lexsort(places[::-1]).astype(np.int64)
        ordered = places[:, rows]
        tied = (ordered[:, 1:] == ordered[:, :-1]).all(axis=0)
        if tied.any():
            at = int(np.argmax(tied))
            raise OracleError(
                f"sort: documents {rows[at]} and {rows[at + 1]} have the same place: end it with "
                "a field that no two documents share"
            )
        self._orders[known] = rows, keys
        return rows, keys

    def _behind(self, rows: Rows, keys: list[tuple[Column, bool]], after: Any) -> Bools:
        """Tell which rows stand behind a cursor."""
        if not isinstance(after, list) or len(after) != len(keys):
            raise OracleError("search_after: must have one value for each key of the sort")
        behind = np.zeros(len(rows), np.bool_)
        level = np.ones(len(rows), np.bool_)
        for (column, descending), value in zip(keys, after, strict=True):
            places = column.places(descending)[rows]
            place = column.cursor(value, descending)
            behind |= level & (places > place)
            level &= places == place
        return behind

    def _aggregation(self, body: Json, matching: Bools) -> Json:
        name, options = _single(body, "aggregation")
        if name == "filters" and options.keys() == {"filters"}:
            buckets = {
                bucket: {"doc_count": int((matching & self.matching(query)).sum())}
                for bucket, query in options["filters"].items()
            }
            return {"buckets": buckets}
        if name != "terms" or options.keys() - {"field", "size"}:
            raise OracleError(f"the oracle does not know the aggregation {body}")
        counts = self._counts(self._column(options["field"]), matching)
        size = options.get("size", DEFAULT_SIZE)
        return {
            "doc_count_error_upper_bound": 0,
            "sum_other_doc_count": sum(count for _, count in counts[size:]),
            "buckets": [{"key": word, "doc_count": count} for word, count in counts[:size]],
        }

    def _counts(self, column: Column, matching: Bools) -> list[tuple[str, int]]:
        """Count the keywords of a field, most frequent first, equals in the order of their keys."""
        if column.kind != "keyword":
            raise OracleError(f"terms on the {column.kind} field {column.name}: give a keyword")
        ranks = column.values[matching & column.present].astype(np.int64)
        counts = np.bincount(ranks, minlength=len(column.vocabulary))
        used = np.flatnonzero(counts)
        ordered = used[np.lexsort((used, -counts[used]))]
        return [(column.vocabulary[rank], int(counts[rank])) for rank in ordered]

    def _column(self, field: Any) -> Column:
        if field not in self._columns:
            raise OracleError(f"documents have no field {field!r}")
        return self._columns[field]


def judge(
    request: Asked, http: int, body: bytes, also: Mapping[str, Some] | None = None
) -> Judgement:
    """Give the verdict on an answer: `ok`, `wrong`, or `error` for a status other than 200.

    `also` are keys that an engine may add at the top of a search's answer, and what they may hold.
    Everything in the answer is compared with what is right: no key may be missing, none may be
    there that does not belong. `detail` says where the first difference is, with the request,
    what is right and what came, in at most 2,000 bytes.
    """
    if http != 200:
        return Judgement("error", -1, NOTHING, _detail(f"status {http}", request, body))
    if len(body) > MAX_BODY_BYTES:
        problem = f"{len(body)} bytes, no answer here has more than {MAX_BODY_BYTES}"
        return Judgement("wrong", -1, NOTHING, _detail(problem, request, body))
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Judgement("wrong", -1, NOTHING, _detail(f"not JSON: {error}", request, body))
    expected: Json = request.expected.answer
    if also and "hits" in expected and isinstance(answer, dict):
        expected = {**expected, **{key: also[key] for key in also.keys() & answer.keys()}}
    difference = _difference(expected, answer, "")
    if difference is not None:
        return Judgement("wrong", -1, NOTHING, _detail(difference, request, body))
    return Judgement("ok", request.expected.hits, NOTHING, "")


def _difference(expected: Any, got: Any, where: str) -> str | None:
    """Say where `got` first differs from what is expected; None when it does not."""
    at = where or "the body"
    if isinstance(expected, Some):
        return (
            None if expected.accepts(got) else f"{at}: expected {expected.words}, got {_text(got)}"
        )
    if isinstance(expected, Mapping):
        if not isinstance(got, dict):
            return f"{at}: expected an object, got {_text(got)}"
        for key in expected:
            if key not in got:
                return f"{at}: the key {key!r} is missing"
        for key in got:
            if key not in expected:
                return f"{at}: the key {_text(key)} does not belong there"
        parts = ((f"{where}.{key}".lstrip("."), expected[key], got[key]) for key in expected)
    elif isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            found = f"{len(got)}" if isinstance(got, list) else _text(got)
            return f"{at}: expected a list of {len(expected)}, got {found}"
        parts = ((f"{where}[{i}]", *pair) for i, pair in enumerate(zip(expected, got, strict=True)))
    elif _same(expected, got):
        return None
    else:
        return f"{at}: expected {_text(expected)}, got {_text(got)}"
    return next(filter(None, (_difference(e, g, w) for w, e, g in parts)), None)


def _same(expected: Any, got: Any) -> bool:
    numbers = (int, float)
    if isinstance(expected, numbers) and isinstance(got, numbers):
        # True is 1 in Python, not in JSON; 2 and 2.0 are one number in both.
        return isinstance(expected, bool) == isinstance(got, bool) and expected == got
    return type(expected) is type(got) and bool(expected == got)


def _detail(problem: str, request: Asked, body: bytes) -> str:
    asked = f"{request.method} {request.path} {request.body.decode(errors='replace')}".strip()
    parts = {
        "": problem,
        "request: ": asked,
        "expected: ": request.expected.summary,
        f"got {len(body)} bytes: ": body[:PART_BYTES].decode(errors="replace"),
    }
    return " | ".join(name + _cut(text) for name, text in parts.items())


def _cut(text: str, most: int = PART_BYTES) -> str:
    data = text.encode(errors="replace")
    if len(data) <= most:
        return text
    return data[: most - 3].decode(errors="ignore") + "..."


def _text(value: Any) -> str:
    return _cut(orjson.dumps(value).decode(), VALUE_BYTES)


def _summary(value: Json) -> str:
    return _cut(orjson.dumps(value).decode())


def _single(value: Any, what: str, key: str | None = None) -> tuple[str, Any]:
    """Give the one key of an object and its value; `key` says which one it must be."""
    if not isinstance(value, dict) or len(value) != 1 or (key is not None and key not in value):
        wanted = "one key" if key is None else f"the one key {key!r}"
        raise OracleError(f"{what}: {value!r}: the oracle reads an object with {wanted}")
    return next(iter(value.items()))

"""The bodies of `_bulk` and `_msearch`: lines of JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway import strict_json
from gateway.documents import Operation, update_body
from gateway.errors import ApiError, illegal, parsing, unsupported
from gateway.identity import check_id, check_index, new_id
from gateway.qdrant import Json
from gateway.settings import Limits

_ACTIONS = ("index", "create", "delete", "update")
_REFUSED = (
    "routing", "_routing", "version", "version_type", "pipeline", "if_seq_no", "if_primary_term",
    "require_data_stream", "dynamic_templates", "list_executed_pipelines",
)  # fmt: skip


@dataclass
class BulkItem:
    """One action of a bulk request; `error` when it cannot be done, for itself alone."""

    action: str
    index: str
    id: str
    operation: Operation | None
    error: ApiError | None = None


def read_bulk(body: bytes, default_index: str | None, limits: Limits) -> list[BulkItem]:
    """Read a bulk body.

    Raises:
        ApiError: 400, the lines are no actions, or there are too many; nothing is done then.
    """
    lines = _lines(body, limits.bulk_line_bytes)
    items: list[BulkItem] = []
    at = 0
    while at < len(lines):
        number, line = lines[at]
        at += 1
        action, meta = _action(number, line)
        index = meta.get("_index", default_index)
        if not isinstance(index, str):
            raise illegal(f"line [{number}]: an index is missing")
        source = b""
        if action != "delete":
            if at == len(lines):
                raise illegal(f"line [{number}]: the source of this [{action}] is missing")
            source = lines[at][1]
            at += 1
        items.append(_item(action, check_index(index), meta, source))
        if len(items) > limits.bulk_items:
            raise ApiError(
                413,
                "content_too_long_exception",
                f"more than [{limits.bulk_items}] actions in one bulk request; send fewer",
            )
    if not items:
        raise ApiError(400, "parse_exception", "request body is required")
    return items


def _lines(body: bytes, most_bytes: int) -> list[tuple[int, bytes]]:
    if body and not body.endswith(b"\n"):
        raise illegal("The bulk request must be terminated by a newline [\\n]")
    found = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if len(line) > most_bytes:
            raise ApiError(
                413,
                "content_too_long_exception",
                f"line [{number}] is longer than [{most_bytes}] bytes",
            )
        if line.strip():
            found.append((number, line))
    return found


def _action(number: int, line: bytes) -> tuple[str, Json]:
    head = _json(number, line)
    if not isinstance(head, dict) or len(head) != 1:
        raise illegal(
            f"Malformed action/metadata line [{number}], expected one action of {_ACTIONS}"
        )
    ((action, meta),) = head.items()
    if action not in _ACTIONS or not isinstance(meta, dict):
        raise illegal(
            f"Malformed action/metadata line [{number}], expected one action of {_ACTIONS}, found "
            f"[{action}]"
        )
    for name in meta:
        if name in _REFUSED:
            raise unsupported(f"bulk action with {name}", f"line [{number}]")
        if name not in ("_index", "_id", "require_alias", "retry_on_conflict"):
            raise illegal(f"Action/metadata line [{number}] contains an unknown parameter [{name}]")
    if meta.get("require_alias"):
        raise unsupported("bulk action with require_alias", f"line [{number}]")
    return action, meta


def _item(action: str, index: str, meta: Json, source: bytes) -> BulkItem:
    id_ = meta.get("_id")
    if isinstance(id_, int) and not isinstance(id_, bool):
        id_ = str(id_)
    item = BulkItem(action, index, id_ if isinstance(id_, str) else "", None)
    try:
        item.operation = make_operation(action, id_, source)
        item.id = item.operation.id
    except ApiError as error:
        item.error = error
    return item


def make_operation(action: str, id_: Any, source: bytes) -> Operation:
    """Make one write from its source.

    Args:
        id_: the document's id; None for a new one.

    Raises:
        ApiError: 400, the id or the source is wrong.
    """
    fresh = id_ is None
    if id_ is None:
        if action in ("delete", "update"):
            raise illegal(f"an id is required for a [{action}] operation")
        id_ = new_id()
    if not isinstance(id_, str):
        raise illegal("[_id] must be a string")
    check_id(id_)
    if action == "delete":
        return Operation("delete", id_)
    document = _source(source)
    if action == "update":
        return Operation("update", id_, update=update_body(document))
    text = source.decode()
    if fresh:
        return Operation(action, id_, True, text, document)
    return Operation(action, id_, False, text, document)


def _source(source: bytes) -> Json:
    try:
        document = strict_json.loads(source)
    except strict_json.StrictError as error:
        raise ApiError(
            400, "document_parsing_exception", f"failed to parse the document: {error}"
        ) from error
    if not isinstance(document, dict):
        raise ApiError(
            400, "document_parsing_exception", "failed to parse: the document is no JSON object"
        )
    return document


def _json(number: int, line: bytes) -> Any:
    try:
        return strict_json.loads(line)
    except strict_json.StrictError as error:
        raise parsing(f"line [{number}] is not JSON: {error}") from error


@dataclass
class SubSearch:
    """One search of a multi-search: its index, its body, and the error instead of them."""

    index: str
    body: bytes
    error: ApiError | None = None


_NEUTRAL_HEADER = frozenset((
    "index", "preference", "request_cache", "ignore_unavailable", "allow_no_indices",
    "expand_wildcards", "search_type", "ccs_minimize_roundtrips",
))  # fmt: skip


def read_msearch(body: bytes, default_index: str | None, limits: Limits) -> list[SubSearch]:
    """Read a multi-search body: a header line and a body line for each search.

    Raises:
        ApiError: 400, the lines are no searches, or there are too many.
    """
    if body and not body.endswith(b"\n"):
        raise illegal("The msearch request must be terminated by a newline [\\n]")
    lines = body.split(b"\n")[:-1]
    # A header may be an empty line; empty lines at the end are none.
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines or len(lines) % 2:
        raise illegal("a msearch body is pairs of lines: a header and a search each")
    if len(lines) // 2 > limits.searches:
        raise illegal(f"more than [{limits.searches}] searches in one request; send fewer")
    found = []
    for number in range(0, len(lines), 2):
        header = _json(number + 1, lines[number] if lines[number].strip() else b"{}")
        if not isinstance(header, dict):
            raise illegal(f"line [{number + 1}]: the header is no object")
        search = SubSearch("", lines[number + 1])
        try:
            search.index = _header_index(header, default_index)
        except ApiError as error:
            search.error = error
        found.append(search)
    return found


def _header_index(header: Json, default_index: str | None) -> str:
    for name in header:
        if name not in _NEUTRAL_HEADER:
            raise unsupported(f"msearch header with {name}")
    if header.get("ignore_unavailable", False) not in (False, "false"):
        raise unsupported("ignore_unavailable")
    if header.get("search_type", "query_then_fetch") != "query_then_fetch":
        raise unsupported(f"search_type {header['search_type']}")
    index = header.get("index", default_index)
    if isinstance(index, list) and len(index) == 1:
        index = index[0]
    if not isinstance(index, str):
        raise unsupported("several indices in one search, or none", "name one index")
    return check_index(index)

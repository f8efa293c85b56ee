"""What a request says beside its body's content: its path, its parameters, its type."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote

from gateway import strict_json
from gateway.errors import ApiError, illegal, unsupported
from gateway.http_server import Request
from gateway.search import NEUTRAL


def path_text(part: bytes) -> str:
    """Decode a part of a path.

    Raises:
        ApiError: 400, it is not UTF-8.
    """
    if b"%" not in part:
        try:
            return part.decode()
        except UnicodeDecodeError as error:
            raise illegal("the path is not UTF-8") from error
    try:
        return unquote(part.decode("ascii"), errors="strict")
    except UnicodeDecodeError as error:
        raise illegal("the path is not UTF-8") from error


def read_parameters(request: Request) -> dict[str, str]:
    """Read the query string; a name may come once.

    Raises:
        ApiError: 400, it cannot be read.
    """
    if not request.query:
        return {}
    try:
        pairs = parse_qsl(
            request.query.decode(), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError as error:
        raise illegal(f"the query string cannot be read: {error}") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise illegal("a parameter is given twice")
    if found.get("ignore_unavailable", "false") != "false":
        raise unsupported("the parameter ignore_unavailable")
    return found


def only_neutral(parameters: dict[str, str], *known: str) -> None:
    """Refuse parameters that would change the answer."""
    for name in parameters:
        if name not in NEUTRAL and name not in known:
            if name in _KNOWN_PARAMETERS:
                raise unsupported(f"the parameter {name}")
            raise illegal(f"request contains unrecognized parameter: [{name}]")


_KNOWN_PARAMETERS = frozenset((
    "routing", "version", "version_type", "if_seq_no", "if_primary_term", "pipeline", "op_type",
    "filter_path", "stored_fields", "require_alias", "q", "df", "analyzer", "default_operator",
    "min_score", "terminate_after", "lenient", "_source", "_source_includes", "_source_excludes",
    "wait_for_nodes", "wait_for_no_relocating_shards", "force_synthetic_source", "lang",
    "include_source_on_error", "require_data_stream", "list_executed_pipelines", "format",
))  # fmt: skip


def read_refresh(parameters: dict[str, str]) -> bool:
    """Take `refresh` out of the parameters, and refuse all that would change the answer."""
    refresh = parameters.pop("refresh", "false")
    if refresh not in ("", "true", "false", "wait_for"):
        raise illegal(f"Unknown value for refresh: [{refresh}].")
    only_neutral(parameters)
    return refresh in ("", "true")


def check_content_type(request: Request) -> None:
    """Refuse a body that does not say that it is JSON: 406."""
    # Also keeps pages in a browser out: without this type they cannot send a body here unasked.
    if request.body and b"json" not in request.content_type:
        kind = request.content_type.decode("latin-1")[:80]
        raise ApiError(
            406,
            "media_type_header_exception",
            f"Content-Type header [{kind}] is not supported; send application/json",
        )


def read_json(body: bytes) -> Any:
    """Read a body; None where there is none."""
    if not body.strip():
        return None
    try:
        return strict_json.loads(body)
    except strict_json.StrictError as error:
        raise ApiError(400, "x_content_parse_exception", f"the body is not JSON: {error}") from (
            error
        )

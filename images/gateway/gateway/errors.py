"""Errors in the shape in which Elasticsearch gives them."""

from __future__ import annotations

from typing import Any

import orjson


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        kind: Elasticsearch's `type`.
        reason: what is wrong, where, and what to do.
        more: further fields of the error object.
    """

    def __init__(self, status: int, kind: str, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.kind = kind
        self.reason = reason
        self.more = more

    def cause(self) -> dict[str, Any]:
        """The error object without its root causes."""
        return {"type": self.kind, "reason": self.reason, **self.more}

    def document(self) -> dict[str, Any]:
        """The whole answer."""
        cause = self.cause()
        return {"error": {"root_cause": [cause], **cause}, "status": self.status}

    def body(self) -> bytes:
        """The answer's bytes."""
        return orjson.dumps(self.document())


class UnavailableError(ApiError):
    """Valkey or Qdrant cannot be asked now: 503, so that a client may try again."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, "unavailable_shards_exception", reason)


class ClaimedError(UnavailableError):
    """The index is being created or deleted, or a gateway died over it."""


class UnclaimedError(UnavailableError):
    """A claim is not there any more: a recovery has given it up."""


def illegal(reason: str) -> ApiError:
    """A request that is wrong in itself."""
    return ApiError(400, "illegal_argument_exception", reason)


def parsing(reason: str) -> ApiError:
    """A body that cannot be read as what it should be."""
    return ApiError(400, "parsing_exception", reason)


def unsupported(feature: str, instead: str = "") -> ApiError:
    """A feature of Elasticsearch that the gateway does not have; it is named, never approximated.

    Args:
        feature: its name, as Elasticsearch calls it.
        instead: what to do instead.
    """
    tail = f": {instead}" if instead else ""
    return illegal(f"[{feature}] is not supported by this gateway{tail}")


def no_index(index: str) -> ApiError:
    """The index does not exist."""
    return ApiError(
        404,
        "index_not_found_exception",
        f"no such index [{index}]",
        **{"resource.type": "index_or_alias", "resource.id": index, "index": index},
    )

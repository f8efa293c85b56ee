"""Names: of indices, of documents, and of the points that they become."""

from __future__ import annotations

import secrets
import uuid

from gateway.errors import ApiError, illegal, unsupported

_FORBIDDEN = set('\\/*?"<>| ,#:')
_NAMESPACE = uuid.UUID("6b1f3f0e-7a53-5d0e-9d7c-1f1a2c9d4b11")


def check_index(name: str) -> str:
    """Check the name of an index in a path.

    Raises:
        ApiError: 400, it names several indices, or it is not a name.
    """
    if name in ("_all", "*") or "," in name or "*" in name:
        raise unsupported(f"several indices in one request: {name}", "name one index")
    if name.startswith("<") and name.endswith(">"):
        raise unsupported(f"date math in the index name {name}")
    return name


def check_new_index(name: str) -> None:
    """Check the name of an index that is to be created.

    Raises:
        ApiError: 400, in Elasticsearch's words.
    """
    why = None
    if not name or name in (".", ".."):
        why = "must not be '.' or '..' or empty"
    elif name[0] in "_-+":
        why = "must not start with '_', '-', or '+'"
    elif name != name.lower():
        why = "must be lowercase"
    elif any(sign in _FORBIDDEN or not sign.isprintable() for sign in name):
        why = f"must not contain the following characters {sorted(_FORBIDDEN)}"
    elif len(name.encode()) > 255:
        why = f"index name is too long, ({len(name.encode())} > 255)"
    if why is not None:
        raise ApiError(
            400,
            "invalid_index_name_exception",
            f"Invalid index name [{name}], {why}",
            index=name,
        )


def check_id(id_: str) -> str:
    """Check a document's id.

    Raises:
        ApiError: 400, it is empty or longer than 512 bytes.
    """
    if not id_:
        raise illegal("if _id is specified it must not be empty")
    size = len(id_.encode())
    if size > 512:
        raise illegal(
            f"id [{id_[:64]}...] is too long, must be no longer than 512 bytes but was: {size}"
        )
    return id_


def new_id() -> str:
    """Make an id for a document that came without one."""
    return secrets.token_urlsafe(15)


def new_token() -> str:
    """Make a random token."""
    return secrets.token_hex(16)


def point_id(collection: str, id_: str) -> str:
    """The point that a document is: the same for the same id in the same collection."""
    return str(uuid.uuid5(_NAMESPACE, f"{collection}\x00{id_}"))

"""The control side of an engine of documents, over the part of Elasticsearch's REST API they share.

The gateway, OpenSearch and Elasticsearch are created, loaded and counted by the same calls.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from refill.engines.description import EngineError
from refill.load.wire import Address, Connection, WireError, prepare


class DocumentsApi:
    """One kept connection to an engine; never used inside a timed request.

    Args:
        name: the engine's, for messages.
        address: where it listens.
        headers: sent with every call, such as a user's.
        timeout_s: of one call.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.name = name
        self.address = address
        self._headers = dict(headers or {})
        self._connection = Connection(address, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Make one call and give its answer.

        Raises:
            EngineError: it failed, or the answer is an error or no JSON object.
        """
        data = prepare(self.address, method, path, body, self._headers)
        try:
            status, answer = self._connection.request(data)
        except WireError as error:
            raise EngineError(f"{self.name}: {method} {path}: {error}") from error
        if status not in (200, 201):
            words = self._without_credentials(error_text(answer))
            raise EngineError(f"{self.name}: {method} {path}: {status}: {words}")
        return json_object(answer, f"{self.name}: {path}")

    def _without_credentials(self, text: str) -> str:
        """Take what was sent to be let in out of an engine's words, which name the user."""
        for value in private_parts(self._headers):
            text = text.replace(value, "<credentials>")
        return text

    def create_index(self, index: str, body: Mapping[str, Any]) -> None:
        """Create an index; `body` holds its mappings and settings."""
        self.call("PUT", f"/{index}", orjson.dumps(body))

    def delete_index(self, index: str) -> None:
        """Delete an index."""
        self.call("DELETE", f"/{index}")

    def load(self, index: str, bodies: Iterable[bytes]) -> int:
        """Send bulk requests, read every item's outcome, refresh.

        Returns:
            How many documents were created.

        Raises:
            EngineError: an item was refused, or was there before; with the first one's outcome.
        """
        created = 0
        for body in bodies:
            answer = self.call("POST", f"/{index}/_bulk", body)
            with understood(f"{self.name}: /{index}/_bulk"):
                outcomes = [outcome for item in answer["items"] for outcome in item.values()]
                others = [outcome for outcome in outcomes if outcome["status"] != 201]
            if others:
                shown = orjson.dumps(others[0]).decode()[:300]
                raise EngineError(
                    f"{self.name}: bulk: {len(others)} of {len(outcomes)} documents were not "
                    f"created; the first: {shown}"
                )
            created += len(outcomes)
        self.call("POST", f"/{index}/_refresh")
        return created

    def count(self, index: str) -> int:
        """Count the documents of an index."""
        with understood(f"{self.name}: /{index}/_count"):
            return int(self.call("GET", f"/{index}/_count")["count"])


def error_text(answer: bytes) -> str:
    """Give the reason from an error answer, at most 200 characters."""
    try:
        text = orjson.loads(answer)["error"]["reason"]
    except (ValueError, KeyError, TypeError):
        text = answer.decode(errors="replace")
    return str(text)[:200]


def private_parts(headers: Mapping[str, str]) -> list[str]:
    """Give what must not be recorded of the headers of a user: key, or user and password."""
    kind, _, value = headers.get("Authorization", "").partition(" ")
    if kind != "Basic":
        return [value] if value else []
    user, _, password = base64.b64decode(value).decode().partition(":")
    return [value, *(part for part in (password, user) if part)]


@contextmanager
def understood(where: str) -> Iterator[None]:
    """Turn an answer of another form than the engine's into an error that says so.

    Raises:
        EngineError: a part is missing, or is of another kind; `where` says what was asked.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"{where}: the answer is not of the form that this engine gives "
            f"({type(error).__name__}: {error}): is it this engine that listens there?"
        ) from error


def json_object(answer: bytes, where: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        EngineError: it is none; `where` says what gave it.
    """
    try:
        value = orjson.loads(answer)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EngineError(f"{where}: not a JSON object: {answer[:80]!r}")
    return value

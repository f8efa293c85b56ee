"""A source of requests that were made before; light to import, since every client imports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from refill.load.wire import Address, prepare


class Prepared:
    """Key i is the i-th request.

    Args:
        requests: method, path and body of each; an empty body is none.
        address: where they go.
        headers: of each, beside those that every request has.
    """

    def __init__(
        self,
        requests: Iterable[tuple[str, str, bytes]],
        address: Address,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._data = [
            prepare(address, method, path, body or None, dict(headers or {}))
            for method, path, body in requests
        ]

    def open(self) -> None:
        """All requests are ready."""

    def __call__(self, key: int) -> bytes:
        """Give the bytes of request `key`."""
        return self._data[key]

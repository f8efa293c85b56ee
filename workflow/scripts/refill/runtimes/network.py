"""What a client pays for a container's network: round trips by different ways to one engine.

A port that is published on loopback goes through a relay of the daemon's; a container's own address
goes over the bridge alone. The cheapest request of an engine is sent both ways in turn, outside of
anything that is timed for a result.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from refill.load.wire import Address, Connection, WireError, prepare
from refill.stats.quantiles import nearest_rank

ROUND_TRIPS = 200
# The ways take turns in blocks, so that a slow moment of the machine meets all of them.
BLOCK = 20
TIMEOUT_S = 10.0

RoundTrip = Callable[[], None]
Opener = Callable[[Address], AbstractContextManager[RoundTrip]]


@contextmanager
def http(address: Address) -> Iterator[RoundTrip]:
    """Ask for `/` on a kept connection, whatever the answer is."""
    connection, data = Connection(address, TIMEOUT_S), prepare(address, "GET", "/")

    def ask() -> None:
        connection.request(data)

    try:
        yield ask
    finally:
        connection.close()


@contextmanager
def resp(address: Address) -> Iterator[RoundTrip]:
    """Send PING on a kept connection; that it is refused without a password costs the same trip."""
    with socket.create_connection((address.host, address.port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask() -> None:
            connection.sendall(b"PING\r\n")
            answer = b""
            while not answer.endswith(b"\r\n"):
                part = connection.recv(4096)
                if not part:
                    raise ConnectionError("the server closed the connection")
                answer += part

        yield ask


def compare(
    ways: Mapping[str, Address], opener: Opener, round_trips: int = ROUND_TRIPS
) -> dict[str, dict[str, float]]:
    """Time round trips by several ways in turn.

    Args:
        ways: addresses of one engine, by the name of the way.
        opener: opens a connection and gives what makes one round trip on it.
        round_trips: how many are timed by each way.

    Returns:
        By way `p50_us` and `p95_us` of a round trip.

    Raises:
        OSError, WireError: one of the addresses cannot be reached.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    with ExitStack() as opened:
        trips = {name: opened.enter_context(opener(address)) for name, address in ways.items()}
        for trip in trips.values():
            _timed(trip, BLOCK)
        for _ in range(-(-round_trips // BLOCK)):
            for name, trip in trips.items():
                times[name] += _timed(trip, BLOCK)
    return {
        name: {f"p{q}_us": round(nearest_rank(found, q / 100) * 1e6, 1) for q in (50, 95)}
        for name, found in times.items()
    }


def published_cost(published: Address, container: Address | None, opener: Opener) -> dict[str, Any]:
    """Compare a published port with the container's own address.

    Returns:
        `way`, which requests take; `round_trips`; `published_port` and `container_address` with
        their p50 and p95 in microseconds, and `cost_us`, the difference of the two p50. Where one
        of the addresses cannot be reached, `not_measured` says why in their place.
    """
    way = {"way": "published port"}
    if container is None:
        return {**way, "not_measured": "the container has no address of its own"}
    try:
        found = compare({"published_port": published, "container_address": container}, opener)
    except (OSError, WireError) as error:
        return {**way, "not_measured": str(error)}
    cost = found["published_port"]["p50_us"] - found["container_address"]["p50_us"]
    return {**way, "round_trips": ROUND_TRIPS, **found, "cost_us": round(cost, 1)}


def _timed(trip: RoundTrip, count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        trip()
        times.append(time.perf_counter() - start)
    return times

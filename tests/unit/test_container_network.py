"""Round trips by two ways to one engine: real sockets, one of them behind a slow relay."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from refill.load.wire import Address
from refill.runtimes.network import BLOCK, compare, published_cost, resp

DELAY_S = 0.002


@contextmanager
def answering(delay_s: float, answers: int | None = None) -> Iterator[tuple[Address, list[bytes]]]:
    """Answer every line as a Valkey that wants a password; give what was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def serve() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # nobody came
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while data := connection.recv(4096):
                asked.append(data)
                if answers is not None and len(asked) > answers:
                    return
                time.sleep(delay_s)
                # In two parts, as a network may deliver it.
                connection.sendall(b"-NOAUTH Authentication")
                connection.sendall(b" required.\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", listener.getsockname()[1]), asked
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def test_the_slower_way_is_seen_in_both_quantiles_and_in_the_cost() -> None:
    with answering(DELAY_S) as (slow, asked), answering(0) as (quick, _):
        found = published_cost(slow, quick, resp)
    assert set(asked) == {b"PING\r\n"}
    assert found["round_trips"] == 200
    assert len(asked) == 200 + BLOCK  # the first block warms the connection up
    assert found["published_port"]["p95_us"] >= found["published_port"]["p50_us"] >= 2000
    difference = found["published_port"]["p50_us"] - found["container_address"]["p50_us"]
    assert found["cost_us"] == pytest.approx(difference, abs=0.1)


def test_a_number_that_is_no_multiple_of_the_block_is_rounded_up() -> None:
    with answering(0) as (address, asked):
        compare({"only": address}, resp, BLOCK + 1)
    assert len(asked) == 3 * BLOCK


def test_what_cannot_be_measured_says_why() -> None:
    with answering(0) as (address, _):
        assert "address of its own" in published_cost(address, None, resp)["not_measured"]
    with answering(0) as (good, _), socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
        unused.close()
        found = published_cost(good, Address("127.0.0.1", port), resp)
    assert "refused" in found["not_measured"]
    with answering(0, answers=5) as (broken, _), answering(0) as (good, _):
        found = published_cost(broken, good, resp)
    assert found["not_measured"]
    assert "cost_us" not in found

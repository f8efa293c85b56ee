"""The wire: whole answers, limits, and broken servers, against real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from refill.load.wire import Address, Connection, WireError, WireTimeoutError, prepare

Script = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[..., Address]]:
    """Start a server that handles one connection after the other with the given scripts."""
    listeners: list[socket.socket] = []

    def start(*scripts: Script) -> Address:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            for script in scripts:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        script(connection)
                except OSError:
                    return

        threading.Thread(target=run, daemon=True).start()
        return Address("127.0.0.1", listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def answer(*pieces: bytes, gap_s: float = 0.0) -> Script:
    """Read a request, then send the pieces, each in a segment of its own."""

    def script(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(gap_s)

    return script


def ask(address: Address, timeout_s: float = 5.0) -> tuple[int, bytes]:
    connection = Connection(address, timeout_s)
    try:
        return connection.request(prepare(address, "GET", "/"))
    finally:
        connection.close()


def test_an_answer_in_pieces_is_put_together(serve: Callable[..., Address]) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nContent-", b"Length: 10\r\n", b"\r\n01234", b"56789"]
    assert ask(serve(answer(*pieces, gap_s=0.02))) == (200, b"0123456789")


def test_chunks_are_put_together(serve: Callable[..., Address]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [head, b"4;x=1\r\nab", b"cd\r\n6\r\nefghij\r\n", b"0\r\n\r\n"]
    assert ask(serve(answer(*pieces, gap_s=0.02))) == (200, b"abcdefghij")


def test_a_kept_connection_carries_several_requests(serve: Callable[..., Address]) -> None:
    def twice(connection: socket.socket) -> None:
        for number in b"12":
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + bytes([number]))

    address = serve(twice)
    connection = Connection(address, 5.0)
    data = prepare(address, "GET", "/")
    assert [connection.request(data)[1] for _ in range(2)] == [b"1", b"2"]
    connection.close()


def test_a_silent_server_is_a_timeout(serve: Callable[..., Address]) -> None:
    def silent(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.recv(1)  # until the client gives up

    with pytest.raises(WireTimeoutError, match=r"no answer within 0\.2 s"):
        ask(serve(silent), timeout_s=0.2)


def test_a_trickling_server_is_a_timeout_too(serve: Callable[..., Address]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    with pytest.raises(WireTimeoutError):
        ask(serve(answer(head, *[b"x"] * 100, gap_s=0.05)), timeout_s=0.4)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n012"], "closed the connection"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n"], "not a content length"),
        ([b"HTTP/1.1 200 OK\r\n\r\nbody"], "neither a length nor chunks"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], "not a chunk size"),
        ([b"SSH-2.0-x\r\n\r\n"], "not an HTTP answer"),
        ([], "closed the connection"),
    ],
)
def test_a_broken_answer_is_an_error(
    serve: Callable[..., Address], pieces: list[bytes], words: str
) -> None:
    with pytest.raises(WireError, match=words):
        ask(serve(answer(*pieces)))


def test_nothing_is_retried_and_the_next_request_connects_anew(
    serve: Callable[..., Address],
) -> None:
    seen: list[int] = []

    def close_at_once(connection: socket.socket) -> None:
        seen.append(len(connection.recv(1 << 16)))

    good = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    address = serve(close_at_once, good)
    connection = Connection(address, 5.0)
    data = prepare(address, "GET", "/")
    with pytest.raises(WireError):
        connection.request(data)
    assert seen == [len(data)]
    assert connection.request(data) == (200, b"ok")
    connection.close()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(WireError, match="connect"):
        ask(Address("127.0.0.1", port))


@pytest.mark.parametrize("url", ["ftp://x", "localhost:6333", "http://", "http://u:p@host"])
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Address.from_url(url)


def test_a_url_is_read() -> None:
    address = Address.from_url("https://db.example/qdrant/")
    assert address == Address("db.example", 443, True, "/qdrant")
    assert b"GET /qdrant/x HTTP/1.1\r\nHost: db.example:443\r\n" in prepare(address, "GET", "/x")

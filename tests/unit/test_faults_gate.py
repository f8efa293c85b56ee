"""A gate on a real server: what it holds, lets go, drops, and what comes later through it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from refill.faults.gate import ANSWER, REQUEST, Gate
from refill.load.wire import Address

WAIT_S = 20.0


class Echo(BaseHTTPRequestHandler):
    """Answers with the path, and keeps the order in which requests came."""

    protocol_version = "HTTP/1.1"
    came: list[str]

    def do_GET(self) -> None:
        self.came.append(self.path)
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def came() -> list[str]:
    return []


@pytest.fixture
def gate(came: list[str]) -> Iterator[Gate]:
    handler = type("Handler", (Echo,), {"came": came})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with closing(Gate(Address("127.0.0.1", server.server_port))) as made:
            yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def ask(gate: Gate, path: str) -> str:
    connection = HTTPConnection(gate.address.host, gate.address.port, timeout=WAIT_S)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def test_only_what_is_named_is_held(gate: Gate, pool: ThreadPoolExecutor, came: list[str]) -> None:
    gate.hold(REQUEST, naming=b"/held")
    held: Future[str] = pool.submit(ask, gate, "/held")
    assert gate.held.wait(WAIT_S)
    assert ask(gate, "/other") == "/other"
    assert came == ["/other"]
    gate.release()
    assert held.result(WAIT_S) == "/held"
    assert came == ["/other", "/held"]


def test_an_answer_is_held_when_its_request_was_done(
    gate: Gate, pool: ThreadPoolExecutor, came: list[str]
) -> None:
    gate.hold(ANSWER)
    held = pool.submit(ask, gate, "/first")
    assert gate.held.wait(WAIT_S)
    assert came == ["/first"]
    assert not held.done()
    gate.stand_aside()
    assert ask(gate, "/second") == "/second"
    gate.release()
    assert held.result(WAIT_S) == "/first"


def test_a_request_comes_when_its_sender_is_no_more(gate: Gate, came: list[str]) -> None:
    gate.hold(REQUEST)
    with socket.create_connection((gate.address.host, gate.address.port)) as sender:
        sender.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
        assert gate.held.wait(WAIT_S)
    gate.release()
    deadline = time.monotonic() + WAIT_S
    while not came and time.monotonic() < deadline:
        time.sleep(0.005)
    assert came == ["/late"]


def test_what_is_dropped_never_comes(gate: Gate, pool: ThreadPoolExecutor, came: list[str]) -> None:
    gate.hold(REQUEST)
    held = pool.submit(ask, gate, "/dropped")
    assert gate.held.wait(WAIT_S)
    gate.release(drop=True)
    with pytest.raises((OSError, HTTPException)):
        held.result(WAIT_S)
    assert ask(gate, "/next") == "/next"
    assert came == ["/next"]


def test_a_delay_is_for_what_is_named(gate: Gate) -> None:
    gate.delay(b"/slow", 0.2)
    began = time.monotonic()
    assert ask(gate, "/slow") == "/slow"
    assert time.monotonic() - began >= 0.2


def test_a_closed_gate_takes_nothing_more(gate: Gate) -> None:
    gate.close()
    with pytest.raises(OSError, match="refused"), suppress(HTTPException):
        ask(gate, "/late")


def test_a_gate_in_front_of_nothing_closes_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with closing(Gate(Address("127.0.0.1", port))) as gate:
        for _ in range(2):
            with pytest.raises((OSError, HTTPException)):
                ask(gate, "/")

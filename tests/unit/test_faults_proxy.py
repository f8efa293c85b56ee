"""The fault proxy alone: what it passes on, what it changes, what it refuses."""

from __future__ import annotations

import random
import time
from pathlib import Path

import orjson
import pytest
from null_server import NullServer, ok
from refill.faults.__main__ import main
from refill.faults.kinds import FAULTS, NONE, kind_of
from refill.faults.messages import Message
from refill.faults.process import FaultProxy
from refill.faults.table import CASES, CHECKS, markdown
from refill.load.wire import Connection, WireError, prepare

HITS = b'{"result":{"points":[{"id":17,"version":0,"score":0.93},{"id":4,"score":-1.5}]}}'
QUERY = "/collections/c/points/query"


def ask(connection: Connection, body: bytes = b"{}", path: str = QUERY) -> tuple[int, bytes]:
    return connection.request(prepare(connection.address, "POST", path, body))


def test_without_a_fault_every_byte_is_passed_on_kept_connections(tmp_path: Path) -> None:
    bodies = [b"{}", HITS, b"x" * 300_000]

    def reply(number: int, _: bytes) -> bytes:
        if number == 3:
            return (
                b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"3\r\nabc\r\n4;x=1\r\ndefg\r\n0\r\n\r\n"
            )
        return ok(bodies[number])

    with (
        NullServer(reply) as server,
        FaultProxy(server.address, "none", tmp_path / "log") as proxy,
    ):
        connection = Connection(proxy.address, 10)
        answers = [ask(connection, b"%d" % n) for n in range(4)]
        connection.close()
        assert len(server._connections) == 1
    assert answers == [*((200, body) for body in bodies), (404, b"abcdefg")]
    assert [request.rpartition(b"\r\n")[2] for request in server.requests] == [
        b"0", b"1", b"2", b"3",
    ]  # fmt: skip


def test_one_request_of_each_block_is_hit_where_the_seed_says(tmp_path: Path) -> None:
    def hit(seed: int, name: str) -> list[int]:
        with (
            NullServer(lambda _, __: ok(HITS)) as server,
            FaultProxy(
                server.address, "corrupt-json", tmp_path / name, seed=seed, share=0.1
            ) as proxy,
        ):
            connection = Connection(proxy.address, 10)
            bad = [n for n in range(50) if ask(connection)[1] != HITS]
            assert [line["number"] - 1 for line in proxy.put_in()] == bad
        return bad

    first = hit(1, "a")
    assert [n // 10 for n in first] == [0, 1, 2, 3, 4]
    assert hit(1, "b") == first
    assert hit(2, "c") != first


def test_only_the_requests_that_it_concerns_are_hit(tmp_path: Path) -> None:
    with (
        NullServer(lambda _, __: ok(HITS)) as server,
        FaultProxy(server.address, "empty", tmp_path / "log") as proxy,
    ):
        connection = Connection(proxy.address, 10)
        assert ask(connection, path="/collections/c/points/count") == (200, HITS)
        assert orjson.loads(ask(connection)[1]) == {"result": {"points": []}}


def test_a_stall_holds_all_connections_and_ends(tmp_path: Path) -> None:
    with (
        NullServer() as server,
        FaultProxy(server.address, "stall", tmp_path / "log", at=2, seconds=0.7) as proxy,
    ):
        one, other = Connection(proxy.address, 10), Connection(proxy.address, 0.2)
        ask(one)
        began = time.monotonic()
        assert ask(one) == (200, b"{}")
        assert time.monotonic() - began >= 0.7
        assert ask(other) == (200, b"{}")
        assert len(proxy.put_in()) == 1


def test_a_dropped_answer_was_asked_for_all_the_same(tmp_path: Path) -> None:
    with (
        NullServer() as server,
        FaultProxy(server.address, "drop", tmp_path / "log", share=1) as proxy,
    ):
        with pytest.raises(WireError, match="closed the connection"):
            ask(Connection(proxy.address, 10))
        assert len(server.requests) == 1


def message(body: bytes, path: str = QUERY, method: str = "POST") -> Message:
    return Message(f"{method} {path} HTTP/1.1".encode(), (), body)


@pytest.mark.parametrize(
    "body",
    [
        HITS,
        b'{"hits":{"total":{"value":120,"relation":"eq"},"hits":[{"_id":"0"},{"_id":"99"}]}}',
        b'{"aggregations":{"a":{"buckets":[{"key":"UA","doc_count":10}]}}}',
        b'{"result":{"operation_id":0,"status":"acknowledged"}}',
        b'{"result":{"points":[{"id":0,"score":1.0},{"id":5,"score":1e-05}]}}',
    ],
)
def test_a_changed_value_is_json_of_the_same_length_and_says_something_else(body: bytes) -> None:
    change = FAULTS["corrupt-value"].response
    assert change is not None
    for seed in range(200):
        sent = change(message(b"{}"), Message(b"HTTP/1.1 200 OK", (), body), random.Random(seed))
        assert sent is not None
        assert sent.message is not None
        assert len(sent.message.body) == len(body)
        assert orjson.loads(sent.message.body) != orjson.loads(body)


def test_searches_uploads_and_the_rest_are_told_apart() -> None:
    assert kind_of(message(b"")) == kind_of(message(b"", "/flights/_search")) == "search"
    assert kind_of(message(b"", "/flights/_doc/12", "GET")) == "search"
    assert kind_of(message(b"", "/collections/c/points?wait=false", "PUT")) == "upload"
    assert kind_of(message(b"", "/flights/_bulk")) == "upload"
    assert kind_of(message(b"", "/collections/c", "PUT")) == "control"


def test_the_table_has_every_fault_and_every_check() -> None:
    assert {case.fault for case in CASES} == FAULTS.keys()
    assert {case.check for case in CASES} == {*CHECKS, None}
    assert len({case.name for case in CASES}) == len(CASES)
    # Without a fault both experiments are valid, or the table would say nothing.
    assert sum(case.fault == NONE and case.check is None for case in CASES) == 2
    text = markdown()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(CASES)
    assert all(row.count("|") == 6 for row in rows)


def test_the_command_prints_the_table_and_says_what_it_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["table"]) == 0
    assert capsys.readouterr().out == markdown()
    for words, problem in (
        (["--to", "http://h:1"], "--to and --fault are needed"),
        (["--to", "ftp://h", "--fault", "drop"], "is not an address of the form"),
        (["--to", "https://h:1", "--fault", "drop"], "without TLS"),
        (["--to", "http://h:1", "--fault", "drop", "--share", "2"], "must be above 0"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert problem in capsys.readouterr().err

"""What the embedded Qdrant refuses, in Qdrant's shape, and how it starts and speaks HTTP."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from engines.edge_server import DEADLINE_SECONDS, TREE, EdgeServer

C = "/collections/c"
VECTORS = {"size": 2, "distance": "Dot"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeServer]:
    storage = tmp_path_factory.mktemp("errors") / "storage"
    with EdgeServer(storage, options=["--max-request-size-mb", "1"]) as running:
        running.result("PUT", C, {"vectors": VECTORS})
        running.result("PUT", f"{C}/index", {"field_name": "n", "field_schema": "integer"})
        points = [{"id": n, "vector": [n, 1], "payload": {"n": n}} for n in range(5)]
        running.result("PUT", f"{C}/points?wait=true", {"points": points})
        yield running


def upsert(point: Any) -> tuple[str, str, Any]:
    return "PUT", f"{C}/points?wait=true", {"points": [point]}


def create(**fields: Any) -> tuple[str, str, Any]:
    return "PUT", "/collections/new", {"vectors": VECTORS, **fields}


def query(**fields: Any) -> tuple[str, str, Any]:
    return "POST", f"{C}/points/query", fields


REFUSED: dict[str, tuple[tuple[str, str, Any], int, str]] = {
    "unknown route": (("GET", "/nothing", None), 404, "GET /nothing is not served"),
    "unknown method": (("PUT", "/collections", {}), 404, "is not served"),
    "unknown operation": (("POST", f"{C}/points/search", {}), 404, "is not served"),
    "missing collection": (
        ("GET", "/collections/gone", None),
        404,
        "Not found: Collection `gone` doesn't exist!",
    ),
    "write to a missing collection": (
        ("PUT", "/collections/gone/points", {"points": []}),
        404,
        "Not found: Collection `gone` doesn't exist!",
    ),
    "collection exists": (("PUT", C, {"vectors": VECTORS}), 409, "already exists"),
    "bad collection name": (("PUT", "/collections/a%3Ab", {"vectors": VECTORS}), 422, "name"),
    "not JSON": (("POST", f"{C}/points/query", b"{nonsense"), 400, "Format error in JSON body"),
    "not an object": (("POST", f"{C}/points/query", []), 400, "expected an object"),
    "unknown field": (query(limits=3), 400, "unknown field `limits`"),
    "unknown field in a filter": (query(filter={"muss": []}), 400, "unknown field `muss`"),
    "unknown field in a condition": (
        query(filter={"must": [{"key": "n", "matsch": 1}]}),
        400,
        "unknown field `matsch`",
    ),
    "unknown field in search parameters": (query(params={"ef": 1}), 400, "unknown field `ef`"),
    "unknown field in a point": (
        upsert({"id": 1, "vector": [1, 1], "extra": 1}),
        400,
        "points[0]: unknown field `extra`",
    ),
    "unknown field in a new collection": (create(optimizer={}), 400, "unknown field `optimizer`"),
    "unknown field in the optimizers": (
        create(optimizers_config={"index_threshold": 1}),
        400,
        "optimizers_config: unknown field `index_threshold`",
    ),
    "unknown field in a patch": (("PATCH", C, {"hnsw": {}}), 400, "unknown field `hnsw`"),
    "unknown query parameter": (
        ("PUT", f"{C}/points?waiting=true", {"points": []}),
        400,
        "unknown parameter `waiting`",
    ),
    "wait neither true nor false": (
        ("PUT", f"{C}/points?wait=1", {"points": []}),
        400,
        "wait `1` is not true or false",
    ),
    "no vectors": (("PUT", "/collections/new", {}), 400, "missing field `vectors`"),
    "unknown distance": (
        create(vectors={"size": 2, "distance": "Far"}),
        400,
        "unknown variant `Far`",
    ),
    "vector of no dimension": (create(vectors={"size": 0, "distance": "Dot"}), 422, "vectors.size"),
    "vacuum minimum below 100": (
        create(optimizers_config={"vacuum_min_vector_number": 99}),
        422,
        "must be 100 or larger",
    ),
    "deleted threshold above 1": (
        create(optimizers_config={"deleted_threshold": 1.5}),
        422,
        "must be from 0 to 1",
    ),
    "more than one shard": (create(shard_number=2), 400, "`shard_number above 1` is not supported"),
    "write-ahead log": (
        create(wal_config={"wal_capacity_mb": 1}),
        400,
        "`wal_config` is not supported",
    ),
    "wrong dimension": (
        upsert({"id": 1, "vector": [1, 2, 3]}),
        400,
        "Wrong input: Vector dimension error: expected dim: 2, got 3",
    ),
    "unknown vector name": (
        upsert({"id": 1, "vector": {"x": [1, 2]}}),
        400,
        "Wrong input: Not existing vector name error: x",
    ),
    "vector of strings": (upsert({"id": 1, "vector": ["a", "b"]}), 400, "array of numbers"),
    "point without a vector": (upsert({"id": 1}), 400, "points[0]: missing field `vector`"),
    "negative id": (upsert({"id": -1, "vector": [1, 1]}), 400, "not a valid point ID"),
    "id that is no UUID": (upsert({"id": "x", "vector": [1, 1]}), 400, "not a valid point ID"),
    "id that is a boolean": (upsert({"id": True, "vector": [1, 1]}), 400, "not a valid point ID"),
    "inference": (
        upsert({"id": 1, "vector": {"": {"text": "hello", "model": "m"}}}),
        400,
        "`inference` is not supported",
    ),
    "columns of unequal length": (
        ("PUT", f"{C}/points", {"batch": {"ids": [1, 2], "vectors": [[1, 1]]}}),
        400,
        "2 ids but an array of 1",
    ),
    "conditional upsert": (
        ("PUT", f"{C}/points", {"points": [], "update_filter": {}}),
        400,
        "`update_filter` is not supported",
    ),
    "search with the wrong dimension": (query(query=[1, 2, 3]), 400, "Vector dimension error"),
    "search of an unknown vector": (
        query(query=[1, 2], using="x"),
        400,
        "Not existing vector name error: x",
    ),
    "search by the id of no point": (query(query=77), 404, "No point with id 77 found"),
    "limit of zero": (query(query=[1, 1], limit=0), 422, "must be 1 or larger"),
    "fusion": (query(query={"fusion": "rrf"}), 400, "`fusion query` is not supported"),
    "prefetch": (query(prefetch=[{"query": [1, 1]}]), 400, "`prefetch` is not supported"),
    "recommend": (
        query(query={"recommend": {"positive": [1]}}),
        400,
        "`recommend query` is not supported",
    ),
    "order by a field without an index": (
        query(query={"order_by": "x"}),
        400,
        "No range index for `order_by` key: `x`",
    ),
    "facet of a field without an index": (
        ("POST", f"{C}/facet", {"key": "x"}),
        400,
        "No appropriate index for faceting: `x`",
    ),
    "offset beside order_by": (
        ("POST", f"{C}/points/scroll", {"offset": 1, "order_by": "n"}),
        400,
        "Cannot use an `offset` when using `order_by`",
    ),
    "two forms of match": (
        query(filter={"must": {"key": "n", "match": {"value": 1, "any": [1]}}}),
        400,
        "expected exactly one of",
    ),
    "mixed list in match any": (
        query(filter={"must": {"key": "n", "match": {"any": [1, "a"]}}}),
        400,
        "strings or of integers",
    ),
    "condition without a condition": (query(filter={"must": {"key": "n"}}), 400, "at least one"),
    "ids and a filter": (
        ("POST", f"{C}/points/delete", {"points": [1], "filter": {}}),
        400,
        "exactly one of `points` and `filter`",
    ),
    "payload of a missing point": (
        ("POST", f"{C}/points/payload?wait=true", {"payload": {"a": 1}, "points": [1, 66]}),
        404,
        "No point with id 66 found",
    ),
    "missing point": (("GET", f"{C}/points/66", None), 404, "No point with id 66 found"),
    "unknown index type": (
        ("PUT", f"{C}/index", {"field_name": "x", "field_schema": "number"}),
        400,
        "unknown variant `number`",
    ),
    "unknown part of the optimizations": (
        ("GET", f"{C}/optimizations?with=queued,done", None),
        400,
        "unknown parts ['done']",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_qdrants_shape(server: EdgeServer, name: str) -> None:
    (method, path, body), status, words = REFUSED[name]
    given, answer = server.request(method, path, body)
    assert set(answer) == {"status", "time"}, answer
    assert words in answer["status"]["error"]
    assert given == status


def test_refused_writes_change_nothing(server: EdgeServer) -> None:
    for name in ("wrong dimension", "payload of a missing point"):
        server.request(*REFUSED[name][0])
    result = server.result("POST", f"{C}/points/scroll", {"with_vector": True})
    assert result["points"] == [{"id": n, "vector": [n, 1], "payload": {"n": n}} for n in range(5)]


def exchange(server: EdgeServer, data: bytes, answers: int = 1) -> list[tuple[int, bytes]]:
    """Send bytes on a connection; the status and body of so many answers."""
    found: list[tuple[int, bytes]] = []
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_SECONDS) as connection:
        connection.sendall(data)
        buffer = b""
        while len(found) < answers:
            part = connection.recv(65536)
            buffer += part
            while match := re.match(
                rb"HTTP/1\.1 (\d+) .*?\r\ncontent-length: (\d+)\r\n.*?\r\n", buffer, re.DOTALL
            ):
                end = buffer.index(b"\r\n\r\n") + 4
                size = int(match.group(2))
                if len(buffer) < end + size:
                    break
                found.append((int(match.group(1)), buffer[end : end + size]))
                buffer = buffer[end + size :]
            if not part:
                break
    return found


def test_too_large_bodies_get_413(server: EdgeServer) -> None:
    announced = b"PUT %s/points HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n" % C.encode()
    ((status, body),) = exchange(server, announced)
    assert status == 413
    assert "Payload too large" in orjson.loads(body)["status"]["error"]
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = b"PUT %s/points HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % C.encode()
    ((status, _),) = exchange(server, head + chunk * 17)
    assert status == 413


def test_chunked_bodies_are_read(server: EdgeServer) -> None:
    body = b'{"exact": true}'
    parts = b"".join(b"%x\r\n%s\r\n" % (1, body[n : n + 1]) for n in range(len(body)))
    head = b"POST %s/points/count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    ((status, answer),) = exchange(server, head % C.encode() + parts + b"0\r\n\r\n")
    assert (status, orjson.loads(answer)["result"]) == (200, {"count": 5})


def test_pipelined_requests_are_answered_in_order(server: EdgeServer) -> None:
    """Writes that wait and reads that do not, on one connection, more than are read ahead."""
    server.result("PUT", "/collections/pipe", {"vectors": VECTORS})
    data = b""
    for n in range(60):
        body = orjson.dumps({"points": [{"id": n, "vector": [n, 1]}]})
        data += (
            b"PUT /collections/pipe/points?wait=true HTTP/1.1\r\nHost: x\r\nContent-Length: %d"
            b"\r\n\r\n%s" % (len(body), body)
        )
        data += b"POST /collections/pipe/points/count HTTP/1.1\r\nHost: x\r\n"
        data += b"Content-Length: 2\r\n\r\n{}"
    answers = exchange(server, data, 120)
    assert [status for status, _ in answers] == [200] * 120
    counts = [orjson.loads(body)["result"]["count"] for _, body in answers[1::2]]
    assert counts == list(range(1, 61))


def test_bad_http_gets_400_and_the_connection_is_closed(server: EdgeServer) -> None:
    ((status, body),) = exchange(server, b"NONSENSE\r\n\r\n" + b"x" * 10, answers=2)
    assert status == 400
    assert "Bad request" in orjson.loads(body)["status"]["error"]


def test_expect_100_continue(server: EdgeServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_SECONDS) as connection:
        head = b"POST %s/points/count HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        connection.sendall(head % C.encode() + b"Expect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(b"{}")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_an_api_key_is_asked_for_and_never_shown(tmp_path: Path) -> None:
    secret = "a-secret-of-this-test"
    options = ["--api-key-env", "REFILL_TEST_KEY", "--log-level", "debug"]
    environment = {"REFILL_TEST_KEY": secret}
    with EdgeServer(
        tmp_path / "s", options=options, environment=environment, api_key=secret
    ) as server:
        assert server.client().get_collections().collections == []
        get = b"GET /collections HTTP/1.1\r\nHost: x\r\n%s\r\n"
        bearer = exchange(server, get % b"Authorization: Bearer a-secret-of-this-test\r\n")
        assert bearer[0][0] == 200
        assert exchange(server, get % b"")[0][0] == 401
        assert exchange(server, get % b"api-key: wrong\r\n")[0][0] == 401
        assert exchange(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")[0][0] == 200
        command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert server.stop() == 0
        assert secret.encode() not in command + server.log.read_bytes()


BAD_ARGUMENTS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "no storage": (["--port", "0"], {}, "--storage DIR is missing"),
    "no port": (["--storage", "s"], {}, "--port N is missing"),
    "bad port": (["--storage", "s", "--port", "70000"], {}, "must be from 0 to 65535"),
    "unset key": (
        ["--storage", "s", "--port", "0", "--api-key-env", "REFILL_UNSET"],
        {},
        "this variable is not set or empty",
    ),
    "storage is a file": (["--storage", "file", "--port", "0"], {}, "not a directory"),
    "bad number of CPUs": (
        ["--storage", "s", "--port", "0"],
        {"QDRANT_NUM_CPUS": "two"},
        "QDRANT_NUM_CPUS='two'",
    ),
    "unknown option": (["--storages", "s", "--port", "0"], {}, "unrecognized arguments"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_exit_with_2(tmp_path: Path, name: str) -> None:
    arguments, environment, words = BAD_ARGUMENTS[name]
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, TREE, *arguments],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_second_server_on_the_storage_or_the_port_is_refused(tmp_path: Path) -> None:
    def start(storage: Path, port: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, TREE, "--storage", storage, "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    with EdgeServer(tmp_path / "s") as server:
        second = start(server.storage, 0)
        assert second.returncode == 1
        assert f"in use by another server (process {server.process.pid})" in second.stderr
        other = start(tmp_path / "other", server.port)
        assert other.returncode == 1
        assert f"cannot listen on 127.0.0.1:{server.port}" in other.stderr
        assert server.stop() == 0
    with EdgeServer(tmp_path / "s") as server:
        assert server.result("GET", "/collections") == {"collections": []}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_runs_from_a_zip_archive_and_stops_cleanly(tmp_path: Path, number: int) -> None:
    archive = tmp_path / "qdrant-edge.pyz"
    with zipfile.ZipFile(archive, "w") as target:
        for path in sorted(TREE.rglob("*.py")):
            target.write(path, path.relative_to(TREE))
    with EdgeServer(tmp_path / "s", program=archive) as server:
        fields = {"vectors": VECTORS, "optimizers_config": {"indexing_threshold": 1}}
        server.result("PUT", C, fields)
        points = [{"id": n, "vector": [n, 1]} for n in range(300)]
        server.result("PUT", f"{C}/points?wait=true", {"points": points})
        # The optimizer process comes from the archive too.
        assert server.wait_green(C.rpartition("/")[2])["indexed_vectors_count"] >= 256
        optimizer = server.optimizer_pid()
        assert optimizer is not None
        assert server.stop(number) == 0
        assert not Path(f"/proc/{optimizer}").exists()

"""The running parts of the gateway's bench, and the client processes that load a gateway."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from refill.bench import cpu
from refill.contexts import OpensParts
from refill.corpora.documents import Documents
from refill.engines import gateway, qdrant, valkey
from refill.engines.description import Description, archive_program
from refill.load.clients import Clients
from refill.load.loops import Job, Row
from refill.load.prepared import Prepared
from refill.load.wire import Address
from refill.load.worker import Setup
from refill.operations.requests import Request
from refill.oracle.documents import judge
from refill.processes import wait_for
from refill.runtimes.process import ProcessEngine

INDEX = "flights"
START_S = 30.0
TIMEOUT_S = 10.0
IDLE_POLLS, IDLE_S = 3, 60.0
TTL_S = 600
MAX_ENTRY_BYTES = 262_144


class Parts(OpensParts):
    """One Valkey and one Qdrant, and gateways over them. Used as a context.

    Args:
        archives: those of the images `old`, `new` and `qdrant`.
        folder: takes data and logs.
        wrap_valkey: makes another command of the one that runs Valkey.
    """

    def __init__(
        self,
        archives: Mapping[str, Path],
        folder: Path,
        wrap_valkey: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self._archives = archives
        self._folder = folder
        self._wrap_valkey = wrap_valkey
        self._started = 0
        self._engines: dict[str, ProcessEngine] = {}
        self._gateways: dict[Address, ProcessEngine] = {}

    def _start(self) -> None:
        self._password = valkey.new_password()
        server = valkey.server([str(valkey.find_binary(None))], self._password, START_S)
        if (wrap := self._wrap_valkey) is not None:
            plain = server.command
            server = replace(server, command=lambda place: wrap(plain(place)))
        self.valkey = self._started_engine("valkey", server)
        self.control = valkey.Control(self.valkey, self._password)
        self._open.callback(self.control.close)
        cpus = len(os.sched_getaffinity(0))
        embedded = qdrant.embedded(archive_program(self._archives["qdrant"]), cpus, START_S)
        self.qdrant = self._started_engine("qdrant", embedded)

    def _started_engine(self, name: str, description: Description) -> Address:
        self._engines[name] = self._open.enter_context(self._engine(name, description))
        return self._engines[name].address

    def cpu(self, address: Address) -> dict[str, float | None]:
        """Give the processor time so far, in seconds, of a gateway and of what it stands on."""
        engines = {"gateway": self._gateways[address], **self._engines}
        return {name: cpu.seconds(engine.pid) for name, engine in engines.items()}

    def _engine(self, name: str, description: Description) -> ProcessEngine:
        # A folder each: an engine removes the folder above its own at its end.
        return ProcessEngine(description, self._folder / name, self._folder / f"{name}.log")

    @contextmanager
    def gateway(
        self, image: str, serving: bool = True, ttl_s: float = TTL_S, behind: Address | None = None
    ) -> Iterator[Address]:
        """Run a gateway of an image, over what earlier gateways of this image loaded.

        Args:
            image: `old` or `new`; its namespace has its name.
            serving: whether it serves from the cache.
            ttl_s: how long a fill is served.
            behind: a relay to Qdrant to use in place of Qdrant itself.

        Yields:
            Where it listens.
        """
        self._started += 1
        settings = {
            "ttl_s": ttl_s,
            "max_entry_bytes": MAX_ENTRY_BYTES,
            "namespace": f"bench{image}",
            "start_timeout_s": START_S,
        }
        backends = gateway.Backends(self.valkey, self._password, behind or self.qdrant, None)
        program = archive_program(self._archives[image])
        described = gateway.server(program, image, backends, serving, settings)
        with self._engine(f"gateway-{self._started}", described) as engine:
            self._gateways[engine.address] = engine
            yield engine.address

    def load(self, address: Address, documents: Documents) -> None:
        """Load all documents through a gateway; wait until Qdrant is at rest."""
        api = gateway.Api(address)
        try:
            api.create_index(INDEX, documents.index_body())
            written = api.load(INDEX, documents.bulk(INDEX))
        finally:
            api.close()
        if written != documents.count:
            raise RuntimeError(f"{written:,} of {documents.count:,} documents were loaded")
        self._wait_until_idle()

    def _wait_until_idle(self) -> None:
        api, idle = qdrant.Api(self.qdrant, None), 0

        def look() -> bool:
            nonlocal idle
            busy = None
            for entry in api.call("GET", "/collections")["collections"]:
                path = f"/collections/{entry['name']}"
                work = api.call("GET", f"{path}/optimizations?with=queued")
                busy = busy or qdrant.read_state(api.call("GET", path), work).busy
            idle = idle + 1 if busy is None else 0
            return idle >= IDLE_POLLS

        try:
            if not wait_for(look, IDLE_S, 0.05):
                raise RuntimeError(f"qdrant is not at rest after {IDLE_S:g} s")
        finally:
            api.close()

    @contextmanager
    def ping(self) -> Iterator[Callable[[], float]]:
        """Give what makes one PING on a kept connection and gives its seconds."""
        address = (self.valkey.host, self.valkey.port)
        with socket.create_connection(address, timeout=TIMEOUT_S) as kept:
            kept.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def call(command: bytes, wanted: bytes) -> float:
                start = time.perf_counter()
                kept.sendall(command)
                answer = kept.recv(4096)
                took = time.perf_counter() - start
                if answer != wanted:
                    raise RuntimeError(f"valkey: {answer[:60]!r} in answer to a command")
                return took

            call(f"AUTH {self._password}\r\n".encode(), b"+OK\r\n")
            yield lambda: call(b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n")


@contextmanager
def control(address: Address) -> Iterator[gateway.Api]:
    """Give what asks a gateway for its counters."""
    api = gateway.Api(address)
    try:
        yield api
    finally:
        api.close()


class Load:
    """Client processes against one gateway. Used as a context.

    Args:
        address: where the gateway listens.
        requests: all that will be asked for; a key is a place in it. None is `GET /`.
        clients: how many processes.
    """

    def __init__(self, address: Address, requests: Sequence[Request | None], clients: int) -> None:
        self._requests = requests
        self._rows: list[Row] = []
        self._seen: set[tuple[int, bytes]] = set()
        asked = ((r.method, r.path, r.body) if r else ("GET", "/", b"") for r in requests)
        source = Prepared(asked, address)
        origin = time.monotonic()
        setups = [Setup(n, address, source, TIMEOUT_S, origin) for n in range(clients)]
        self._clients = Clients(setups, self._rows.extend)

    def __enter__(self) -> Self:
        self._clients.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clients.__exit__(kind, error, trace)

    def issue(self, keys: Sequence[int], clients: int = 1) -> list[Row]:
        """Issue each key once, spread over so many clients; judge what came.

        Raises:
            RuntimeError: a response is not right.
        """
        self._rows.clear()
        parts = [part for n in range(clients) if (part := keys[n::clients])]
        self._clients.run([Job("bench", "closed", 0, part, len(part)) for part in parts])
        rows = list(self._rows)
        if len(rows) != len(keys):
            raise RuntimeError(f"{len(keys)} requests were issued, {len(rows)} are known of")
        for row in rows:
            self._judge(row)
        return rows

    def _judge(self, row: Row) -> None:
        request = self._requests[row.key]
        if row.outcome != "answered" or row.http != 200:
            path = request.path if request else "/"
            raise RuntimeError(f"{path}: {row.outcome} {row.http}: {row.detail}")
        # A warm answer is the same bytes over and over: judged once.
        if request is None or (row.key, row.body) in self._seen:
            return
        judgement = judge(request, row.http, row.body)
        if judgement.status != "ok":
            raise RuntimeError(f"{request.path}: {judgement.status}: {judgement.detail}")
        self._seen.add((row.key, row.body))

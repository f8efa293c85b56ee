"""Start the embedded Qdrant as a real process, talk to it, stop it or kill it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from qdrant_client import QdrantClient

TREE = Path(__file__).resolve().parents[2] / "images" / "qdrant-edge"
# Generous: the machine may be busy. A test that needs it all has failed.
DEADLINE_SECONDS = 60.0


def poll(what: str, check: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Call `check` until it returns something true, and return that; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not seen within {seconds:g} s: {what}")
        time.sleep(0.01)


class EdgeServer:
    """A running server. Leaves no process behind when the `with` block ends."""

    def __init__(
        self,
        storage: Path,
        *,
        program: Path = TREE,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        api_key: str | None = None,
    ) -> None:
        self.storage = storage
        self._api_key = api_key
        self.log = storage.with_name(storage.name + ".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, program, "--storage", storage, "--port", "0", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "QDRANT_NUM_CPUS": "2", **(environment or {})},
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"qdrant-edge listening on http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            self.process.wait(timeout=DEADLINE_SECONDS)
            raise AssertionError(f"no start line but {line!r}; log: {self.log.read_text()}")
        self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def client(self) -> QdrantClient:
        """The unmodified client library, over REST.

        Without its version check, which runs in a thread of its own and may outlive the server.
        """
        return QdrantClient(
            url=self.url, timeout=60, api_key=self._api_key, check_compatibility=False
        )

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request as it is: status and decoded JSON body. Bytes are sent as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_SECONDS)
        try:
            data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
            headers = {} if self._api_key is None else {"api-key": self._api_key}
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, orjson.loads(answer.read())
        finally:
            connection.close()

    def result(self, method: str, path: str, body: Any = None) -> Any:
        """The `result` of a request that must succeed."""
        status, answer = self.request(method, path, body)
        assert status == 200, (method, path, status, answer)
        return answer["result"]

    def info(self, collection: str) -> Any:
        """The collection info as JSON."""
        return self.result("GET", f"/collections/{collection}")

    def optimizations(self, collection: str) -> Any:
        """Everything `/optimizations` tells."""
        return self.result(
            "GET", f"/collections/{collection}/optimizations?with=queued,completed,idle_segments"
        )

    def layers(self, collection: str) -> Any:
        """The layers, newest first."""
        return self.result("GET", f"/edge/collections/{collection}")["layers"]

    def wait_green(self, collection: str) -> Any:
        """Wait until nothing is queued, running or pending; the info of that moment."""

        def idle() -> Any:
            info = self.info(collection)
            assert info["status"] != "red", info
            return (
                info if info["status"] == "green" and not info["update_queue"]["length"] else None
            )

        return poll(f"{collection} green", idle)

    def wait_durable(self, collection: str) -> None:
        """Wait until every applied write is flushed."""

        def flushed() -> bool:
            queued = self.info(collection)["update_queue"]["length"]
            return not queued and all(layer["durable"] for layer in self.layers(collection))

        poll(f"{collection} durable", flushed)

    def optimizer_pid(self) -> int | None:
        """The process id of the optimizer process, if one runs."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            children = (task / "children").read_text().split()
            if children:
                return int(children[0])
        return None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop cleanly; the exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout=DEADLINE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=DEADLINE_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()

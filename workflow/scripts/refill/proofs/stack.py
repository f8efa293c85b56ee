"""A whole gateway of an image, on a real server and Qdrant."""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import replace
from typing import Any, Self

from refill.contexts import OpensParts
from refill.engines import gateway
from refill.engines.description import Description, EngineError
from refill.load.wire import Address, Connection, WireError, prepare
from refill.proofs.calls import NAMESPACE
from refill.proofs.engines import GATEWAY, QDRANT, Engine
from refill.proofs.findings import NotRunError
from refill.proofs.subject import Subject

START_S = 60.0
RECOVER_GRACE_S = 0.1
REQUEST_S = 30.0
LISTEN_S = 5.0
SETTINGS = {
    "ttl_s": 600, "max_entry_bytes": 262_144, "namespace": NAMESPACE, "start_timeout_s": START_S,
}  # fmt: skip

Answer = tuple[int, Any]


class Gone(Exception):  # noqa: N818
    """The gateway ended before it answered."""


class Stack(OpensParts):
    """A server, the embedded Qdrant and a gateway. Used as a context.

    Raises:
        NotRunError: the subject has scripts alone.
        EngineError: a part does not start.
    """

    def __init__(self, subject: Subject, **settings: str) -> None:
        if subject.parts is None:
            raise NotRunError("needs the images of a gateway and of Qdrant")
        super().__init__()
        self._parts = subject.parts
        self._place = subject.place()
        self.server = subject.server(None, **settings)

    def _start(self) -> None:
        self._open.enter_context(self.server)
        self._place.mkdir()
        self.qdrant = self._opened(
            QDRANT, self._parts.qdrant(len(os.sched_getaffinity(0)), START_S)
        )
        backends = gateway.Backends(
            self.server.engine.inner, self.server.password, self.qdrant.inner, None
        )
        program, image_id = self._parts.program, self._parts.image_id
        self._described = gateway.server(program, image_id, backends, True, SETTINGS)
        self.gateway = self._opened(GATEWAY, self._described)

    def _opened(self, part: str, description: Description) -> Engine:
        return self._open.enter_context(self._parts.engine(part, description, self._place))

    # ---- the gateway's life

    def kill_gateway(self) -> None:
        """SIGKILL."""
        self.gateway.kill()

    def start_gateway(self, serving: bool = True) -> float:
        """Start it and wait until it serves, or only until it listens; the seconds that took."""
        began = time.monotonic()
        ready = gateway.is_ready if serving else _listens
        self.gateway.description = replace(self._described, ready=ready)
        self.gateway.start()
        return time.monotonic() - began

    def wait_ready(self) -> None:
        """Wait until it serves again after the server was away.

        Raises:
            EngineError: it does not within a minute.
        """
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if gateway.is_ready(self.gateway.address):
                return
            time.sleep(0.01)
        raise EngineError("gateway: it does not serve again after the server came back")

    def recover(self, *options: str) -> str:
        """Run the image's own `recover` command; what it said.

        Raises:
            EngineError: it failed.
        """
        status, said = self.gateway.run(
            ["recover", "--older-than", "0", "--grace", str(RECOVER_GRACE_S), *options]
        )
        if status != 0:
            raise EngineError(f"gateway: recover: {said.strip()[-500:]}")
        return said

    # ---- talking to it

    def connection(self) -> Http:
        """A kept connection of one client."""
        return Http(self.gateway.address)

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """One request on a connection of its own; raises Gone."""
        with Http(self.gateway.address) as connection:
            return connection.call(method, path, body)

    def counters(self) -> Any:
        """The gateway's own counters."""
        return self.call("GET", "/_refill/stats")[1]


def _listens(address: Address) -> bool:
    """Say whether it answers at all: a container's port takes connections before that."""
    connection = Connection(address, LISTEN_S)
    try:
        connection.request(prepare(address, "GET", "/"))
    except WireError as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    return True


class Http:
    """A kept connection that is made again after an error."""

    def __init__(self, address: Address) -> None:
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=REQUEST_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """Make a request; a text body goes as it is.

        Raises:
            Gone: there was no answer.
        """
        data = body if isinstance(body, str | None) else json.dumps(body)
        try:
            self._connection.request(method, path, data, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Gone(str(error)) from error
        return response.status, json.loads(answer) if answer else None

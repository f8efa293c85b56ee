"""Whole gateways of an image, on a real server and Qdrant."""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from refill.contexts import OpensParts
from refill.engines import gateway
from refill.engines.description import Description, EngineError
from refill.faults.gate import Gate
from refill.load.wire import Address, Connection, WireError, prepare
from refill.proofs.calls import NAMESPACE
from refill.proofs.engines import GATEWAY, QDRANT, Engine
from refill.proofs.findings import NotRunError
from refill.proofs.monitor import Monitor
from refill.proofs.subject import Subject

START_S = 60.0
RECOVER_GRACE_S = 0.1
REQUEST_S = 30.0
LISTEN_S = 5.0
TTL_S = 600
SETTINGS = {
    "ttl_s": TTL_S, "max_entry_bytes": 262_144, "namespace": NAMESPACE, "start_timeout_s": START_S,
}  # fmt: skip

# Whether gateways reach Qdrant through gates.
NO, IF_POSSIBLE, YES = "no", "if possible", "yes"

Answer = tuple[int, Any]


class Gone(ConnectionError):  # noqa: N818
    """The gateway ended before it answered."""


class Stack(OpensParts):
    """A server, the embedded Qdrant and gateways on one catalog. Used as a context.

    Args:
        subject: whose image the gateways are of.
        gateways: how many.
        gated: whether each gateway reaches Qdrant through a gate of its own: NO, YES or, where
            gates may be out of the gateways' reach, IF_POSSIBLE.
        monitored: whether everything that the server is asked is listened to, from before the first
            gateway's start.
        settings: of the server.

    Attributes:
        server, qdrant: what the gateways work on.
        gateways: the gateways, the first of which is killed and started.
        gates: in front of Qdrant, one for each gateway; none where they are not asked for.
        monitor: where it is asked for.

    Raises:
        NotRunError: the subject has scripts alone, or gates cannot be reached here.
        EngineError: a part does not start.
    """

    monitor: Monitor

    def __init__(
        self,
        subject: Subject,
        *,
        gateways: int = 1,
        gated: str = NO,
        monitored: bool = False,
        **settings: str,
    ) -> None:
        if subject.parts is None:
            raise NotRunError("needs the images of a gateway and of Qdrant")
        super().__init__()
        self._parts = subject.parts
        self._place = subject.place()
        self._number, self._gated, self._monitored = gateways, gated, monitored
        self.server = subject.server(None, **settings)
        self.server.used_by = "a gateway"
        self.gateways: list[Engine] = []
        self.gates: list[Gate] = []

    def _start(self) -> None:
        self._open.enter_context(self.server)
        self.qdrant = self._opened(
            QDRANT, self._parts.qdrant(len(os.sched_getaffinity(0)), START_S), self._place
        )
        if self._monitored:
            self.monitor = self._open.enter_context(Monitor(self.server))
        for number in range(self._number):
            described = self._describe(self._way_to_qdrant())
            place = self._place / f"{GATEWAY}-{number}" if number else self._place
            self.gateways.append(self._opened(GATEWAY, described, place))

    def _way_to_qdrant(self) -> Address:
        if self._gated == NO:
            return self.qdrant.inner
        try:
            gate = self._parts.gate(self.qdrant)
        except NotRunError:
            if self._gated == IF_POSSIBLE:
                return self.qdrant.inner
            raise
        self._open.callback(gate.close)
        self.gates.append(gate)
        return gate.address

    def _describe(self, way_to_qdrant: Address) -> Description:
        backends = gateway.Backends(
            self.server.engine.inner, self.server.password, way_to_qdrant, None
        )
        return gateway.server(self._parts.program, self._parts.image_id, backends, True, SETTINGS)

    def _opened(self, part: str, description: Description, place: Path) -> Engine:
        place.mkdir(exist_ok=True)
        return self._open.enter_context(self._parts.engine(part, description, place))

    # ---- the first gateway's life

    def kill_gateway(self) -> None:
        """SIGKILL.

        Raises:
            ChangedError: a gateway has changed the server's settings.
        """
        self.gateways[0].kill()
        # Here, too: its next start may already stumble over what it did in this life.
        self.server.check_settings()

    def start_gateway(self, serving: bool = True) -> float:
        """Start it and wait until it serves, or only until it listens; the seconds that took."""
        began = time.monotonic()
        ready = gateway.is_ready if serving else _listens
        first = self.gateways[0]
        first.description = replace(first.description, ready=ready)
        first.start()
        return time.monotonic() - began

    def wait_ready(self) -> None:
        """Wait until all serve again after the server was away.

        Raises:
            EngineError: one does not within a minute.
        """
        deadline = time.monotonic() + START_S
        waiting = list(self.gateways)
        while time.monotonic() < deadline:
            waiting = [engine for engine in waiting if not gateway.is_ready(engine.address)]
            if not waiting:
                return
            time.sleep(0.01)
        raise EngineError("gateway: it does not serve again after the server came back")

    def recover(self, *options: str) -> str:
        """Run the image's own `recover` command; what it said.

        Raises:
            EngineError: it failed.
        """
        # Beside a gateway that runs: a container that has ended runs nothing.
        running = next((e for e in self.gateways if e.ended() is None), self.gateways[0])
        status, said = running.run(
            ["recover", "--older-than", "0", "--grace", str(RECOVER_GRACE_S), *options]
        )
        if status != 0:
            raise EngineError(f"gateway: recover: {said.strip()[-500:]}")
        return said

    # ---- talking to them

    def connection(self, through: int = 0) -> Http:
        """A kept connection of one client, to one of the gateways."""
        return Http(self.gateways[through].address)

    def call(self, method: str, path: str, body: Any = None, through: int = 0) -> Answer:
        """One request on a connection of its own; raises Gone."""
        with self.connection(through) as connection:
            return connection.call(method, path, body)

    def must(self, method: str, path: str, body: Any = None, through: int = 0) -> Any:
        """The answer of a request that must succeed.

        Raises:
            EngineError: it did not.
            Gone: there was no answer.
        """
        status, answer = self.call(method, path, body, through)
        if status not in (200, 201):
            raise EngineError(f"gateway: {method} {path}: {status}: {answer}")
        return answer

    def counters(self, through: int = 0) -> Any:
        """The counters of one of the gateways."""
        return self.call("GET", "/_refill/stats", through=through)[1]


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
        status, answer = self.raw(method, path, body)
        return status, json.loads(answer) if answer else None

    def raw(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """As `call`, with the answer as it came."""
        data = body if isinstance(body, str | None) else json.dumps(body)
        try:
            self._connection.request(method, path, data, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Gone(str(error)) from error
        return response.status, answer

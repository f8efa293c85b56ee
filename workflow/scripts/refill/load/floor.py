"""The driver's floor: what a request costs when the server does nothing.

The null server answers every request with the same prepared bytes, on the same wire and from a
process of its own, so the floor holds the driver's work, two trips over loopback, and two
wake-ups. A latency that is not well above it says nothing of the engine.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np

from refill.load.clients import Clients
from refill.load.loops import Job, Row
from refill.load.wire import Address, prepare
from refill.load.worker import Setup
from refill.processes import die_with_parent, module_command, module_environment

ANSWER = b'{"result":{"points":[]},"status":"ok","time":0.0}'


class Same:
    """A request source that gives the same bytes for every key."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def open(self) -> None:
        """Nothing is to be made ready."""

    def __call__(self, key: int) -> bytes:
        """Give the bytes."""
        return self.data


def answer_forever(listener: socket.socket) -> None:
    """Serve one connection after the other; every complete request gets the same answer."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(ANSWER)}\r\n\r\n".encode()
    answer = head + ANSWER
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while connection.recv(1 << 16):
                connection.sendall(answer)


def measure(requests: int = 3000, warm_up: int = 300) -> dict[str, Any]:
    """Measure the closed loop against the null server with one client.

    Returns:
        `floor_p50_ms`, `floor_p95_ms`, `floor_n`, and what the null server was.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = subprocess.Popen(
        module_command("refill.load.floor", str(listener.fileno())),
        pass_fds=[listener.fileno()],
        env=module_environment(),
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    listener.close()
    rows: list[Row] = []
    try:
        address = Address("127.0.0.1", port)
        source = Same(prepare(address, "POST", "/null", b"{}"))
        setup = Setup(0, address, source, 10.0, time.monotonic())
        with Clients([setup], rows.extend) as clients:
            clients.run([Job("floor", "closed", 0, [0], count=warm_up + requests)])
    finally:
        server.kill()
        server.wait()
    failed = [row for row in rows if row.outcome != "answered"]
    if failed:
        raise RuntimeError(f"the null server failed {len(failed)} times: {failed[0].detail}")
    latencies = np.array([row.done - row.sent for row in rows[warm_up:]])
    p50, p95 = np.quantile(latencies, [0.5, 0.95], method="inverted_cdf") * 1e3
    return {
        "floor_p50_ms": round(float(p50), 4),
        "floor_p95_ms": round(float(p95), 4),
        "floor_n": len(latencies),
        "null_server": "a process on loopback that answers fixed bytes",
    }


if __name__ == "__main__":
    answer_forever(socket.socket(fileno=int(sys.argv[1])))

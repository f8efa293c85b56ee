"""Whether what answers is the server that was started, by itself and as durable as it must be.

A program that starts the server in its place can leave it alive behind a kill, or give it other
settings: then crashes are none, and what survives them proves nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil
from redis.exceptions import RedisError

from refill.engines.valkey import DURABLE, connect
from refill.load.wire import Address
from refill.processes import wait_for
from refill.proofs.engines import Engine
from refill.proofs.findings import ControlError
from refill.runtimes.process import ProcessEngine

# What the proof relies on, whatever a server's own defaults are.
RELIED_ON = {
    **DURABLE,
    "no-appendfsync-on-rewrite": "no",
    "auto-aof-rewrite-percentage": "0",
    "aof-load-truncated": "yes",
    "aof-use-rdb-preamble": "yes",
    "appendfilename": "appendonly.aof",
    "appenddirname": "appendonlydir",
    "rdbchecksum": "yes",
    "save": "",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
}
# Until nothing listens at the port of a server that was killed.
GONE_S = 10.0
CONNECT_S = 2.0


class Identity:
    """What a server must be at each of its starts.

    Args:
        name: in messages.
        engine: what runs it.
        settings: that were given to it, and are compared.
        version: product and version, such as `Valkey 8.1.8`; empty: not known yet.

    Attributes:
        process: its number, as it says itself.
        settings: those of the last start, as it says itself, without its folder.
    """

    def __init__(
        self, name: str, engine: Engine, settings: Mapping[str, str], version: str
    ) -> None:
        self._name = name
        self._engine = engine
        self._wanted = dict(settings)
        self._version = version
        self._runs: set[str] = set()
        self.process = 0
        self.settings: dict[str, str] = {}

    def check(self, client: Any) -> None:
        """Look at a server that has just been started.

        Raises:
            ControlError: it is another one, one that was killed, or has other settings.
        """
        info: Mapping[str, Any] = client.info("server")
        self.process = int(info["process_id"])
        # A container has process numbers of its own, and ends with all that runs in it.
        if isinstance(self._engine, ProcessEngine) and not self._engine.owns(self.process):
            _ask_to_end(client)
            raise ControlError(
                f"{self._name}: process {self.process} answers, which is neither the one that was "
                f"started ({self._engine.pid}) nor of its group, so that a kill would reach it "
                "late or not at all: give the server itself, or a script that ends with `exec`"
            )
        if (run := str(info["run_id"])) in self._runs:
            raise ControlError(
                f"{self._name}: the run_id after a kill and a start is the one of before: the "
                "server was not killed"
            )
        self._runs.add(run)
        if self._version not in ("", found := product_of(info)):
            raise ControlError(
                f"{self._name}: {found} answers, its program says it is {self._version}"
            )
        if other := self.departures(client):
            raise ControlError(
                f"{self._name}: runs with {', '.join(other)} as it was told: give the server "
                "itself, not a program that changes its settings"
            )

    def departures(self, client: Any) -> list[str]:
        """Say in words which settings are not those that were given; keep what they are now."""
        seen = {str(name): str(value) for name, value in client.config_get(*self._wanted).items()}
        self.settings = {name: value for name, value in seen.items() if name != "dir"}
        return [
            f"{name} {seen.get(name)!r} and not {value!r}"
            for name, value in self._wanted.items()
            if seen.get(name) != value
        ]

    def check_gone(self, password: str) -> None:
        """Look whether a server that was killed is dead; one that is not is asked to end.

        Raises:
            ControlError: something listens at its port still.
        """
        address = self._engine.address
        if wait_for(lambda: not _listens(address), GONE_S, 0.01):
            return
        who = listener(address.port)
        client = connect(address, password)
        _ask_to_end(client)
        client.close()
        raise ControlError(
            f"{self._name}: after its kill {who} still listens at its port {address.port}: the "
            "kill does not end it"
        )


def product_of(info: Mapping[str, Any]) -> str:
    """Give product and version out of INFO, such as `Valkey 8.1.8`."""
    # Valkey also gives the version of Redis that it is compatible with.
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def listener(port: int) -> str:
    """Say which process of this machine listens at a port, for a message."""
    found = [
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    ]
    if not found or found[0] is None:
        return "a process that cannot be seen from here"
    try:
        return f"process {found[0]} ({psutil.Process(found[0]).name()})"
    except psutil.NoSuchProcess:
        return f"process {found[0]}"


def _listens(address: Address) -> bool:
    try:
        with socket.create_connection((address.host, address.port), CONNECT_S):
            return True
    except OSError:
        return False


def _ask_to_end(client: Any) -> None:
    # It ends without an answer; and it may be another's, whose password this is not.
    with suppress(RedisError, OSError):
        client.execute_command("SHUTDOWN", "NOSAVE", "NOW", "FORCE")

"""Ports for engines, of those that the system gives to nobody by itself.

A port of the ephemeral range (Linux: 32768 to 60999) can be taken between its choice and the
engine's start, and while an engine is down between a kill and its next start: by any outgoing
connection of this machine, and in a container by the daemon's own name server, which listens in the
container's network on a port that the system picks for it.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

LEAST, MOST = 10_000, 65_535
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES = 1000
# An engine may ask for two, and starts with both later.
_given: set[int] = set()
# Which ports are this process's, as remainder and divisor.
_share = 0, 1


def take_share(number: int, of: int) -> None:
    """Let this process take only its share of the ports: processes side by side never meet.

    Args:
        number: of this process among them, from 0.
        of: how many they are.
    """
    global _share
    _share = number, of


def free_port() -> int:
    """Give a port on loopback that nothing listens on now, and that this process got only once.

    Raises:
        OSError: there is none.
    """
    ephemeral, (number, of) = _ephemeral(), _share
    every = [port for port in range(LEAST, MOST + 1) if port % of == number]
    # Where the ephemeral range is everything, there is no choice.
    wanted = [port for port in every if port not in ephemeral] or every
    # Of the system's own randomness: a seed of a measurement must not lead two runs to one port.
    system = random.SystemRandom()
    for _ in range(TRIES):
        port = system.choice(wanted)
        if port in _given:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port
    raise OSError(f"no free port on loopback in {TRIES} tries of {LEAST} to {MOST}")


def _ephemeral() -> range:
    """Give the ports that the system picks from for whoever asks for any."""
    try:
        first, last = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        first, last = 32_768, MOST
    return range(first, last + 1)

"""Ports for engines: which ones are given, against this machine's own sockets."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from refill.runtimes import ports

LINUX_ONLY = pytest.mark.skipif(not ports.EPHEMERAL.exists(), reason="the system has no /proc")


@LINUX_ONLY
def test_no_port_is_one_that_the_system_gives_to_others() -> None:
    first, last = map(int, ports.EPHEMERAL.read_text().split())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert first <= listener.getsockname()[1] <= last
    assert not [p for p in (ports.free_port() for _ in range(200)) if first <= p <= last]


def test_a_port_is_given_once_although_nothing_listens_on_it_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = ports.free_port()
    monkeypatch.setattr(ports, "LEAST", first)
    monkeypatch.setattr(ports, "MOST", first)
    with pytest.raises(OSError, match=f"no free port .* of {first} to {first}"):
        ports.free_port()


def test_a_port_on_which_something_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as held:
        while True:
            first = random.randrange(10_000, 32_000)
            try:
                held.enter_context(socket.create_server(("127.0.0.1", first)))
                # The one beside it is free.
                socket.create_server(("127.0.0.1", first + 1)).close()
                break
            except OSError:
                continue
        monkeypatch.setattr(ports, "LEAST", first)
        monkeypatch.setattr(ports, "MOST", first + 1)
        # The one beside it may be one that an earlier test of this process was given.
        monkeypatch.setattr(ports, "_given", set())
        assert ports.free_port() == first + 1


def test_where_every_port_is_ephemeral_one_of_them_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = tmp_path / "range"
    everything.write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL", everything)
    assert ports.LEAST <= ports.free_port() <= ports.MOST


def test_processes_side_by_side_never_take_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set here, so that it is set back.
    monkeypatch.setattr(ports, "_share", (0, 1))
    taken = []
    for number in range(3):
        ports.take_share(number, 3)
        taken.append({ports.free_port() % 3 for _ in range(20)})
    assert taken == [{0}, {1}, {2}]

"""The proof calls the scripts as the gateway does: what goes over the wire is compared."""

from __future__ import annotations

import re
from typing import Any

import pytest
from proof_subject import subject
from redis import Connection
from refill.proofs.calls import INDICES_KEY, Call, Index
from refill.proofs.stack import Stack

WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
MAPPING = {"mappings": {"properties": {"n": {"type": "integer"}}}}
QUERY = {"sort": [{"n": "desc"}]}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[list[str], list[str]]]]:
    """Keys and arguments of every call of a script that a real gateway made, by script."""
    made = subject("new", tmp_path_factory.mktemp("calls"))
    with Stack(made) as stack:
        server = stack.server
        names = {server.client.script_load(s): name for name, s in made.sources.items()}
        monitor: Any = Connection(
            port=server.engine.address.port, password=server.password, socket_timeout=20
        )
        monitor.connect()
        monitor.send_command("MONITOR")
        monitor.read_response()
        stack.kill_gateway()
        stack.start_gateway()
        for method, path, body in (
            ("PUT", "/i", MAPPING),
            ("PUT", "/i/_doc/1", {"n": 1, "more": "a field that the mapping has not"}),
            ("POST", "/i/_search", QUERY),
            ("POST", "/i/_search", QUERY),
            ("DELETE", "/i", None),
        ):
            status, answer = stack.call(method, path, body)
            assert status in (200, 201), answer
        server.client.echo("the end")
        found: dict[str, list[tuple[list[str], list[str]]]] = {}
        while True:
            words = WORD.findall(monitor.read_response().decode(errors="replace"))
            if words[:2] == ["ECHO", "the end"]:
                monitor.disconnect()
                return found
            if words and words[0].upper() == "EVALSHA":
                count = int(words[2])
                call = (words[3 : 3 + count], words[3 + count :])
                found.setdefault(names[words[1]], []).append(call)


INDEX = Index("i")
CALLS: dict[str, Call] = {
    "epoch": INDEX.set_epoch(),
    "claim": INDEX.claim("create", "t"),
    "commit": INDEX.commit("create", "t"),
    "admit": INDEX.admit("t"),
    "extend": INDEX.extend("t", "{}"),
    "release": INDEX.release("t"),
    "view": INDEX.view(),
    "lookup": INDEX.lookup(INDEX.fill("f")),
    "publish": INDEX.publish(INDEX.fill("f"), "body"),
}


@pytest.mark.parametrize("name", CALLS)
def test_keys_and_arguments_are_those_of_the_gateway(
    name: str, seen: dict[str, list[tuple[list[str], list[str]]]]
) -> None:
    call = CALLS[name]
    assert seen[name], "the gateway did not call it"
    for keys, arguments in seen[name]:
        assert len(arguments) == len(call.arguments)
        assert [re.sub(r"(:fill:i):.+", r"\1:f", key) for key in keys] == list(call.keys)


def test_arguments_stand_in_the_gateways_order(
    seen: dict[str, list[tuple[list[str], list[str]]]],
) -> None:
    epoch = seen["view"][0][1][0]
    _, (_, kind, _, collection, *_) = seen["claim"][0]
    assert (kind, collection.split("-")[0]) == ("create", "proof")
    _, (first, _, kind, incarnation, name, mapping, settings) = seen["commit"][0]
    assert (first, kind, incarnation, name, settings) == (epoch, "create", collection, "i", "{}")
    assert "integer" in mapping
    _, (first, incarnation, version, token, count, _) = seen["admit"][0]
    assert (first, incarnation, version, count) == (epoch, collection, "1", "1")
    _, (first, incarnation, released) = seen["release"][0]
    assert (first, incarnation, released) == (epoch, collection, token)
    _, (first, incarnation, generation, _, ttl_ms, grace_ms, body, prefix) = seen["publish"][0]
    assert (first, incarnation, generation) == (epoch, collection, "1")
    assert (ttl_ms, grace_ms, prefix) == ("600000", "300000", "proof:fill:")
    assert "hits" in body
    assert INDICES_KEY == "proof:indices"

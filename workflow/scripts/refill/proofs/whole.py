"""Checks with a whole gateway: a flipped byte in its cache, and a data set that is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from refill.engines.description import EngineError
from refill.processes import wait_for
from refill.proofs.calls import FILL_PREFIX, plain
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.stack import Answer, Stack
from refill.proofs.subject import Subject

PATH = "/things/_search"
QUERY = {"sort": [{"n": "desc"}], "size": 10}
MARK = "unmistakable"
WRONG = "unmistakeble"
LOOK_S = 30.0


def _load(stack: Stack) -> Answer:
    """An index with one document, read twice: the second answer comes out of the cache."""
    stack.must("PUT", "/things", {"mappings": {"properties": {"n": {"type": "integer"}}}})
    stack.must("PUT", "/things/_doc/1", {"n": 1, "text": MARK})
    first = stack.call("POST", PATH, QUERY)
    again = stack.call("POST", PATH, QUERY)
    if again[1] != first[1] or stack.counters()["hits"] < 1:
        raise EngineError("gateway: a request that was repeated is no hit")
    return first


def _text(answer: Answer) -> Any:
    return answer[1]["hits"]["hits"][0]["_source"]["text"] if answer[0] == 200 else answer[0]


def _flip(file: Path) -> int:
    """Change one letter of the cached response's body in the log; how often it stood there."""
    content = file.read_bytes()
    # The document's text stands in Qdrant; in Valkey's log it can be in a fill alone.
    file.write_bytes(content.replace(MARK.encode(), WRONG.encode()))
    return content.count(MARK.encode())


def flipped_byte(subject: Subject, found: Findings) -> None:
    """A byte of a response changes in the log: what does the server do, and the gateway?

    A base file in the form of commands has no checksum, so a fill that a rewrite captured can be
    tried in both images.
    """
    with Stack(subject, aof_use_rdb_preamble="no") as stack:
        _load(stack)
        server = stack.server
        server.rewrite()
        server.kill()
        flipped = _flip(server.log_file("base"))
        server.start()
        stack.wait_ready()
        (fill,) = server.client.keys(f"{FILL_PREFIX}*") or (None,)
        entry = plain(server.client.get(fill)) if fill else ""
        before = stack.counters()
        answer = stack.call("POST", PATH, QUERY)
        after = stack.counters()
        damaged = after["misses_by_reason"].get("damaged", 0)
        found.note(
            flipped=flipped, server_starts=True, wrong_byte_in_memory=WRONG in entry,
            served_text=_text(answer), misses_for_damage=damaged,
            hits=after["hits"] - before["hits"],
        )  # fmt: skip
        found.control(flipped > 0 and WRONG in entry, "no wrong byte came into the server's memory")
        found.same("the text that is served", _text(answer), MARK)
        found.same("misses for a damaged response", damaged, 1)
        hits = after["hits"]
        found.same("the text a second time", _text(stack.call("POST", PATH, QUERY)), MARK)
        found.same("hits of the new response", stack.counters()["hits"] - hits, 1)
    with Stack(subject) as stack:
        _load(stack)
        stack.server.rewrite()
        stack.server.kill()
        base = stack.server.log_file("base")
        content = base.read_bytes()
        middle = len(content) // 2
        base.write_bytes(content[:middle] + bytes([content[middle] ^ 0x20]) + content[middle + 1 :])
        status = stack.server.start_or_end()
        found.note(exit_status_with_a_flipped_byte_in_an_rdb_base=status)
        found.expect(status not in (None, 0), "the server starts on an RDB base with a wrong byte")


def gateway_without_data(subject: Subject, found: Findings) -> None:
    """The server's data set is gone under a running gateway, and under one that starts."""
    with Stack(subject) as stack:
        _load(stack)
        server = stack.server
        epoch = server.raw("proof:epoch")
        server.kill()
        shutil.rmtree(server.log_folder)
        server.start()
        statuses = {}
        for what in ("running", "restarted"):
            if what == "restarted":
                stack.kill_gateway()
                stack.start_gateway(serving=False)
            # Until then it answers so for having no connection.
            looked = wait_for(lambda: _has_looked(stack), LOOK_S)
            found.control(looked, f"a {what} gateway did not look at the server's data set")
            statuses[what] = [
                stack.call("POST", PATH, QUERY)[0],
                stack.call("PUT", "/things/_doc/2", {"n": 2})[0],
            ]
        found.note(statuses=statuses, keys=int(server.client.dbsize()))
        for what, seen in statuses.items():
            found.same(f"read and write with a {what} gateway", seen, [503, 503])
        found.same("keys that they left", int(server.client.dbsize()), 0)
        said = stack.recover("--new-epoch", "--drop-orphans")
        found.expect("belongs to no index, deleted" in said, f"recover says {said!r}")
        stack.kill_gateway()
        stack.start_gateway()
        found.expect(server.raw("proof:epoch") not in (None, epoch), "the epoch is the old one")
        found.same("the old index", stack.call("POST", PATH, QUERY)[0], 404)
        _load(stack)


def _has_looked(stack: Stack) -> bool:
    """Say whether a gateway answers, or says that it has seen another data set than before."""
    status, answer = stack.call("POST", PATH, QUERY)
    return status != 503 or "restore it" in str(answer).lower()


CHECKS = (
    Check(
        "flipped-byte",
        "A flipped byte in a cached response is caught by the response's checksum",
        BEYOND,
        flipped_byte,
        default_only=True,
        cheap=False,
    ),
    Check(
        "gateway-without-data",
        "A gateway whose catalog is gone serves nothing, until a new epoch gives it up",
        BEYOND,
        gateway_without_data,
        default_only=True,
        cheap=False,
    ),
)

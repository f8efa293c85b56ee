"""Checks that no changed script or gateway can fail are seen to fail by a fault of the server.

Each fault stands for a server, a disk or a kernel that does not do what the check relies on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proof_subject import programs, subject
from refill.proofs import damage
from refill.proofs.calls import Call
from refill.proofs.findings import FAIL, NOT_RUN, Check, run_check
from refill.proofs.servers import DEFAULT, Server, find
from refill.proofs.strace import Strace
from refill.proofs.subject import Subject
from refill.proofs.suite import CHECKS
from test_proof_mutations import NONE

BY_ID: dict[str, Check] = {check.id: check for check in CHECKS}
# Takes the zeros off the end of a log, as a program does that "repairs" it before each start.
REPAIRS = """
import sys
from pathlib import Path
for file in Path(sys.argv[1]).rglob("*.incr.aof"):
    file.write_bytes(file.read_bytes().rstrip(bytes(1)))
"""


def failed(check: str, made: Subject) -> str:
    """Run a check that must fail; give why it does."""
    entry = run_check(BY_ID[check], made)
    if entry["outcome"] == NOT_RUN and not os.environ.get("CI"):
        pytest.skip(entry["why"])
    assert entry["outcome"] == FAIL, entry["why"]
    return str(entry["why"])


def test_a_server_that_still_knows_scripts_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Server.start
    monkeypatch.setattr(Server, "start", lambda server, load=True: start(server))
    assert "scripts unknown after" in failed("unknown-scripts", subject("new", tmp_path))


def test_a_step_that_is_not_one_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands in the place of one script: the log can end between them."""
    run = Server.run

    def apart(server: Server, call: Call) -> Any:
        if call.name != "apart":
            return run(server, call)
        server.client.hset("proof:index:i", "generation", 7)
        return server.client.hset("proof:index:i", "seq", 70)

    monkeypatch.setattr(Server, "run", apart)
    monkeypatch.setattr(damage, "_last_steps", lambda _: {"apart": Call("apart", (), ())})
    assert "bytes cut: half done" in failed("cut-tail", subject("new", tmp_path))


def test_a_server_that_starts_on_a_zeroed_tail(tmp_path: Path) -> None:
    real = programs()[DEFAULT].path
    wrapper, repairs = tmp_path / "wrapper", tmp_path / "repairs.py"
    repairs.write_text(REPAIRS)
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || "{sys.executable}" "{repairs}" "{tmp_path}"\n'
        f'exec "{real}" "$@"\n'
    )
    wrapper.chmod(0o755)
    program = find({DEFAULT: str(wrapper)})[0]
    made = replace(subject("new", tmp_path), program=program)
    assert "the server starts on a zeroed tail" in failed("zeroed-tail", made)


def test_a_server_that_answers_although_its_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync does not fail, which looks the same: there is an answer."""

    @contextmanager
    def fails_nothing(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(Strace, "failing_sync", fails_nothing)
    monkeypatch.setattr(damage, "END_S", 0.2)
    assert "although it was not synced" in failed("failed-sync", subject("new", tmp_path))


def test_a_fill_that_is_synced(tmp_path: Path) -> None:
    made = subject("new", tmp_path)
    source = made.sources["publish"].replace(NONE.encode(), b"")
    assert source != made.sources["publish"]
    made = replace(made, sources={**made.sources, "publish": source})
    assert "syncs of fills" in failed("sync-counts", made)

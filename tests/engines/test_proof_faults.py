"""Checks that no changed gateway can fail are seen to fail by a fault of a server, disk or script.

Each fault stands for a server, a disk or a kernel that does not do what the check relies on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import test_proof_checks
import test_proof_disk
import test_proof_gateway_mutations
import test_proof_mutations
from proof_subject import programs, subject
from refill.proofs import crash_server, damage
from refill.proofs.findings import FAIL, NOT_RUN, Check, run_check
from refill.proofs.servers import DEFAULT, Server, find
from refill.proofs.strace import Strace
from refill.proofs.subject import Subject
from refill.proofs.suite import CHECKS
from test_proof_mutations import ALL, NONE

BY_ID: dict[str, Check] = {check.id: check for check in CHECKS}
# What a program does to the end of a log when it "repairs" it before each start.
TAKES_ZEROS_OFF = "content.rstrip(bytes(1))"
# So that the commands of one script are no longer one step of the log.
TAKES_STEPS_APART = r"content.replace(b'*1\r\n$5\r\nMULTI\r\n', b'')"


def failed(check: str, made: Subject) -> str:
    """Run a check that must fail; give why it does."""
    entry = run_check(BY_ID[check], made)
    if entry["outcome"] == NOT_RUN and not os.environ.get("CI"):
        pytest.skip(entry["why"])
    assert entry["outcome"] == FAIL, entry["why"]
    return str(entry["why"])


def on_repaired_logs(folder: Path, repair: str) -> Subject:
    """A server that finds its log as a program has made it, which writes `repair` in its place."""
    wrapper, repairs = folder / "wrapper", folder / "repairs.py"
    repairs.write_text(
        "from pathlib import Path\n"
        f"for file in Path({str(folder)!r}).rglob('*.incr.aof'):\n"
        "    content = file.read_bytes()\n"
        f"    file.write_bytes({repair})\n"
    )
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || "{sys.executable}" "{repairs}"\n'
        f'exec "{programs()[DEFAULT].path}" "$@"\n'
    )
    wrapper.chmod(0o755)
    return replace(subject("new", folder), program=find({DEFAULT: str(wrapper)})[0])


def with_script(made: Subject, name: str, old: str, new: str) -> Subject:
    source = made.sources[name].decode()
    assert source.count(old) == 1
    return replace(made, sources={**made.sources, name: source.replace(old, new).encode()})


def test_a_server_that_still_knows_scripts_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Server.start
    monkeypatch.setattr(Server, "start", lambda server, load=True: start(server))
    why = failed("unknown-scripts", subject("new", tmp_path))
    assert why == "scripts unknown after: 0, wanted 11"


def test_a_step_that_is_not_one_in_the_log(tmp_path: Path) -> None:
    made = on_repaired_logs(tmp_path, TAKES_STEPS_APART)
    assert "bytes cut: half done" in failed("cut-tail", made)


def test_a_server_that_starts_on_a_zeroed_tail(tmp_path: Path) -> None:
    made = on_repaired_logs(tmp_path, TAKES_ZEROS_OFF)
    assert "the server starts on a zeroed tail" in failed("zeroed-tail", made)


def test_a_server_that_answers_although_its_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk says that all is well, and has kept nothing."""

    def lies(strace: Strace, pid: int, log: Path) -> AbstractContextManager[None]:
        inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:retval=0"]
        return strace._attached(pid, log, inject)

    monkeypatch.setattr(Strace, "failing_sync", lies)
    monkeypatch.setattr(damage, "END_S", 0.2)
    why = failed("failed-sync", subject("new", tmp_path))
    assert "admission: answered [1, 3] although it was not synced" in why


def test_a_step_whose_sync_failed_and_whose_repeat_is_another_step(tmp_path: Path) -> None:
    again = "if before then return {1, tonumber(string.match(before, '^(%d+) '))} end\n"
    made = with_script(subject("new", tmp_path), "admit", again, "")
    assert "admission: its repeat gives [1, 8]" in failed("failed-sync", made)


def test_a_fill_that_is_synced(tmp_path: Path) -> None:
    made = with_script(subject("new", tmp_path), "publish", NONE, "")
    assert failed("sync-counts", made) == "syncs of fills: 20, wanted 0"


def test_a_step_that_is_not_synced(tmp_path: Path) -> None:
    write = "server.call('DEL', KEYS[2])"
    made = with_script(subject("new", tmp_path), "abort", write, f"{NONE}{write}\n{ALL}")
    assert failed("sync-counts", made) == "abort: 0 syncs"


def test_each_check_is_seen_to_fail() -> None:
    """A check that is new needs a fault, here or in one of the tables of faults."""
    seen: dict[str, Callable[..., None]] = {
        "unknown-scripts": test_a_server_that_still_knows_scripts_after_a_kill,
        "cut-tail": test_a_step_that_is_not_one_in_the_log,
        "zeroed-tail": test_a_server_that_starts_on_a_zeroed_tail,
        "failed-sync": test_a_server_that_answers_although_its_sync_failed,
        "sync-counts": test_a_fill_that_is_synced,
        crash_server.ID: test_proof_checks.test_a_history_sees_a_fault_in_the_scripts,
    }
    cut = test_proof_disk.test_a_server_that_does_not_sync_fails_the_check_of_one_that_does
    control = test_proof_disk.test_a_cut_that_cuts_nothing_makes_its_control_void
    for id_ in BY_ID:
        if id_.startswith("power-cut-"):
            seen[id_] = cut if id_.endswith("-always") else control
    scripts = {mutation.check for mutation in test_proof_mutations.MUTATIONS}
    gateways = {c for mutation in test_proof_gateway_mutations.MUTATIONS for c in mutation.checks}
    assert set(BY_ID) - scripts - gateways - set(seen) == set()

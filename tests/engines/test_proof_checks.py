"""The proof's own parts: that its histories, controls and command line can fail, and do."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proof_subject import build, programs, subject
from refill.engines.description import EngineError
from refill.proofs import actors, crash_gateway, crash_server
from refill.proofs.actors import Steps
from refill.proofs.calls import ScriptsError, read_sources
from refill.proofs.engines import Archives
from refill.proofs.findings import (
    FAIL,
    IMAGES,
    NOT_RUN,
    PASS,
    VOID,
    Check,
    Findings,
    NotRunError,
    run_check,
)
from refill.proofs.ledger import Ledger, numbers_of
from refill.proofs.servers import DEFAULT, REDIS_7, find
from refill.proofs.subject import Subject
from refill.proofs.suite import CHECKS, judge, with_void_controls
from refill.proofs.world import Life, World

SET_NONE = b"server.set_repl(server.REPL_NONE)\n"
# Faults that only a crash under load shows.
FAULTS = {
    "an admission that is not in the log": (
        "admit",
        b"local first = server.call('HINCRBY'",
        SET_NONE + b"local first = server.call('HINCRBY'",
    ),
    "a release without a new generation": (
        "release",
        b"server.call('HINCRBY', KEYS[2], 'generation', 1)",
        b"tonumber(server.call('HGET', KEYS[2], 'generation'))",
    ),
    "a lookup that does not look at the generation": (
        "lookup",
        b"index[1] .. ' ' .. index[2]",
        b"index[1] .. ' ' .. string.match(entry, '^%S+ %S+ (%d+) ')",
    ),
    "a commit that is not in the log": (
        "commit",
        b"local standing = ",
        SET_NONE + b"local standing = ",
    ),
}


def with_fault(made: Subject, name: str) -> Subject:
    script, old, new = FAULTS[name]
    source = made.sources[script]
    assert source.count(old) == 1
    return replace(made, sources={**made.sources, script: source.replace(old, new)})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_history_sees_a_fault_in_the_scripts(fault: str, tmp_path: Path) -> None:
    made = with_fault(subject("new", tmp_path), fault)
    for number in range(12):
        if crash_server.episode(made, number, 10).failures:
            return
    pytest.fail("120 kills saw nothing")


def test_a_history_names_seed_and_episode(tmp_path: Path) -> None:
    made = replace(with_fault(subject("new", tmp_path), "a commit that is not in the log"), seed=7)
    found = Findings()
    crash_server.crashes(made, found)
    assert "--seed 7 --replay crash-server:new:0" in found.failures[0]
    assert "kill 1" in found.failures[0]


def test_a_stale_response_and_a_lost_write_are_seen_by_the_world() -> None:
    world = World()
    world.lives["c1"] = Life("a", value=3, acknowledged=3)
    floor = world.floor("a")
    world.check_response("e1 c1 0 b1 9\nc1:3", floor, "fresh")
    assert world.failures == []
    world.check_response("e1 c1 0 b1 9\nc1:2", floor, "stale")
    world.check_response("e1 c1 0 b1 9\nc1:4", floor, "from the future")
    world.check_response("e1 c2 0 b1 9\nc1:3", floor, "another's")
    world.deleted.add("c1")
    world.check_response("e1 c1 0 b1 9\nc1:3", world.floor("a"), "deleted")
    assert len(world.failures) == 4


def commit_of(world: World, kind: str, incarnation: str) -> Steps:
    """A client that creates or deletes the index `a`; its commit is sent and not answered yet."""
    seen = [-1, "missing"] if kind == "create" else [0, "", incarnation]
    # Seed 1: it does not give its claim back.
    steps = actors._turn(world, random.Random(1), "a")
    call = next(steps)
    while call is None or call.name != "commit":
        replies = {"view": seen, "claim": [1, incarnation]}
        call = steps.send(None if call is None else replies[call.name])
    assert call.arguments[2] == kind
    return steps


def told(steps: Steps, reply: list[object]) -> None:
    with pytest.raises(StopIteration):
        steps.send(reply)


def test_a_client_that_is_told_late_does_not_change_what_came_after() -> None:
    """Commits are told to their clients in any order, also behind those of later ones."""
    world = World()
    create, delete = commit_of(world, "create", "c1"), commit_of(world, "delete", "c1")
    told(delete, [1, ""])
    assert world.standing["a"] == {None}
    told(create, [1, ""])
    assert world.standing["a"] == {None}

    create, delete = commit_of(world, "create", "c2"), commit_of(world, "delete", "c2")
    told(create, [0, "unclaimed"])
    assert world.standing["a"] == {"c2", None}
    told(commit_of(world, "create", "c3"), [1, ""])
    told(delete, [1, ""])
    assert world.standing["a"] == {"c3"}
    assert world.deleted == {"c1", "c2"}
    assert world.failures == []


def test_a_commit_that_is_refused_for_no_reason_is_a_failure() -> None:
    world = World()
    told(commit_of(world, "create", "c1"), [0, "unclaimed"])
    assert len(world.failures) == 1


def test_a_ledger_sees_what_contradicts_what_was_told() -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.sending("i", "d")
    ledger.acknowledged("i", "d", 2)
    ledger.read("i", ledger.floor("i"), {"d": 3}, "ahead, as it was sent")
    assert ledger.failures == []
    ledger.read("i", ledger.floor("i"), {"d": 2}, "behind what was read")
    ledger.read("i", ledger.floor("i"), {}, "gone")
    ledger.read("i", ledger.floor("i"), {"d": 4}, "never sent")
    assert len(ledger.failures) == 3
    hits = [{"_id": "d", "_source": {"n": n}} for n in (1, 2)]
    assert numbers_of({"hits": {"hits": hits, "total": {"value": 2}}})[1]


def test_a_gateway_that_serves_without_looking_is_seen(tmp_path: Path) -> None:
    """The same fault in a whole gateway: its archive has a lookup that takes any generation.

    The gateway holds what it is given against what it has seen, so this second guard goes too.
    """
    script, old, new = FAULTS["a lookup that does not look at the generation"]
    folder = tmp_path / "tree"
    shutil.unpack_archive(build("gateway-new", tmp_path), folder, "zip")
    file = folder / "gateway" / "lua" / f"{script}.lua"
    # The checksum covers the generation, so a whole entry of another one is still whole.
    file.write_bytes(file.read_bytes().replace(old, new))
    guard = folder / "gateway" / "presence.py"
    looks = "if generation < newest[1] or mapping_version < newest[2]:"
    assert looks in guard.read_text()
    guard.write_text(guard.read_text().replace(looks, "if False:"))
    shutil.make_archive(str(tmp_path / "faulty"), "zip", folder)
    parts = Archives(tmp_path / "faulty.zip", build("qdrant-edge", tmp_path))
    faulty = replace(subject("new", tmp_path), parts=parts)
    ledger, _ = crash_gateway.episode(faulty, 0, 3)
    assert any("acknowledged or read before" in failure for failure in ledger.failures)


def test_a_servers_password_is_in_no_file_and_no_command_line(tmp_path: Path) -> None:
    """A killed proof leaves its folder behind: what is in it then tells nobody the password."""
    with subject("new", tmp_path).server() as server:
        files = [path for path in server.folder.rglob("*") if path.is_file()]
        assert {"server.log", "appendonly.aof.manifest"} <= {path.name for path in files}
        secret = server.password.encode()
        assert not [path for path in files if secret in path.read_bytes()]
        assert secret not in Path(f"/proc/{server.engine.pid}/cmdline").read_bytes()
        assert server.client.config_get("requirepass")["requirepass"] == server.password
    assert not server.folder.exists()


# ---- what outcomes make of the whole


@pytest.mark.parametrize("control", [VOID, NOT_RUN, FAIL])
def test_a_power_cut_counts_only_when_both_its_controls_lost(control: str) -> None:
    def entry(id_: str, outcome: str) -> dict[str, str]:
        return {"id": id_, "image": "new", "server": DEFAULT, "outcome": outcome, "why": ""}

    judged = with_void_controls(
        [
            entry("power-cut-ext4-always", PASS),
            entry("power-cut-ext4-everysec", PASS),
            entry("power-cut-ext4-no", control),
            entry("power-cut-xfs-always", PASS),
            entry("power-cut-xfs-everysec", PASS),
            entry("power-cut-xfs-no", PASS),
        ]
    )
    assert [made["outcome"] for made in judged] == [VOID, PASS, control, PASS, PASS, PASS]
    assert f"power-cut-ext4-no: {control}" in judged[0]["why"]
    # A control that has no entry was not seen either.
    assert with_void_controls([entry("power-cut-ext4-always", PASS)])[0]["outcome"] == VOID


def test_what_failed_stays_failed_when_a_check_cannot_go_on(tmp_path: Path) -> None:
    faults = (NotRunError("no strace"), OSError("no space"), subprocess.TimeoutExpired("x", 1))
    for fault in faults:
        for fails in (True, False):

            def run(_: Subject, found: Findings, fails: bool = fails, fault: Any = fault) -> None:
                found.expect(not fails, "it does not hold")
                raise fault

            made = run_check(Check("x", "x", "beyond", run), subject("new", tmp_path))
            assert made["outcome"] == (FAIL if fails else NOT_RUN)
            assert ("it does not hold" in made["why"]) == fails
            assert ("harness: " in made["why"]) == (not isinstance(fault, NotRunError))


def test_a_proof_without_one_of_its_checks_is_not_valid() -> None:
    entries = [
        {
            "id": check.id, "image": image, "server": DEFAULT, "outcome": PASS, "why": "",
            "required": not check.needs,
        }
        for check in CHECKS
        for image in IMAGES
    ]  # fmt: skip
    assert judge(entries) == []
    assert judge(entries[1:]) == [f"{CHECKS[0].id} (old): is not in the proof"]
    # Root is missing on some machines; a fault of the harness is another matter.
    optional = next(made for made in entries if not made["required"])
    optional |= {"outcome": NOT_RUN, "why": "needs root"}
    assert judge(entries) == []
    optional |= {"why": "harness: [Errno 28] No space left on device"}
    assert len(judge(entries)) == 1


# ---- entries, servers, archives


def test_every_way_a_check_can_end_has_its_word(tmp_path: Path) -> None:
    made = subject("new", tmp_path)

    def ends(with_what: str) -> dict[str, object]:
        def run(_: Subject, found: Findings) -> None:
            if with_what == "error":
                raise EngineError("the server ended")
            if with_what == "form":
                [][0]
            if with_what == "missing":
                raise NotRunError("no strace")
            if with_what != "nothing":
                found.note(looked_at=1)
            found.expect(with_what != "fail", "it does not hold")
            found.control(with_what != "void", "the control did nothing")

        return run_check(Check("x", "x", "beyond", run), made)

    wanted = {
        "hold": PASS, "nothing": VOID, "fail": FAIL, "void": VOID, "error": FAIL, "form": FAIL,
        "missing": NOT_RUN,
    }  # fmt: skip
    assert {name: ends(name)["outcome"] for name in wanted} == wanted


def test_servers_are_found_by_what_they_say_they_are(tmp_path: Path) -> None:
    known = programs()
    assert known[DEFAULT].product == "Valkey"
    assert known[DEFAULT].version.startswith("8.1.")
    with pytest.raises(EngineError, match="no such file"):
        find({DEFAULT: str(tmp_path / "nothing")})
    wrong = tmp_path / "server"
    wrong.write_text("#!/bin/sh\necho something else\n")
    wrong.chmod(0o755)
    with pytest.raises(EngineError, match="no Valkey or Redis server"):
        find({REDIS_7: str(wrong)})
    # The right kind of server under a name that stands for another one.
    wrong.write_text("#!/bin/sh\necho Redis server v=7.0.15 sha=0\n")
    with pytest.raises(EngineError, match=r"is Redis 7.0.15, and the name stands for Valkey 8.1"):
        find({DEFAULT: str(wrong)})


def test_an_archive_with_a_script_that_nobody_calls_is_refused(tmp_path: Path) -> None:
    archive = build("gateway-new", tmp_path)
    folder = tmp_path / "tree"
    shutil.unpack_archive(archive, folder, "zip")
    (folder / "gateway" / "lua" / "another.lua").write_text("#!lua\nreturn 1\n")
    shutil.make_archive(str(tmp_path / "other"), "zip", folder)
    with pytest.raises(ScriptsError, match="another"):
        read_sources(tmp_path / "other.zip")

"""Servers of the proof are what they are taken for: killed by a kill, set as asked, by any path."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from proof_subject import programs, subject
from refill.engines.description import EngineError
from refill.engines.valkey import DURABLE
from refill.processes import wait_for
from refill.proofs import identity, servers, whole
from refill.proofs.findings import FAIL, PASS, VOID, Check, ControlError, Findings, run_check
from refill.proofs.servers import DEFAULT, REDIS_7, Server, find, started_once
from refill.proofs.stack import Stack
from refill.proofs.subject import Subject, create
from refill.proofs.suite import CHECKS

REAL = programs()[DEFAULT].path


def script(folder: Path, last: str) -> str:
    """A program that starts the real server by its last line, and says what the server says."""
    path = folder / "wrapper"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec "{REAL}" --version\n{last}\n')
    path.chmod(0o755)
    return str(path)


def server_by(folder: Path, last: str) -> Server:
    given = {DEFAULT: script(folder, last)}
    return Server(find(given)[0], {}, folder / "server")


def is_gone(process: int) -> bool:
    """Whether it ends; what started it may have ended before, and init takes its time with it."""

    def ended() -> bool:
        try:
            return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return wait_for(ended, 10)


def test_a_server_behind_a_script_dies_with_it(tmp_path: Path) -> None:
    with server_by(tmp_path, f'"{REAL}" "$@"') as server:
        first = server.identity.process
        assert first != server.engine.pid
        assert server.pid == first
        server.client.set("a", "b")
        server.crash()
        assert is_gone(first)
        assert server.client.get("a") == b"b"
        second = server.identity.process
    assert is_gone(second)


def test_a_server_that_leaves_its_group_is_refused_and_ended(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="would reach it late or not at all") as told:
        server_by(tmp_path, f'setsid "{REAL}" "$@"').__enter__()
    assert is_gone(int(str(told.value).split("process ")[1].split()[0]))
    assert not (tmp_path / "server").exists()


def test_a_server_that_leaves_its_group_and_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "START_S", 1.0)
    noted = tmp_path / "process"
    words = f"""setsid sh -c 'echo $$ > "{noted}"; exec sleep 60'"""
    with pytest.raises(EngineError, match="was not ready within 1 s"):
        server_by(tmp_path, words).__enter__()
    assert not psutil.pid_exists(int(noted.read_text()))


def test_a_kill_that_kills_nothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "GONE_S", 0.3)
    with subject("new", tmp_path).server() as server:
        process = server.identity.process
        monkeypatch.setattr(server.engine, "kill", lambda: None)
        wanted = rf"after its kill process {process} \(valkey-server\) still listens at its port"
        with pytest.raises(ControlError, match=wanted):
            server.crash()
        assert is_gone(process)


def test_a_server_that_was_not_started_again_is_seen(tmp_path: Path) -> None:
    with subject("new", tmp_path).server() as server, pytest.raises(ControlError, match="run_id"):
        server.identity.check(server.client)


# The server takes options before the settings that come through its standard input, too.
@pytest.mark.parametrize(
    "option", ["appendfsync no", "no-appendfsync-on-rewrite yes", "auto-aof-rewrite-percentage 50"]
)
def test_a_server_with_other_settings_is_refused(option: str, tmp_path: Path) -> None:
    program = script(tmp_path, f'exec "{REAL}" --{option} "$@"')
    given = {DEFAULT: program}
    name, value = option.split(" ")
    wrong = rf"proof\.servers\.valkey-8\.1: .*runs with {name} '{value}'"
    with pytest.raises(EngineError, match=wrong):
        started_once(find(given)[0], tmp_path / "first", given)
    # One that changes later makes each check void, whichever it is: no strace is needed to see it.
    made = replace(subject("new", tmp_path), program=find(given)[0])
    entry = run_check(next(c for c in CHECKS if c.id == "claims-and-tokens"), made)
    assert entry["outcome"] == VOID
    assert name in entry["why"]


@pytest.mark.parametrize("killed", [False, True])
def test_settings_that_are_changed_while_it_serves_are_seen_in_the_end(
    killed: bool, tmp_path: Path
) -> None:
    def changes(_: Subject, found: Findings) -> None:
        with subject("new", tmp_path).server() as server:
            found.note(looked_at=1)
            server.client.config_set("appendfsync", "no")
            if killed:
                server.kill()

    entry = run_check(Check("x", "x", "beyond", changes), subject("new", tmp_path))
    # What was killed had to be as asked at its start, and is again at the next.
    assert entry["outcome"] == (PASS if killed else FAIL)
    assert killed or "now runs with appendfsync 'no' and not 'always'" in entry["why"]


def test_settings_stand_in_the_record_without_folders(tmp_path: Path) -> None:
    program = started_once(programs()[DEFAULT], tmp_path / "first", {})
    settings = program.as_json()["settings"]
    assert settings.items() >= DURABLE.items()
    assert settings["no-appendfsync-on-rewrite"] == "no"
    assert str(tmp_path) not in str(settings)
    assert not (tmp_path / "first").exists()


def test_a_server_that_is_another_one_than_its_program_says_is_refused(tmp_path: Path) -> None:
    redis = programs()[REDIS_7]
    if redis.path is None:
        if os.environ.get("CI"):
            pytest.fail(redis.missing)
        pytest.skip(redis.missing)
    given = {DEFAULT: script(tmp_path, f'exec "{redis.path}" "$@"')}
    with pytest.raises(EngineError, match=r"valkey-8\.1: .*Redis 7\..* answers.* Valkey 8\.1"):
        started_once(find(given)[0], tmp_path / "first", given)


def test_a_server_that_does_not_start_here_is_missing_unless_it_was_asked_for(
    tmp_path: Path,
) -> None:
    path = Path(script(tmp_path, "echo no; exit 3"))
    broken = replace(programs()[DEFAULT], name="another", path=path)
    missing = started_once(broken, tmp_path / "first", {})
    assert missing.path is None
    assert "ended" in missing.missing
    assert missing.as_json()["status"].startswith("not run: does not start here")
    with pytest.raises(EngineError, match=r"proof\.servers\.another"):
        started_once(broken, tmp_path / "first", {"another": str(path)})


@pytest.mark.parametrize("name", ['a"b', "a #b", "ä ö", "a\\nb", "a'b%s"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    made = subject("new", tmp_path / name)
    with made.server() as server:
        create(server)
        server.crash()
        assert server.log_folder.is_dir()
        assert server.log_folder.is_relative_to(tmp_path / name)


def test_a_whole_gateway_runs_in_a_folder_of_any_name(tmp_path: Path) -> None:
    with Stack(subject("new", tmp_path / 'a"b #c ö')) as stack:
        assert whole._text(whole._load(stack)) == whole.MARK

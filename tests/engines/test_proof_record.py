"""The proof as a whole: its command line, record, attempts, and one episode of it again."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proof_subject import subject
from refill.config import PROJECT, load_images
from refill.engines.description import EngineError
from refill.evidence.attempts import list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.records import write_json
from refill.evidence.turns import STAGED
from refill.images import build as build_image
from refill.progress import silent
from refill.proofs import crash_server, measure, suite
from refill.proofs.actors import any_client
from refill.proofs.engines import QDRANT
from refill.proofs.findings import Check, Findings, told_of_episode
from refill.proofs.measure import Files, Kept, prove
from refill.proofs.replay import Name, replay
from refill.proofs.subject import Subject
from refill.proofs.world import DeadWriter, Life, World


def proof(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "refill.proofs", "--images", "results/images", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "workflow/scripts"),
             "REFILL_LOCK": str(folder / "lock")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


RECORD = Path("results/proofs/aof.json")
FILES = Files(
    Path(),
    {
        part: Path(f"results/images/{image}.json")
        for part, image in (
            ("old", "gateway-old"), ("new", "gateway-new"), (QDRANT, "qdrant-edge"),
        )
    },
    RECORD,
)  # fmt: skip
PLAN: dict[str, Any] = {
    "code": "0", "scale": "test", "form": "smoke", "seed": 3, "servers": {"valkey-9": None},
}  # fmt: skip


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the images of the proof, and a lock of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFILL_LOCK", str(tmp_path / "lock"))
    (tmp_path / "results/images").mkdir(parents=True)
    for name in ("gateway-old", "gateway-new", "qdrant-edge"):
        base = Path("results/images")
        build_image(PROJECT, name, load_images(), base / f"{name}.pyz", base / f"{name}.json", "0")
    return tmp_path


def test_a_proof_that_fails_in_its_harness_is_an_attempt(built: Path) -> None:
    archive = built / "results/images/gateway-new.pyz"
    archive.write_bytes(archive.read_bytes() + b"x")
    done = proof(built, "--output", "results/proofs/aof.json", "--scale", "smoke")
    assert done.returncode == 1
    assert "gateway-new.pyz has the SHA-256" in done.stderr
    (attempt,) = list_attempts(built)
    assert attempt["outcome"] == "failed"
    assert not (built / "results/proofs/aof.json").exists()


def test_every_proof_that_does_not_hold_is_kept(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Subject, found: Findings) -> None:
        found.note(number=1)
        found.expect(False, "it does not hold")

    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "published", fails),))
    records = [prove(PLAN, FILES, silent("proof")) for _ in range(2)]
    assert [(r["valid"], r["outcome"]) for r in records] == [(False, "failed")] * 2
    assert records[0]["invalid"] == [
        f"x ({image}): fail: it does not hold" for image in ("new", "old")
    ]
    attempts = list_attempts(built)
    assert [attempt["outcome"] for attempt in attempts] == ["failed", "failed"]
    kept = [built / "results/attempts" / a["attempt"] / "aof.json" for a in attempts]
    assert [json.loads(path.read_text())["attempt"] for path in kept] == [
        record["attempt"] for record in records
    ]
    assert records[0]["checks"][0]["evidence"] == {"number": 1}
    assert list((built / "results/scratch").glob("*")) == []


def holds(_: Subject, found: Findings) -> None:
    found.note(number=1)


@pytest.mark.parametrize(
    ("output", "says"),
    [("results", "is a folder"), ("made/file/aof.json", "another path"),
     ("results/images/gateway-new.json", "lies among other results"),
     ("results/attempts/aof.json", "lies among other results"),
     ("made/link", "is no plain file"), ("made/pipe", "is no plain file"),
     ("made/file", "is no record of a proof"), ("made/other.json", "is no record of a proof")],
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_refused_at_once(
    output: str, says: str, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "published", holds),))
    made = built / "made"
    made.mkdir()
    (made / "link").symlink_to("nowhere")
    os.mkfifo(made / "pipe")
    (made / "file").write_text("somebody's")
    write_json(made / "other.json", {"schema": "refill.round/1"})

    def now() -> dict[Path, tuple[int, int, int]]:
        told = {path: path.lstat() for path in built.rglob("*") if not path.is_dir()}
        return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in told.items()}

    there = now()
    with pytest.raises(EngineError, match=rf"^{output}: .*{says}"):
        prove(PLAN, replace(FILES, record=Path(output)), silent("proof"))
    assert list_attempts(built) == []
    assert now().items() >= there.items()


def test_a_record_that_could_not_be_written_is_in_the_attempt(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "published", holds),))

    def write(path: Path, value: Any) -> None:
        if path.parent.name == STAGED:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_json(path, value)

    monkeypatch.setattr(measure, "write_json", write)
    with pytest.raises(OSError, match="No space left"):
        prove(PLAN, FILES, silent("proof"))
    (attempt,) = list_attempts(built)
    assert attempt["outcome"] == "failed"
    kept = f"results/attempts/{attempt['attempt']}/aof.json"
    assert kept in attempt["files"]
    assert json.loads((built / kept).read_text())["attempt"] == attempt["attempt"]


def test_an_archive_that_changes_meanwhile_is_not_what_is_tried(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = built / "results/images/gateway-new.pyz"
    whole = sha256_file(archive)

    def changes(made: Subject, found: Findings) -> None:
        archive.write_bytes(b"another one")
        program = [Path(word) for word in made.parts.program] if made.parts else []
        tried = [sha256_file(path) for path in program if path.suffix == ".pyz"]
        found.note(tried=tried)

    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "published", changes),))
    record = prove(PLAN, FILES, silent("proof"))
    assert record["images"]["new"]["id"] == f"sha256:{whole}"
    tried = [made["evidence"]["tried"] for made in record["checks"] if made["image"] == "new"]
    assert tried[0] == [whole]


def test_a_full_disk_is_refused_before_anything_starts(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "published", holds),))
    monkeypatch.setattr(measure, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(EngineError, match=r"the proof needs 11529\d+ MB there, "):
        prove(PLAN, FILES, silent("proof"))
    (attempt,) = list_attempts(built)
    assert attempt["outcome"] == "failed"


def test_a_proof_that_comes_to_no_end_leaves_what_it_saw(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(_: Subject, found: Findings) -> None:
        raise RuntimeError(f"a fault of the harness in {built}/x")

    checks = (Check("a", "a", "beyond", holds), Check("b", "b", "beyond", ends))
    monkeypatch.setattr(suite, "CHECKS", checks)
    with pytest.raises(RuntimeError):
        prove(PLAN, FILES, silent("proof"))
    (attempt,) = list_attempts(built)
    parts = f"results/attempts/{attempt['attempt']}/parts/checks.jsonl"
    assert parts in attempt["files"]
    entries = [json.loads(line) for line in (built / parts).read_text().splitlines()]
    # Of one image or of both.
    assert {(e["id"], e["outcome"], e["evidence"]["number"]) for e in entries} == {("a", "pass", 1)}


def test_what_a_record_holds_is_not_kept_twice(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CHECKS", (Check("x", "a property", "published", holds),))
    record = prove(PLAN, FILES, silent("proof"))
    assert record["valid"]
    (attempt,) = list_attempts(built)
    folder = built / "results/attempts" / attempt["attempt"]
    assert sorted(path.name for path in folder.iterdir()) == ["aof.json", "turn.json"]
    assert (folder / "aof.json").samefile(built / RECORD)
    assert list(attempt["files"]) == [str(RECORD)]
    assert record["asked_for"] == {
        "scale": "test", "form": "smoke", "seed": 3, "runtime": "process",
        "servers": {"valkey-9": None}, "images": {"old": "gateway-old", "new": "gateway-new"},
    }  # fmt: skip
    assert all(s["settings"]["appendfsync"] == "always" for s in record["servers"] if s["binary"])


# ---- an episode again


def schedule(world: Any) -> dict[str, list[int]]:
    """Which clients went on at each step before the kills."""
    return {
        event["at"]: event["clients"]
        for event in world.history
        if event["event"] == "go on" and "step" in event["at"]
    }


def beginnings(world: Any) -> dict[tuple[str, int], tuple[str, list[str]]]:
    """The first call of each client that began at a step, but for recoveries and sweeps.

    A client may begin several times while the server is killed.
    """
    found, begun = {}, set()
    for event in world.history:
        if "step" not in event["at"]:
            continue
        place = (event["at"], event.get("client"))
        if event["event"] == "begins":
            begun.add(place)
        elif "keys" in event and place in begun:
            begun.discard(place)
            found[place] = (event["event"], event["keys"])
    return {place: call for place, call in found.items() if call[0] in ("view", "lookup")}


def test_what_is_drawn_replays_for_each_client_and_step(tmp_path: Path) -> None:
    """Behind the first kill the answers are others, and so are the clients that are in a wait."""
    made = subject("new", tmp_path)
    one, other = (crash_server.episode(made, 0, 5) for _ in range(2))
    assert one.failures == other.failures == []
    places = [begun.keys() for begun in map(beginnings, (one, other))]
    same = places[0] & places[1]
    assert len({at for at, _ in same if at.startswith("kill 5")}) > 0
    assert [p for p in same if beginnings(one)[p] != beginnings(other)[p]] == []
    assert {at.partition(",")[0] for at in schedule(one)} == {f"kill {n}" for n in range(1, 6)}
    assert schedule(one) == schedule(other)
    assert schedule(one) != schedule(crash_server.episode(replace(made, seed=2), 0, 1))


def test_what_a_client_draws_does_not_depend_on_who_died() -> None:
    recovers = 0
    for seed in range(60):
        first = []
        for dead in ([], [DeadWriter("a", "c1", "w", wrote=True)]):
            world = World()
            world.lives["c1"], world.dead = Life("a"), dead
            first.append(next(any_client(world, random.Random(seed))))
            recovers += world.counts["clients: recover"]
        if world.counts["clients: recover"] == 0:
            assert first[0] == first[1]
    assert 0 < recovers < 30


def test_the_history_of_a_failed_episode_is_kept_with_how_to_run_it_again(tmp_path: Path) -> None:
    made = subject("new", tmp_path, "valkey-9")
    admit, old = made.sources["admit"], b"local first = server.call('HINCRBY'"
    assert old in admit
    folder = tmp_path / "attempt"
    folder.mkdir()
    not_durable = b"server.set_repl(server.REPL_NONE)\n" + old
    faulty = replace(
        made,
        sources={**made.sources, "admit": admit.replace(old, not_durable)},
        scale=replace(made.scale, other_kills=120),
        keep=Kept(folder, tmp_path).history,
    )
    found = Findings()
    crash_server.crashes(faulty, found)
    (first, *_) = found.failures
    (name, *_) = sorted(path.name for path in folder.iterdir())
    number = name.removeprefix("crash-server-new-valkey-9-").removesuffix(".jsonl")
    assert first.startswith(f"episode {number}, ")
    assert f"history in {name}; again with --scale test --seed 1 " in first
    assert first.endswith(f"--replay crash-server:new:{number}:valkey-9")
    history = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    assert history[0]["at"] == "kill 1, step 1"
    assert {"begins", "answer", "view", "lookup", "failure"} <= {e["event"] for e in history}
    (failure, *_) = [event for event in history if event["event"] == "failure"]
    assert failure["text"] in first


def test_an_episode_is_replayed_by_its_name(built: Path) -> None:
    done = proof(built, "--seed", "5", "--scale", "smoke", "--replay", "crash-server:new:1")
    assert done.returncode == 0, done.stderr
    assert "crash-server:new:1: holds" in done.stdout
    assert list_attempts(built) == []
    assert list((built / "results/scratch").glob("*")) == []


def test_a_replay_is_on_the_server_that_is_named(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def episode(made: Subject, number: int, kills: int) -> Any:
        tried.append((made.server_name, made.seed, number, kills))
        return World()

    monkeypatch.setattr(crash_server, "episode", episode)
    assert replay(PLAN, FILES, "crash-server:new:0:valkey-9", print) == []
    assert replay(PLAN, FILES, "crash-server:old:1", print) == []
    assert tried == [("valkey-9", 3, 0, 10), ("valkey-8.1", 3, 1, 10)]


@pytest.mark.parametrize(
    "what",
    ["crash-server:new", "crash-server:new:\N{SUPERSCRIPT TWO}", "crash-server:new:-1",
     "crash-server:newer:1", "power-cut-ext4-no:new:1", "crash-server:new:1:", "crash-server:new:",
     "crash-server:new:1:valkey-9:2", "crash-server:new: 1", ""],
)  # fmt: skip
def test_nonsense_is_no_episode(what: str) -> None:
    with pytest.raises(EngineError, match=r"is no episode: write CHECK:IMAGE:EPISODE"):
        Name.read(what)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("crash-server:new:2", "has the episodes 0 to 1 with --scale smoke on valkey-8.1"),
        ("crash-server:new:1:valkey-9", "has the episodes 0 to 0 with --scale smoke on valkey-9"),
        ("crash-gateway:old:99999999999", "there is no episode 99999999999"),
        ("crash-gateway:old:0:valkey-9", "tried on valkey-8.1 only"),
        ("crash-server:new:0:valkey-10", "no server 'valkey-10', only valkey-8.1, valkey-9"),
    ],
)
def test_an_episode_that_there_is_not_is_an_error(what: str, says: str, built: Path) -> None:
    with pytest.raises(EngineError) as told:
        replay(PLAN, FILES, what, print)
    assert says in str(told.value)
    assert list((built / "results/scratch").glob("*")) == []


def test_a_gateways_history_says_what_its_clients_were_told(tmp_path: Path) -> None:
    from refill.proofs.ledger import Ledger

    ledger = Ledger()
    ledger.now = "kill 3"
    ledger.acknowledged("i", "d", ledger.sending("i", "d"))
    ledger.read("i", ledger.floor("i"), {}, "after the kill")
    kept: dict[str, str] = {}
    made = replace(subject("old", tmp_path), keep=kept.__setitem__)
    told_of_episode("crash-gateway", made, 4, ledger.history)
    (text,) = kept.values()
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["event"] for event in events] == [
        "write sent", "write acknowledged", "after the kill", "failure",
    ]  # fmt: skip
    assert {event["at"] for event in events} == {"kill 3"}

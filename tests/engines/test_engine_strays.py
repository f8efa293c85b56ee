"""What an engine's program starts in sessions of its own ends with the engine, and nothing else."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from refill.engines import qdrant
from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address
from refill.processes import wait_for
from refill.runtimes.process import ProcessEngine

# Listens and never answers, in a folder that is not the engine's.
DEAF = """
import os, socket, sys, time
os.chdir("/")
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
with open(sys.argv[2], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(60)
"""


def named(folder: Path) -> list[int]:
    """The processes that a program has written down."""
    path = folder / "processes"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def stray(folder: Path, then: str = "exec sleep 60") -> str:
    """Words for a shell: a process in a session of its own, which writes its number down."""
    words = f"echo $$ >> {shlex.quote(str(folder / 'processes'))}; {then}"
    return f"setsid sh -c {shlex.quote(words)}"


def engine_of(folder: Path, words: str, number: int = 1) -> ProcessEngine:
    """An engine that is ready when so many processes have written their numbers down."""

    def command(place: Place) -> list[str]:
        return ["sh", "-c", words.replace("PORT", str(place.port))]

    def ready(_: Address) -> bool:
        return len(named(folder)) >= number

    description = Description("program", command, ready, start_timeout_s=30.0)
    return ProcessEngine(description, folder / "scratch", folder / "log")


def deaf(folder: Path) -> str:
    (folder / "deaf.py").write_text(DEAF)
    words = (sys.executable, folder / "deaf.py", "PORT", folder / "processes")
    return f"setsid {' '.join(shlex.quote(str(word)) for word in words)}"


@pytest.mark.parametrize("kind", ["behind a shell", "two deep", "elsewhere, at the port"])
@pytest.mark.parametrize("killed", [False, True])
def test_strays_end_with_their_engine(kind: str, killed: bool, tmp_path: Path) -> None:
    words, number = {
        "behind a shell": (stray(tmp_path), 1),
        "two deep": (stray(tmp_path, f"{stray(tmp_path)} & wait"), 2),
        "elsewhere, at the port": (deaf(tmp_path), 1),
    }[kind]
    with engine_of(tmp_path, f"{words} & wait", number) as engine:
        strays = named(tmp_path)
        assert len(strays) == number
        assert not any(engine.owns(process) for process in strays)
        if killed:
            engine.kill()
            # Waited for, too: they are no zombies.
            assert not any(map(psutil.pid_exists, strays))
    assert not any(map(psutil.pid_exists, strays))


def test_a_program_that_goes_on_in_the_background_is_ended(tmp_path: Path) -> None:
    """Its process ends at once, so that the engine never becomes ready."""
    waits = f"while ! [ -e {shlex.quote(str(tmp_path / 'processes'))} ]; do sleep 0.01; done"
    engine = engine_of(tmp_path, f"{stray(tmp_path)} & {waits}; exit 0", number=2)
    with pytest.raises(EngineError, match="exit code 0"), engine:
        pass
    (process,) = named(tmp_path)
    assert not psutil.pid_exists(process)


def test_a_start_ends_what_the_one_before_has_left(tmp_path: Path) -> None:
    with engine_of(tmp_path, f"{stray(tmp_path)} & wait") as engine:
        engine.start()
        first, *_ = named(tmp_path)
        assert not psutil.pid_exists(first)


def test_what_is_not_the_engines_stays(tmp_path: Path) -> None:
    """Another engine's stray, and a program that this process has started in the same folder."""
    places = [tmp_path / name for name in ("one", "other")]
    for place in places:
        place.mkdir()
    first, second = (engine_of(place, f"{stray(place)} & wait") for place in places)
    with first, second:
        beside = subprocess.Popen(["sleep", "60"], cwd=tmp_path / "one/scratch/program")
        first.kill()
        assert not psutil.pid_exists(named(places[0])[0])
        assert psutil.Process(named(places[1])[0]).is_running()
        assert beside.poll() is None
        beside.kill()
        beside.wait()


def test_orphans_are_inits_again_when_no_engine_runs(tmp_path: Path) -> None:
    with engine_of(tmp_path, f"{stray(tmp_path)} & wait"):
        pass
    missing = Description("program", lambda _: [str(tmp_path / "missing")], qdrant.is_ready)
    with pytest.raises(EngineError, match="cannot be started"):
        ProcessEngine(missing, tmp_path / "scratch", tmp_path / "log").start()
    words = "sleep 60 > /dev/null 2>&1 & echo $!"
    said = subprocess.run(["sh", "-c", words], stdout=subprocess.PIPE, text=True, check=True)
    orphan = psutil.Process(int(said.stdout))
    assert wait_for(lambda: orphan.ppid() != os.getpid(), 5)
    orphan.kill()

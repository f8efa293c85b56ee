"""What an engine's place and log tell of an error that was noticed at its interface."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from edge_server import TREE
from refill.engines import qdrant
from refill.engines.description import Description, EngineError, archive_program
from refill.engines.qdrant import Api
from refill.processes import wait_for
from refill.runtimes.engine import explained
from refill.runtimes.external import ExternalEngine
from refill.runtimes.process import ProcessEngine


def talking(words: str) -> Description:
    """Describe a program that says something and then does this."""
    return Description("qdrant", lambda _: ["sh", "-c", words], lambda _: True)


def test_a_living_engines_log_stands_behind_its_error(tmp_path: Path) -> None:
    program = talking("echo 'wal: No space left on device'; exec sleep 60")
    log = tmp_path / "log"
    with ProcessEngine(program, tmp_path / "s", log) as engine:
        assert wait_for(lambda: "wal" in log.read_text(), 20)
        error = EngineError("qdrant: PUT /collections/refill: 500: internal error")
        told = explained(error, [engine])
        assert told.startswith(str(error))
        assert told.endswith("\n    wal: No space left on device")
        # What another engine said, or this driver, is no matter of this one's log.
        assert explained(EngineError("valkey: no answer"), [engine]) == "valkey: no answer"
        assert explained(RuntimeError("qdrant: x"), [engine]) == "qdrant: x"


def test_an_engine_that_has_ended_comes_first(tmp_path: Path) -> None:
    program = talking("until [ -e end ]; do sleep 0.02; done; echo broken; exit 3")
    with ProcessEngine(program, tmp_path / "s", tmp_path / "log") as engine:
        (tmp_path / "s/qdrant/end").touch()
        told = explained(EngineError("qdrant: GET /: the connection was closed"), [engine])
        assert told.startswith("qdrant has ended (exit code 3).")
        assert "\n    broken (seen as: qdrant: GET /: the connection was closed)" in told
        assert explained(EngineError(told), [engine]) == told


def test_of_an_engine_elsewhere_nothing_is_known() -> None:
    engine = ExternalEngine(qdrant.external(1.0), qdrant.Address("127.0.0.1", 9))
    assert explained(EngineError("qdrant: no answer"), [engine]) == "qdrant: no answer"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
    if not mounted:
        if os.environ.get("CI") == "true":
            pytest.fail("needs root, and the right to mount")
        pytest.skip("needs root, and the right to mount")
    yield folder
    assert wait_for(
        lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, 20
    )


def fill(disk: Path) -> None:
    with (disk / "rest").open("wb", buffering=0) as rest:
        while rest.write(b"x" * 4096):
            pass


def load(api: Api) -> None:
    api.create(64, "Dot", {}, {})
    for first in range(0, 5000, 500):
        numbers = range(first, first + 500)
        points = [{"id": n, "vector": {"dense": [0.5] * 64}} for n in numbers]
        api.call("PUT", "/collections/refill/points?wait=true", {"points": points})


def test_a_full_disk_is_named_in_whatever_it_shows(tmp_path: Path, small_disk: Path) -> None:
    described = qdrant.embedded(archive_program(TREE), 1, 60.0)
    with ProcessEngine(described, small_disk / "s", tmp_path / "log") as engine:
        api = Api(engine.address, None)
        with pytest.raises(OSError, match="No space left"):
            fill(small_disk)
        with pytest.raises(EngineError) as failed:
            load(api)
        told = explained(failed.value, [engine])
        assert "The disk that holds its data is full (0 MB are free)." in told
        api.close()


def test_a_folder_that_cannot_be_made_is_an_engines_error(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file")
    engine = ProcessEngine(talking("exit 0"), tmp_path / "s", tmp_path / "log")
    with (
        pytest.raises(EngineError, match=r"its folder for data cannot be made: Not a directory"),
        engine,
    ):
        pass

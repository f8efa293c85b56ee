"""Engines by binary, by URL, with an API key: the same control side, real processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from edge_server import TREE, EdgeServer
from null_server import NullServer, ok
from refill.engines import qdrant
from refill.engines.description import Description, EngineError, Place
from refill.engines.qdrant import Api
from refill.load.wire import Address
from refill.processes import wait_for
from refill.runtimes.external import ExternalEngine
from refill.runtimes.process import ProcessEngine


def test_a_binary_is_started_with_the_servers_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the place of the binary reads the variables that a Qdrant server reads."""
    binary = tmp_path / "qdrant"
    binary.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "e = os.environ\n"
        "assert e['QDRANT__TELEMETRY_DISABLED'] == 'true' and e['QDRANT_NUM_CPUS'] == '1'\n"
        "assert e['QDRANT__SERVICE__GRPC_PORT'] != e['QDRANT__SERVICE__HTTP_PORT']\n"
        f"os.execv(sys.executable, [sys.executable, {str(TREE)!r}, '--storage',\n"
        "    e['QDRANT__STORAGE__STORAGE_PATH'], '--host', e['QDRANT__SERVICE__HOST'],\n"
        "    '--port', e['QDRANT__SERVICE__HTTP_PORT']])\n"
    )
    binary.chmod(0o755)
    # As a configuration gives it: relative to the working folder, not to the engine's.
    monkeypatch.chdir(tmp_path)
    described = qdrant.server([str(Path("qdrant").absolute())], 1, 30.0)
    with ProcessEngine(described, tmp_path / "s", tmp_path / "log") as engine:
        api = Api(engine.address, None)
        api.create(4, "Dot", {"indexing_threshold": 100}, {"m": 8})
        assert api.settings()["optimizers"]["indexing_threshold"] == 100
        assert api.state().busy is None
        assert api.memory() is None  # the embedded engine has no account of memory
        assert engine.resources().rss_bytes > 1e6
        pid = engine._process.pid if engine._process else 0
        api.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not (tmp_path / "s").exists()


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    description = qdrant.server([str(tmp_path / "missing")], 1, 5.0)
    with (
        pytest.raises(EngineError, match=r"qdrant cannot be started: .*missing: No such file"),
        ProcessEngine(description, tmp_path / "s", tmp_path / "log"),
    ):
        pass


def test_an_engine_that_never_listens_is_given_up_and_ended(tmp_path: Path) -> None:
    description = Description(
        "qdrant", lambda _: ["sleep", "60"], qdrant.is_ready, start_timeout_s=0.5
    )
    engine = ProcessEngine(description, tmp_path / "s", tmp_path / "log")
    with pytest.raises(EngineError, match=r"not ready within 0\.5 s"), engine:
        pass
    assert engine._process is not None
    assert engine._process.poll() is not None


def test_an_engine_that_ends_before_it_has_read_its_input_says_so(tmp_path: Path) -> None:
    """What it did not read is not in the way of its end, and its data are removed."""

    def once_it_has_ended(_: Place) -> bytes:
        assert wait_for(lambda: engine.ended() is not None, 30)
        return b"settings"

    description = Description(
        "qdrant",
        lambda _: ["sh", "-c", "exit 3"],
        qdrant.is_ready,
        start_timeout_s=5.0,
        standard_input=once_it_has_ended,
    )
    engine = ProcessEngine(description, tmp_path / "s", tmp_path / "log")
    with pytest.raises(EngineError, match=r"qdrant has ended \(exit code 3\)"), engine:
        pass
    assert not (tmp_path / "s").exists()


def test_the_engines_log_is_in_the_error_when_it_dies(tmp_path: Path) -> None:
    words = "echo something went wrong; exit 3"
    description = Description("qdrant", lambda _: ["sh", "-c", words], qdrant.is_ready)
    with (
        pytest.raises(EngineError, match=r"exit code 3(.|\n)*something went wrong"),
        ProcessEngine(description, tmp_path / "s", tmp_path / "log"),
    ):
        pass


def test_an_api_key_is_sent_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_KEY", "let-me-in")
    with EdgeServer(
        tmp_path / "storage",
        options=["--api-key-env", "EDGE_KEY"],
        environment={"EDGE_KEY": "let-me-in"},
        api_key="let-me-in",
    ) as server:
        address = Address.from_url(server.url)
        with ExternalEngine(qdrant.external(5.0), address) as engine:
            api = Api(engine.address, qdrant.api_key("EDGE_KEY"))
            api.create(4, "Dot", {}, {})
            assert api.count() == 0
            monkeypatch.delenv("EDGE_KEY")
            with pytest.raises(EngineError, match=r"401|403"):
                Api(engine.address, qdrant.api_key("EDGE_KEY")).count()


def test_the_engine_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    import subprocess

    from refill.processes import module_environment

    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from refill.engines import qdrant\n"
        "from refill.engines.description import archive_program\n"
        "from refill.runtimes.process import ProcessEngine\n"
        "folder = Path(sys.argv[1])\n"
        "d = qdrant.embedded(archive_program(Path(sys.argv[2])), 1, 30.0)\n"
        "with ProcessEngine(d, folder / 's', folder / 'log') as engine:\n"
        "    print(engine._process.pid, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(TREE)],
        stdout=subprocess.PIPE,
        env=module_environment(),
    )
    assert parent.stdout
    engine = int(parent.stdout.readline())
    os.kill(parent.pid, 9)
    parent.wait()
    assert wait_for(lambda: not Path(f"/proc/{engine}").exists(), 20)


def test_error_words_of_any_shape_are_passed_on() -> None:
    shaped = json.dumps({"status": {"error": "Not found: Collection `x` doesn't exist!"}})
    assert qdrant.error_text(shaped.encode()) == "Not found: Collection `x` doesn't exist!"
    assert qdrant.error_text(b"<html>bad gateway</html>") == "<html>bad gateway</html>"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>hello</html>",
        b"[1, 2]",
        b"{}",
        b'{"result": null}',
        b'{"result": {}}',
        b'{"result": {"points_count": 5, "status": "green"}}',
    ],
)
def test_nonsense_with_status_200_is_an_error_with_words(body: bytes) -> None:
    """What an answer does not say must never pass for idle, empty, or done."""
    with NullServer(lambda _, __: ok(body)) as server:
        api = Api(server.address, None)
        for ask in (api.state, api.count, api.settings):
            with pytest.raises(EngineError, match="is this a Qdrant server"):
                ask()
        assert api.memory() is None
        api.close()


@pytest.mark.parametrize("key", ["sch\u00fcssel", "with\nbreak", " blank "])
def test_a_key_that_no_head_can_carry_is_refused_without_showing_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(EngineError, match="SOME_KEY") as error:
        qdrant.api_key("SOME_KEY")
    assert key not in str(error.value)


def test_a_key_in_an_error_page_is_not_repeated() -> None:
    page = b'HTTP/1.1 403 No\r\nContent-Length: 35\r\n\r\n{"status":{"error":"bad key s3cret"}}'[
        :-2
    ]
    with NullServer(lambda _, __: page + b"}}") as server, pytest.raises(EngineError) as error:
        Api(server.address, "s3cret").count()
    assert "s3cret" not in str(error.value)

"""Parts of the native engines that need no Java: who runs them, what they are told, how asked."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from native_release import fake_java, program
from null_server import NullServer, ok
from refill.engines import elasticsearch, java, native
from refill.engines.description import EngineError
from refill.load.ledger import Judgement
from refill.load.prepared import Prepared
from refill.load.wire import Connection
from refill.oracle.documents import NATIVE_ALSO, Expected, judge
from refill.runtimes.readiness import last_lines
from refill.runtimes.users import User, is_plain, other_user, place_for, take_copy

OWN = {
    "api_key_env": "REFILL_TEST_KEY",
    "user_env": "REFILL_TEST_USER",
    "password_env": "REFILL_TEST_WORD",
}


@pytest.mark.parametrize(
    ("least", "most", "version"), [(21, None, "24.0.1"), (17, 23, "17.0.9"), (11, 24, "24.0.1")]
)
def test_the_newest_java_that_an_engine_runs_on_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, most: int | None, version: str
) -> None:
    for number in ("11.0.2", "17.0.9", "24.0.1"):
        fake_java(tmp_path / "jvm" / number, number)
    monkeypatch.setattr(java, "SYSTEM", tmp_path / "jvm")
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert java.find("auto", least, most).version == version


def test_a_java_with_the_vector_module_goes_before_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "jvm/a", "22.0.1", vector=True)
    fake_java(tmp_path / "jvm/b", "24.0.1")
    monkeypatch.setattr(java, "SYSTEM", tmp_path / "jvm")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = java.find("auto", 21, None)
    assert (found.version, found.vector) == ("22.0.1", True)


def test_a_java_that_is_too_old_or_none_is_said(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(EngineError, match=r"Java 21 or newer is needed, found: 11\.0\.2"):
        java.find(str(tmp_path / "old"), 21, None)
    with pytest.raises(EngineError, match=r"Java 17 to 23 is needed, found: none"):
        java.find(str(tmp_path / "nothing/java"), 17, 23)
    with pytest.raises(EngineError, match=r"Java 17 to 23 is needed, found: none"):
        java.find("x" * 300, 17, 23)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "echo 'Error: Unrecognized VM option' >&2; exit 1",
            "ended with 1: Error: Unrecognized VM",
        ),
        ("exit 127", "ended with 127: it says nothing"),
        ("echo hello", "does not say its version"),
        ("exec sleep 30", "did not answer within 0.5 s (is the machine busy?)"),
    ],
)
def test_a_java_that_does_not_answer_is_said_with_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, said: str
) -> None:
    monkeypatch.setattr(java, "ASK_TIMEOUT_S", 0.5)
    given = program(tmp_path / "java", lines)
    with pytest.raises(EngineError, match=r"Java 21 or newer is needed, found: none; java") as told:
        java.find(str(given), 21, None)
    assert said in str(told.value)


def test_a_java_is_understood_whatever_language_and_options_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "own", "25.0.1")
    given = program(
        tmp_path / "java",
        """[ "$LC_ALL" = C.UTF-8 ] || { echo "Ung\\374ltig" >&2; exit 1; }
[ -z "$JAVA_TOOL_OPTIONS$JDK_JAVA_OPTIONS$_JAVA_OPTIONS" ] || exit 1
"""
        f'exec "{tmp_path}/own/bin/java" "$@"\n',
    )
    monkeypatch.setenv("LC_ALL", "tr_TR")
    for name in java.OPTION_VARIABLES:
        monkeypatch.setenv(name, "-XX:+NoSuchOption")
    assert java.find(str(given), 21, None).version == "25.0.1"


def test_server_arguments_are_in_the_servers_own_format(tmp_path: Path) -> None:
    settings = {"http.port": "9200", "path.home": "/x" * 100}
    data = elasticsearch.server_arguments(settings, Path("/c"), Path("/l"))

    def number() -> int:
        nonlocal data
        value = shift = 0
        while True:
            byte, data = data[0], data[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text() -> str:
        nonlocal data
        length = number()
        found, data = data[:length].decode(), data[length:]
        return found

    assert data[:3] == b"\0\0\0"
    data = data[3:]
    assert text() == "org.elasticsearch.common.settings.KeyStoreWrapper"
    assert data[:8] == struct.pack(">i", 6) + b"\0\0\0\0"
    data = data[8:]
    read = {}
    for _ in range(number()):
        key = text()
        assert data[:1] == b"\0"
        data = data[1:]
        read[key] = text()
    assert read == settings
    assert (text(), text(), data) == ("/c", "/l", b"")


def test_a_release_keeps_its_own_console_and_artifacts_get_an_empty_one(tmp_path: Path) -> None:
    elasticsearch.complete(tmp_path)
    folder = tmp_path / "lib/tools/ansi-console"
    (jar,) = folder.iterdir()
    with zipfile.ZipFile(jar) as opened:
        content = opened.read("org/elasticsearch/io/ansi/AnsiConsoleLoader.class")
    assert content[:4] == b"\xca\xfe\xba\xbe"
    jar.rename(folder / "own.jar")
    elasticsearch.complete(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["own.jar"]


def test_switches_depend_on_what_a_home_holds(tmp_path: Path) -> None:
    assert elasticsearch.DIALECT.settings(tmp_path) == {}
    (tmp_path / "modules/x-pack-security").mkdir(parents=True)
    assert elasticsearch.DIALECT.settings(tmp_path)["xpack.security.enabled"] == "false"


def test_a_user_reaches_what_its_bits_let_it(tmp_path: Path) -> None:
    stranger = User("stranger", os.getuid() + 12345, os.getgid() + 12345)
    open_, closed = tmp_path / "open", tmp_path / "closed"
    for folder, mode in ((open_, 0o755), (closed, 0o700)):
        folder.mkdir()
        (folder / "file").touch(0o644)
        folder.chmod(mode)
    owner = User("owner", os.getuid(), os.getgid())
    assert owner.reaches(closed / "file")
    (closed / "file").chmod(0o055)
    assert not owner.reaches(closed / "file")
    assert not stranger.reaches(closed / "file")
    assert place_for(None, closed / "scratch") == (closed / "scratch").resolve()
    moved = place_for(stranger, closed / "scratch")
    assert not moved.is_relative_to(tmp_path)
    assert moved == place_for(stranger, closed / "scratch")
    assert moved != place_for(stranger, open_ / "another")


@pytest.mark.parametrize("name", ["a:b", "a,b", "a${HOME}b", "a#b", 'a"b', "a%20b", "b\U0001f600"])
def test_an_engine_gets_plain_paths_whatever_its_folders_are_called(
    tmp_path: Path, name: str
) -> None:
    source, target = tmp_path / name, tmp_path / "plain"
    source.mkdir()
    (source / "file").write_text("x")
    assert not is_plain(source)
    for _ in range(2):
        assert take_copy(source, target, None) == target
    assert (target / "file").read_text() == "x"
    assert (take_copy(tmp_path, target, None), is_plain(tmp_path)) == (tmp_path, True)
    # What is measured stays where it was put, unless the engine could not work there.
    assert place_for(None, source / "scratch") == source / "scratch"
    moved = place_for(None, source / "scratch", plain=True)
    assert is_plain(moved)
    assert not moved.is_relative_to(tmp_path)
    assert place_for(None, tmp_path / "a ü" / "scratch", plain=True) == tmp_path / "a ü" / "scratch"


def test_the_first_error_of_a_log_is_shown_before_its_end(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert last_lines(log) == " Its log is empty."
    trace = [f"\tat some.Class.method{n}(Class.java:{n})" for n in range(40)]
    error = "java.lang.IllegalStateException: failed to load plugin"
    log.write_text("\n".join(["starting", error, *trace, "the end"]))
    shown = last_lines(log).splitlines()
    assert shown[1:4] == [f"    {error}", "    ...", f"    {trace[29]}"]
    assert shown[-1] == "    the end"
    log.write_text("starting\nERROR: no\n")
    assert last_lines(log) == "\n    starting\n    ERROR: no"


def test_a_user_that_is_none_or_root_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert other_user(None) is None
    with pytest.raises(EngineError, match="there is no user 'nobody-of-refill'"):
        other_user("nobody-of-refill")
    with pytest.raises(EngineError, match="is root, which the engine refuses"):
        other_user("root")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert other_user("nobody-of-refill") is None


def test_credentials_come_from_the_environment_and_go_with_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in OWN.values():
        monkeypatch.delenv(name, raising=False)
    assert native.credentials(OWN) == {}
    monkeypatch.setenv("REFILL_TEST_USER", "me")
    with pytest.raises(EngineError, match="set both REFILL_TEST_USER and REFILL_TEST_WORD"):
        native.credentials(OWN)
    monkeypatch.setenv("REFILL_TEST_WORD", "word")
    headers = native.credentials(OWN)
    assert headers == {"Authorization": "Basic bWU6d29yZA=="}
    health = b'{"status":"green","number_of_pending_tasks":0}'
    with NullServer(lambda _, __: ok(health)) as server:
        assert native.is_ready(headers)(server.address)
        native.Api("opensearch", server.address, headers).call("GET", "/x")
        connection = Connection(server.address, 5.0)
        connection.request(Prepared([("GET", "/y", b"")], server.address, headers)(0))
        connection.close()
        assert len(server.requests) == 3
        assert all(b"Authorization: Basic bWU6d29yZA==\r\n" in data for data in server.requests)
    monkeypatch.setenv("REFILL_TEST_KEY", "abc")
    assert native.credentials(OWN) == {"Authorization": "ApiKey abc"}


@pytest.mark.parametrize(
    ("health", "ready"),
    [
        ({"status": "green", "number_of_pending_tasks": 0}, True),
        ({"status": "yellow", "number_of_pending_tasks": 0}, True),
        ({"status": "green", "number_of_pending_tasks": 2}, False),
        ({"status": "red", "number_of_pending_tasks": 0}, False),
    ],
)
def test_a_node_is_ready_when_it_is_healthy_and_at_rest(
    health: dict[str, Any], ready: bool
) -> None:
    with NullServer(lambda _, __: ok(orjson.dumps(health))) as server:
        assert native.is_ready({})(server.address) is ready


def test_a_document_that_was_not_created_ends_the_load() -> None:
    answer = {"items": [{"index": {"status": 201}}, {"index": {"status": 400, "error": "bad"}}]}
    with NullServer(lambda _, __: ok(orjson.dumps(answer))) as server:
        api = native.Api("opensearch", server.address)
        with pytest.raises(EngineError, match=r"1 of 2 documents were not created; the first"):
            api.load("x", [b"{}"])


def test_the_index_is_the_gateways_with_its_caches_set() -> None:
    body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}, "mappings": {"a": 1}}
    made = native.index_body(body, {"request_cache": False, "query_cache": True})
    assert made == {
        "settings": {
            "number_of_shards": 1,
            "number_of_replicas": 0,
            "refresh_interval": "-1",
            "requests.cache.enable": False,
            "queries.cache.enabled": True,
        },
        "mappings": {"a": 1},
    }


class Asked:
    """A search with one right answer."""

    method, path, body = "POST", "/x/_search", b"{}"
    expected = Expected({"hits": {"total": 3}}, -1, "3")


def verdict(answer: dict[str, Any], native_engine: bool) -> Judgement:
    return judge(Asked(), 200, orjson.dumps(answer), NATIVE_ALSO if native_engine else None)


def test_only_a_native_engine_may_say_that_it_ended_early_and_its_total_still_counts() -> None:
    early = {"hits": {"total": 3}, "terminated_early": True}
    assert verdict(early, True).status == "ok"
    assert verdict({"hits": {"total": 3}}, True).status == "ok"
    assert verdict(early, False).status == "wrong"
    assert verdict({**early, "terminated_early": "yes"}, True).status == "wrong"
    assert verdict({**early, "hits": {"total": 2}}, True).status == "wrong"
    assert verdict({**early, "more": 1}, True).status == "wrong"

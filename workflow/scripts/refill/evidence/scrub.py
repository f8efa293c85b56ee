"""Nothing private leaves the machine: a check that refuses, not a filter that hides."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.evidence.records import write_bytes

SECRET_NAMES = re.compile(r"KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL", re.IGNORECASE)

_ABSOLUTE = re.compile(r"(?<![\w.:/~<>{}$*-])/(?:[\w.+@-]+/)+[\w.+@-]+")
# Where every system keeps the same things: such a path tells nothing about this machine.
_SYSTEM = frozenset(
    f"/{top}"
    for top in ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr")
)

SHORTENED = "(Paths of the machine that this was written on were shortened in this log.)"
# Shorter values ("1", "true", "on") stand in any text by chance and protect nothing.
_SHORTEST_SECRET = 6


class PrivateError(ValueError):
    """Something private stands in what is about to be written; the text names the key."""


def scrub(
    value: Any,
    project: Path,
    environment: Mapping[str, str] | None = None,
    secret_variables: Sequence[str] = (),
) -> None:
    """Raise PrivateError, naming the key, when `value` (JSON) holds something private.

    Private are absolute paths of the project or of the home folder, and the values of
    environment variables whose name holds KEY, TOKEN, PASSWORD or SECRET, or is one of
    `secret_variables` (the configured `api_key_env`). Keys of objects are looked at as well.
    The message never shows the value. `environment` is `os.environ` when None.
    """
    variables = os.environ if environment is None else environment
    secrets = {
        name: text
        for name, text in variables.items()
        if (SECRET_NAMES.search(name) or name in secret_variables)
        and (len(text) >= _SHORTEST_SECRET or (name in secret_variables and text))
    }
    folders = {"this project's absolute path": project, "the home folder's path": Path.home()}
    paths = [
        (what, re.compile(rf"(?<![\w.\-]){re.escape(str(form))}(?![\w.\-])"))
        for what, folder in folders.items()
        # Absolute, as `.` for the folder one is in would be found in every text.
        for form in sorted({str(folder.absolute()), str(folder.resolve())})
        if form != "/"
    ]
    for where, text in _texts(value, ""):
        for what, pattern in paths:
            if pattern.search(text):
                raise PrivateError(f"{where}: holds {what}: record it relative to the project")
        for name, secret in secrets.items():
            if secret in text:
                raise PrivateError(
                    f"{where}: holds the value of the environment variable {name}: "
                    "secrets must not be recorded (if it is none, unset it for this command)"
                )


def variables_of_secrets(config: Any) -> list[str]:
    """Give the names of the variables that a configuration says hold a key or a password."""
    if not isinstance(config, Mapping):
        return []
    own = [str(v) for k, v in config.items() if k in ("api_key_env", "password_env") and v]
    return sorted({*own, *(n for value in config.values() for n in variables_of_secrets(value))})


def without_paths(text: str, folders: Iterable[Path]) -> str:
    """Return free text, such as an error's, without the absolute paths of `folders` and home.

    The path of a folder is taken off (what is in it stays, relative), home becomes "~". The
    longest path goes first, so a project below home is relative and not below "~".
    """
    forms = {str(form): "" for folder in folders for form in (folder.absolute(), folder.resolve())}
    home = Path.home()
    forms |= {str(form): "~/" for form in (home, home.resolve()) if str(form) not in forms}
    for form in sorted(forms.keys() - {"/"}, key=len, reverse=True):
        inside = rf"(?<![\w.\-]){re.escape(form)}(?:/+(?=[^\s/])|(?![\w.\-])/*)"
        text = re.sub(inside, forms[form], text)
    return text


def machine_folders(text: str) -> Iterator[str]:
    """Give the top folders of absolute paths, those of the system aside.

    The path of a request looks alike, and has no such folder on this machine.
    """
    for match in _ABSOLUTE.finditer(text):
        if top := _machine_folder(match[0]):
            yield top


def make_packable(log: Path, folders: Iterable[Path]) -> None:
    """Take absolute paths of this machine out of a log whose program has ended.

    As `without_paths`; of any other path that the archive would be refused for, its last part
    stays. The log says so in its last line. One that is not there stays so.
    """
    if not log.exists():
        return
    text = log.read_text(encoding="utf-8", errors="replace")
    kept = without_paths(text, folders)
    kept = _ABSOLUTE.sub(
        lambda m: f".../{Path(m[0]).name}" if _machine_folder(m[0]) else m[0], kept
    )
    if kept != text:
        write_bytes(log, f"{kept.rstrip()}\n{SHORTENED}\n".encode())


def _machine_folder(path: str) -> str | None:
    top = Path(*Path(path).parts[:2])
    return str(top) if str(top) not in _SYSTEM and top.is_dir() else None


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where or "(value)", value
    elif isinstance(value, Mapping):
        for number, (key, item) in enumerate(value.items()):
            # A key can be what is private, so it is named by its place.
            yield f"{where or '(value)'}: key {number + 1}", str(key)
            yield from _texts(item, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _texts(item, f"{where}[{i}]")

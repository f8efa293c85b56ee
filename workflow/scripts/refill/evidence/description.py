"""How a project and its command are described: revision, versions, words without private parts."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from refill.evidence.scrub import without_paths


def git_state(project: Path) -> dict[str, Any]:
    """Return {"revision", "dirty", "note"}: null values and a note that says why without Git."""
    if not (project / ".git").exists():
        return {"revision": None, "dirty": None, "note": "not a Git work tree"}
    if shutil.which("git") is None:
        return {"revision": None, "dirty": None, "note": "git is not installed"}
    revision = _git(project, "rev-parse", "HEAD")
    status = _git(project, "--no-optional-locks", "status", "--porcelain")
    if revision is None or status is None:
        return {"revision": None, "dirty": None, "note": "git could not read the work tree"}
    return {"revision": revision, "dirty": bool(status), "note": None}


def versions(project: Path) -> dict[str, Any]:
    """Return the versions of Python, Snakemake and every package that pyproject.toml pins.

    A package that is pinned and not installed is null.
    """
    pinned = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    names = [re.split(r"[\[=<>!~;\s]", item)[0] for item in pinned["project"]["dependencies"]]
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "snakemake": _version("snakemake"),
        "packages": {name: _version(name) for name in names},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(project: Path, *arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=project, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def public_word(word: str, project: Path) -> str:
    """Return a word without absolute paths: relative to the project, else the last part alone."""
    for folder in {str(project), str(project.resolve())}:
        word = re.sub(rf"(^|=){re.escape(folder)}/*$", r"\1.", word)
    word = without_paths(word, [project])
    return re.sub(r"(^|=)[/~][^=]*?([^/=]*)/*$", r"\1\2", word)


def public_config(value: Any, project: Path) -> Any:
    """Return a configuration without absolute paths and without the address of a server."""
    if isinstance(value, Mapping):
        return {key: public_config(item, project) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [public_config(item, project) for item in value]
    if not isinstance(value, str):
        return value
    address = re.match(r"(https?)://", value)
    if address:
        host = urlsplit(value).hostname
        local = host in ("localhost", "127.0.0.1", "::1")
        return f"{address[1]}, {'this machine' if local else 'another machine'}"
    return public_word(value, project) if value.startswith(("/", "~")) else value

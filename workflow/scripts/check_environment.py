"""Check that pyproject.toml, environment.yml and requirements.lock pin the same packages.

    python workflow/scripts/check_environment.py

Exit status 1, with what differs and how to mend it, when they do not.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[2]

RELOCK = (
    "uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes "
    "--no-header -o requirements.lock"
)

_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[A-Za-z0-9,._-]+\])?(==?)([A-Za-z0-9.!+]+)")
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


def check(project: Path) -> list[str]:
    """Return one line for each difference between the three files of a project; [] when none.

    A line names the file and the package and says how to mend it. Raises OSError for a missing
    file, and the errors of the TOML and YAML parsers.
    """
    pyproject = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    environment = yaml.safe_load((project / "environment.yml").read_text(encoding="utf-8"))
    lock = (project / "requirements.lock").read_text(encoding="utf-8")

    wanted, found = _pins(pyproject["project"]["dependencies"], "==", "pyproject.toml")
    conda, pip = _environment_items(environment)
    listed, wrong = _pins([item for item in conda if item != "pip"], "=", "environment.yml")
    by_pip, wrong_pip = _pins(pip, "==", "environment.yml (pip)")
    found += wrong + wrong_pip
    found += [
        f"environment.yml: {name}: stands in the conda list and under pip: keep one"
        for name in sorted(listed.keys() & by_pip.keys())
    ]
    python = listed.pop("python", None)
    found += _check_python(python, pyproject["project"]["requires-python"])
    found += _compare("environment.yml", wanted, {**listed, **by_pip}, "write it there")
    found += _check_lock(wanted, lock)
    return found


def _pins(items: list[str], sign: str, file: str) -> tuple[dict[str, str], list[str]]:
    """Return the version of each package, and what is not an exact pin."""
    pins: dict[str, str] = {}
    wrong = []
    for item in items:
        match = _PIN.fullmatch(item.replace(" ", ""))
        if match is None or match[2] != sign:
            wrong.append(f"{file}: {item!r}: is no exact pin: write name{sign}version")
        elif _name(match[1]) in pins:
            wrong.append(f"{file}: {_name(match[1])}: stands there twice: keep one")
        else:
            pins[_name(match[1])] = match[3]
    return pins, wrong


def _name(name: str) -> str:
    # The normal form of package names, so that PyYAML and pyyaml are one.
    return re.sub(r"[-_.]+", "-", name).lower()


def _environment_items(environment: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    conda: list[str] = []
    pip: list[str] = []
    for item in environment["dependencies"]:
        if isinstance(item, dict):
            pip += item["pip"]
        else:
            conda.append(str(item))
    return conda, pip


def _check_python(python: str | None, required: str) -> list[str]:
    lowest = required.removeprefix(">=")
    if python is None or _numbers(python) < _numbers(lowest):
        return [
            f"environment.yml: python: is {python}, pyproject.toml requires {required}: "
            f"write python={lowest}"
        ]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _compare(file: str, wanted: Mapping[str, str], got: Mapping[str, str], mend: str) -> list[str]:
    found = []
    for name in sorted(wanted.keys() | got.keys()):
        if name not in got:
            found.append(f"{file}: {name}: is missing, pyproject.toml pins {wanted[name]}: {mend}")
        elif name not in wanted:
            found.append(
                f"{file}: {name}: is not in pyproject.toml: take it out, or pin it there too"
            )
        elif got[name] != wanted[name]:
            found.append(
                f"{file}: {name}: is {got[name]}, pyproject.toml pins {wanted[name]}: "
                "make them the same"
            )
    return found


def _check_lock(wanted: Mapping[str, str], lock: str) -> list[str]:
    """Return what is wrong with the lock: pins, hashes, and addresses that it must not hold."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", lock.strip())
    locked = {_name(name): version for name, version in _LOCKED.findall(lock)}
    chosen = {name: version for name, version in locked.items() if name in wanted}
    relock = f"lock again with `{RELOCK}`"
    found = _compare("requirements.lock", wanted, chosen, relock)
    found += [
        f"requirements.lock: {entry.split()[0]}: has no hash: {relock}"
        for entry in entries
        if _LOCKED.match(entry) and "--hash=sha256:" not in entry
    ]
    if re.search(r"--(extra-)?index-url|--find-links|https?://", lock):
        found.append(f"requirements.lock: holds the address of an index: {relock}")
    return found


def main() -> int:
    """Print every difference; return the exit status."""
    found = check(PROJECT)
    for line in found:
        sys.stderr.write(f"{line}\n")
    if found:
        sys.stderr.write(f"{len(found)} differences; the pins of pyproject.toml are the wanted\n")
        return 1
    sys.stdout.write("pyproject.toml, environment.yml and requirements.lock pin the same\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

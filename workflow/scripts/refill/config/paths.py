"""Where this project is, and how messages show a path."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[4]


def shown(path: Path) -> str:
    """Return a path as messages show it: relative to the project or the current folder."""
    whole = path.resolve()
    for folder in (PROJECT.resolve(), Path.cwd()):
        if whole.is_relative_to(folder):
            return str(whole.relative_to(folder))
    return str(path)

"""YAML files read strictly: a key that stands twice is an error, not a silent loss."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from refill.config.errors import ConfigError
from refill.config.paths import shown


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a mapping with the same key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice in one block", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises ConfigError when the file is missing, is not UTF-8, is no valid YAML, holds a key twice
    or is no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([f"{shown(path)}: no such file: check the name"]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            [f"{shown(path)}: line {line}: is not UTF-8: save the file in the encoding UTF-8"]
        ) from None
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping in the text of a YAML file; `path` is for messages. Raises ConfigError."""
    try:
        # The loader is a SafeLoader.
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(
            [f"{shown(path)}: {line}not valid YAML: {error.problem}: mend the line"]
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        # A ValueError is a value that looks like a date or number and is none (2026-13-45).
        raise ConfigError([f"{shown(path)}: not valid YAML: {error}: mend the file"]) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError([f"{shown(path)}: must be a block of keys, is {type(value).__name__}"])
    return value

"""The schemas are closed and described, and config/README.md says what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from refill.config import PROJECT, readme, schemas

NAMES = sorted(path.name for path in (PROJECT / "workflow/schemas").glob("*.schema.yaml"))
OURS = [
    "config.schema.yaml",
    "images.schema.yaml",
    "operations.schema.yaml",
    "optimizers.schema.yaml",
]


def objects(schema: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield where, schema
        for key, part in schema.items():
            yield from objects(part, f"{where}/{key}")
    elif isinstance(schema, list):
        for i, part in enumerate(schema):
            yield from objects(part, f"{where}/{i}")


def test_the_readme_has_not_drifted_from_the_schemas() -> None:
    text = (PROJECT / "config/README.md").read_text()
    assert readme.with_tables(text) == text, "run: python -m refill.config.readme"


def test_a_readme_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no line"):
        readme.with_tables("# Configuration\n")


@pytest.mark.parametrize("name", NAMES)
def test_each_schema_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(schemas.read_schema(name))


@pytest.mark.parametrize("name", OURS)
def test_each_object_is_closed_and_each_key_described(name: str) -> None:
    seen = 0
    for where, schema in objects(schemas.read_schema(name), name):
        assert schema.get("additionalProperties") is False, where
        for key, part in schema["properties"].items():
            seen += 1
            whole, _ = schemas.resolve(part, name)
            assert whole.get("description"), f"{where}: {key} has no description"
    assert seen > 5


@pytest.mark.parametrize("name", OURS)
def test_each_key_stands_in_the_readme(name: str) -> None:
    text = (PROJECT / "config/README.md").read_text()
    for _, schema in objects(schemas.read_schema(name), name):
        for key in schema["properties"]:
            if key not in ("share", "per_core", "default", "configurations"):
                assert f"{key}`" in text, key

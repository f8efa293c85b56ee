"""The tables of config/README.md, made from the schemas so that they cannot drift.

python -m refill.config.readme        write the tables into config/README.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from refill.config import PROJECT, schemas
from refill.evidence.records import write_bytes

BEGIN = "<!-- tables from workflow/schemas, written by `python -m refill.config.readme` -->"
END = "<!-- end of the tables -->"

_HEAD = "| key | value | default | what it is |\n|---|---|---|---|\n"
_OWN_TABLE = ("#/$defs/optimizers", "#/$defs/hnsw")
_LIMITS = (
    ("minimum", "from {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "to {}"),
    ("exclusiveMaximum", "below {}"),
)


def tables() -> str:
    """Return all tables as Markdown."""
    parts = ["### config/config.yaml and files merged into it\n", _table("config.schema.yaml")]
    parts += ["### Corpora (an entry of `corpora`)\n", _forms("corpora.schema.yaml")]
    for title, fragment in (
        ("### config/optimizers.yaml: an entry of `configurations`\n", "configuration"),
        ("### Optimizer settings\n", "optimizers"),
        ("### HNSW settings\n", "hnsw"),
    ):
        parts += [title, _table("optimizers.schema.yaml", f"#/$defs/{fragment}")]
    operations = "operations.schema.yaml"
    parts += ["### config/operations.yaml\n", _table(operations)]
    parts += ["### An entry of `operations`\n", _table(operations, "#/$defs/operation")]
    parts += ["### A value of an operation\n", _forms(f"{operations}#/$defs/value")]
    parts += ["### config/images.yaml\n", _table("images.schema.yaml")]
    return "\n".join(parts)


def with_tables(text: str) -> str:
    """Return the text of the README with the tables of today between its two marks.

    Raises ValueError when the marks are not there.
    """
    match = re.search(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}", text, re.DOTALL)
    if match is None:
        raise ValueError(f"config/README.md: has no line {BEGIN!r} with {END!r} after it")
    return f"{text[: match.start()]}{BEGIN}\n\n{tables()}\n{END}{text[match.end() :]}"


def write(path: Path) -> None:
    """Write the tables into the README at `path`."""
    write_bytes(path, with_tables(path.read_text(encoding="utf-8")).encode())


def _table(name: str, fragment: str = "") -> str:
    schema, name = schemas.resolve({"$ref": f"{name}{fragment}"}, name)
    rows = "".join(f"| {' | '.join(row)} |\n" for row in _rows(schema, name, ""))
    return _HEAD + rows


def _forms(reference: str) -> str:
    """Return one table for each form of a schema, told apart by `kind`."""
    schema, name = schemas.resolve({"$ref": reference}, reference.partition("#")[0])
    parts = []
    for form in schema["oneOf"]:
        whole, file = schemas.resolve(form, name)
        kind = whole.get("properties", {}).get("kind", {}).get("const")
        if kind:
            parts.append(f"Kind `{kind}`: {whole.get('description', '')}\n")
        rows = _rows(whole, file, "")
        parts.append(_HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows))
    return "\n".join(parts)


def _rows(schema: Mapping[str, Any], name: str, prefix: str) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", ())
    for key, part in schema.get("properties", {}).items():
        whole, file = schemas.resolve(part, name)
        default = "required" if key in required else _default(whole)
        yield f"`{prefix}{key}`", _kind(whole, file), default, _cell(whole["description"])
        if file == name and part.get("$ref") not in _OWN_TABLE:
            yield from _rows(whole, file, f"{prefix}{key}.")
            others = whole.get("additionalProperties")
            if isinstance(others, dict) and "$ref" not in others:
                yield from _rows(others, file, f"{prefix}{key}.<name>.")


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    text = "null" if value is None else str(value)
    return f"`{text.lower() if isinstance(value, bool) else text}`"


def _kind(schema: Mapping[str, Any], name: str) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{item}`" for item in schema["enum"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            forms = [schemas.resolve(form, name)[0] for form in schema[several]]
            # A title explains itself in brackets, for messages; here the text above does.
            titles = (str(form.get("title") or _kind(form, name)) for form in forms)
            return ", ".join(title.partition(" (")[0] for title in titles)
    types = schema.get("type", "object")
    names = [schemas.TYPES[t] for t in ([types] if isinstance(types, str) else types)]
    limits = [text.format(schema[key]) for key, text in _LIMITS if key in schema]
    return " ".join([" or ".join(names), *limits])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write(PROJECT / "config/README.md")
    sys.stdout.write("config/README.md: tables written\n")

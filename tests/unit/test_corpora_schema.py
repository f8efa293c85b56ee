"""The schema of an entry of `corpora`: the forms of each kind, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[2] / "workflow/schemas"
SCHEMA = yaml.safe_load((SCHEMAS / "corpora.schema.yaml").read_text())
PIN = "a" * 64
FORMS: dict[str, dict[str, Any]] = {
    "package": {
        "kind": "package",
        "package": "data-pack",
        "version": "1.0",
        "sha256": PIN,
        "member": "data_pack/x.npy",
        "distance": "Dot",
    },
    "hdf5": {"kind": "hdf5", "path": "data/x.hdf5", "sha256": PIN},
    "npy": {"kind": "npy", "path": "data/x.npy", "sha256": None, "distance": "Euclid"},
    "parquet": {
        "kind": "parquet",
        "path": "data/x.parquet",
        "sha256": PIN,
        "vector": "emb",
        "payload": ["docid"],
        "distance": "Cosine",
    },
    "flights": {
        "kind": "flights",
        "package": "data-pack",
        "version": "1.0",
        "archive": "sdist",
        "sha256": PIN,
        "member": "data_pack/flights.csv.zip",
    },
}


def accepted(value: dict[str, Any]) -> bool:
    return Draft202012Validator(SCHEMA).is_valid(value)


def test_it_is_a_schema_whose_keys_are_described() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    for form in SCHEMA["oneOf"]:
        assert form["additionalProperties"] is False
        for key, part in form["properties"].items():
            target = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            assert target["description"], key


@pytest.mark.parametrize("kind", FORMS)
def test_each_form(kind: str) -> None:
    form = FORMS[kind]
    assert accepted(form)
    assert not accepted({**form, "kind": "csv"})
    assert not accepted({**form, "unknown": 1})
    assert not accepted({**form, "distance": "Manhattan"})
    assert not accepted({**form, "sha256": "A" * 64})
    for key in form.keys() - {"payload", "archive"}:
        assert not accepted({k: v for k, v in form.items() if k != key}), key


@pytest.mark.parametrize("kind", ["package", "flights"])
def test_a_package_is_always_pinned(kind: str) -> None:
    assert not accepted({**FORMS[kind], "sha256": None})

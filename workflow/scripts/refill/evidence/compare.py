"""Two results held against each other: may they be compared at all, and what differs then.

A figure of one machine, corpus, configuration or version says nothing about another's, so results
that differ in anything that changes figures are refused, field by field. What is meant to differ
(the image of a service that was built anew) is named by the caller and said in the output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.config.errors import nearest
from refill.evidence.compared_cells import table
from refill.evidence.records import RecordError, read_json
from refill.evidence.verification import changed_files, read_manifest
from refill.evidence.withheld import read_withheld
from refill.report.machine import flat

# What is measured, not how: a cell that only one side has is `not measured` on the other. And
# limits of waiting that change no figure of a run that did not meet them.
_NO_MATTER = (
    "config.scale",  # has a field of its own
    "config.optimizers.runs",
    "config.optimizers.repeats",
    "config.rounds.profiles",
    "config.rounds.blocks",
    "config.rounds.gateway.start_timeout_s",
    "config.rounds.valkey.start_timeout_s",
    "config.optimizers.upload.verify_timeout_s",
    "config.qdrant.start_timeout_s",
)
# Packages for tests and form: nothing that measures imports them.
_FOR_TESTS = (
    "elasticsearch", "hypothesis", "mypy", "opensearch-py", "pytest", "roc-validator", "ruff",
    "selenium", "snakefmt",
)  # fmt: skip

Manifest = Mapping[str, Any]


class NotComparableError(ValueError):
    """Two results differ in what changes figures; the text has one line a field."""


def compare(old_path: Path, new_path: Path, allowed: Sequence[str] = ()) -> str:
    """Return the verdict of each cell of `new` against `old`, as text.

    Both are manifests that lie in their results folders. `allowed` are fields that may differ,
    with all below them. Raises NotComparableError when others do, RecordError when something
    cannot be read, a file is not the manifest's, `allowed` names no field, or both have an attempt
    in common: what was measured once is no second measurement.
    """
    old, new = read_manifest(old_path), read_manifest(new_path)
    common = sorted({run["attempt"] for run in old["runs"]} & {r["attempt"] for r in new["runs"]})
    if common:
        more = f" and {len(common) - 3} more" if len(common) > 3 else ""
        raise RecordError(
            f"runs: both have the attempts {', '.join(common[:3])}{more}: they would be compared "
            "with themselves; give the results of two measurements"
        )
    fields = [comparable(m, path) for m, path in ((old, old_path), (new, new_path))]
    names = sorted({*fields[0], *fields[1]})
    for field in allowed:
        if not any(_below(name, field) for name in names):
            hint = nearest(field, {n for name in names for n in _prefixes(name)})
            raise RecordError(f"--allow {field}: no such field: {hint}fields are {_tops(names)}")
    differing = [name for name in names if fields[0].get(name) != fields[1].get(name)]
    refused = [n for n in differing if not any(_below(n, field) for field in allowed)]
    if refused:
        lines = [_line(name, *fields) for name in refused]
        raise NotComparableError(
            "\n".join(
                [
                    *lines,
                    f"{len(refused)} fields differ that change figures: not compared; measure "
                    "both anew under one setting, or allow a difference that is meant with "
                    f"--allow {refused[0]}",
                ]
            )
        )
    said = [f"allowed to differ: {_line(name, *fields)}" for name in differing]
    records = [_records(m, path) for m, path in ((old, old_path), (new, new_path))]
    return "\n".join([*said, *table(*records)]) + "\n"


def comparable(manifest: Manifest, path: Path) -> dict[str, Any]:
    """Return all that must be equal between comparable results, by dotted field.

    `path` is the manifest's, beside which images and corpora are.
    """
    work = path.resolve().parent.parent
    fields: dict[str, Any] = {"scale": manifest["config"].get("scale")}
    fields |= {f"config.{key}": v for key, v in flat(manifest["config"]).items()}
    for file, entry in manifest["results"].items():
        if entry["kind"] == "corpus" and file.endswith("/corpus.json"):
            fields[f"corpora.{Path(file).parent.name}"] = entry["sha256"]
        if entry["kind"] == "image" and file.endswith(".json"):
            fields[f"images.{Path(file).stem}"] = read_json(work / file)["id"]
    for run in manifest["runs"]:
        kind = run["schema"].removeprefix("refill.").partition("/")[0]
        _gather(fields, f"code.{kind}", run["code"])
    for entry in manifest["engines"]:
        engine = {key: value for key, value in entry["engine"].items() if key != "build"}
        image = engine.pop("image", None) or {}
        name = ".".join(filter(None, [engine["name"], image.get("name")]))
        for key, value in flat(engine).items():
            _gather(fields, f"engines.{name}.{key}", value)
    for entry in manifest["hosts"]:
        for key, value in flat(entry["host"]).items():
            _gather(fields, f"host.{key}", value)
    versions = manifest["versions"]
    fields["versions.python"] = versions["python"]
    fields |= {
        f"versions.packages.{name}": version
        for name, version in versions["packages"].items()
        if name not in _FOR_TESTS and not name.startswith("types-") and not name.endswith("-stubs")
    }
    return {k: v for k, v in fields.items() if not any(_below(k, n) for n in _NO_MATTER)}


def _gather(fields: dict[str, Any], name: str, value: Any) -> None:
    """Keep the distinct values of a field that several records have, in a fixed order."""
    values = fields.setdefault(name, [])
    if value not in values:
        values.append(value)
        values.sort(key=lambda v: json.dumps(v, sort_keys=True))


def _records(manifest: Manifest, path: Path) -> list[dict[str, Any]]:
    work = path.resolve().parent.parent
    names = [run["record"] for run in manifest["runs"]]
    # The fields that must be equal are read from images and corpora too.
    kinds = ("record", "ledger", "image", "corpus", "engine")
    needed = {
        name: entry
        for name, entry in manifest["results"].items()
        if name in names or entry["kind"] in kinds
    }
    changed = changed_files(work, needed, read_withheld(work, manifest["results"]))
    if changed:
        raise RecordError("\n".join(f"{path}: {line}" for line in changed.values()))
    return [read_json(work / name) for name in names]


def _below(name: str, field: str) -> bool:
    return name == field or name.startswith(f"{field}.")


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _tops(names: Sequence[str]) -> str:
    return ", ".join(sorted({name.partition(".")[0] for name in names}))


def _line(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return f"{name}: {_shown(old, name)} in the old results, {_shown(new, name)} in the new"


def _shown(fields: Mapping[str, Any], name: str) -> str:
    if name not in fields:
        return "absent"
    value = fields[name]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."

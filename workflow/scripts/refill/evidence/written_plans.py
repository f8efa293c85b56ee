"""The manifest's `written` held against its configuration: nothing is left out of a table.

Tables made again prove little if the manifest may choose what they are made of, by which plan.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from refill import table_plan
from refill.config.errors import ConfigError
from refill.evidence.json_difference import unequal
from refill.evidence.records import read_json
from refill.operations.catalog import load_operations
from refill.proofs import asked_for

TABLES, REPORT, COUNTED = "write_tables.py", "write_report.py", "count_false_verdicts.py"
# So many places of one entry are named.
_NAMED = 3


def differences(manifest: Mapping[str, Any], work: Path, project: Path) -> list[str]:
    """Return where `written`, or what was planned, is not what the configuration asks for.

    `work` is the folder that holds results, `project` the one with config/operations.yaml.
    """
    config = manifest["config"]
    try:
        expected = _expected(config, project)
        planned = [path for paths in table_plan.records(config).values() for path in paths]
    except (ConfigError, OSError, LookupError, TypeError, AttributeError) as error:
        return [f"manifest.json: config: gives no plan: {type(error).__name__}: {error}"]
    found = list(_entries(manifest["written"], expected))
    found += _outputs(manifest)
    found += [
        f"manifest.json: order.planned{where}: says {says!r}, the configuration gives {gives!r}"
        for where, says, gives in islice(unequal(manifest["order"]["planned"], planned), _NAMED)
    ]
    for path in planned:
        if (work / path).is_file():
            found += _unlike_config(path, read_json(work / path), config, work)
    return found


def _expected(config: Mapping[str, Any], project: Path) -> dict[str, dict[str, Any]]:
    """Return plan and inputs by script."""
    operations = load_operations(project / "config/operations.yaml")
    plan = table_plan.of_tables(config, operations)
    asked = table_plan.records(config)
    expected = {
        TABLES: {"plan": plan, "input": asked},
        REPORT: {"plan": plan, "input": {**asked, "manifest": "results/manifest.json"}},
    }
    images = config.get("rounds", {}).get("images", {})
    if asked["rounds"] and len({*images.values()}) == 1:
        counted = {"plan": {"expected": plan["expected"]}, "input": {"rounds": asked["rounds"]}}
        expected[COUNTED] = counted
    return expected


def _entries(
    written: list[dict[str, Any]], expected: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    counts = Counter(entry["script"] for entry in written)
    for script in sorted({*counts, *expected}):
        if counts[script] != (wanted := int(script in expected)):
            stands = f"{script} stands there {counts[script]} times, not {wanted}"
            yield f"manifest.json: written: {stands}"
    for entry in written:
        should = expected.get(entry["script"], {"plan": entry["plan"], "input": {}})
        # What is drawn only (ledgers, tables) decides no figure of a page.
        inputs = {key: entry["input"].get(key) for key in should["input"]}
        says = {"plan": entry["plan"], "input": inputs}
        gives = json.loads(json.dumps({key: should[key] for key in says}))
        for where, one, other in islice(unequal(says, gives), _NAMED):
            yield (
                f"manifest.json: written, {entry['script']}{where}: says {one!r}, the "
                f"configuration gives {other!r}"
            )


def _outputs(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Give what is made twice, and a table or the report if nothing makes it."""
    made = Counter(p for entry in manifest["written"] for p in entry["output"].values())
    yield from (
        f"manifest.json: written: {path} is made {n} times" for path, n in made.items() if n > 1
    )
    if "results/report.html" not in made:
        yield "results/report.html: nothing in the manifest makes it"


def _unlike_config(
    path: str, record: Mapping[str, Any], config: Mapping[str, Any], work: Path
) -> Iterator[str]:
    pairs = {"scale": (record.get("scale"), config.get("scale"))}
    if record.get("schema") == "refill.optimizer-run/1":
        for key in ("name", "points"):
            says = (record.get("corpus") or {}).get(key)
            pairs[f"corpus.{key}"] = (says, config["corpus"][key])
    elif record.get("schema") == "refill.proof/1":
        pairs |= {
            where.lstrip("."): (says, gives)
            for where, says, gives in asked_for.unlike(record, table_plan.proof(config), work)
        }
    for key, (says, gives) in pairs.items():
        if says != gives:
            yield f"{path}: {key}: says {says!r}, the manifest's configuration {gives!r}"

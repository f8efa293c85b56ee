"""The manifest: what was measured, from what, by what, where, with the SHA-256 of every file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from refill.config.schemas import problems
from refill.evidence import inventory
from refill.evidence.attempts import LINES, list_attempts
from refill.evidence.description import git_state, public_config, public_word, versions
from refill.evidence.hashes import sha256_file
from refill.evidence.host import host_facts
from refill.evidence.order import run_order
from refill.evidence.records import RecordError, read_json
from refill.evidence.scrub import scrub, variables_of_secrets, without_paths
from refill.report.machine import lasting

SCHEMA = "refill.manifest/2"
SCHEMA_FILE = "manifest.schema.yaml"
MANIFEST = Path("results/manifest.json")

# What records of every kind have in common.
_RUN_KEYS = (
    "schema", "id", "repeat", "scale", "attempt", "started_at", "ended_at", "code", "valid",
    "outcome",
)  # fmt: skip


def gather(
    project: Path,
    results: Path,
    config: Mapping[str, Any],
    command: Sequence[str] = (),
    left_out: Sequence[str] = (),
    asked: Sequence[str] | None = None,
    written: Sequence[Mapping[str, Any]] = (),
    again_for: str = "",
) -> dict[str, Any]:
    """Return the manifest of everything in the folder `results`, as JSON that fits its schema.

    `project` holds workflow/ and config/, `config` is the effective configuration, `command` the
    command line that ran the workflow. `left_out` are further patterns of paths ("results/x*")
    that are still being written, such as the log of the rule that calls this. `asked` are the
    paths of the records that `config` asks for, in the order in which they are to be measured:
    others on the disk are of an earlier configuration, and `not_asked_for` names them (without
    `asked`: none). `written` says how tables and report are made from records, so that they can
    be made again (see `refill.evidence.remade`). `again_for` is what `lines_unknown` gave. Paths
    in the manifest are relative to `project` (sources) or to the folder that holds `results`.
    Raises PrivateError when something private would stand in it, RecordError for a broken record,
    InventoryError while something still writes there.
    """
    work = results.resolve().parent
    patterns = [*inventory.WRITTEN_LATER, *left_out]
    files = inventory.results(work, patterns)
    attempts = list_attempts(work)
    manifest = {
        "schema": SCHEMA,
        "created_at": _now(),
        "gathered_again_for": again_for,
        "command": [public_word(word, project) for word in command],
        "config": public_config(config, project),
        "git": git_state(project),
        "versions": versions(project),
        "host": host_facts(results),
        **told_by_records(work, files, project, asked, attempts),
        "attempts": public_attempts(attempts, work, project),
        "written": [dict(entry) for entry in written],
        "sources": inventory.hashed(project, inventory.sources(project)),
        "results": inventory.hashed(work, files),
        "left_out": patterns,
    }
    scrub(manifest, project, secret_variables=variables_of_secrets(config))
    check_schema(manifest, "the manifest")
    return manifest


def lines_unknown(work: Path) -> str:
    """Give what a plan says of attempts, so that a manifest that lacks some is gathered again.

    An attempt may end after the manifest was written: one of a cluster that was superseded, or one
    of a run that was stopped. Nothing else of the results changes by that, so the plan must.

    Returns:
        The SHA-256 of the attempts' lines where the manifest of `work` does not know them all;
        else what it was gathered for, which leaves its plan as it was.
    """
    try:
        manifest = read_json(work / MANIFEST, SCHEMA)
        known = manifest["results"].get(LINES.as_posix(), {}).get("sha256")
    except (RecordError, LookupError, AttributeError):
        return ""
    now = sha256_file(work / LINES) if (work / LINES).exists() else None
    return str(manifest.get("gathered_again_for", "")) if now in (None, known) else now


def told_by_records(
    work: Path,
    files: Mapping[str, str],
    project: Path,
    asked: Sequence[str] | None,
    attempts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the parts of a manifest that are read from records and attempts alone.

    `files` are the kinds of the results by path. Raises RecordError for a broken record.
    """
    records = {path: read_json(work / path) for path, kind in files.items() if kind == "record"}
    runs = sorted(
        (_run(path, record, [work, project]) for path, record in records.items()),
        key=lambda run: (run["started_at"], run["record"]),
    )
    ordered = {run["record"]: records[run["record"]] for run in runs}
    planned = [run["record"] for run in runs] if asked is None else list(asked)
    return {
        "engines": _shared("engine", {p: _engines(r) for p, r in ordered.items()}),
        "hosts": _shared("host", {p: [lasting(r["host"])] for p, r in ordered.items()}),
        "runs": runs,
        "order": run_order(
            runs, planned, attempts, {p: r["host"].get("node") for p, r in ordered.items()}
        ),
        "not_asked_for": sorted(run["record"] for run in runs if run["record"] not in planned),
    }


def public_attempts(
    attempts: Sequence[Mapping[str, Any]], work: Path, project: Path
) -> list[dict[str, Any]]:
    """Return attempts without absolute paths in their reasons."""
    return [{**a, "reason": without_paths(a["reason"], [work, project])} for a in attempts]


def check_schema(manifest: Mapping[str, Any], where: str) -> None:
    """Raise RecordError, one line a problem, when a manifest does not fit its schema."""
    if found := problems(SCHEMA_FILE, manifest):
        raise RecordError("\n".join(f"{where}: {_place(p.where)}: {p.text}" for p in found))


def _place(where: Sequence[str | int]) -> str:
    return ".".join(map(str, where)) or "(whole file)"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _run(path: str, record: Mapping[str, Any], private: Sequence[Path]) -> dict[str, Any]:
    if missing := [key for key in (*_RUN_KEYS, "invalid", "host") if key not in record]:
        raise RecordError(
            f"{path}: {missing[0]}: is missing; delete the record and run the workflow again"
        )
    reasons = [without_paths(reason, private) for reason in record["invalid"]]
    return {**{key: record[key] for key in _RUN_KEYS}, "invalid": reasons, "record": path}


def _engines(record: Mapping[str, Any]) -> list[Any]:
    # A round has several engines; one that failed before they answered may have none.
    if isinstance(several := record.get("engines"), Mapping):
        return list(several.values())
    return [record["engine"]] if "engine" in record else []


def _shared(name: str, by_record: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each distinct identity once, with the records that it stands in."""
    found: dict[str, dict[str, Any]] = {}
    for path, identities in by_record.items():
        for identity in identities:
            key = json.dumps(identity, sort_keys=True)
            entry = found.setdefault(key, {name: identity, "records": []})
            entry["records"].append(path)
    return list(found.values())

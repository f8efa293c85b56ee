"""The manifest: what was measured, from what, by what, where, with the SHA-256 of every file."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from refill.evidence import inventory
from refill.evidence.attempts import list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.host import host_facts
from refill.evidence.records import read_json
from refill.evidence.scrub import scrub, without_paths

PROJECT = Path(__file__).parents[4]
SCHEMA = "refill.manifest/1"
# The schema of a record follows from its folder.
SCHEMAS = {
    "results/optimizers/": "refill.optimizer-run/1",
    "results/proofs/": "refill.proof/1",
    "results/rounds/": "refill.round/1",
}


def gather(
    project: Path,
    results: Path,
    config: Mapping[str, Any],
    command: Sequence[str] = (),
    left_out: Sequence[str] = (),
    asked: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the manifest of everything in the folder `results`, as JSON.

    `project` holds workflow/ and config/, `config` is the effective configuration, `command` the
    command line that ran the workflow. `left_out` are further patterns of paths ("results/x*")
    that are still being written, such as the log of the rule that calls this. `asked` are the
    paths of the records that `config` asks for: others on the disk are of an earlier
    configuration, and `not_asked_for` names them (without `asked`: none). Paths in the manifest
    are relative to `project` (sources) or to the folder that holds `results`. Raises PrivateError
    when something private would stand in it, RecordError for a broken record, InventoryError
    while something still writes there.
    """
    work = results.resolve().parent
    patterns = [*inventory.WRITTEN_LATER, *left_out]
    files = inventory.results(work, patterns)
    runs = _runs(work, files, project)
    manifest = {
        "schema": SCHEMA,
        "created_at": _now(),
        "command": [_public_word(word, project) for word in command],
        "config": _public_config(config, project),
        "git": git_state(project),
        "versions": versions(project),
        "host": host_facts(results),
        "engines": _engines(work, runs),
        "runs": runs,
        "not_asked_for": sorted(
            run["record"] for run in runs if asked is not None and run["record"] not in asked
        ),
        "attempts": _attempts(work, project),
        "sources": inventory.hashed(project, inventory.sources(project)),
        "results": inventory.hashed(work, files),
        "left_out": patterns,
    }
    variable = config.get("qdrant", {}).get("api_key_env")
    scrub(manifest, project, secret_variables=[variable] if variable else [])
    return manifest


def verify(manifest_path: Path, project: Path | None = None) -> list[str]:
    """Compare a manifest with the files it names; return one line for each difference.

    `manifest_path` is the manifest in its results folder, `project` the folder with workflow/
    (default: the folder that holds the results folder if it is one, else this project). Every
    file is hashed again; a record must also agree with the ledger, polls, corpus and archive that
    it names. Raises RecordError when the manifest itself cannot be read.
    """
    manifest = read_json(manifest_path, SCHEMA)
    work = manifest_path.resolve().parent.parent
    if project is None:
        project = work if (work / "workflow").is_dir() else PROJECT
    changed = _differences(work, manifest["results"])
    found = [*_differences(project, manifest["sources"]).values(), *changed.values()]
    present = inventory.results(work, manifest["left_out"])
    unnamed = present.keys() - manifest["results"].keys()
    found += [
        f"{path}: is there, the manifest does not name it"
        for path in sorted(unnamed)
        if present[path] in inventory.COMPLETE
    ]
    return found + _disagreements(work, manifest["results"], changed)


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


def _public_word(word: str, project: Path) -> str:
    """Return a word without absolute paths: relative to the project, else the last part alone."""
    for folder in {str(project), str(project.resolve())}:
        word = re.sub(rf"(^|=){re.escape(folder)}/*$", r"\1.", word)
    word = without_paths(word, [project])
    return re.sub(r"(^|=)[/~][^=]*?([^/=]*)/*$", r"\1\2", word)


def _public_config(value: Any, project: Path) -> Any:
    """Return a configuration without absolute paths and without the address of a server."""
    if isinstance(value, Mapping):
        return {key: _public_config(item, project) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_public_config(item, project) for item in value]
    if not isinstance(value, str):
        return value
    address = re.match(r"(https?)://", value)
    if address:
        host = urlsplit(value).hostname
        local = host in ("localhost", "127.0.0.1", "::1")
        return f"{address[1]}, {'this machine' if local else 'another machine'}"
    return _public_word(value, project) if value.startswith(("/", "~")) else value


def _attempts(work: Path, project: Path) -> list[dict[str, Any]]:
    return [
        {**attempt, "reason": without_paths(attempt["reason"], [work, project])}
        for attempt in list_attempts(work)
    ]


def _runs(work: Path, files: Mapping[str, str], project: Path) -> list[dict[str, Any]]:
    """Return what ran, in the order in which it really ran, from the records' own times."""
    keys = ("id", "repeat", "scale", "attempt", "started_at", "ended_at", "code", "valid")
    runs = []
    for path in (path for path, kind in files.items() if kind == "record"):
        schema = next(schema for folder, schema in SCHEMAS.items() if path.startswith(folder))
        record = read_json(work / path, schema)
        reasons = [without_paths(reason, [work, project]) for reason in record["invalid"]]
        run = {key: record[key] for key in (*keys, "outcome")}
        runs.append({**run, "invalid": reasons, "record": path})
    return sorted(runs, key=lambda run: (run["started_at"], run["record"]))


def _engines(work: Path, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each engine identity in the records once, with the records that it stands in."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        record = read_json(work / run["record"])
        # A round or a proof has several engines; one that failed early may have none.
        several = "engines" in record
        for engine in record["engines"].values() if several else [record["engine"]]:
            key = json.dumps(engine, sort_keys=True)
            entry = found.setdefault(key, {"engine": engine, "records": []})
            entry["records"].append(run["record"])
    return list(found.values())


def _differences(root: Path, files: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    found = {}
    for path, entry in files.items():
        file = root / path
        if not file.is_file():
            found[path] = f"{path}: is missing; expected SHA-256 {entry['sha256']}"
        elif (got := sha256_file(file)) != entry["sha256"]:
            found[path] = f"{path}: has changed: expected SHA-256 {entry['sha256']}, got {got}"
    return found


def _disagreements(
    work: Path, files: Mapping[str, Mapping[str, Any]], changed: Container[str]
) -> list[str]:
    """Return where a record names another hash than the file it points to has.

    Records that have `changed` themselves are left out: what they say now is no evidence.
    """
    found = []
    for path, entry in files.items():
        is_record = path.endswith(".json") and entry["kind"] in ("record", "image", "corpus")
        if not is_record or path in changed:
            continue
        for key, target, sha256 in _claims(path, read_json(work / path)):
            actual = files.get(target)
            if actual is None:
                found.append(f"{path}: {key}: names {target}, which is not in the manifest")
            elif actual["sha256"] != sha256:
                found.append(
                    f"{path}: {key}: says {target} has SHA-256 {sha256}, "
                    f"the manifest has {actual['sha256']}"
                )
    return found


def _claims(path: str, record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (key, path, SHA-256) of every file whose hash a record states."""
    match record.get("schema"):
        case "refill.optimizer-run/1":
            corpus = f"results/corpora/{record['corpus']['name']}/corpus.json"
            return [
                *((key, record[key]["path"], record[key]["sha256"]) for key in ("ledger", "polls")),
                ("corpus.sha256", corpus, record["corpus"]["sha256"]),
            ]
        case "refill.round/1":
            corpus = f"results/corpora/{record['corpus']['name']}/corpus.json"
            parts = [(key, record[key]) for key in ("ledger", "resources")]
            parts += [(f"profiles.{p['name']}", p) for p in record["profiles"]]
            return [
                *((key, part["path"], part["sha256"]) for key, part in parts),
                ("corpus.sha256", corpus, record["corpus"]["sha256"]),
            ]
        case "refill.proof/1":
            return [
                (f"images.{name}.id", image["archive"], image["id"].removeprefix("sha256:"))
                for name, image in record["images"].items()
            ]
        case "refill.image/1":
            return [("id", record["archive"], record["id"].removeprefix("sha256:"))]
        case "refill.corpus/1" | "refill.documents/1":
            folder = Path(path).parent
            return [
                (f"files.{name}", (folder / name).as_posix(), file["sha256"])
                for name, file in record["files"].items()
            ]
    return []

"""Is everything as it was? Files by their hashes, figures made again from ledgers and records.

Hashes find a changed byte; who can write the manifest can make its hashes anew, so what the
manifest, the records and the tables say is also made again from what lies below it: the
manifest's lists from the records, the records' figures from the ledgers, tables and report from
the records, and the manifest itself is held against the crate that was made after it.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from refill.config.paths import PROJECT
from refill.evidence import (
    crate_check,
    engine_homes,
    image_archives,
    inventory,
    recounted,
    remade,
    written_plans,
)
from refill.evidence.attempts import LINES, list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.json_difference import unequal
from refill.evidence.manifest import SCHEMA, check_schema, public_attempts, told_by_records
from refill.evidence.records import RecordError, canonical_json, read_json
from refill.evidence.withheld import read_withheld

Files = Mapping[str, Mapping[str, Any]]
Look = partial[list[str]]


@dataclass
class Findings:
    """What a verification found: `differences`, one a line, and `notes` that are none.

    `done` says which figures were made again.
    """

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: str = ""


def verify(manifest_path: Path, project: Path | None = None) -> list[str]:
    """Return one line for each difference between a manifest and what it names; see `inspect`."""
    return inspect(manifest_path, project).differences


def inspect(manifest_path: Path, project: Path | None = None, figures: bool = True) -> Findings:
    """Compare a manifest with the files it names, and these with what they are made from.

    `manifest_path` is the manifest in its results folder, `project` the folder with workflow/
    (default: the folder that holds the results folder if it is one, else this project). Figures
    are made again by this package, whatever `project` is; with `figures` False none are, and only
    hashes and what follows from them are looked at. Raises RecordError when the manifest
    itself cannot be read or does not fit its schema.
    """
    manifest = read_manifest(manifest_path)
    work = manifest_path.resolve().parent.parent
    project = project or project_of(work)
    found = Findings()
    if manifest_path.read_bytes() != canonical_json(manifest).encode():
        found.differences.append(f"{manifest_path.name}: is not in the form it was written in")
    changed = _check_files(manifest, work, project, found)
    for path in _of_kind(manifest["results"], "engine"):
        wrong, notes = engine_homes.differences(work, project, path)
        found.differences += wrong
        found.notes += notes
    looks: list[Look] = [partial(disagreements, work, manifest["results"], changed)]
    if figures and (whole := _whole_records(manifest["results"], work, changed)):
        looks += _figures(manifest, work, project, whole)
        found.done = _done(manifest, whole)
    looks.append(partial(crate_check.check, work))
    for look in looks:
        found.differences += _guarded(look)
    found.notes += _other_code(manifest)
    return found


def _figures(
    manifest: Mapping[str, Any], work: Path, project: Path, whole: Sequence[str]
) -> list[Look]:
    """Return what makes the figures again; `whole` are the records, which can all be read."""
    results = manifest["results"]
    images = _of_kind(results, "image")
    asked = [path for path in whole if path not in manifest["not_asked_for"]]
    return [
        partial(_told_otherwise, manifest, work, project),
        partial(unlike_attempts, manifest),
        *(partial(recounted.differences, work, path) for path in whole),
        *(partial(image_archives.differences, work, path) for path in images),
        partial(image_archives.unlike_measured, work, images, asked),
        partial(written_plans.differences, manifest, work, project),
        partial(remade.differences, manifest["written"], work, results),
    ]


def _guarded(look: Look) -> list[str]:
    """Look; what is in no form that this code writes is a difference, and the others are seen."""
    try:
        return look()
    except RecordError as error:
        return [str(error)]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        paths = ", ".join(str(argument) for argument in look.args if isinstance(argument, str))
        return [
            f"{paths or 'the results'}: not in the form that this workflow writes: "
            f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno}): "
            "something that is named here was edited by hand, or is of another version"
        ]


def _done(manifest: Mapping[str, Any], whole: Sequence[str]) -> str:
    """Say what was made again, for the line of success."""
    made = [path for entry in manifest["written"] for path in entry["output"].values()]
    tables = sum(path.endswith(".csv") for path in made)
    proofs = sum(path.startswith("results/proofs/") for path in whole)
    parts = (
        (len(whole) - proofs, "record", "counted again from ledgers"),
        (tables, "table", "made again from records"),
        (len(made) - tables, "page", "made again from records"),
        (proofs, "proof", "added up from its checks, which only a new proof can make again"),
    )
    return "; ".join(f"{n} {what}{'s' * (n > 1)} {done}" for n, what, done in parts if n)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest; raise RecordError when it is none or does not fit its schema."""
    if path.is_dir():
        raise RecordError(f"{path}: is a folder: give the manifest.json in it")
    if not path.exists():
        raise RecordError(
            f"{path}: no such file: give the manifest.json of a results folder; the workflow "
            "writes it (`snakemake results/manifest.json`), for a smoke run in smoke/results"
        )
    manifest = read_json(path, SCHEMA)
    check_schema(manifest, path.name)
    return manifest


def project_of(work: Path) -> Path:
    """Return the folder whose workflow/ made the results of `work`: itself, or this project."""
    return work if (work / "workflow").is_dir() else PROJECT


def changed_files(root: Path, files: Files, withheld: Collection[str] = ()) -> dict[str, str]:
    """Return a line for each file that is missing or has another hash, by path."""
    found = {}
    for path, entry in files.items():
        file = root / path
        if not file.is_file():
            if path not in withheld:
                found[path] = f"{path}: is missing; expected SHA-256 {entry['sha256']}"
        elif (got := sha256_file(file)) != entry["sha256"]:
            found[path] = f"{path}: has changed: expected SHA-256 {entry['sha256']}, got {got}"
            if (size := file.stat().st_size) != entry["bytes"]:
                found[path] += f" ({size} bytes, {entry['bytes']} expected)"
        elif (size := file.stat().st_size) != entry["bytes"]:
            found[path] = f"{path}: bytes: the manifest says {entry['bytes']}, it has {size}"
    return found


def _check_files(
    manifest: Mapping[str, Any], work: Path, project: Path, found: Findings
) -> dict[str, str]:
    """Look for changed, missing and added files; return the lines of the changed results."""
    results = manifest["results"]
    withheld = read_withheld(work, results)
    changed = changed_files(work, results, withheld)
    found.differences += changed_files(project, manifest["sources"]).values()
    found.differences += changed.values()
    if LINES.as_posix() in changed:
        found.notes.append(
            f"{LINES}: an attempt may have begun or ended after the manifest was written: "
            "`make all` gathers it again then, and measures nothing for that"
        )
    found.differences += _listed_otherwise(manifest)
    present = inventory.results(work)
    found.differences += [
        f"{path}: is there, the manifest does not name it"
        for path in sorted(present.keys() - results.keys())
    ]
    found.differences += [
        f"{path}: is hidden, and no mark of the workflow" for path in inventory.strange_hidden(work)
    ]
    added = inventory.sources(project)
    for path in sorted(added.keys() - manifest["sources"].keys()):
        line = f"{path}: is there, the manifest does not name it"
        # A configuration beside the others is one for another run.
        lines = found.notes if added[path] == "config" else found.differences
        lines.append(line)
    absent = [path for path in withheld if not (work / path).is_file()]
    found.notes += [f"{path}: is not in this archive: {withheld[path]}" for path in absent]
    beside = ("results/bench.json", "results/scratch")
    found.notes += [
        f"{path}: is no result, not looked at" for path in beside if _filled(work / path)
    ]
    return changed


def _listed_otherwise(manifest: Mapping[str, Any]) -> list[str]:
    """Return where the manifest gives a file another kind, or leaves out more, than the rules do.

    The kind of a file decides what it is held against, so no manifest may choose it.
    """
    found = [
        f"manifest.json: left_out: {pattern!r} is no pattern of what is written later"
        for pattern in sorted({*manifest["left_out"]} - {*inventory.WRITTEN_LATER})
    ]
    kinds = {"sources": inventory.source_kind, "results": inventory.result_kind}
    return found + [
        f"manifest.json: {part}.{path}.kind: says {entry['kind']}, by its path it is {kind}"
        for part, kind_of in kinds.items()
        for path, entry in manifest[part].items()
        if (kind := kind_of(path)) != entry["kind"]
    ]


def _filled(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _whole_records(results: Files, work: Path, changed: Collection[str]) -> list[str]:
    """Return the records if all can be read; else none, as nothing can be made from them again."""
    records = _of_kind(results, "record")
    for path in records:
        if path in changed:
            try:
                read_json(work / path)
            except RecordError:
                return []  # that it has changed is said already
    return records


def _of_kind(results: Files, kind: str) -> list[str]:
    return [p for p, entry in results.items() if entry["kind"] == kind and p.endswith(".json")]


def _told_otherwise(manifest: Mapping[str, Any], work: Path, project: Path) -> list[str]:
    """Return where the manifest says something else than records and attempts do."""
    kinds = {path: entry["kind"] for path, entry in manifest["results"].items()}
    attempts = list_attempts(work)
    try:
        told = told_by_records(work, kinds, project, manifest["order"]["planned"], attempts)
    except RecordError as error:
        return [str(error)]
    told["attempts"] = public_attempts(attempts, work, project)
    return [
        f"manifest.json: {key}{where}: says {_brief(says)}, the records say {_brief(should)}"
        for key, value in told.items()
        for where, says, should in islice(unequal(manifest[key], value), 3)
    ]


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def unlike_attempts(manifest: Mapping[str, Any]) -> list[str]:
    """Return where a record is not the one that its attempt left."""
    attempts = {attempt["attempt"]: attempt for attempt in manifest["attempts"]}
    found = []
    for run in manifest["runs"]:
        attempt = attempts.get(run["attempt"])
        if attempt is None:
            found.append(
                f"{run['record']}: attempt: {run['attempt']} stands in no line of attempts"
            )
            continue
        for path, sha256 in attempt["files"].items():
            now = manifest["results"].get(path)
            if now is not None and now["sha256"] != sha256:
                found.append(
                    f"{path}: is not the file that attempt {run['attempt']} wrote, whose SHA-256 "
                    f"was {sha256}"
                )
    return found


def _other_code(manifest: Mapping[str, Any]) -> list[str]:
    """Say so when this package is not the one that made the tables."""
    base = "workflow/scripts/"
    other = [
        path
        for path, entry in manifest["sources"].items()
        if path.startswith(base)
        and not (
            (file := remade.SCRIPTS / path.removeprefix(base)).is_file()
            and sha256_file(file) == entry["sha256"]
        )
    ]
    if not other:
        return []
    return [
        f"figures were made again by another version of this workflow ({len(other)} files differ, "
        f"the first is {other[0]}); with PYTHONPATH=workflow/scripts of the version that made the "
        "results they are made by that one"
    ]


def disagreements(work: Path, files: Files, changed: Collection[str]) -> list[str]:
    """Return where a record names another hash than the file it points to has.

    Records that have `changed` themselves are left out: what they say now is no evidence.
    """
    found = []
    for path, entry in files.items():
        is_record = path.endswith(".json") and entry["kind"] in ("record", "image", "corpus")
        if not is_record or path in changed:
            continue
        for key, target, sha256 in _stated(path, read_json(work / path)):
            actual = files.get(target)
            if actual is None:
                found.append(f"{path}: {key}: names {target}, which is not in the manifest")
            elif actual["sha256"] != sha256:
                found.append(
                    f"{path}: {key}: says {target} has SHA-256 {sha256}, "
                    f"the manifest has {actual['sha256']}"
                )
    return found


def _stated(path: str, record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (key, path, SHA-256) of every file whose hash a record states."""
    found = []
    for key in ("ledger", "polls", "resources"):
        part = record.get(key) or {}
        if _is_file(part):
            found.append((key, part["path"], part["sha256"]))
    profiles: Sequence[Any] = record.get("profiles") or []
    found += [(f"profiles.{p['name']}", p["path"], p["sha256"]) for p in profiles if _is_file(p)]
    images: Mapping[str, Any] = record.get("images") or {}
    found += [
        (f"images.{name}.id", image["archive"], image["id"].removeprefix("sha256:"))
        for name, image in images.items()
        if "archive" in image
    ]
    corpus = record.get("corpus")
    if isinstance(corpus, Mapping) and "sha256" in corpus:
        target = f"results/corpora/{corpus['name']}/corpus.json"
        found.append(("corpus.sha256", target, corpus["sha256"]))
    match record.get("schema"):
        case "refill.image/1" if "archive" in record:
            found.append(("id", record["archive"], record["id"].removeprefix("sha256:")))
        case "refill.corpus/1" | "refill.documents/1":
            folder = Path(path).parent
            found += [
                (f"files.{name}", (folder / name).as_posix(), file["sha256"])
                for name, file in record["files"].items()
            ]
    return found


def _is_file(part: Mapping[str, Any]) -> bool:
    return "path" in part and "sha256" in part

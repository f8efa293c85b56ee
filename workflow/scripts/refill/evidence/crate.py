"""The results as a Workflow Run RO-Crate: what ran, from what, and what came of it, for others.

Profiles: https://w3id.org/ro/wfrun/workflow/0.5 (and process/0.5, workflow-ro-crate/1.0 below it)
on RO-Crate 1.1. The crate is made after manifest and report and states the SHA-256 of both, so it
is also what a changed byte in them is found by. No person is named in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocrate.model.computationalworkflow import ComputationalWorkflow
from rocrate.model.contextentity import ContextEntity
from rocrate.model.softwareapplication import SoftwareApplication
from rocrate.rocrate import ROCrate

from refill.evidence.hashes import sha256_bytes, sha256_file
from refill.evidence.records import write_json
from refill.evidence.withheld import FILE as WITHHELD

Content = Path | bytes

FOLDER = "results/ro-crate"
METADATA = "ro-crate-metadata.json"
SNAKEFILE = "workflow/Snakefile"

PROFILES = (
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"),
    ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0"),
)
CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"
BIOSCHEMAS = "https://bioschemas.org/profiles"
LICENSE = "https://spdx.org/licenses/MIT"

README = """\
# Results of Refill

A Workflow Run RO-Crate: `ro-crate-metadata.json` says what is what. The report for people is
`results/report.html`; `results/manifest.json` has the SHA-256 of every file, the machine, the
engines and the order in which everything ran.

To check every file and to make every figure again from the raw ledgers, in an environment with
the packages of `requirements.lock`, in this folder:

    PYTHONPATH=workflow/scripts python -m refill.evidence verify results/manifest.json

Run a script of an archive only if you trust who gave it to you; a copy of Refill of your own can
verify the same file.
"""

# Written after the manifest, so it is here that their hashes stand.
LATER = (
    "results/manifest.json",
    "results/report.html",
    "results/logs/manifest.log",
    "results/logs/report.log",
)
# Of which the crate names the folder: the manifest has the hash of each file in it.
_FOLDERS = {
    "workflow/scripts/": "The scripts of the workflow and the package they call",
    "workflow/schemas/": "JSON Schemas of configuration and manifest",
    "workflow/profiles/": "Snakemake profiles",
    "workflow/report/": "Captions of Snakemake's own report",
    "images/": "Sources of the systems under test that are built here",
    "results/attempts/": "Every try at a measurement, with what it left",
    "results/logs/": "Logs of the workflow's jobs",
}
_TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".npy": "application/octet-stream",
    ".pyz": "application/zip",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".csv": "text/csv",
    ".html": "text/html",
    ".md": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
}
# Snakemake opens these again in place, so a second name would change with the first.
_LINKED = (".parquet", ".npy", ".pyz")


def tree(manifest: Mapping[str, Any], work: Path, project: Path) -> dict[str, Content]:
    """Return every file of the crate: its path in it, and where it is now, or what it holds.

    These are the manifest's sources and results, what was written after it, the licence and a
    README for who finds the crate. What is missing is left out.
    """
    places = {path: project / path for path in (*manifest["sources"], "LICENSE")}
    # An archive that leaves logs out says which.
    places |= {path: work / path for path in (*manifest["results"], *LATER, WITHHELD)}
    files: dict[str, Content] = {path: file for path, file in places.items() if file.is_file()}
    files["README.md"] = README.encode()
    return dict(sorted(files.items()))


def write(manifest: Mapping[str, Any], work: Path, project: Path, folder: Path) -> Path:
    """Write the whole crate into `folder`, which is made anew; return its metadata file.

    What a job may write in place is copied; large files get a second name (a hard link) where the
    file system can. Raises OSError when the disk refuses.
    """
    if folder.exists():
        shutil.rmtree(folder)
    files = tree(manifest, work, project)
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            _place(content, target)
    write_json(folder / METADATA, metadata(manifest, files))
    return folder / METADATA


def metadata(manifest: Mapping[str, Any], files: Mapping[str, Content]) -> dict[str, Any]:
    """Return ro-crate-metadata.json for a manifest and the crate's `files` (see `tree`).

    The same files and manifest give the same JSON. Files that are not in the manifest are hashed.
    """
    known = {**manifest["sources"], **manifest["results"]}
    crate = ROCrate(version="1.1")
    crate.metadata.extra_contexts.append(CONTEXT)
    _describe_root(crate, manifest)
    for path in folders(files):
        crate.add_dataset(dest_path=path, properties={"name": _FOLDERS[path]})
    workflow = _add_workflow(crate, manifest, known, files)
    for path, content in sorted(files.items()):
        if path != SNAKEFILE and (path in LATER or not path.startswith(tuple(_FOLDERS))):
            crate.add_file(dest_path=path, properties=_file_properties(path, content, known))
    crate.dereference("README.md")["about"] = crate.root_dataset
    software = _add_software(crate, manifest)
    workflow["softwareRequirements"] = software
    inputs = _add_parameters(crate, manifest, workflow)
    _add_actions(crate, manifest, workflow, inputs)
    described: dict[str, Any] = crate.metadata.generate()
    described["@graph"].sort(key=lambda entity: entity["@id"])
    return described


def folders(files: Mapping[str, Content]) -> list[str]:
    """Return the folders that the crate describes as such, of those that have files."""
    return [path for path in _FOLDERS if any(name.startswith(path) for name in files)]


def _place(file: Path, target: Path) -> None:
    if file.suffix in _LINKED:
        try:
            os.link(file, target)
            return
        except OSError:
            pass  # another file system, or one without hard links: a copy does
    shutil.copyfile(file, target)


def _describe_root(crate: ROCrate, manifest: Mapping[str, Any]) -> None:
    scale = ", ".join(dict.fromkeys(str(run["scale"]) for run in manifest["runs"])) or "no"
    engines = dict.fromkeys(_engine_title(e["engine"]) for e in manifest["engines"])
    crate.name = "Refill: two published search-engine experiments, measured again"
    crate.description = (
        f"Records, ledgers, tables and report of a run of the Refill workflow at {scale} scale on "
        f"{', '.join(engines) or 'no engine'}. results/manifest.json has the SHA-256 of every "
        "file; `python -m refill.evidence verify results/manifest.json` checks them and makes "
        "every figure again from the ledgers."
    )
    crate.datePublished = manifest["created_at"]
    crate.license = crate.add(
        ContextEntity(crate, LICENSE, properties={"@type": "CreativeWork", "name": "MIT License"})
    )
    authors = {"@type": "Organization", "name": "The Refill authors"}
    crate.root_dataset["author"] = crate.add(ContextEntity(crate, "#authors", properties=authors))
    crate.root_dataset["conformsTo"] = [
        crate.add(
            ContextEntity(
                crate, id_, properties={"@type": "CreativeWork", "name": name, "version": version}
            )
        )
        for id_, name, version in PROFILES
    ]


def _add_workflow(
    crate: ROCrate,
    manifest: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]],
    files: Mapping[str, Content],
) -> Any:
    git = manifest["git"]
    revision = git["revision"] or known[SNAKEFILE]["sha256"]
    properties = {
        **_file_properties(SNAKEFILE, files[SNAKEFILE], known),
        "name": "Refill",
        "description": "Re-runs, checks and judges two published search-engine experiments.",
        "version": f"{revision}{' with changes' if git['dirty'] else ''}",
        "conformsTo": {"@id": f"{BIOSCHEMAS}/ComputationalWorkflow/1.0-RELEASE"},
    }
    workflow = crate.add_workflow(
        dest_path=SNAKEFILE,
        properties=properties,
        main=True,
        lang="snakemake",
        cls=ComputationalWorkflow,
    )
    version = manifest["versions"]["snakemake"]
    if version:
        workflow.lang["version"] = version
    return workflow


def _file_properties(
    path: str, content: Content, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    if path in known:
        sha256, size = known[path]["sha256"], known[path]["bytes"]
    elif isinstance(content, bytes):
        sha256, size = sha256_bytes(content), len(content)
    else:
        sha256, size = sha256_file(content), content.stat().st_size
    suffix = Path(path).suffix
    return {
        "name": path,
        "sha256": sha256,
        "contentSize": str(size),
        "encodingFormat": _TYPES.get(suffix, "text/plain"),
    }


def _add_software(crate: ROCrate, manifest: Mapping[str, Any]) -> list[Any]:
    versions = manifest["versions"]
    found = [
        ("#python", "Python", versions["python"], "https://www.python.org/"),
        *(
            (f"#package-{name}", name, version, f"https://pypi.org/project/{name}/")
            for name, version in versions["packages"].items()
            if version
        ),
    ]
    engines: dict[str, Mapping[str, Any]] = {}
    for entry in manifest["engines"]:
        engine = entry["engine"]
        label = _engine_title(engine)
        image = (engine.get("image") or {}).get("id")
        engines.setdefault(f"{label} {image or ''}".strip(), engine)
    applications = [
        crate.add(
            SoftwareApplication(
                crate, id_, properties={"name": name, "softwareVersion": version, "url": url}
            )
        )
        for id_, name, version, url in found
    ]
    for number, (label, engine) in enumerate(engines.items(), 1):
        properties = {"name": label, "softwareVersion": str(engine.get("version") or "unknown")}
        if image := engine.get("image"):
            properties["identifier"] = image["id"]
        applications.append(
            crate.add(SoftwareApplication(crate, f"#engine-{number}", properties=properties))
        )
    return applications


def _engine_title(engine: Mapping[str, Any]) -> str:
    image = (engine.get("image") or {}).get("name")
    title = str(engine.get("title") or engine["name"])
    return f"{title} ({image})" if image and image not in title else title


def _add_parameters(crate: ROCrate, manifest: Mapping[str, Any], workflow: Any) -> list[Any]:
    """Add what goes in and comes out by kind; return the values that are no files."""
    paths = {entity.id for entity in crate.data_entities}
    slots = {
        "input": [
            ("configuration", "File", ["config/config.yaml"]),
            ("corpora", "File", _of_kind(manifest, "corpus", "/corpus.json")),
            ("images", "File", _of_kind(manifest, "image", ".json")),
        ],
        "output": [
            ("records", "File", _of_kind(manifest, "record")),
            ("tables", "File", _of_kind(manifest, "table")),
            ("manifest", "File", ["results/manifest.json"]),
            ("report", "File", ["results/report.html"]),
        ],
    }
    for side, entries in slots.items():
        parameters = []
        for name, kind, examples in entries:
            there = [crate.dereference(path) for path in examples if path in paths]
            if there:
                parameters.append(_parameter(crate, name, kind, there))
        workflow[side] = parameters
    values = {"scale": str(manifest["config"].get("scale", "")), "command": _command(manifest)}
    given = []
    for name, value in values.items():
        if not value:
            continue
        properties = {"@type": "PropertyValue", "name": name, "value": value}
        entity = crate.add(ContextEntity(crate, f"#value-{name}", properties=properties))
        parameter = _parameter(crate, name, "Text", [entity])
        workflow.append_to("input", parameter)
        given.append(entity)
    return given


def _parameter(crate: ROCrate, name: str, kind: str, examples: Sequence[Any]) -> Any:
    parameter = crate.add_formal_parameter(
        name,
        additionalType=kind,
        identifier=f"#parameter-{name}",
        properties={"conformsTo": {"@id": f"{BIOSCHEMAS}/FormalParameter/1.0-RELEASE"}},
    )
    parameter["workExample"] = examples[0] if len(examples) == 1 else list(examples)
    for example in examples:
        example["exampleOfWork"] = parameter
    return parameter


def _add_actions(
    crate: ROCrate, manifest: Mapping[str, Any], workflow: Any, values: Sequence[Any]
) -> None:
    """Add one action for each call of Snakemake that measured; the last one also gathered."""
    runs = {run["record"]: run for run in manifest["runs"]}
    objects = [
        "config/config.yaml",
        "config/optimizers.yaml",
        "config/operations.yaml",
        "config/images.yaml",
        "config/claims.yaml",
        *_of_kind(manifest, "corpus"),
        *_of_kind(manifest, "image"),
    ]
    gathered = [*_of_kind(manifest, "table"), "results/manifest.json", "results/report.html"]
    calls = [call["records"] for call in manifest["order"]["invocations"]] or [[]]
    actions = []
    for number, records in enumerate(calls, 1):
        last = number == len(calls)
        started = min((runs[r]["started_at"] for r in records), default=manifest["created_at"])
        ended = max((runs[r]["ended_at"] for r in records), default=manifest["created_at"])
        made = [*records, *_beside(manifest, records), *(gathered if last else [])]
        failed = [r for r in records if not runs[r]["valid"]]
        say = f"{len(records)} measurements" + (", tables, manifest and report" if last else "")
        actions.append(
            crate.add_action(
                workflow,
                identifier=f"#call-{number}",
                object=[*_entities(crate, objects), *values],
                result=_entities(crate, made),
                properties={
                    "name": f"Call {number} of Snakemake",
                    "description": f"{say}; {len(failed)} of the measurements are invalid.",
                    "startTime": _offset(started),
                    "endTime": _offset(manifest["created_at"] if last else ended),
                    "actionStatus": "http://schema.org/CompletedActionStatus",
                },
            )
        )
    # A list of one would be no list in a reader's eyes.
    crate.root_dataset["mentions"] = actions[0] if len(actions) == 1 else actions


def _beside(manifest: Mapping[str, Any], records: Iterable[str]) -> list[str]:
    """Return the files that belong to records: ledgers, polls, raw profiles, resources."""
    stems = tuple(f"{record.removesuffix('.json')}." for record in records)
    own = set(records)
    return [p for p in manifest["results"] if p.startswith(stems) and p not in own] if stems else []


def _entities(crate: ROCrate, paths: Iterable[str]) -> list[Any]:
    found = (crate.dereference(path) for path in paths)
    return [entity for entity in found if entity is not None]


def _of_kind(manifest: Mapping[str, Any], kind: str, ending: str = "") -> list[str]:
    return [
        path
        for path, entry in manifest["results"].items()
        if entry["kind"] == kind and path.endswith(ending)
    ]


def _offset(time: str) -> str:
    """Write a time of UTC as the profile wants it, with an offset in numbers."""
    return time.removesuffix("Z") + "+00:00"


def _command(manifest: Mapping[str, Any]) -> str:
    return " ".join(manifest["command"])

"""One archive of results and of all that is needed to verify them elsewhere.

The archive is the RO-Crate (see `refill.evidence.crate`) as a ZIP file, in the layout of a project:
workflow/, config/, images/, results/. The same files give the same bytes.
"""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refill.evidence import crate, withheld
from refill.evidence.records import canonical_json
from refill.evidence.scrub import PrivateError, machine_folders, scrub, variables_of_secrets
from refill.evidence.verification import changed_files, project_of, read_manifest

_TEXTS = (".log", ".json", ".jsonl", ".csv", ".html", ".txt", ".yaml", ".yml", ".md", ".toml")
_COMPRESSED = (".parquet", ".pyz")
_BLOCK = 1 << 20
# From here on a file needs the longer form of an entry.
_BIG = 1 << 31


class PackError(ValueError):
    """Nothing was packed; the text has one line for each reason."""


@dataclass(frozen=True)
class Packed:
    """What was written: the archive, its files' number, and the logs that it leaves out, why."""

    path: Path
    files: int
    withheld: Mapping[str, str]


def pack(manifest_path: Path, output: Path, project: Path | None = None) -> Packed:
    """Write the archive of a manifest and its files to `output`, put in place by a rename.

    `project` is the folder with workflow/ (as in `inspect`). A log that holds an absolute path of
    this machine is left out and named in the archive's withheld.json. Raises PackError when a file
    is not as the manifest says or another file holds something private, RecordError when the
    manifest cannot be read, OSError when the disk refuses.
    """
    manifest = read_manifest(manifest_path)
    work = manifest_path.resolve().parent.parent
    project = project or project_of(work)
    kept_out = withheld.read_withheld(work, manifest["results"])
    changed = changed_files(project, manifest["sources"])
    changed |= changed_files(work, manifest["results"], kept_out)
    if changed:
        raise PackError("\n".join([*changed.values(), "nothing was packed: mend this first"]))
    files = crate.tree(manifest, work, project)
    private = _private_logs(files, manifest, [work, project])
    for path in private:
        del files[path]
    if left_out := {**kept_out, **private}:
        listed = {"schema": withheld.SCHEMA, "files": left_out}
        files[withheld.FILE] = canonical_json(listed).encode()
    files[crate.METADATA] = canonical_json(crate.metadata(manifest, files)).encode()
    _write(output, files)
    return Packed(output, len(files), left_out)


def _private_logs(
    files: Mapping[str, crate.Content], manifest: Mapping[str, Any], folders: list[Path]
) -> dict[str, str]:
    """Return why which logs are to be left out; raise PackError for what cannot be."""
    variables = variables_of_secrets(manifest["config"])
    found, refused = {}, []
    for path, content in files.items():
        if isinstance(content, bytes) or not path.endswith(_TEXTS):
            continue
        text = content.read_text(encoding="utf-8", errors="replace")
        kind = "log" if path in crate.LATER else manifest["results"].get(path, {}).get("kind", "")
        is_log = withheld.may_be_withheld(path, kind)
        why = _private(text, folders, variables)
        if why is None and is_log and (known := next(machine_folders(text), None)):
            why = f"holds a path of the machine it was written on (of {known})"
        if why is not None and is_log:
            found[path] = why
        elif why is not None:
            refused.append(f"{path}: {why}: mend what wrote it and run again; nothing was packed")
    if refused:
        raise PackError("\n".join(refused))
    return found


def _private(text: str, folders: list[Path], variables: list[str]) -> str | None:
    for folder in folders:
        try:
            scrub(text, folder, secret_variables=variables)
        except PrivateError as error:
            return str(error).removeprefix("(value): ")
    return None


def _write(output: Path, files: Mapping[str, crate.Content]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(8)}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w") as archive:
            for path in crate.folders(files):
                archive.writestr(_entry(path), b"")
            for path, content in sorted(files.items()):
                size = len(content) if isinstance(content, bytes) else content.stat().st_size
                with archive.open(_entry(path), "w", force_zip64=size >= _BIG) as target:
                    for block in _blocks(content):
                        target.write(block)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def _entry(path: str) -> zipfile.ZipInfo:
    """Describe a file or folder with the earliest time a ZIP file knows, and fixed permissions."""
    info = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = (0o040755 if path.endswith("/") else 0o100644) << 16
    stored = path.endswith(("/", *_COMPRESSED))
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    return info


def _blocks(content: crate.Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as source:
        while block := source.read(_BLOCK):
            yield block

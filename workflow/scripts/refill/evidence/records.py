"""JSON records: written whole or not at all, always in the same form, read with a schema check."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from refill.told import ToldError

AGAIN = "; delete the file and run the workflow again"


class RecordError(ToldError, ValueError):
    """A record cannot be written or read; the text says which file and key, and what to do."""


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text in the one form that every record has.

    Keys are sorted, the indent is one space, the text ends with a line feed and is UTF-8 without
    escapes. NumPy scalars become plain numbers. Raises RecordError that names the key for a
    number that JSON does not have (NaN, infinity), a key that is no text, or any other type.
    """
    return json.dumps(_plain(value, ""), sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as canonical JSON; a kill leaves the old file or the new one.

    The text goes to a temporary file in the same folder (created when missing), is flushed to
    the disk and renamed; the folder is flushed after it. Raises RecordError as `canonical_json`,
    OSError when the disk refuses.
    """
    write_bytes(path, canonical_json(value).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, as `write_json` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not mkstemp, whose files only the owner may read: who may read a result is for the umask.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        # A write that fails names no file, other than an open.
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path, schema: str | None = None) -> dict[str, Any]:
    """Read a record and check that it says it is a `schema` (for example "refill.image/1").

    Raises RecordError when the file is missing, no JSON, no object, or another schema's.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record; build it with `snakemake {path}`") from None
    except IsADirectoryError:
        raise RecordError(f"{path}: is a folder, where a record belongs: remove it") from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8 text (byte {error.start}){AGAIN}") from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{path}: not JSON (line {error.lineno}: {error.msg}; {len(text)} characters, "
            f"beginning with {text[:20]!r}){AGAIN}"
        ) from error
    except RecursionError:
        raise RecordError(f"{path}: is nested too deeply for a record") from None
    if not isinstance(value, dict):
        raise RecordError(f"{path}: holds {type(value).__name__}, a record is an object")
    if schema is not None and value.get("schema") != schema:
        raise RecordError(
            f"{path}: schema: must be {schema!r}, is {value.get('schema')!r}; the file is of "
            "another kind or another version of this workflow: delete it and run again"
        )
    return cast(dict[str, Any], value)


def check_forms(path: Path, value: Any, forms: Mapping[str, tuple[type, ...]]) -> None:
    """Look whether an object of a record has what it is read for, in the forms that it must have.

    Args:
        path: of the record, for the error.
        value: the object.
        forms: the types that each key's value may have; none of them takes a boolean.

    Raises:
        RecordError: it is no object, or a key is missing or of another form.
    """
    if not isinstance(value, Mapping):
        raise RecordError(f"{path}: holds {type(value).__name__} in an object's place{AGAIN}")
    for key, types in forms.items():
        found = value.get(key)
        if key not in value or not isinstance(found, types) or isinstance(found, bool):
            what = type(found).__name__ if key in value else "nothing"
            wanted = " or ".join(t.__name__ for t in types)
            raise RecordError(f"{path}: {key}: must be {wanted}, is {what}{AGAIN}")


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordError(
                f"record: {where or 'value'}: is {value}, which JSON cannot hold; "
                "use null for what is unknown"
            )
        return value
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise RecordError(f"record: {where or 'value'}: key {wrong[0]!r} is not text")
        return {key: _plain(item, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RecordError(
        f"record: {where or 'value'}: a {type(value).__name__} has no JSON form; "
        "store text, numbers, lists or objects"
    )

"""Records as their attempts left them: what is read for tables and report was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refill.evidence.attempts import FOLDER, LINES, list_attempts
from refill.evidence.hashes import sha256_file
from refill.evidence.records import RecordError, read_json


def read_measured(paths: Sequence[str], schema: str, root: Path) -> list[dict[str, Any]]:
    """Read records of measurements, each as the attempt that it names has written it.

    Args:
        paths: of the records, relative to `root`.
        schema: that they must have.
        root: the working folder of the workflow.

    Raises:
        RecordError: a record cannot be read, was changed since, or no attempt says that it wrote
            it; with the file and what to do.
    """
    attempts = {attempt["attempt"]: attempt for attempt in list_attempts(root)}
    records = []
    for path in paths:
        record = read_json(root / path, schema)
        written = attempts.get(record.get("attempt"), {"files": {}})["files"].get(path)
        if written is None:
            raise RecordError(
                f"{path}: attempt: {record.get('attempt')!r} did not write this file, says "
                f"{LINES}: delete the record and run again, or put that file back"
            )
        if (now := sha256_file(root / path)) != written:
            kept = FOLDER / record["attempt"] / Path(path).name
            again = f"delete the record and run again (`rm {path}`)"
            if (root / kept).is_file() and sha256_file(root / kept) == written:
                again = f"copy {kept} over it, which is as it was"
            raise RecordError(
                f"{path}: was changed after attempt {record['attempt']} wrote it: its SHA-256 is "
                f"{now}, {LINES} says {written}: {again}"
            )
        records.append(record)
    return records

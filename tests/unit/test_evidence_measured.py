"""Only a record that its attempt has written is read for the tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refill.evidence.attempts import Attempt, link_all
from refill.evidence.measured import read_measured
from refill.evidence.records import RecordError, write_json

SCHEMA = "refill.round/1"
PATH = "results/rounds/on-main/old-1.json"


def measured(root: Path, path: str = PATH, link: bool = True) -> Path:
    attempt = Attempt.begin(root, "rounds/on-main/old-1", {})
    file = root / path
    write_json(file, {"schema": SCHEMA, "attempt": attempt.name, "p50_ms": 0.5})
    attempt.end("completed", "valid", [file])
    if link:
        link_all([file], attempt.folder)
    return file


def edited(file: Path) -> None:
    """Edit a record as an editor does: a new file in the place of the old one."""
    text = file.read_text().replace("0.5", "9.5")
    file.unlink()
    file.write_text(text)


def test_a_record_as_it_was_written_is_read(tmp_path: Path) -> None:
    measured(tmp_path)
    measured(tmp_path)  # measured again: the last one is there
    (record,) = read_measured([PATH], SCHEMA, tmp_path)
    assert record["p50_ms"] == 0.5


@pytest.mark.parametrize(
    ("link", "cure"), [(True, "copy results/attempts/rounds-on-main-old-1/"), (False, "`rm resul")]
)
def test_an_edited_record_is_refused(tmp_path: Path, link: bool, cure: str) -> None:
    edited(measured(tmp_path, link=link))
    with pytest.raises(RecordError, match=f"^{PATH}: was changed after attempt .*{cure}"):
        read_measured([PATH], SCHEMA, tmp_path)


def test_an_edit_in_place_that_spoils_the_kept_copy_too_is_refused(tmp_path: Path) -> None:
    file = measured(tmp_path)
    file.write_text(file.read_text().replace("0.5", "9.5"))
    with pytest.raises(RecordError, match=f"`rm {PATH}`"):
        read_measured([PATH], SCHEMA, tmp_path)


def test_the_record_of_another_round_is_refused(tmp_path: Path) -> None:
    other = measured(tmp_path, "results/rounds/on-main/new-1.json")
    (tmp_path / PATH).write_bytes(other.read_bytes())
    with pytest.raises(RecordError, match=f"^{PATH}: attempt: '.*' did not write this file"):
        read_measured([PATH], SCHEMA, tmp_path)


def test_a_record_of_no_attempt_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / PATH, {"schema": SCHEMA})
    with pytest.raises(RecordError, match=f"^{PATH}: attempt: None did not write this file"):
        read_measured([PATH], SCHEMA, tmp_path)
    write_json(tmp_path / PATH, {"schema": SCHEMA, "attempt": json.loads('"x/1"')})
    with pytest.raises(RecordError, match="'x/1' did not write"):
        read_measured([PATH], SCHEMA, tmp_path)

"""Results handed on: an archive that verifies elsewhere, and a valid RO-Crate."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crate_validation import make_cache, problems
from falsified import RECORD, RUN, gathered, rewritten
from project_copy import Project
from refill.evidence.__main__ import main
from refill.evidence.hashes import sha256_file
from refill.evidence.pack import PackError, pack
from refill.evidence.records import read_json
from refill.evidence.verification import inspect


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("cache") / "contexts")


def test_an_archive_verifies_elsewhere_without_the_project(
    manifest: Path, small_results: Project, tmp_path: Path
) -> None:
    first = pack(manifest, tmp_path / "one.zip")
    second = pack(manifest, tmp_path / "two.zip")
    assert first.path.read_bytes() == second.path.read_bytes()
    place = tmp_path / "some where/else"
    with zipfile.ZipFile(first.path) as archive:
        archive.extractall(place)
    for file in (file for file in place.rglob("*") if file.is_file()):
        assert os.fsencode(small_results.folder) not in file.read_bytes(), file
    command = [sys.executable, "-m", "refill.evidence", "verify", "results/manifest.json"]
    environment = small_results.environment | {"PYTHONPATH": "workflow/scripts"}

    def elsewhere(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = elsewhere()
    assert done.returncode == 0, done.stderr
    assert "every file is as it was" in done.stdout
    for path in ("results/report.html", RUN.replace(".json", ".parquet"), "README.md"):
        good = (place / path).read_bytes()
        (place / path).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        done = elsewhere("--files-only")
        assert done.returncode == 1
        assert path in done.stderr
        (place / path).write_bytes(good)


def test_a_log_with_a_path_is_left_out_of_an_archive_and_said_to_be(
    copied: Path, tmp_path: Path
) -> None:
    work = copied.parent.parent
    log = "results/logs/optimizers/A2-1.log"
    (work / log).write_text(f"File {work}/workflow/scripts/x.py, line 1\n")
    gathered(copied)
    packed = pack(copied, tmp_path / "x.zip")
    assert list(packed.withheld) == [log]
    place = tmp_path / "elsewhere"
    with zipfile.ZipFile(packed.path) as archive:
        archive.extractall(place)
    found = inspect(place / "results/manifest.json", place, figures=False)
    assert found.differences == []
    assert [note for note in found.notes if note.startswith(f"{log}: is not in this archive: ")]
    # Only logs may be missing in this way.
    (place / RECORD).unlink()
    rewritten(place / "withheld.json", lambda listed: listed["files"].update({RECORD: "private"}))
    found = inspect(place / "results/manifest.json", place, figures=False)
    assert any(line.startswith(f"{RECORD}: is missing") for line in found.differences)


def test_results_that_are_not_there_are_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(tmp_path / "manifest.json")]) != 0
    assert (
        "manifest.json: no such file: give the manifest.json of a results"
        in capsys.readouterr().err
    )


def test_nothing_private_or_changed_is_packed(copied: Path, tmp_path: Path) -> None:
    work = copied.parent.parent
    archive = tmp_path / "x.zip"
    attempts = copied.parent / "attempts/attempts.jsonl"
    with attempts.open("a") as file:
        file.write("\n")
    with pytest.raises(PackError, match=r"attempts\.jsonl: has changed.*\n.*nothing was packed"):
        pack(copied, archive)
    with attempts.open("a") as file:
        file.write(json.dumps({"note": str(work)}) + "\n")
    gathered(copied)
    with pytest.raises(PackError, match=r"attempts\.jsonl: holds this project's absolute path"):
        pack(copied, archive)
    assert not archive.exists()
    assert main(["pack", str(copied), "--output", str(archive)]) == 1


def test_crate_and_archive_are_valid_workflow_run_crates(
    manifest: Path, cache: Path, tmp_path: Path
) -> None:
    # The validator cannot do with a space in a path, and the project's has one.
    shutil.copytree(manifest.parent / "ro-crate", tmp_path / "crate")
    assert problems(tmp_path / "crate", cache) == []
    assert problems(pack(manifest, tmp_path / "crate.zip").path, cache) == []
    graph = read_json(manifest.parent / "ro-crate/ro-crate-metadata.json")["@graph"]
    by_id = {entity["@id"]: entity for entity in graph}
    assert by_id["./"]["mainEntity"] == {"@id": "workflow/Snakefile"}
    assert by_id["results/manifest.json"]["sha256"] == sha256_file(manifest)
    action = by_id["#call-1"]
    assert action["instrument"] == {"@id": "workflow/Snakefile"}
    assert "agent" not in action
    assert {"@id": RECORD} in action["result"]
    assert {"@id": "results/corpora/small/corpus.json"} in action["object"]
    engines = [e["name"] for e in graph if e["@id"].startswith("#engine-")]
    assert any("embedded" in name for name in engines)
    assert any(name.startswith("valkey") for name in engines)


def _without_main(graph: dict[str, Any]) -> None:
    del graph["./"]["mainEntity"]


def _without_profile(graph: dict[str, Any]) -> None:
    graph["./"]["conformsTo"] = [
        entry for entry in graph["./"]["conformsTo"] if "wfrun/workflow" not in entry["@id"]
    ]


def _without_instrument(graph: dict[str, Any]) -> None:
    del graph["#call-1"]["instrument"]


def _without_a_file(graph: dict[str, Any]) -> None:
    graph["./"]["hasPart"].append({"@id": "results/never.csv"})
    graph["results/never.csv"] = {"@id": "results/never.csv", "@type": "File", "name": "never"}


def _without_language(graph: dict[str, Any]) -> None:
    del graph["workflow/Snakefile"]["programmingLanguage"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_main, "mainEntity"),
        (_without_profile, "profile"),
        (_without_instrument, "instrument"),
        (_without_a_file, "results/never.csv"),
        (_without_language, "programmingLanguage"),
    ],
)
def test_a_broken_crate_is_not_valid(
    copied: Path, cache: Path, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = copied.parent / "ro-crate/ro-crate-metadata.json"
    content = json.loads(path.read_text())
    graph = {entity["@id"]: entity for entity in content["@graph"]}
    spoil(graph)
    path.write_text(json.dumps({**content, "@graph": list(graph.values())}))
    assert any(message in problem for problem in problems(path.parent, cache))


def test_a_crate_is_written_where_it_is_asked_for(
    manifest: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "crate"
    assert main(["crate", str(manifest), "--output", str(folder)]) == 0
    assert problems(folder, cache) == []
    (tmp_path / "thesis").mkdir()
    assert main(["crate", str(manifest), "--output", str(tmp_path / "thesis")]) == 1
    assert "thesis: is there and is no crate" in capsys.readouterr().err

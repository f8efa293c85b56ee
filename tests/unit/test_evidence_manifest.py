"""The manifest: complete, without private values, as its schema says; its files byte by byte.

What is made again from ledgers is tested on real results, in tests/workflow.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from refill.evidence.__main__ import main
from refill.evidence.attempts import Attempt
from refill.evidence.description import git_state
from refill.evidence.hashes import sha256_file
from refill.evidence.inventory import InventoryError, hashed, results
from refill.evidence.manifest import gather
from refill.evidence.records import RecordError, read_json, write_json
from refill.evidence.scrub import PrivateError
from refill.evidence.verification import inspect, read_manifest

CONFIG = {"scale": "test", "qdrant": {"image": "edge", "api_key_env": "QDRANT_API_KEY"}}
EMBEDDED = {"name": "qdrant", "version": "1", "embedded": True}
SERVER = {"name": "qdrant", "version": "2", "embedded": False}
SOURCES = {
    "workflow/Snakefile": "rule",
    "workflow/rules/a.smk": "rule",
    "workflow/scripts/run.py": "script",
    "workflow/scripts/refill/__init__.py": "helper",
    "workflow/scripts/refill/report/templates/page.html": "helper",
    "workflow/schemas/x.schema.yaml": "schema",
    "workflow/profiles/default/config.yaml": "config",
    "config/config.yaml": "config",
    "images/edge/__main__.py": "image source",
    "pyproject.toml": "lock",
    "requirements.lock": "lock",
    "environment.yml": "lock",
}
RESULTS = {
    "results/images/edge.json": "image",
    "results/images/edge.pyz": "image",
    "results/corpora/c/corpus.json": "corpus",
    "results/corpora/c/vectors.npy": "corpus",
    "results/optimizers/A1/1.json": "record",
    "results/optimizers/A1/1.parquet": "ledger",
    "results/optimizers/A1/1.polls.parquet": "polls",
    "results/optimizers/B1/1.json": "record",
    "results/optimizers/B1/1.parquet": "ledger",
    "results/optimizers/B1/1.polls.parquet": "polls",
    "results/logs/optimizers/A1-1.log": "log",
    "results/tables/optimizers.csv": "table",
    "results/attempts/attempts.jsonl": "attempt",
}
LATER = ("results/report.html", "results/logs/manifest.log", "results/logs/report.log")
WRITTEN = {
    "script": "write_tables.py",
    "input": {"records": ["results/optimizers/A1/1.json"], "rounds": []},
    "output": {"optimizers": "results/tables/optimizers.csv"},
    "plan": {"expected": {"clients": [1, 8]}},
}


def run(project: Path, name: str, started: str, engine: dict[str, Any]) -> None:
    folder = project / "results/optimizers" / name
    folder.mkdir(parents=True)
    record: dict[str, Any] = {
        "schema": "refill.optimizer-run/1",
        "id": name,
        "repeat": 1,
        "scale": "test",
        "attempt": f"optimizers-{name}-1/x",
        "started_at": started,
        "ended_at": started,
        "code": "c",
        "valid": True,
        "invalid": [],
        "outcome": "completed",
        "engine": engine,
        "host": {"kernel": "6.1", "load": {"1min": 0.1}, "cpu": {"model": f"CPU of {name}"}},
        "corpus": {
            "name": "c",
            "sha256": sha256_file(project / "results/corpora/c/corpus.json"),
        },
    }
    for key, file in (("ledger", "1.parquet"), ("polls", "1.polls.parquet")):
        path = folder / file
        path.write_bytes(f"{name} {key}".encode())
        record[key] = {
            "path": path.relative_to(project).as_posix(),
            "sha256": sha256_file(path),
        }
    write_json(folder / "1.json", record)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in SOURCES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy==1", "no-such-package==2", "snakemake[reports]==9"]\n'
    )
    corpus = tmp_path / "results/corpora/c"
    corpus.mkdir(parents=True)
    (corpus / "vectors.npy").write_bytes(b"vectors")
    file = {"sha256": sha256_file(corpus / "vectors.npy"), "bytes": 7}
    write_json(
        corpus / "corpus.json", {"schema": "refill.corpus/1", "files": {"vectors.npy": file}}
    )
    (tmp_path / "results/images").mkdir()
    archive = tmp_path / "results/images/edge.pyz"
    archive.write_bytes(b"archive")
    image = {"schema": "refill.image/1", "archive": "results/images/edge.pyz"}
    write_json(archive.with_suffix(".json"), {**image, "id": f"sha256:{sha256_file(archive)}"})
    # A1 was measured again after B1, so the order of names is not that of the runs.
    run(tmp_path, "A1", "2026-01-01T10:00:02.000Z", SERVER)
    run(tmp_path, "B1", "2026-01-01T10:00:01.000Z", EMBEDDED)
    for name in ("results/logs/optimizers/A1-1.log", "results/tables/optimizers.csv", *LATER):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    Attempt.begin(tmp_path, "optimizers/B1/1", {}).end("completed", "valid")
    return tmp_path


def differences(manifest: Path, project: Path | None = None) -> list[str]:
    """What is found by hashes alone, but for the crate, which is not there."""
    found = inspect(manifest, project, figures=False).differences
    return [line for line in found if not line.startswith("results/ro-crate/")]


@pytest.fixture
def manifest(project: Path) -> Path:
    path = project / "results/manifest.json"
    write_json(path, gather(project, project / "results", CONFIG))
    return path


def test_every_file_stands_in_it_with_its_kind_and_hash(project: Path) -> None:
    found = gather(project, project / "results", CONFIG)
    assert {path: entry["kind"] for path, entry in found["sources"].items()} == SOURCES
    assert {path: entry["kind"] for path, entry in found["results"].items()} == RESULTS
    for path, entry in {**found["sources"], **found["results"]}.items():
        assert entry["sha256"] == sha256_file(project / path)
        assert entry["bytes"] == (project / path).stat().st_size


def test_records_that_the_configuration_does_not_ask_for_are_named(project: Path) -> None:
    asked = ["results/optimizers/A1/1.json"]
    found = gather(project, project / "results", CONFIG, asked=asked)
    assert found["not_asked_for"] == ["results/optimizers/B1/1.json"]
    assert gather(project, project / "results", CONFIG)["not_asked_for"] == []


def test_compiled_and_hidden_files_do_not_count(project: Path) -> None:
    before = gather(project, project / "results", CONFIG)
    cache = project / "workflow/scripts/refill/__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"")
    (project / "results/tables/.optimizers.csv.1.tmp").write_text("")
    after = gather(project, project / "results", CONFIG)
    assert after["sources"] == before["sources"]
    assert after["results"] == before["results"]


def test_runs_stand_in_the_order_in_which_they_ran(project: Path) -> None:
    found = gather(project, project / "results", CONFIG)
    assert [run["id"] for run in found["runs"]] == ["B1", "A1"]
    assert [engine["engine"] for engine in found["engines"]] == [EMBEDDED, SERVER]
    assert found["engines"][1]["records"] == ["results/optimizers/A1/1.json"]
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["completed"]


def test_versions_and_command_are_there_without_paths(project: Path) -> None:
    command = ["/usr/bin/snakemake", "--cores", "1", f"--configfile={project}/config/a.yaml"]
    command += ["/elsewhere/b.yaml", f"--directory={project}", "--x=/elsewhere/c.yaml", "all"]
    found = gather(project, project / "results", CONFIG, command)
    assert found["command"] == [
        *["snakemake", "--cores", "1", "--configfile=config/a.yaml"],
        *["b.yaml", "--directory=.", "--x=c.yaml", "all"],
    ]
    assert found["versions"]["packages"]["no-such-package"] is None
    assert found["versions"]["packages"]["numpy"]
    assert found["versions"]["snakemake"]
    assert found["host"]["cpu"]["cores_usable"]


def test_paths_and_addresses_of_the_configuration_are_not_told(project: Path) -> None:
    config = {
        "qdrant": {"binary": "/home/me/bin/qdrant", "url": "http://db.example.org:6333"},
        "corpora": {"a": {"path": f"{project}/data/a.npy"}, "b": {"path": "data/b.npy"}},
    }
    found = gather(project, project / "results", config)["config"]
    assert found["qdrant"] == {"binary": "qdrant", "url": "http, another machine"}
    assert found["corpora"] == {"a": {"path": "data/a.npy"}, "b": {"path": "data/b.npy"}}


def test_a_secret_stops_it_and_is_named_by_its_key(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "hunter22")
    with pytest.raises(PrivateError, match=r"config\.note: holds the value of .*QDRANT_API_KEY"):
        gather(project, project / "results", {**CONFIG, "note": "key hunter22"})


def test_reasons_with_absolute_paths_do_not_stop_it(project: Path) -> None:
    path = project / "results/optimizers/A1/1.json"
    record = read_json(path)
    write_json(path, {**record, "valid": False, "invalid": [f"no {project}/results/x"]})
    found = gather(project, project / "results", CONFIG)
    assert found["runs"][1]["invalid"] == ["no results/x"]


def test_a_file_that_vanishes_is_an_error_that_says_why(project: Path) -> None:
    kinds = results(project)
    (project / "results/tables/optimizers.csv").unlink()
    with pytest.raises(InventoryError, match=r"^results/tables/optimizers\.csv: vanished"):
        hashed(project, kinds)


def test_git_is_told_or_said_to_be_missing(project: Path) -> None:
    assert git_state(project) == {"revision": None, "dirty": None, "note": "not a Git work tree"}
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(project)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    clean = git_state(project)
    assert clean["dirty"] is False
    assert len(clean["revision"]) == 40
    (project / "config/config.yaml").write_text("x: 1\n")
    assert git_state(project) == {**clean, "dirty": True}


def test_a_broken_record_stops_it_and_is_named_by_its_key(project: Path) -> None:
    path = project / "results/optimizers/A1/1.json"
    record = read_json(path)
    write_json(path, {key: value for key, value in record.items() if key != "code"})
    with pytest.raises(RecordError, match=r"^results/optimizers/A1/1\.json: code: is missing; del"):
        gather(project, project / "results", CONFIG)


def test_what_makes_tables_is_told_and_fits_the_schema(project: Path) -> None:
    found = gather(project, project / "results", CONFIG, written=[WRITTEN])
    assert found["written"] == [WRITTEN]
    elsewhere = {**WRITTEN, "output": {"optimizers": "../x.csv"}}
    with pytest.raises(
        RecordError, match=r"the manifest: written\.0\.output\.optimizers: must match"
    ):
        gather(project, project / "results", CONFIG, written=[elsewhere])
    with pytest.raises(RecordError, match=r"written\.0\.script: must match"):
        gather(project, project / "results", CONFIG, written=[{**WRITTEN, "script": "a/x.py"}])


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["created_at"], "yesterday", "created_at: must match the pattern"),
        (["git", "dirty"], "no", "git.dirty: must be true or false or null, is 'no'"),
        (["host", "kernel"], None, "host.kernel: must be text, is null"),
        (["runs", 0, "repeat"], 0, "runs.0.repeat: must be >= 1, is 0"),
        (["order", "apart"], {}, "order.apart: must be a list"),
        (["more"], 1, "more: unknown key"),
        (["results", "results/tables/optimizers.csv", "sha256"], "0", "sha256: must match"),
    ],
)
def test_a_manifest_that_does_not_fit_its_schema_is_not_read(
    manifest: Path, keys: list[Any], value: Any, message: str
) -> None:
    content = read_json(manifest)
    inner: Any = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    write_json(manifest, content)
    with pytest.raises(RecordError, match=r"^manifest\.json: ") as raised:
        read_manifest(manifest)
    assert message in str(raised.value)


def test_machines_stand_there_once_with_what_they_measured(project: Path) -> None:
    hosts = gather(project, project / "results", CONFIG)["hosts"]
    assert [(h["host"]["cpu"]["model"], h["records"]) for h in hosts] == [
        ("CPU of B1", ["results/optimizers/B1/1.json"]),
        ("CPU of A1", ["results/optimizers/A1/1.json"]),
    ]
    # The load is another one at each run: it makes no other machine.
    assert "load" not in hosts[0]["host"]


def test_an_untouched_tree_verifies(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert differences(manifest) == []
    assert main(["verify", "--files-only", str(manifest)]) == 1
    assert "results/ro-crate/ro-crate-metadata.json: is missing" in capsys.readouterr().err


def test_a_manifest_in_another_form_is_a_difference(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert differences(manifest) == ["manifest.json: is not in the form it was written in"]


def test_what_is_no_result_is_said_to_be_left_out(manifest: Path) -> None:
    (manifest.parent / "bench.json").write_text("{}")
    (manifest.parent / "scratch").mkdir()
    (manifest.parent / "scratch/x").write_text("")
    assert inspect(manifest, figures=False).notes[:2] == [
        "results/bench.json: is no result, not looked at",
        "results/scratch: is no result, not looked at",
    ]


@pytest.mark.parametrize("name", [*SOURCES, *RESULTS])
def test_a_changed_byte_anywhere_is_found(manifest: Path, name: str) -> None:
    path = manifest.parent.parent / name
    data = bytearray(path.read_bytes())
    expected = sha256_file(path)
    data[-1] ^= 1
    path.write_bytes(data)
    changed = f"{name}: has changed: expected SHA-256 {expected}, got {sha256_file(path)}"
    assert differences(manifest) == [changed]


def test_missing_cut_and_added_files_are_found(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = manifest.parent
    (results / "optimizers/A1/1.parquet").unlink()
    (results / "optimizers/A1/2.json").write_text("{}")
    (results / "logs/later.log").write_text("")
    (results / "corpora/c/vectors.npy").write_bytes(b"vec")
    found = differences(manifest)
    assert found[0].endswith(" (3 bytes, 7 expected)")
    assert found[1:] == [
        f"results/optimizers/A1/1.parquet: is missing; expected SHA-256 {found[1][-64:]}",
        "results/logs/later.log: is there, the manifest does not name it",
        "results/optimizers/A1/2.json: is there, the manifest does not name it",
    ]
    assert main(["verify", str(manifest)]) == 1
    assert "differences" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "key", "target"),
    [
        ("results/optimizers/A1/1.json", "ledger", "results/optimizers/A1/1.parquet"),
        ("results/optimizers/A1/1.json", "polls", "results/optimizers/A1/1.polls.parquet"),
        ("results/optimizers/B1/1.json", "corpus.sha256", "results/corpora/c/corpus.json"),
        ("results/corpora/c/corpus.json", "files.vectors.npy", "results/corpora/c/vectors.npy"),
        ("results/images/edge.json", "id", "results/images/edge.pyz"),
    ],
)
def test_a_record_must_agree_with_the_files_it_names(
    project: Path, name: str, key: str, target: str
) -> None:
    # Exchanged before the manifest was made: each hash in it is right, and the record is wrong.
    path = project / target
    if target.endswith(".json"):
        write_json(path, {**read_json(path), "x": 1})
    else:
        path.write_bytes(b"other")
    manifest = project / "results/manifest.json"
    write_json(manifest, gather(project, project / "results", CONFIG))
    found = differences(manifest)
    assert any(line.startswith(f"{name}: {key}: says {target} has") for line in found)


def test_results_elsewhere_verify_with_the_project_named(project: Path, tmp_path: Path) -> None:
    work = tmp_path / "elsewhere"
    work.mkdir()
    (project / "results").rename(work / "results")
    path = work / "results/manifest.json"
    write_json(path, gather(project, work / "results", CONFIG))
    assert differences(path, project) == []
    assert any("workflow/Snakefile: has changed" in line for line in differences(path))


def test_a_manifest_that_is_none_is_an_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(project / "results/images/edge.json")]) == 2
    assert "must be 'refill.manifest/2'" in capsys.readouterr().err


def test_the_host_command_prints_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host"]) == 0
    assert '"cores_usable"' in capsys.readouterr().out

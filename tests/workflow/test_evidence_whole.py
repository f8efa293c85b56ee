"""A whole small result folder: verified, falsified, packed, moved, compared, described."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from crate_validation import make_cache, problems
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from project_copy import CONFIG, Project
from refill.evidence import crate
from refill.evidence.__main__ import main
from refill.evidence.hashes import sha256_file
from refill.evidence.image_archives import differences as image_differences
from refill.evidence.manifest import gather
from refill.evidence.pack import PackError, pack
from refill.evidence.records import RecordError, read_json, write_json
from refill.evidence.recounted import differences as recount
from refill.evidence.verification import inspect, verify
from refill.image_sources import read_source
from refill.images import archive as image_archive
from round_fixture import flights_package

ROUNDS: dict[str, Any] = {
    "profiles": ["on-main"],
    "corpus": {"name": "small-flights", "documents": 400},
    "images": {"old": "gateway-old", "new": "gateway-new"},
    "counts": {"trials": 2, "clients": [1], "warm": 8, "cold_enabled": 8, "cold_disabled": 8},
    "warm_up": 4,
}
RECORD = "results/rounds/on-main/old-1.json"
RUN = "results/optimizers/A2/1.json"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after one run of `all`: four rounds and one optimizer run, all small."""
    made = Project(tmp_path_factory.mktemp("a project"))
    path = made.folder / "config/images.yaml"
    images = yaml.safe_load(path.read_text())
    for entry in images["images"].values():
        entry["pinned"] = read_source(made.folder, entry).state()
    path.write_text(yaml.safe_dump(images))
    optimizers: dict[str, Any] = {**CONFIG["optimizers"], "runs": ["A2"]}
    made.configure({**CONFIG, "optimizers": optimizers, "rounds": ROUNDS})
    package = flights_package(made.folder / "results/downloads/small-flights", 450)
    given_ = made.folder / "test.yaml"
    config = yaml.safe_load(given_.read_text())
    config["corpora"]["small-flights"] = package
    given_.write_text(yaml.safe_dump(config))
    code, text = made.run("all", timeout_s=400)
    assert code == 0, text
    return made


@pytest.fixture
def manifest(project: Project) -> Path:
    return project.folder / "results/manifest.json"


@pytest.fixture
def copied(project: Project, tmp_path: Path) -> Path:
    """The manifest of a copy of everything, to be spoilt."""
    shutil.copytree(project.folder, tmp_path / "copy")
    return tmp_path / "copy/results/manifest.json"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("cache") / "contexts")


def seal(manifest: Path) -> None:
    """Do what one who falsifies can do: make all hashes of the files that are there anew."""
    work = manifest.parent.parent
    content = read_json(manifest)
    for files in (content["results"], content["sources"]):
        for path, entry in files.items():
            entry.update(sha256=sha256_file(work / path), bytes=(work / path).stat().st_size)
    write_json(manifest, content)
    crate.write(content, work, work, work / crate.FOLDER)


def gathered(manifest: Path) -> None:
    """Gather the manifest anew, and the crate, from what is there."""
    work, old = manifest.parent.parent, read_json(manifest)
    planned, written = old["order"]["planned"], old["written"]
    new = gather(work, manifest.parent, old["config"], old["command"], (), planned, written)
    write_json(manifest, new)
    crate.write(new, work, work, work / crate.FOLDER)


def every_file(folder: Path) -> list[str]:
    """Every file that the manifest or the crate speaks for."""
    named = read_json(folder / "results/manifest.json")
    sources = [folder / path for path in named["sources"]]
    results = [p for p in (folder / "results").rglob("*") if p.is_file()]
    unsaid = folder / "results/scratch"
    return sorted(
        path.relative_to(folder).as_posix()
        for path in [*sources, *results]
        if not path.is_relative_to(unsaid) and not path.name.startswith(".")
    )


def test_untouched_results_verify(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(manifest)]) == 0
    printed = capsys.readouterr()
    assert "records, tables and report are what the ledgers give" in printed.out
    assert "note: " not in printed.out
    assert printed.err == ""


def test_the_manifest_says_what_ran_in_which_order_and_where(manifest: Path) -> None:
    content = read_json(manifest)
    assert content["command"][0] == "snakemake"
    assert content["order"]["as_planned"] is True
    assert content["order"]["ran"] == content["order"]["planned"]
    assert content["order"]["apart"] == []
    (call,) = content["order"]["invocations"]
    assert call["invocation"]["pid"] > 1
    assert len(call["records"]) == 5
    assert len(content["hosts"]) == 1
    assert {entry["script"] for entry in content["written"]} == {
        "write_tables.py",
        "write_report.py",
    }
    kinds = {
        entry["kind"] for entry in [*content["results"].values(), *content["sources"].values()]
    }
    assert kinds >= {
        *("script", "helper", "config", "lock", "image", "corpus", "record", "ledger", "polls"),
        *("raw profile", "resources", "table", "log", "attempt", "rule", "schema"),
    }


def flip(file: Path, random_: random.Random) -> None:
    """Change one bit of a file (write one byte into an empty one); its other names stay."""
    data = bytearray(file.read_bytes())
    if data:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    file.unlink()
    file.write_bytes(data or b"\n")


def test_a_changed_byte_in_any_file_is_found_by_its_name(copied: Path) -> None:
    work = copied.parent.parent
    random_ = random.Random(7)
    # These two say what all others were: each is spoilt alone, below.
    alone = {"results/manifest.json", "results/ro-crate/ro-crate-metadata.json"}
    paths = [path for path in every_file(work) if path not in alone]
    assert len(paths) > 200
    for path in paths:
        flip(work / path, random_)
    found = inspect(copied, figures=False).differences
    assert [path for path in paths if not any(line.startswith(f"{path}: ") for line in found)] == []


# A failing example is told whole: to look for a smaller one would take minutes.
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(data=st.data())
def test_one_changed_byte_alone_is_found(project: Project, data: st.DataObject) -> None:
    folder = project.folder
    path = data.draw(st.sampled_from(every_file(folder)))
    if data.draw(st.booleans()):
        path = data.draw(
            st.sampled_from(["results/manifest.json", "results/ro-crate/ro-crate-metadata.json"])
        )
    file, kept = folder / path, folder.parent / "kept"
    good = file.read_bytes()
    place = data.draw(st.integers(0, max(len(good) - 1, 0)))
    bit = data.draw(st.integers(0, 7))
    file.rename(kept)
    file.write_bytes(good[:place] + bytes([(good or b"\0")[place] ^ 1 << bit]) + good[place + 1 :])
    try:
        found = inspect(folder / "results/manifest.json", figures=False).differences
    except RecordError as error:
        found = [str(error)]
    finally:
        file.unlink()
        kept.rename(file)
    assert any(path in line or line.startswith(f"{file.name}: ") for line in found), found


@pytest.mark.parametrize("kind", ["ledger", "polls", "record", "table", "corpus", "image", "log"])
def test_missing_cut_and_added_files_are_found(copied: Path, kind: str) -> None:
    work = copied.parent.parent
    files = read_json(copied)["results"]
    path = next(p for p, entry in files.items() if entry["kind"] == kind and entry["bytes"] > 9)
    added = (work / path).with_name(f"added-{Path(path).name}")
    shutil.copy(work / path, added)
    found = inspect(copied, figures=False).differences
    assert f"{added.relative_to(work)}: is there, the manifest does not name it" in found
    added.unlink()
    whole = (work / path).read_bytes()
    (work / path).unlink()
    (work / path).write_bytes(whole[: len(whole) // 2])
    # A ledger that is cut can be no frame any more, and no figure be made again.
    cut = inspect(copied, figures=kind == "ledger").differences
    assert any(line.startswith(f"{path}: has changed") for line in cut)
    assert any(f"({len(whole) // 2} bytes, {len(whole)} expected)" in line for line in cut)
    (work / path).unlink()
    found = inspect(copied, figures=False).differences
    assert any(line.startswith(f"{path}: is missing") for line in found)


def rewritten(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file, as one who falsifies would."""
    content = read_json(path)
    change(content)
    path.unlink()
    write_json(path, content)


def test_a_forged_table_with_a_forged_manifest_is_found_by_row_and_column(copied: Path) -> None:
    path = copied.parent / "tables/rounds.csv"
    rows = list(csv.reader(io.StringIO(path.read_text(), newline="")))
    column = rows[0].index("p50_ratio")
    row = next(n for n, cells in enumerate(rows) if n and cells[column])
    good, rows[row][column] = rows[row][column], "0.5"
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    path.write_text(buffer.getvalue())
    seal(copied)
    assert inspect(copied, figures=False).differences == []
    # The report shows the ratio of its records, not the table's.
    (line,) = verify(copied)
    assert line.startswith(f"results/tables/rounds.csv: row {row} (profile on-main, cell warm, ")
    assert line.endswith(f"column p50_ratio: is '0.5', the records give {good!r}")


def test_a_forged_record_is_found_by_its_key(copied: Path) -> None:
    def faster(record: dict[str, Any]) -> None:
        record["cells"][0]["trials"][1]["stats"]["p50_ms"] /= 2

    rewritten(copied.parent.parent / RECORD, faster)
    seal(copied)
    assert inspect(copied, figures=False).differences == []
    found = verify(copied)
    where = f"{RECORD}: cells.warm, read-document, gateway, 1.trial 2.stats.p50_ms: says "
    assert any(line.startswith(where) for line in found)
    # Nor is it what the attempt left, what the raw profile holds, or what the tables show.
    assert any(line.startswith(f"{RECORD}: is not the file that attempt ") for line in found)
    assert any(line.startswith(f"{RECORD}: profiles.warm: ") for line in found)
    assert any(line.startswith("results/tables/rounds.csv: row 1 ") for line in found)


@pytest.mark.parametrize(
    ("path", "keys", "value", "where"),
    [
        (RUN, ["drain_s"], 0.01, "drain_s"),
        (RUN, ["phases", 2, "open", "p95_ms"], 0.01, "phases.steady.open.p95_ms"),
        (RUN, ["phases", 2, "recall", "mean"], 0.5, "phases.steady.recall.mean"),
        (RUN, ["phases", 1, "visible_share", "min"], 0.5, "phases.draining.visible_share.min"),
        (RUN, ["ledger", "counts", "timeout"], 3, "ledger.counts.timeout"),
        (RUN, ["warnings"], ["all is well"], "warnings"),
        (RECORD, ["warm_up", "ok"], 1, "warm_up.ok"),
        (RECORD, ["cells", 5, "trials", 0, "aof", "bytes"], 1, "trial 1.aof.bytes"),
        (RECORD, ["cells", 5, "trials", 0, "hit_ratio"], 0.5, "trial 1.hit_ratio"),
        (RECORD, ["cells", 5, "trials", 0, "cache", "hits"], 8, "trial 1.invalid"),
        (RECORD, ["cells", 5, "trials", 0, "stats", "per_s"], 1e9, "trial 1.stats.per_s"),
        (RECORD, ["profiles", 1, "aof", "bytes"], 0, "profiles.cold.aof.bytes"),
        (RECORD, ["valid"], False, "valid"),
    ],
)
def test_each_figure_of_a_record_is_made_again_from_its_ledger(
    copied: Path, path: str, keys: list[Any], value: Any, where: str
) -> None:
    def falsified(record: Any) -> None:
        for key in keys[:-1]:
            record = record[key]
        assert record[keys[-1]] != value
        record[keys[-1]] = value

    work = copied.parent.parent
    assert recount(work, path) == []
    rewritten(work / path, falsified)
    assert any(f"{where}: says " in line for line in recount(work, path))


def test_an_image_of_other_files_than_its_record_names_is_found(copied: Path) -> None:
    """The archive that ran had another script in it than the record says."""
    path = copied.parent / "images/gateway-new.pyz"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    script = "gateway/lua/publish.lua"
    files[script] += b"-- and more"
    path.unlink()
    path.write_bytes(image_archive("gateway-new", files))
    record = path.with_suffix(".json")
    rewritten(record, lambda content: content.update(id=f"sha256:{sha256_file(path)}"))
    seal(copied)
    work = copied.parent.parent
    found = image_differences(work, "results/images/gateway-new.json")
    where = f"results/images/gateway-new.json: files.{script}: says "
    assert found[0].startswith(where)
    assert found[1].startswith("results/images/gateway-new.json: tree: says ")
    assert image_differences(work, "results/images/gateway-old.json") == []
    assert set(found) <= set(verify(copied))


def test_a_forged_report_is_found_although_the_crate_was_made_anew(copied: Path) -> None:
    page = copied.parent / "report.html"
    text = page.read_text()
    changed = text.replace("embedded", "real", 1)
    assert changed != text
    page.write_text(changed)
    seal(copied)
    (line,) = verify(copied)
    assert line.startswith("results/report.html: line ")
    assert "embedded" in line


def test_what_the_manifest_says_of_itself_is_held_against_the_crate(copied: Path) -> None:
    rewritten(copied, lambda content: content["host"]["cpu"].update(model="A faster one"))
    (line,) = verify(copied)
    assert line.startswith("results/manifest.json: has changed: results/ro-crate/ro-crate-metadata")


def test_what_the_manifest_says_of_the_runs_is_held_against_the_records(copied: Path) -> None:
    rewritten(copied, lambda content: content["runs"][0].update(started_at="2020-01-01T00:00:00Z"))
    seal(copied)
    (line,) = verify(copied)
    assert line.startswith('manifest.json: runs[0].started_at: says "2020-01-01T00:00:00Z", the ')


def test_without_its_crate_the_manifest_is_not_taken_for_whole(copied: Path) -> None:
    shutil.rmtree(copied.parent / "ro-crate")
    (line,) = inspect(copied, figures=False).differences
    assert line.startswith("results/ro-crate/ro-crate-metadata.json: is missing")
    assert "snakemake results/ro-crate/ro-crate-metadata.json" in line


def test_a_round_that_was_measured_alone_is_named(copied: Path) -> None:
    def later(record: dict[str, Any]) -> None:
        record.update(started_at="2099-01-01T00:00:00.000Z", ended_at="2099-01-01T00:00:09.000Z")

    rewritten(copied.parent.parent / RECORD, later)
    gathered(copied)
    order = read_json(copied)["order"]
    assert order["as_planned"] is False
    (apart,) = order["apart"]
    assert apart == {
        "record": RECORD,
        "why": [f"began after {order['planned'][1]}, which comes later in the plan"],
        "attempts": 1,
    }


def test_an_archive_verifies_elsewhere_without_the_project(
    manifest: Path, project: Project, tmp_path: Path
) -> None:
    first = pack(manifest, tmp_path / "one.zip")
    second = pack(manifest, tmp_path / "two.zip")
    assert first.path.read_bytes() == second.path.read_bytes()
    place = tmp_path / "some where/else"
    with zipfile.ZipFile(first.path) as archive:
        archive.extractall(place)
    for file in (file for file in place.rglob("*") if file.is_file()):
        assert os.fsencode(project.folder) not in file.read_bytes(), file
    command = [sys.executable, "-m", "refill.evidence", "verify", "results/manifest.json"]
    environment = project.environment | {"PYTHONPATH": "workflow/scripts"}

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


@pytest.fixture
def other(manifest: Path, tmp_path: Path) -> Path:
    """The manifest of a second result folder, equal to the first."""
    shutil.copytree(manifest.parent, tmp_path / "other/results")
    return tmp_path / "other/results/manifest.json"


def test_equal_results_are_compared_and_undecidable(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(manifest), str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["cell", "figure", "old", "new", "new/old", "verdict", "why"]
    cells = [line for line in lines if line.startswith("on-main, ")]
    assert len(cells) == 2 * 6 * 2
    assert all("1.000" in line and "undecidable" in line for line in cells)
    assert any(line.startswith("A2") and "drain_s" in line for line in lines)


def _faster(path: Path, factor: float) -> None:
    """Make all trials of the new image's rounds faster, with the hashes that go with it."""
    content = read_json(path)
    for record in [r for r in content["results"] if "/on-main/new-" in r and r.count(".") == 1]:
        if not record.endswith(".json"):
            continue
        file = path.parent.parent / record

        def change(value: dict[str, Any]) -> None:
            for cell in value["cells"]:
                for trial in cell["trials"]:
                    for key in ("p50_ms", "p95_ms"):
                        trial["stats"][key] *= factor

        rewritten(file, change)
        content["results"][record].update(sha256=sha256_file(file), bytes=file.stat().st_size)
    write_json(path, content)


def test_faster_and_slower_are_told_apart(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _faster(other, 0.01)
    for old, new, word in ((manifest, other, "faster"), (other, manifest, "slower")):
        assert main(["compare", str(old), str(new)]) == 0
        lines = capsys.readouterr().out.splitlines()
        changed = [line for line in lines if line.startswith("on-main, new, ")]
        assert len(changed) == 12
        assert all(f"  {word}  " in line for line in changed)
        same = [line for line in lines if line.startswith("on-main, old, ")]
        assert all("undecidable" in line for line in same)


def _set(path: Path, keys: list[Any], value: Any) -> None:
    content = read_json(path)
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    write_json(path, content)


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (["config", "scale"], "paper", "scale"),
        (["config", "optimizers", "search", "limit"], 7, "config.optimizers.search.limit"),
        (["config", "rounds", "counts", "warm"], 9, "config.rounds.counts.warm"),
        (["hosts", 0, "host", "cpu", "model"], "Other", "host.cpu.model"),
        (["hosts", 0, "host", "cpu", "cores_usable"], 64, "host.cpu.cores_usable"),
        (["hosts", 0, "host", "memory", "total_bytes"], 1, "host.memory.total_bytes"),
        (["hosts", 0, "host", "kernel"], "7.0", "host.kernel"),
        (["runs", 0, "code"], "0" * 64, "code.round"),
        (["results", "results/corpora/small/corpus.json", "sha256"], "0" * 64, "corpora.small"),
        (["versions", "packages", "numpy"], "1.0", "versions.packages.numpy"),
        (["engines", 1, "engine", "version"], "0.1", "engines."),
    ],
)
def test_results_that_differ_in_what_matters_are_refused_field_by_field(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str],
    keys: list[Any], value: Any, field: str,
) -> None:  # fmt: skip
    _set(other, keys, value)
    assert main(["compare", str(manifest), str(other)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(field) and " in the old results, " in line for line in lines)
    assert "1 fields differ that change figures: not compared" in lines[-1]
    allowed = field.rstrip(".")
    assert main(["compare", str(manifest), str(other), "--allow", allowed]) == 0
    assert capsys.readouterr().out.startswith(f"allowed to differ: {field}")


def test_another_image_is_compared_only_when_that_is_meant(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = other.parent / "images/gateway-new.json"
    rewritten(image, lambda record: record.update(id="sha256:" + "0" * 64))
    assert main(["compare", str(manifest), str(other)]) == 1
    assert capsys.readouterr().err.startswith("images.gateway-new: sha256:")
    arguments = ["compare", str(manifest), str(other), "--allow"]
    assert main([*arguments, "images"]) == 0
    assert main([*arguments, "image"]) == 2
    assert "--allow image: no such field: did you mean 'images'?" in capsys.readouterr().err


def test_repeats_and_limits_of_waiting_do_not_matter(manifest: Path, other: Path) -> None:
    _set(other, ["config", "optimizers", "repeats"], 9)
    _set(other, ["config", "qdrant", "start_timeout_s"], 9)
    assert main(["compare", str(manifest), str(other)]) == 0


def test_what_cannot_be_read_is_an_error_of_its_own(
    manifest: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path / "none.json")]) == 2
    assert "none.json: no such record" in capsys.readouterr().err
    _set(other, ["order", "as_planned"], "yes")
    for command in (["verify"], ["compare", str(manifest)], ["pack"]):
        assert main([*command, str(other)]) == 2
        wrong = "manifest.json: order.as_planned: must be true or false, is 'yes'"
        assert wrong in capsys.readouterr().err
    (other.parent.parent / RECORD).unlink()
    _set(other, ["order", "as_planned"], True)
    assert main(["compare", str(manifest), str(other)]) == 2
    assert f"{RECORD}: is missing" in capsys.readouterr().err

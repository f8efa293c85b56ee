"""A whole small result folder: verified, falsified in every way, and found out."""

from __future__ import annotations

import copy
import csv
import io
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from falsified import RECORD, RUN, gathered, rewritten, seal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from project_copy import Project
from refill.evidence.__main__ import main
from refill.evidence.attempts import Attempt
from refill.evidence.hashes import sha256_file
from refill.evidence.image_archives import differences as image_differences
from refill.evidence.records import RecordError, read_json, write_json
from refill.evidence.recounted import differences as recount
from refill.evidence.verification import inspect, verify
from refill.images import archive as image_archive


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
    assert "5 records counted again from ledgers; " in printed.out
    assert " tables made again from records; 1 page made again from records" in printed.out
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
def test_one_changed_byte_alone_is_found(small_results: Project, data: st.DataObject) -> None:
    folder = small_results.folder
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
    (line,) = inspect(copied, figures=False).differences
    assert line.startswith("results/manifest.json: has changed: results/ro-crate/ro-crate-metadata")


def test_what_the_manifest_says_of_the_runs_is_held_against_the_records(copied: Path) -> None:
    rewritten(copied, lambda content: content["runs"][0].update(started_at="2020-01-01T00:00:00Z"))
    seal(copied)
    (line,) = verify(copied)
    assert line.startswith('manifest.json: runs[0].started_at: says "2020-01-01T00:00:00Z", the ')


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda record: record.update(host=None),
        lambda record: record.update(started_at=5),
        lambda record: record.update(attempt={}),
        lambda record: record.update(ledger=-1),
    ],
)
def test_a_record_of_another_form_is_told_and_the_others_are_looked_at(
    copied: Path, spoilt: Any
) -> None:
    rewritten(copied.parent.parent / RUN, spoilt)
    table = copied.parent / "tables/aof.csv"
    table.write_text(table.read_text().replace("cold", "warm"))
    seal(copied)
    found = verify(copied)
    assert any("not in the form that this workflow writes" in line for line in found), found
    assert any("tables/aof.csv" in line for line in found), found


def test_a_folder_and_a_deep_file_are_refused_in_words(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(copied.parent)]) == 2
    assert "is a folder: give the manifest.json in it" in capsys.readouterr().err
    deep = copied.with_name("deep.json")
    deep.write_text("[" * 200_000)
    assert main(["verify", str(deep)]) == 2
    assert "is nested too deeply" in capsys.readouterr().err


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


def test_an_edited_record_is_refused_before_tables_are_made_of_it(
    small_results: Project, copied: Path
) -> None:
    work = copied.parent.parent
    project = copy.copy(small_results)
    project.folder = work

    def falsified(record: Any) -> None:
        record["cells"][0]["trials"][0]["stats"]["p50_ms"] = 9.0

    rewritten(work / RECORD, falsified)
    (work / "results/tables/rounds.csv").unlink()
    code, text = project.run("results/tables/rounds.csv")
    assert code != 0
    assert f"{RECORD}: was changed after attempt" in text
    assert "Traceback" not in text
    assert not (work / "results/tables/rounds.csv").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda m: m["results"][RUN].update(kind="other"),
            f"manifest.json: results.{RUN}.kind: says other, by its path it is record",
        ),
        (
            lambda m: m["left_out"].append("results/tables/extra*"),
            "manifest.json: left_out: 'results/tables/extra*' is no pattern of what is written "
            "later",
        ),
        (
            lambda m: m["written"][0]["plan"]["expected"].update(margin=0.9),
            "manifest.json: written, write_tables.py.plan.expected.margin: says 0.9, the "
            "configuration gives 0.05",
        ),
        (
            lambda m: m["written"][0]["input"]["records"].clear(),
            f"manifest.json: written, write_tables.py.input.records[0]: says None, the "
            f"configuration gives {RUN!r}",
        ),
        (
            lambda m: m["written"].clear(),
            "manifest.json: written: write_report.py stands there 0 times, not 1",
        ),
        (
            lambda m: m["config"]["corpus"].update(points=1_760_000),
            f"{RUN}: corpus.points: says 3000, the manifest's configuration 1760000",
        ),
    ],
)
def test_the_manifest_does_not_choose_what_is_looked_at(
    copied: Path, change: Callable[[Any], None], line: str
) -> None:
    rewritten(copied, change)
    seal(copied)
    assert line in verify(copied)


def test_a_wrong_size_is_found(copied: Path) -> None:
    rewritten(copied, lambda content: content["results"][RUN].update(bytes=7))
    found = inspect(copied, figures=False).differences
    size = (copied.parent.parent / RUN).stat().st_size
    assert f"{RUN}: bytes: the manifest says 7, it has {size}" in found


def test_a_list_of_withheld_logs_excuses_nothing_outside_of_an_archive(copied: Path) -> None:
    work = copied.parent.parent
    log = next(p for p in read_json(copied)["results"] if p.endswith(".log"))
    (work / log).unlink()
    write_json(work / "withheld.json", {"schema": "refill.withheld/1", "files": {log: "private"}})
    with pytest.raises(RecordError, match=r"^withheld\.json: excuses what an archive leaves out"):
        verify(copied)


def test_a_folder_and_a_missing_manifest_are_told_of(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(copied.parent)]) == 2
    assert "is a folder: give the manifest.json in it" in capsys.readouterr().err
    assert main(["verify", str(copied.with_name("nope.json"))]) == 2
    assert "no such file: give the manifest.json of a results folder" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["@id", "@graph", "@type"])
def test_a_crate_whose_keys_were_changed_is_named(copied: Path, key: str) -> None:
    crate = copied.parent / "ro-crate/ro-crate-metadata.json"
    text = crate.read_text()
    # Of the last entity, which has no hash, so that only its own form tells.
    before, found, after = text.rpartition(f'"{key}"')
    assert found
    crate.unlink()
    crate.write_text(f'{before}"@Id"{after}')
    lines = inspect(copied, figures=False).differences
    assert any(line.startswith("results/ro-crate/ro-crate-metadata.json: ") for line in lines), (
        lines
    )


def test_an_attempt_that_ends_after_the_manifest_makes_the_next_run_gather_it_again(
    small_results: Project, copied: Path
) -> None:
    """As one of a cluster does that was superseded; its log is written once more, too."""
    project = copy.copy(small_results)
    project.folder = copied.parent.parent
    assert project.planned() == {}
    late = Attempt.begin(project.folder, RUN, {"code": "0" * 64, "scale": "test"})
    (late.folder / "part.txt").write_text("what it had measured")
    late.end("superseded", "another attempt has it", [late.folder / "part.txt"])
    found = inspect(copied, figures=False)
    assert any(
        line.startswith("results/attempts/attempts.jsonl: has ch") for line in found.differences
    )
    assert any("`make all` gathers it again" in line for line in found.notes)

    assert project.planned() == {"manifest": 1, "report": 1, "crate": 1}
    code, text = project.run("all")
    assert code == 0, text
    assert verify(copied) == []
    assert read_json(copied)["attempts"][-1]["outcome"] == "superseded"
    # That is said once, and nothing is gathered twice.
    assert project.planned() == {}
    code, text = project.run("all", "--forcerun", "tables")
    assert code == 0, text
    assert project.planned() == {}

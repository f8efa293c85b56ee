"""The real workflow on a small corpus: what it makes, what it reruns, and what it refuses."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from project_copy import CONFIG, RUNS, Project
from refill.evidence.verification import verify

RECORDS = [f"results/optimizers/{name}/1.json" for name in RUNS]
GATHERED = {"tables": 1, "manifest": 1, "report": 1, "crate": 1}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose name has a space, after one run of `all`."""
    made = Project(tmp_path_factory.mktemp("a project"))
    code, text = made.run("all")
    assert code == 0, text
    return made


def test_every_run_leaves_a_complete_valid_record(project: Project) -> None:
    for name, path in zip(RUNS, RECORDS, strict=True):
        record = project.json(path)
        assert record["valid"], record["invalid"]
        assert record["outcome"] == "completed"
        assert record["id"] == name
        phases = [phase["name"] for phase in record["phases"]]
        followup = ["followup-draining", "followup-steady"] if name == "D1" else []
        assert phases == ["upload", "draining", "steady", *followup]
        assert record["ledger"]["conservation"]["ok"]
        assert record["engine"]["embedded"] is True
        assert record["phases"][0]["ended_by"]["points"] == 3000


def test_the_ledger_holds_every_request_with_its_recall(project: Project) -> None:
    record = project.json(RECORDS[0])
    rows = pd.read_parquet(project.folder / record["ledger"]["path"])
    assert len(rows) == record["ledger"]["rows"] == record["ledger"]["counts"]["issued"]
    steady = rows[(rows["phase"] == "steady") & (rows["loop"] == "closed")]
    assert len(steady) == 3 * 40
    assert (steady["hits"] == 10).all()
    assert steady["recall"].mean() > 0.8
    firsts = rows[rows["loop"] == "upload"]["first"]
    assert sorted(firsts) == list(range(0, 3000, 100))


def test_deleted_points_are_gone_and_vacuum_ran(project: Project) -> None:
    record = project.json("results/optimizers/D1/1.json")
    drain = next(p for p in record["phases"] if p["name"] == "followup-draining")
    assert drain["event"]["deleted"] == 750
    assert drain["event"]["verified"]["readable"] == 2250
    assert drain["optimizers_seen"] == ["vacuum"]


def test_runs_keep_the_order_of_the_configuration_and_never_overlap(project: Project) -> None:
    spans = [(r["started_at"], r["ended_at"]) for r in map(project.json, RECORDS)]
    assert spans == sorted(spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_tables_manifest_and_report_are_there_and_the_manifest_verifies(project: Project) -> None:
    table = pd.read_csv(project.folder / "results/tables/optimizers.csv")
    assert set(RUNS) <= set(table["run"])
    assert verify(project.folder / "results/manifest.json", project.folder) == []
    text = (project.folder / "results/manifest.json").read_text()
    assert str(project.folder) not in text
    page = (project.folder / "results/report.html").read_text()
    assert "embedded" in page
    assert 'src="http' not in page


def test_folder_listing_is_as_documented(project: Project) -> None:
    results = project.folder / "results"
    assert sorted(path.name for path in results.iterdir()) == [
        "attempts",
        "corpora",
        "images",
        "logs",
        "manifest.json",
        "optimizers",
        "report.html",
        "ro-crate",
        "tables",
    ]
    assert not list(Path(results).rglob("*.writing"))


def test_a_changed_byte_is_found(project: Project) -> None:
    ledger = project.folder / "results/optimizers/A1/1.parquet"
    good = ledger.read_bytes()
    ledger.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    try:
        problems = verify(project.folder / "results/manifest.json", project.folder)
    finally:
        ledger.write_bytes(good)
    assert any("results/optimizers/A1/1.parquet" in problem for problem in problems)


def test_nothing_is_left_to_do_nor_after_a_touch(project: Project) -> None:
    assert project.planned() == {}
    for folder in ("workflow", "config", "images"):
        for path in (project.folder / folder).rglob("*"):
            if path.is_file():
                os.utime(path)
    assert project.planned() == {}


def test_an_edited_helper_reruns_what_depends_on_it_and_nothing_else(project: Project) -> None:
    package = project.folder / "workflow/scripts/refill"

    def planned_after_edit(path: str) -> dict[str, int]:
        file = package / path
        before = file.read_text()
        file.write_text(before + "\n# edited\n")
        try:
            return project.planned()
        finally:
            file.write_text(before)

    assert planned_after_edit("phases/drain.py") == {"optimizer": 3, **GATHERED}
    # What builds images in containers imports it, too: an address is one.
    assert planned_after_edit("load/wire.py") == {"image": 1, "optimizer": 3, **GATHERED}
    assert planned_after_edit("report/templates/report.css") == {"report": 1, "crate": 1}
    assert planned_after_edit("corpora/shuffle.py").get("corpus") == 1
    assert project.planned() == {}


def test_a_changed_setting_reruns_the_runs_that_it_concerns(project: Project) -> None:
    optimizers: dict[str, Any] = {
        **CONFIG["optimizers"],
        "overrides": {"A3": {"memmap_threshold": 9}},
    }
    project.configure({**CONFIG, "optimizers": optimizers})
    try:
        assert project.planned() == {"optimizer": 1, **GATHERED}
    finally:
        project.configure(CONFIG)


def test_deleting_a_record_reruns_that_record_the_tables_and_the_manifest(
    project: Project,
) -> None:
    before = {path: project.json(path)["attempt"] for path in RECORDS}
    (project.folder / RECORDS[1]).unlink()
    assert project.planned() == {"optimizer": 1, **GATHERED}
    code, text = project.run("all")
    assert code == 0, text
    after = {path: project.json(path)["attempt"] for path in RECORDS}
    assert [path for path in RECORDS if before[path] != after[path]] == [RECORDS[1]]
    assert project.planned() == {}
    # The attempt that was measured first is not forgotten.
    attempts = (project.folder / "results/attempts/attempts.jsonl").read_text()
    assert before[RECORDS[1]] in attempts


@pytest.mark.parametrize(
    ("path", "planned"),
    [
        ("results/optimizers/A1/1.parquet", {"optimizer": 1, **GATHERED}),
        ("results/optimizers/A1/1.polls.parquet", {"optimizer": 1, **GATHERED}),
        ("results/tables/claims.csv", GATHERED),
    ],
)
def test_a_deleted_table_or_ledger_is_made_again(
    project: Project, path: str, planned: dict[str, int]
) -> None:
    file = project.folder / path
    aside = file.rename(project.folder / "aside")
    try:
        assert project.planned() == planned
    finally:
        aside.rename(file)
    assert project.planned() == {}


def test_a_run_that_is_not_asked_for_any_more_is_named_and_not_shown(project: Project) -> None:
    optimizers = {**CONFIG["optimizers"], "runs": RUNS[:2]}
    project.configure({**CONFIG, "optimizers": optimizers})
    try:
        code, text = project.run("all")
        assert code == 0, text
        manifest = project.json("results/manifest.json")
        assert manifest["not_asked_for"] == ["results/optimizers/D1/1.json"]
        page = (project.folder / "results/report.html").read_text()
        assert "does not ask for; nothing of them is shown here: results/optimizers/D1/1" in page
        table = pd.read_csv(project.folder / "results/tables/optimizers.csv")
        assert table.set_index("run").loc["D1", "status"] == "not measured"
    finally:
        project.configure(CONFIG)
    code, text = project.run("all")
    assert code == 0, text
    assert project.json("results/manifest.json")["not_asked_for"] == []


def test_a_ledger_of_another_run_is_not_reported_on(project: Project) -> None:
    ledger = project.folder / "results/optimizers/A1/1.parquet"
    good = ledger.read_bytes()
    ledger.write_bytes((project.folder / "results/optimizers/A3/1.parquet").read_bytes())
    try:
        code, text = project.run("--force", "results/report.html")
    finally:
        ledger.write_bytes(good)
    assert code != 0
    assert "A1 repeat 1: ledger.sha256: results/optimizers/A1/1.parquet is not the file" in text
    code, text = project.run("all")
    assert code == 0, text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizers": {**CONFIG["optimizers"], "runs": ["A9"]}}, "A9"),
        ({"optimisers": {}}, "optimizers"),
        ({"corpus": {**CONFIG["corpus"], "points": 0}}, "corpus.points"),
        ({"qdrant": {"image": None}}, "exactly one of image, binary and url"),
    ],
)
def test_bad_configuration_ends_before_anything_starts(
    project: Project, change: dict[str, Any], words: str
) -> None:
    project.configure({**CONFIG, **change})
    before = sorted(project.folder.rglob("results/**"))
    try:
        code, text = project.run("all")
    finally:
        project.configure(CONFIG)
    assert code != 0
    assert words in text
    assert "Traceback" not in text
    assert sorted(project.folder.rglob("results/**")) == before


def test_a_mistake_is_that_of_its_file(project: Project) -> None:
    for change, words in (
        ({"corpus": {**CONFIG["corpus"], "points": -1}}, "test.yaml: corpus.points: must be"),
        ({"optimizers": {**CONFIG["optimizers"], "runs": ["A9"]}}, "test.yaml: optimizers.runs[0]"),
    ):
        project.configure({**CONFIG, **change})
        try:
            code, text = project.run("all", "-n")
        finally:
            project.configure(CONFIG)
        assert code != 0
        assert words in text
    code, text = project.run("all", "-n", "--config", "scale=NO")
    assert code != 0
    assert "command line (--config): scale: must match" in text


def test_a_target_without_a_corpus_is_no_target(project: Project) -> None:
    code, text = project.run("results/corpora/nope/corpus.json", "-n")
    assert code != 0
    assert "No rule to produce results/corpora/nope/corpus.json" in text
    assert "KeyError" not in text


def test_a_base_configuration_in_another_encoding_is_named(project: Project) -> None:
    path = project.folder / "config/config.yaml"
    good = path.read_bytes()
    path.write_bytes(b"# caf\xe9\n" + good)
    try:
        code, text = project.run("all", "-n")
    finally:
        path.write_bytes(good)
    assert code != 0
    assert "config/config.yaml: line 1: is not UTF-8" in text


def test_a_drifted_image_is_refused_by_name(project: Project) -> None:
    tree = project.folder / "images/qdrant-edge"
    stranger = tree / "stranger.py"
    stranger.write_text("# not pinned\n")
    try:
        code, text = project.run("all", "-n")
    finally:
        stranger.unlink()
    assert code != 0
    assert "added: stranger.py" in text
    assert "make pin" in text


def test_a_broken_corpus_is_refused_and_no_measurement_is_lost(project: Project) -> None:
    """NaN in the data: the corpus rule fails with words; no engine starts, no record goes."""
    import numpy as np

    path = project.folder / "small.npy"
    good = path.read_bytes()
    vectors = np.load(path)
    vectors[17, 3] = np.nan
    np.save(path, vectors)
    project.configure({**CONFIG, "corpus": {**CONFIG["corpus"], "points": 2900}})
    attempts = (project.folder / "results/attempts/attempts.jsonl").read_text()
    records = {name: (project.folder / name).read_bytes() for name in RECORDS}
    try:
        code, text = project.run("all")
    finally:
        path.write_bytes(good)
        project.configure(CONFIG)
    assert code != 0
    assert "small" in text
    assert "NaN" in text or "not finite" in text
    assert (project.folder / "results/attempts/attempts.jsonl").read_text() == attempts
    assert {name: (project.folder / name).read_bytes() for name in RECORDS} == records

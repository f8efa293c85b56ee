"""The gateway rounds in the real workflow, at small counts: targets, order, reruns, tables."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from project_copy import CONFIG, Project
from refill.evidence.verification import verify
from refill.image_sources import read_source
from refill.processes import wait_for
from round_fixture import flights_package

ORDER = [
    f"results/rounds/{profile}/{image}-{n}.json"
    for profile in ("on-main", "off-control")
    for image, n in (("old", 1), ("new", 1), ("new", 2), ("old", 2))
]
GATHERED = {"tables": 1, "manifest": 1, "report": 1, "crate": 1}
ROUNDS: dict[str, Any] = {
    "profiles": ["on-main", "off-control"],
    # The native engines have tests of their own, and a start of seconds.
    "engines": ["gateway"],
    "corpus": {"name": "small-flights", "documents": 400},
    "images": {"old": "gateway-old", "new": "gateway-new"},
    "counts": {"trials": 1, "clients": [1, 2], "warm": 8, "cold_enabled": 8, "cold_disabled": 8},
    "warm_up": 4,
}


def pin_images(folder: Path) -> None:
    """Pin the images of the copy as they are, so that the test is of the workflow alone."""
    path = folder / "config/images.yaml"
    images = yaml.safe_load(path.read_text())
    for entry in images["images"].values():
        entry["pinned"] = read_source(folder, entry).state()
    path.write_text(yaml.safe_dump(images))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project after one run of `all`: eight rounds, and one short optimizer run beside them."""
    made = Project(tmp_path_factory.mktemp("a project"))
    pin_images(made.folder)
    optimizers: dict[str, Any] = {**CONFIG["optimizers"], "runs": ["A2"]}
    made.configure({**CONFIG, "optimizers": optimizers, "rounds": ROUNDS})
    # As if pip had fetched it: no network in this test.
    package = flights_package(made.folder / "results/downloads/small-flights", 450)
    settings = made.folder / "test.yaml"
    config = yaml.safe_load(settings.read_text())
    config["corpora"]["small-flights"] = package
    settings.write_text(yaml.safe_dump(config))
    code, text = made.run("all", timeout_s=500)
    assert code == 0, text
    return made


def test_eight_valid_rounds_in_their_order_without_overlap(project: Project) -> None:
    records = [project.json(path) for path in ORDER]
    for record in records:
        assert record["valid"], record["invalid"]
    spans = [(r["started_at"], r["ended_at"]) for r in records]
    assert spans == sorted(spans)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    run = project.json("results/optimizers/A2/1.json")
    assert spans[-1][1] <= run["started_at"]
    assert [r["engines"]["gateway"]["image"]["name"] for r in records[:2]] == [
        "gateway-old",
        "gateway-new",
    ]


def test_twelve_raw_profiles_and_eight_resource_records(project: Project) -> None:
    rounds = project.folder / "results/rounds"
    raw = [*rounds.rglob("*.warm.json"), *rounds.rglob("*.cold.json")]
    assert len(raw) == 12
    assert all(json.loads(path.read_text())["cells"] for path in raw)
    assert len(list(rounds.rglob("*.resources.json"))) == 8


def test_the_tables_have_all_42_cells(project: Project) -> None:
    table = pd.read_csv(project.folder / "results/tables/rounds.csv")
    assert len(table) == 42
    ours = table[table["engine"] == "gateway"]
    assert (ours["status"] == "completed").all()
    assert len(ours) == 14
    assert ours["p50_ratio"].notna().all()
    for quantile in ("p50", "p95"):
        assert (ours[f"{quantile}_ratio_low"] <= ours[f"{quantile}_ratio"]).all()
        assert (ours[f"{quantile}_ratio"] <= ours[f"{quantile}_ratio_high"]).all()
        decided = {"faster", "slower", "equivalent", "undecidable"}
        assert set(ours[f"{quantile}_verdict"]) <= decided
        assert ours[f"{quantile}_why"].str.contains("interval").all()
        assert ours[f"{quantile}_drift_block"].notna().all()
    others = table[table["engine"] != "gateway"]
    assert others["status"].str.startswith("not measured: ").all()
    assert others["old_p50_ms"].isna().all()
    aof = pd.read_csv(project.folder / "results/tables/aof.csv")
    assert len(aof) == 12
    cold = aof[(aof["profile"] == "on-main") & (aof["cell"] == "cold")]
    assert (cold[cold["image"] == "new"]["growth_bytes"] == 0).all()
    assert (cold[cold["image"] == "old"]["growth_bytes"] > 16 * 1000).all()


def test_claims_of_both_experiments_are_decided_in_one_table(project: Project) -> None:
    claims = pd.read_csv(project.folder / "results/tables/claims.csv").set_index("claim")
    assert set(claims["experiment"]) == {"gateway", "optimizers"}
    assert claims.loc["G-wrong", "verdict"] == "reproduced"
    assert claims.loc["G-log-fills", "verdict"] == "reproduced"
    assert "(embedded engine)" in claims.loc["G-cold-1-p50", "measured"]
    assert claims.loc["A3-steady", "verdict"] == "not measured"
    assert (claims["why"].str.len() > 0).all()
    verdicts = pd.read_csv(project.folder / "results/tables/optimizer_verdicts.csv")
    assert set(verdicts["verdict"]) == {"not measured"}


def test_manifest_and_report_know_the_rounds(project: Project) -> None:
    manifest = project.folder / "results/manifest.json"
    assert verify(manifest, project.folder) == []
    content = json.loads(manifest.read_text())
    assert [run["record"] for run in content["runs"]][:8] == ORDER
    kinds = [entry["kind"] for entry in content["results"].values()]
    assert (kinds.count("raw profile"), kinds.count("resources")) == (12, 8)
    assert {e["engine"]["name"] for e in content["engines"]} == {"gateway", "qdrant", "valkey"}
    page = (project.folder / "results/report.html").read_text()
    assert "Gateway rounds" in page
    assert page.count("on-main/old-1") >= 2

    raw = project.folder / "results/rounds/on-main/old-1.cold.json"
    good = raw.read_bytes()
    raw.write_bytes(good.replace(b"0", b"1", 1))
    try:
        problems = verify(manifest, project.folder)
    finally:
        raw.write_bytes(good)
    assert any("old-1.cold.json" in problem for problem in problems)


def test_one_round_reruns_alone(project: Project) -> None:
    path = ORDER[2]
    before = {name: project.json(name)["attempt"] for name in ORDER}
    assert project.planned() == {}
    (project.folder / path).unlink()
    assert project.planned() == {"round_on": 1, **GATHERED}
    code, text = project.run(path)
    assert code == 0, text
    after = {name: project.json(name)["attempt"] for name in ORDER}
    assert [name for name in ORDER if before[name] != after[name]] == [path]
    assert project.planned() == GATHERED


def test_more_blocks_add_rounds_and_rerun_none(project: Project) -> None:
    settings = project.folder / "test.yaml"
    good = settings.read_text()
    two = yaml.safe_load(good) | {"rounds": {**ROUNDS, "blocks": 2}}
    settings.write_text(yaml.safe_dump(two))
    try:
        planned = project.planned()
        _, text = project.run("all", "-n")
    finally:
        settings.write_text(good)
    assert planned == {"round_on": 4, "round_off": 4, **GATHERED}
    jobs = re.findall(r"wildcards: image=(\w+), n=(\d+)\s+priority: (\d+)", text)
    assert {(image, n) for image, n, _ in jobs} == {(i, n) for i in ("old", "new") for n in "34"}
    priorities = {int(priority): (image, n) for image, n, priority in jobs}
    assert len(priorities) == 8
    # The second block is turned round, in both profiles.
    in_order = [priorities[p] for p in sorted(priorities, reverse=True)]
    assert in_order == 2 * [("new", "3"), ("old", "3"), ("old", "4"), ("new", "4")]


def test_an_aa_run_measures_one_image_in_both_arms(project: Project) -> None:
    """In a folder of its own: its rounds are not those of the comparison."""
    here = project.folder / "aa"
    fetched = here / "results/downloads"
    fetched.parent.mkdir(parents=True)
    shutil.copytree(project.folder / "results/downloads", fetched)
    one = {
        **ROUNDS,
        "profiles": ["on-main"],
        "images": dict.fromkeys(("old", "new"), "gateway-old"),
    }
    settings = project.folder / "test.yaml"
    good = settings.read_text()
    settings.write_text(yaml.safe_dump(yaml.safe_load(good) | {"rounds": one}))
    try:
        code, text = project.run("results/tables/aa.csv", "--directory", "aa")
    finally:
        settings.write_text(good)
    assert code == 0, text
    table = pd.read_csv(here / "results/tables/aa.csv")
    # A trial that the machine was too busy for is invalid, and its cell has no verdict.
    assert 0 < len(table) <= 24
    assert set(table["verdicts"]) == {len(table)}
    assert set(table["verdict"]) <= {"faster", "slower", "equivalent", "undecidable"}
    assert (table["false"] == table["verdict"].isin(["faster", "slower"])).all()
    assert f"A/A: {table['false'].sum()} of {len(table)} verdicts are false" in text
    record = json.loads((here / "results/rounds/on-main/new-2.json").read_text())
    assert record["engines"]["gateway"]["image"]["name"] == "gateway-old"
    # With two images there is nothing to count.
    code, text = project.run("results/tables/aa.csv", "-n")
    assert code != 0


def test_a_change_of_the_gateway_reruns_the_rounds_and_no_optimizer(project: Project) -> None:
    record = project.folder / "results/images/gateway-new.json"
    good = record.read_bytes()
    record.unlink()
    try:
        planned = project.planned()
    finally:
        record.write_bytes(good)
    assert planned["round_on"] == planned["round_off"] == 4
    assert "optimizer" not in planned


def test_an_edited_helper_of_rounds_reruns_rounds_alone(project: Project) -> None:
    file = project.folder / "workflow/scripts/refill/phases/round_run.py"
    before = file.read_text()
    file.write_text(before + "\n# edited\n")
    try:
        planned = project.planned()
    finally:
        file.write_text(before)
    assert planned == {"round_on": 4, "round_off": 4, **GATHERED}


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ({**ROUNDS, "images": {"old": "gateway-odl", "new": "gateway-new"}}, "'gateway-old'"),
        ({**ROUNDS, "images": {"old": "qdrant-edge", "new": "gateway-new"}}, "api: qdrant"),
        ({**ROUNDS, "images": {"old": "gateway-new", "new": "gateway-old"}}, "are swapped"),
        ({**ROUNDS, "counts": {**ROUNDS["counts"], "cold_enabled": 60000}}, "cold requests"),
        ({**ROUNDS, "corpus": {"name": "small"}}, "no corpus of documents 'small'"),
        ({**ROUNDS, "engines": ["elasticsearch"]}, "rounds.engines"),
        ({**ROUNDS, "counts": {"trails": 3}}, "did you mean 'trials'"),
    ],
)
def test_bad_configuration_ends_before_anything_starts(
    project: Project, rounds: dict[str, Any], words: str
) -> None:
    settings = project.folder / "test.yaml"
    good = settings.read_text()
    config = yaml.safe_load(good) | {"rounds": rounds}
    settings.write_text(yaml.safe_dump(config))
    try:
        code, text = project.run("all", "-n")
    finally:
        settings.write_text(good)
    assert code != 0
    assert words in text
    assert "Traceback" not in text


def test_a_stopped_round_leaves_no_process_and_no_record(project: Project) -> None:
    """Ctrl+C in the middle: the attempt says interrupted, everything that was started ends."""
    settings = project.folder / "test.yaml"
    # Long trials, so that the signal finds one under way.
    long = {**ROUNDS, "counts": {**ROUNDS["counts"], "trials": 3, "warm": 50_000}}
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"rounds": long}))
    path = project.folder / ORDER[0]
    path.unlink()
    log = project.folder / "results/logs/rounds/on-main/old-1.log"
    log.unlink()
    snakemake = project.start(ORDER[0])

    def begun() -> bool:
        return (log.exists() and "primed" in log.read_text()) or snakemake.poll() is not None

    assert wait_for(begun, 90, 0.01)
    assert snakemake.poll() is None
    # As a terminal does: to the whole group.
    os.killpg(snakemake.pid, signal.SIGINT)
    assert snakemake.wait(60) != 0
    assert wait_for(lambda: project.processes() == [], 30)
    assert not path.exists()
    attempts = (project.folder / "results/attempts/attempts.jsonl").read_text().splitlines()
    assert json.loads(attempts[-1])["outcome"] == "interrupted"
    assert not list((project.folder / "results/scratch").glob("*"))

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from refill.evidence.hashes import sha256_file
from refill.report.machine import allow
from refill.report.page import ReportError, render, write
from report_fixture import SHAPES, make_run, write_run

ROOT = Path(__file__).parents[2]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects tags, text and ids, and fails on a tag that is not closed in order."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.attributes, self.open, self.text = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.attributes.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))

    def named(self, name):
        return [given for tag, given in self.attributes if tag == name]


@pytest.fixture(scope="module")
def claims():
    return yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured():
    return [make_run(id_, scale=0.2) for id_ in ("A1", "C2", "D1")]


def html_of(runs, claims, **more):
    tables = {(r.record["id"], r.record["repeat"]): r for r in runs}
    return render(
        [r.record for r in runs],
        {key: run.ledger for key, run in tables.items()},
        {key: run.polls for key, run in tables.items()},
        claims,
        **more,
    )


@pytest.fixture(scope="module")
def html(measured, claims):
    attempts = [
        {"attempt": "a", "target": "optimizers/A1/1", "begun_at": "2026-01-01T00:00:00.000Z",
         "ended_at": None, "outcome": "died", "reason": "killed", "facts": {}, "files": {}},
    ]  # fmt: skip
    return html_of(measured, claims, attempts=attempts)


def test_it_is_one_file_that_fetches_nothing(html):
    page = Page(html)
    assert "script" not in page.tags
    assert not re.search(r"@import|@font-face", html)
    links = [v for _, given in page.attributes for k, v in given.items() if k in ("href", "src")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]+)\)", html))
    assert len(html) < 5_000_000


def test_ids_are_unique_and_every_reference_resolves(html):
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    wanted = {
        v[1:]
        for _, given in page.attributes
        for k, v in given.items()
        if k == "href" and v[0] == "#"
    }
    wanted |= {
        i for _, given in page.attributes for i in (given.get("aria-labelledby") or "").split()
    }
    wanted |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert wanted - set(page.ids) == set()


def test_order_of_the_sections(html):
    sections = [
        "claims",
        "gateway",
        "configurations",
        "trade-off",
        "runs",
        "proof",
        "attempts",
        "environment",
        "limits",
    ]
    assert [i for i in Page(html).ids if i in sections] == sections


def test_every_picture_has_words(html):
    pictures = [g for g in Page(html).named("div") if g.get("role") == "img"]
    assert len(pictures) == 3 * 2 + 2
    assert all(len(given["aria-label"]) > 40 for given in pictures)
    words = [given["aria-label"] for given in pictures]
    assert any("vacuum running" in text for text in words)


def test_pictures_are_well_formed_and_bounded(html):
    pictures = re.findall(r'<div class="plot[^>]*>(<svg.*?</svg>)</div>', html, re.S)
    assert len(pictures) == 8
    for svg in pictures:
        root = ElementTree.fromstring(svg)
        assert root.get("viewBox")
        assert len(list(root.iter())) < 2_500


def test_colours_of_pictures_are_all_mapped_by_the_style_sheet(html):
    css = html[html.index("<style>") : html.index("</style>")]
    for kind in ("fill", "stroke"):
        used = set(re.findall(rf' {kind}="(#0[0-9a-f]{{5}})"', html))
        assert used
        assert all(f'[{kind}="{colour}"]' in css for colour in used)


def test_published_figures_and_the_engine_stand_beside_the_measured(html):
    words = Page(html).words
    assert "not from a Qdrant server" in words
    assert "Absolute values differ from the published ones because" in words
    assert "683.7" in words
    assert "780.4" in words
    assert "≥ 3,602.1" in words
    assert "(embedded engine)" in words
    assert "killed" in words


def test_missing_runs_are_named(html):
    missing = [i for i in SHAPES if i not in ("A1", "C2", "D1")]
    assert f"Not measured: {', '.join(missing)}." in Page(html).words


def test_units_stand_in_the_heads(html):
    words = Page(html).words
    assert "open loop, ms" in words
    assert "closed loop, ms (published below)" in words


def test_strange_labels_are_escaped(measured, claims):
    run = copy.deepcopy(measured[0])
    strange = "<script>alert('x')</script> & \"quoted\""
    run.record.update(label=strange, description=strange, warnings=[strange])
    run.record["configuration"]["notes"] = [strange]
    run.record["phases"][0]["ended_by"]["why"] = strange
    page = Page(html_of([run], claims))
    assert "script" not in page.tags
    assert page.words.count("<script>alert('x')</script>") >= 4


def test_an_invalid_run_shows_its_reason_and_no_figure(measured, claims):
    run = copy.deepcopy(measured[0])
    for phase in run.record["phases"][1:]:
        for loop in ("open", "closed"):
            phase[loop]["p95_ms"] = 77.7
    run.record.update(valid=False, invalid=["3 of 140 answers are wrong"], drain_s=88.8)
    page = Page(html_of([run], claims))
    assert "invalid: 3 of 140 answers are wrong" in page.words
    assert "none of it is a result" in page.words
    assert "77.7" not in page.words
    assert "88.8" not in page.words


def test_a_failed_run_without_phases_has_no_picture(measured, claims):
    run = copy.deepcopy(measured[0])
    run.record.update(
        valid=False, outcome="failed", invalid=["the engine ended"], phases=[], drain_s=None
    )
    run.ledger, run.polls = run.ledger.iloc[:0], run.polls.iloc[:0]
    words = Page(html_of([run], claims)).words
    assert "failed: the engine ended" in words
    assert "No picture" in words


def test_a_run_that_failed_in_its_upload_is_drawn(measured, claims):
    run = copy.deepcopy(measured[0])
    run.record.update(valid=False, outcome="failed", invalid=["lost"], drain_s=None)
    run.record["phases"] = run.record["phases"][:1]
    run.ledger = run.ledger[run.ledger["phase"] == "upload"]
    run.ledger.loc[run.ledger.index[3:], "status"] = "error"
    run.polls = run.polls[run.polls["phase"] == "upload"].assign(running="")
    page = Page(html_of([run], claims))
    assert "no poll saw an optimizer running" in page.words


def test_a_drain_limit_is_a_bound_and_has_no_steady_figure(measured, claims):
    run = copy.deepcopy(measured[0])
    run.record["outcome"] = run.record["phases"][1]["outcome"] = "drain_limit"
    run.record["phases"] = run.record["phases"][:2]
    run.record["drain_s"] = 180.0
    words = Page(html_of([run], claims)).words
    assert "≥ 180 s" in words
    assert "drain limit reached" in words


def test_a_censored_latency_is_printed_as_a_bound(measured, claims):
    run = copy.deepcopy(measured[0])
    run.record["phases"][2]["closed"].update(timeout=80, p99_ms=10_000.0, censored=True)
    assert "≥ 10,000" in Page(html_of([run], claims)).words


def test_a_drain_of_nothing_is_what_the_polls_can_resolve(measured, claims):
    run = copy.deepcopy(measured[0])
    run.record["drain_s"] = 0.0
    run.record["phases"][1].update(
        open=None, closed=None, recall={"mean": None}, visible_share=None
    )
    words = Page(html_of([run], claims)).words
    assert "drain ≤ 0.250 s" in words
    assert "≤ A1" in words


def test_no_records_give_an_honest_page(claims):
    page = Page(render([], {}, {}, claims))
    assert "Nothing was measured" in page.words
    count = sum(len(experiment["claims"]) for experiment in claims["experiments"].values())
    assert f"{count} not measured" in page.words
    assert "measured, open loop: nothing to draw." in page.words


def test_repeats_are_told_apart(measured, claims):
    page = Page(html_of([measured[0], make_run("A1", repeat=2, scale=0.2)], claims))
    assert {"run-A1-1", "run-A1-2"} <= set(page.ids)
    assert "A1 · 2" in page.words


def test_environment_names_machine_warnings_and_software(measured, claims):
    runs = copy.deepcopy(measured)
    for load, run in enumerate(runs):
        run.record["host"] = {
            "cpu": {"model": "Some CPU"},
            "memory": {"total_bytes": 8_000_000_000, "available_bytes": 1_000_000_000 * (1 + load)},
            "load": {"1min": load},
            "warnings": ["virtual machine: neighbours", *([f"load {load}"] if load else [])],
        }
    manifest = {
        "git": {"revision": "abc123", "dirty": True, "note": None},
        "command": ["snakemake", "all"],
        "versions": {"python": "3.11.7", "packages": {"numpy": "2.4.6"}},
    }
    words = Page(html_of(runs, claims, manifest=manifest)).words
    assert words.count("Some CPU") == 1
    assert "memory, total 8.00 GB" in words
    assert "all runs: virtual machine: neighbours" in words
    assert "C2: load 1" in words
    assert "git, revision abc123" in words
    assert "snakemake all" in words
    assert "numpy 2.4.6" in words


def test_runs_of_two_machines_are_not_shown_as_one_experiment(measured, claims):
    assert "not comparable" not in Page(html_of(measured, claims)).words
    runs = copy.deepcopy(measured)
    runs[1].record["host"]["kernel"] = "7.0"
    runs[2].record["code"] = "0" * 64
    words = Page(html_of(runs, claims)).words
    assert "These runs differ in machine (kernel) and in code: beside one another" in words
    assert "Machine of A1, D1" in words


def test_runs_of_two_machines_that_may_be_compared_say_so(measured, claims):
    runs = copy.deepcopy(measured)
    runs[1].record["host"] |= {"kernel": "7.0", "node": "n2"}
    for run, told in zip(runs, allow([run.record for run in runs], "any"), strict=True):
        run.record.update(told)
    page = Page(html_of(runs, claims))
    says = "measured on different machines (kernel), and compared because compare.machines is any"
    assert f"These runs were {says}" in page.words
    assert "not comparable" not in page.words
    assert f"measured on n2: {runs[1].record['id']} {runs[1].record['repeat']}" in page.words


def test_write_reads_the_files_that_records_name(measured, claims, tmp_path):
    write_run(measured[0], tmp_path)
    out = tmp_path / "results/report.html"
    write(tmp_path, [measured[0].record], claims, out)
    page = Page(out.read_text(encoding="utf-8"))
    assert "run-A1-1" in page.ids
    assert str(tmp_path) not in out.read_text(encoding="utf-8")


def test_write_names_a_missing_ledger(measured, claims, tmp_path):
    path = write_run(measured[0], tmp_path).with_suffix(".parquet")
    path.unlink()
    with pytest.raises(ReportError, match=r"A1 repeat 1: ledger\.path: .*A1/1\.parquet is missing"):
        write(tmp_path, [measured[0].record], claims, tmp_path / "report.html")


@pytest.mark.parametrize("part", ["ledger", "polls"])
def test_write_refuses_a_table_that_is_not_the_records(measured, claims, tmp_path, part):
    write_run(measured[0], tmp_path)
    record = measured[0].record
    path = tmp_path / record[part]["path"]
    # A good table, but one of another run.
    getattr(measured[1], part).to_parquet(path)
    wrong = rf"A1 repeat 1: {part}\.sha256: .*{path.name} is not the file of this record.*delete"
    with pytest.raises(ReportError, match=wrong):
        write(tmp_path, [record], claims, tmp_path / "report.html")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ReportError, match=wrong):
        write(tmp_path, [record], claims, tmp_path / "report.html")
    cut = copy.deepcopy(record)
    cut[part]["sha256"] = sha256_file(path)
    with pytest.raises(ReportError, match=rf"{part}\.path: .*{path.name} is no Parquet file"):
        write(tmp_path, [cut], claims, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_records_that_are_not_asked_for_are_named_and_not_shown(measured, claims):
    manifest = {"not_asked_for": ["results/optimizers/A1/2.json"]}
    words = Page(html_of(measured, claims, manifest=manifest)).words
    assert "does not ask for; nothing of them is shown here: results/optimizers/A1/2.json." in words
    assert "does not ask for" not in Page(html_of(measured, claims)).words


def test_what_most_claims_were_measured_on_is_said_once(claims):
    runs = [make_run(id_, scale=0.2) for id_ in ("A1", "A2", "C2", "D1")]
    usual = html_of(runs, claims)
    assert "Measured on smoke: " in Page(usual).words
    # Nothing else stands in the cells of the claims.
    cells = re.findall(r'<td class="measured" data-head="measured">(.*?)</td>', usual, re.S)
    assert cells
    assert not any("smoke: " in cell for cell in cells)
    other = [copy.deepcopy(run) for run in runs]
    other[-1].record["engine"]["title"] = "qdrant 9.9.9"
    odd = html_of(other, claims)
    cells = re.findall(r'<td class="measured" data-head="measured">(.*?)</td>', odd, re.S)
    assert any("9.9.9" in cell for cell in cells)
    assert not all("9.9.9" in cell for cell in cells)

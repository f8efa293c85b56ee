import copy
from pathlib import Path

import jsonschema
import pytest
import yaml
from refill.config.claims import check as check_claims
from refill.report.claims import claims_table, identical_runs
from refill.report.machine import allow
from report_fixture import SHAPES, make_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def claims():
    return yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def schema():
    path = ROOT / "workflow/schemas/claims.schema.yaml"
    return jsonschema.Draft202012Validator(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def measured():
    return [make_run(id_, scale=0.2).record for id_ in SHAPES]


@pytest.fixture
def records(measured):
    return copy.deepcopy(measured)


def row(records, claims, claim):
    table = claims_table(records, claims).set_index("claim")
    return table.loc[claim]


def named(records, id_):
    return next(r for r in records if r["id"] == id_)


def test_the_shipped_file_is_valid(claims, schema):
    assert [error.message for error in schema.iter_errors(claims)] == []
    assert check_claims(claims) == []


def test_all_published_figures_are_there(claims):
    runs = claims["experiments"]["optimizers"]["runs"]
    assert sorted(runs) == sorted(SHAPES)
    figures = [
        v for run in runs.values() for phase in run["phases"].values() for v in phase.values()
    ]
    assert len(figures) == 29 * 6
    # Typed from the published page.
    assert runs["A1"]["phases"]["draining"]["p50_ms"] == 780.4
    assert runs["A2"]["phases"]["steady"]["n"] == 4988
    assert runs["E2"]["phases"]["followup"]["max_ms"] == 30020.0
    assert "followup" not in runs["E1"]["phases"]
    assert [i for i, run in runs.items() if run.get("drain_limit_reached")] == ["B1"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda e: e["runs"]["A1"].update(colour="red"),
        lambda e: e["runs"]["A1"]["phases"]["draining"].pop("n"),
        lambda e: e["claims"][0].update(direction="seen"),
        lambda e: e["claims"][0].pop("right"),
        lambda e: e["source"].update(commit="main"),
    ],
)
def test_the_schema_is_closed(claims, schema, spoil):
    spoilt = copy.deepcopy(claims)
    spoil(spoilt["experiments"]["optimizers"])
    assert list(schema.iter_errors(spoilt))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c[0]["left"].update(run="Z9"), "left.run: unknown run 'Z9'"),
        (lambda c: c[0]["left"].pop("phase"), "left.phase: p50_ms needs a phase"),
        (lambda c: c[0]["left"].pop("loop"), "left.loop: p50_ms needs a loop"),
        (lambda c: c[0]["published"].update(left=1.5), "published.left: is 1.5, .*256.6"),
        (lambda c: c[1].update(id=c[0]["id"]), "the id stands twice"),
        (
            lambda c: c[0].update(direction="below"),
            "A2-steady: direction: is below, but the published figures are 256.6 and 4.3: above",
        ),
        (
            lambda c: next(x for x in c if x["id"] == "D2-vacuum").update(direction="seen"),
            "D2-vacuum: direction: is seen, but published.left is false: not_seen",
        ),
    ],
)
def test_check_claims_names_what_is_wrong(claims, spoil, message):
    spoilt = copy.deepcopy(claims)
    spoil(spoilt["experiments"]["optimizers"]["claims"])
    problems = check_claims(spoilt)
    assert len(problems) >= 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError("\n".join(problems))


def test_only_really_equal_runs_are_identical(records):
    same = identical_runs(records, ["A1", "B2", "C2"])
    assert [r["id"] for r in same.records] == ["A1", "C2"]
    assert "B2 (1): configuration.default_segment_number is 4, not 0" in same.sentence()
    named(records, "B2")["configuration"] = named(records, "A1")["configuration"]
    assert len(identical_runs(records, ["A1", "B2", "C2"]).records) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": {"cpu": {"model": "Other"}}}, "machine (cpu.model)"),
        ({"host": {"cores": 64, "kernel": "6.9"}}, "machine (cores, kernel)"),
        ({"host": {"memory_bytes": 1}}, "machine (memory_bytes)"),
        ({"code": "0" * 64}, "code"),
    ],
)
def test_other_machines_and_other_code_are_neither_twins_nor_compared(
    records, claims, change, words
):
    for id_ in ("A2", "C2"):
        record = named(records, id_)
        host = record["host"] | change.get("host", {})
        record.update({**change, "host": host})
    assert [r["id"] for r in identical_runs(records, ["A1", "C2"]).records] == ["A1"]
    assert "C2 (1): " in identical_runs(records, ["A1", "C2"]).sentence()
    found = row(records, claims, "A2-steady")
    assert found["verdict"] == "undecidable"
    assert found["why"].startswith(f"not comparable: the runs differ in {words}: measure them")


def test_machines_that_may_be_compared_are_compared_and_the_note_says_so(records, claims):
    for id_ in ("A2", "C2"):
        named(records, id_)["host"] |= {"cpu": {"model": "Other"}}
    told = allow(records, "any")
    assert [r["id"] for r in identical_runs(told, ["A1", "C2"]).records] == ["A1", "C2"]
    found = row(told, claims, "A2-steady")
    assert found["verdict"] == "reproduced"
    assert found["note"].endswith(
        "measured on different machines (cpu.model), and compared because compare.machines is any"
    )
    # A claim about runs of one machine has no such note.
    assert "different machines" not in row(told, claims, "B1-steady")["note"]


def test_what_varies_on_one_machine_does_not_keep_runs_apart(records, claims):
    named(records, "C2")["host"] = {
        **named(records, "C2")["host"],
        "load": {"1min": 9.5},
        "warnings": ["busy"],
        "memory": {"available_bytes": 7},
        "disk": {"free_bytes": 8},
    }
    named(records, "A1")["host"] |= {"memory": {"available_bytes": 1}, "disk": {"free_bytes": 2}}
    assert len(identical_runs(records, ["A1", "C2"]).records) == 2


def test_an_invalid_run_is_no_noise_floor(records, claims):
    named(records, "C2").update(valid=False, invalid=["an answer is wrong"])
    assert [r["id"] for r in identical_runs(records, ["A1", "C2"]).records] == ["A1"]
    found = row(records, claims, "A2-steady")
    assert found["verdict"] == "undecidable"
    assert "1 identical runs, at least 2 are needed" in found["why"]


def test_a_clear_effect_is_reproduced_and_labelled(records, claims):
    found = row(records, claims, "A2-steady")
    assert found["verdict"] == "reproduced"
    assert "(embedded engine)" in found["measured"]
    assert "20,000 x 50 synthetic" in found["scale"]
    assert "embedded" in found["engine"]
    assert found["published"] == "256.6 ms against 4.3 ms"
    assert found["open_loop"].endswith("reproduced")
    assert found["visible_share"] == "100 % against 100 %"


def test_the_opposite_is_contradicted(records, claims):
    for loop in ("open", "closed"):
        named(records, "A2")["phases"][2][loop]["p50_ms"] = 0.01
    assert row(records, claims, "A2-steady")["verdict"] == "contradicted"


def test_an_effect_within_the_floor_is_undecidable(records, claims):
    named(records, "C1")["drain_s"] = named(records, "C2")["drain_s"] * 1.001
    assert row(records, claims, "C1-drain")["verdict"] == "undecidable"


def test_not_measured_says_which_and_why(records, claims):
    assert row(records, claims, "A2-upload")["why"].startswith("the upload of A2 repeat 1 is paced")
    left = [r for r in records if r["id"] != "C1"]
    found = row(left, claims, "C1-drain")
    assert (found["verdict"], found["why"]) == ("not measured", "no record of C1")
    named(records, "B4").update(valid=False, invalid=["3 answers are wrong"])
    found = row(records, claims, "B4-drain")
    assert found["verdict"] == "not measured"
    assert "B4 repeat 1 is invalid: 3 answers are wrong" in found["why"]


def test_a_drain_without_a_closed_loop_is_decided_in_the_open_one(records, claims):
    named(records, "A3")["phases"][1]["closed"] = None
    found = row(records, claims, "A3-draining")
    assert found["verdict"] == "reproduced"
    assert "in the open loop (embedded engine)" in found["measured"]
    assert "A3 repeat 1 has no closed-loop answer in draining" in found["why"]
    named(records, "A3")["phases"][1]["open"] = None
    assert row(records, claims, "A3-draining")["verdict"] == "not measured"


def test_a_drain_limit_is_a_lower_bound(records, claims):
    b1 = named(records, "B1")
    b1["outcome"] = b1["phases"][1]["outcome"] = "drain_limit"
    b1["phases"] = b1["phases"][:2]
    assert row(records, claims, "B1-drain")["measured"].startswith("≥ ")
    assert row(records, claims, "B1-drain")["measured_left"].startswith(">=")
    assert row(records, claims, "B1-steady")["why"] == "B1 repeat 1 has no phase steady"


def test_a_drain_too_short_to_resolve_is_an_upper_bound(records, claims):
    named(records, "A2")["drain_s"] = 0.0
    found = row(records, claims, "A2-drain")
    assert found["verdict"] == "reproduced"
    assert found["measured"].startswith("≤ 0.250 s against ")
    assert found["measured_left"] == "<=0.25"


def test_seen_and_not_seen(records, claims):
    named(records, "D2")["phases"][3]["polls"] = 6
    assert row(records, claims, "D1-vacuum")["verdict"] == "reproduced"
    assert row(records, claims, "D2-vacuum")["verdict"] == "reproduced"
    named(records, "D2")["phases"][3]["optimizers_seen"] = ["vacuum"]
    assert row(records, claims, "D2-vacuum")["verdict"] == "contradicted"
    named(records, "D2")["phases"][3]["polls"] = 0
    assert row(records, claims, "D2-vacuum")["verdict"] == "not measured"


def test_runs_of_different_scales_are_not_compared(records, claims):
    named(records, "A2")["scale"] = "paper"
    found = row(records, claims, "A2-steady")
    assert found["verdict"] == "undecidable"
    assert "the runs differ in scale" in found["why"]
    assert found["open_loop"].endswith("undecidable")


def test_a_container_and_a_process_are_not_compared_nor_seen_as_one(records, claims):
    a2, d1 = named(records, "A2"), named(records, "D1")
    a2["engine"] = {**a2["engine"], "runtime": "docker"}
    found = row(records, claims, "A2-steady")
    assert found["verdict"] == "undecidable"
    assert found["why"].startswith("not comparable: the runs differ in engine: measure")
    again = copy.deepcopy(d1) | {"repeat": 2}
    again["engine"] = {**d1["engine"], "runtime": "docker"}
    found = row([*records, again], claims, "D1-vacuum")
    assert (found["measured"], found["verdict"]) == ("seen, seen (embedded engine)", "undecidable")


def test_the_published_effect_is_held_against_its_own_spread(records, claims):
    assert "within the published spread" in row(records, claims, "B3-drain")["published_spread"]
    assert "above the published spread" in row(records, claims, "A2-steady")["published_spread"]
    assert row(records, claims, "A3-recall")["published"] == "no figure published"


def test_without_records_nothing_is_measured(claims):
    table = claims_table([], claims)
    assert set(table["verdict"]) == {"not measured"}
    assert (table["why"] != "").all()


def test_repeats_are_listed(records, claims):
    records.append(make_run("A2", repeat=2, scale=0.2).record)
    assert len(row(records, claims, "A2-steady")["measured_left"].split(";")) == 2


def test_full_visibility_of_the_twins_is_no_floor_of_zero(records, claims):
    """A3-visible: a share of 1 has no spread; one point of the corpus is what can be told apart."""
    for record in records:
        share = 0.55 if record["id"] == "A3" else 1.0
        record["phases"][1]["visible_share"] = {"min": share}
    found = row(records, claims, "A3-visible")
    assert found["verdict"] == "reproduced"
    assert found["noise_floor"] > 0
    assert "the resolution's noise" in found["why"]
    points = named(records, "A3")["corpus"]["points"]
    named(records, "A3")["phases"][1]["visible_share"] = {"min": 1 - 1 / points}
    assert row(records, claims, "A3-visible")["verdict"] == "undecidable"


def test_a_recall_one_hit_apart_decides_nothing(records, claims):
    for record in records:
        block = record["phases"][1]["open"]
        block["recall_mean"] = 1.0
    block = named(records, "A3")["phases"][1]["open"]
    block["recall_mean"] = 1 - 1 / (block["n"] * named(records, "A3")["sampler"]["limit"])
    assert row(records, claims, "A3-recall")["verdict"] == "undecidable"
    block["recall_mean"] = 0.5
    assert row(records, claims, "A3-recall")["verdict"] == "reproduced"


def test_a_figure_that_is_no_number_is_not_measured(records, claims):
    named(records, "A2")["phases"][2]["closed"]["p50_ms"] = float("nan")
    named(records, "A2")["phases"][2]["open"]["p50_ms"] = float("nan")
    found = row(records, claims, "A2-steady")
    assert found["verdict"] == "not measured"
    assert "A2 repeat 1 has p50_ms nan, which is no number" in found["why"]


@pytest.mark.parametrize(
    ("id_", "direction", "words"),
    [
        ("G-cold-1-p50", "above", "is above, but the published figures are 1.537 and 1.943: below"),
        ("G-log-off", "above", r"is above, but the published growth is \[2016, 2016\] and"),
        ("G-log-warm-old", "zero", None),
    ],
)
def test_a_direction_of_the_rounds_is_the_published_one(claims, id_, direction, words):
    spoilt = copy.deepcopy(claims)
    experiment = spoilt["experiments"]["gateway"]
    next(c for c in experiment["claims"] if c["id"] == id_)["direction"] = direction
    if words is None:
        experiment["aof_growth_bytes"]["warm"]["old"] = [0, 257]
        words = r"is zero, but the published growth is \[0, 257\] bytes"
    with pytest.raises(AssertionError, match=f"gateway.claims: {id_}: direction: {words}"):
        raise AssertionError("\n".join(check_claims(spoilt)))


def test_the_gateway_by_an_engine_is_as_published(claims):
    experiment = claims["experiments"]["gateway"]
    found = [c for c in experiment["claims"] if c["statistic"] == "gateway_by_engine"]
    assert found
    for claim in found:
        spoilt = copy.deepcopy(claims)
        for other in spoilt["experiments"]["gateway"]["claims"]:
            if other["id"] == claim["id"]:
                other["direction"] = {"above": "below", "below": "above"}[claim["direction"]]
        assert len(check_claims(spoilt)) == 1


def test_what_was_seen_is_called_an_observation_and_needs_polls(records, claims):
    assert "an observation, not a comparison" in row(records, claims, "D1-vacuum")["why"]
    d2 = named(records, "D2")["phases"][3]
    d2["polls"] = 5
    found = row(records, claims, "D2-vacuum")
    assert found["verdict"] == "not measured"
    assert "D2 repeat 1 was polled 5 times in followup-draining: 6 at least" in found["why"]
    # What was seen once was there.
    named(records, "D1")["phases"][3]["polls"] = 5
    assert row(records, claims, "D1-vacuum")["verdict"] == "reproduced"


def test_twins_must_have_seen_the_same(records, claims):
    spoilt = copy.deepcopy(claims)
    claim = next(c for c in spoilt["experiments"]["optimizers"]["claims"] if c["id"] == "D1-vacuum")
    claim.update(optimizer="indexing", left={"run": "A1", "phase": "draining"})
    for record in records:
        record["phases"][1].update(optimizers_seen=["indexing"], polls=9)
    assert row(records, spoilt, "D1-vacuum")["verdict"] == "reproduced"
    named(records, "C2")["phases"][1]["optimizers_seen"] = []
    found = row(records, spoilt, "D1-vacuum")
    assert (found["verdict"], found["why"][:19]) == ("undecidable", "seen in 1 of 2 repe")

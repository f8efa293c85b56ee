"""A proof in the place of another one is refused, in words, and so is one that does not add up."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from refill import table_plan
from refill.config import PROJECT, load
from refill.evidence.records import RecordError
from refill.evidence.written_plans import _unlike_config
from refill.proofs.asked_for import asked_for, refuse_others
from refill.proofs.findings import IMAGES, OUTCOMES, PASS
from refill.proofs.servers import DEFAULT
from refill.proofs.suite import CHECKS

CONFIG = load(PROJECT / "config/config.yaml", [])
NAMES = {"old": {"name": "gateway-old"}, "new": {"name": "gateway-new"}}
PLAN = {"scale": CONFIG["scale"], **CONFIG["proof"]}


def record(**changes: Any) -> dict[str, Any]:
    """A proof in which everything passed, as a plan with `changes` leaves it."""
    plan = {**PLAN, **changes}
    checks = [
        {
            "id": check.id, "title": check.title, "source": check.source, "image": image,
            "server": DEFAULT, "outcome": PASS, "expected": check.expectation(image),
            "required": not check.needs, "needs": check.needs, "why": "", "evidence": {},
        }
        for image in reversed(IMAGES)
        for check in CHECKS
    ]  # fmt: skip
    counts = Counter(made["outcome"] for made in checks)
    return {
        "schema": "refill.proof/1", "id": "proofs/aof", "checks": checks, "valid": True,
        "invalid": [], "outcome": "completed", "servers": [{"name": DEFAULT}],
        "engines": {DEFAULT: {}}, "counts": {DEFAULT: {o: counts[o] for o in OUTCOMES}},
        **{key: plan[key] for key in ("scale", "form", "seed")},
        "runtime": plan.get("runtime", "process"),
        "asked_for": asked_for(plan, {**NAMES, **changes.get("blocks", {})}, Path()),
    }  # fmt: skip


WANTED = table_plan.proof(CONFIG)
OTHERS = [
    ({"form": "smoke"}, "asked_for.form: is 'smoke', the configuration asks for 'full'"),
    ({"seed": 2}, "asked_for.seed: is 2, the configuration asks for 1"),
    ({"scale": "full"}, "asked_for.scale: is 'full'"),
    ({"servers": {DEFAULT: "/usr/bin/a"}}, "asked_for.servers.valkey-8.1: is '/usr/bin/a'"),
    ({"runtime": "docker"}, "asked_for.runtime: is 'docker'"),
    ({"blocks": {"new": {"name": "mine"}}}, "asked_for.images.new: is 'mine'"),
]


def test_the_proof_that_was_configured_is_taken() -> None:
    refuse_others([record()], WANTED, Path())
    refuse_others([], None, Path())
    assert list(_unlike_config("x", record(), CONFIG, Path())) == []


@pytest.mark.parametrize(("changes", "says"), OTHERS)
def test_another_proof_is_refused_and_seen_by_verify(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RecordError) as told:
        refuse_others([record(**changes)], WANTED, Path())
    assert str(told.value).startswith(f"results/proofs/aof.json: {says}")
    assert "`rm results/proofs/aof.json`, and run again" in str(told.value)
    place = says.partition(":")[0]
    assert any(place in line for line in _unlike_config("x", record(**changes), CONFIG, Path()))


def test_a_proof_that_nobody_asked_for_and_one_without_a_plan_are_refused() -> None:
    with pytest.raises(RecordError, match="asked_for: is"):
        refuse_others([record()], None, Path())
    old = record()
    del old["asked_for"]
    with pytest.raises(RecordError, match="asked_for: is None"):
        refuse_others([old], WANTED, Path())
    assert any("asked_for" in line for line in _unlike_config("x", old, CONFIG, Path()))


def test_a_smoke_proof_that_says_it_was_asked_to_be_full_is_seen_by_verify() -> None:
    edited = record(form="smoke")
    edited["asked_for"]["form"] = "full"
    assert any("form" in line for line in _unlike_config("x", edited, CONFIG, Path()))
    with pytest.raises(RecordError, match="form"):
        refuse_others([edited], WANTED, Path())


def filtered(made: dict[str, Any]) -> None:
    del made["checks"][3]
    made["counts"][DEFAULT][PASS] -= 1


def judged_otherwise(made: dict[str, Any]) -> None:
    made["checks"][3].update(outcome="fail", why="a step is lost")
    made["counts"][DEFAULT].update({PASS: len(made["checks"]) - 1, "fail": 1})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (filtered, rf"checks\[3\].* is '{CHECKS[4].id}', should be '{CHECKS[3].id}'"),
        (judged_otherwise, r"invalid\[0\] is None, should be"),
    ],
)
def test_a_proof_is_judged_again_from_its_checks(change: Any, says: str) -> None:
    made = copy.deepcopy(record())
    change(made)
    with pytest.raises(RecordError, match=says):
        refuse_others([made], WANTED, Path())


def test_paths_of_servers_are_compared_without_the_folder_they_are_in(tmp_path: Path) -> None:
    plan = {**PLAN, "servers": {DEFAULT: f"{tmp_path}/bin/valkey"}}
    made = {**record(), "asked_for": asked_for(plan, NAMES, tmp_path)}
    assert made["asked_for"]["servers"] == {DEFAULT: "bin/valkey"}
    wanted = {**WANTED, "servers": {DEFAULT: f"{tmp_path}/bin/valkey"}}
    refuse_others([made], wanted, tmp_path)
    refuse_others([made], {**WANTED, "servers": {DEFAULT: "bin/valkey"}}, tmp_path)

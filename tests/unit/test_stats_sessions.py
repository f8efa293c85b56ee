"""How often the rule calls what is not there, over sessions drawn from measured rounds.

`tests/data/aa_trials.json` holds the trial quantiles of a real A/A run: gateway-old in both arms,
at the published counts, 12 blocks of `on-main` and not quite 6 of `off-control`, on two cores that
other work kept busy: neighbouring rounds of a cold cell spread by 20 to 40 %, a hard case. It was
written by `python -m refill.report.aa extract`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refill.phases.round_plan import order
from refill.report.aa import extract, main, measured
from refill.stats import ratios
from refill.stats.sessions import draw, simulate

TRIALS = Path(__file__).parents[1] / "data/aa_trials.json"
SESSIONS = 200


@pytest.fixture(scope="module")
def extracted() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(TRIALS.read_text(encoding="utf-8"))
    return value


def test_the_measured_rounds_are_whole(extracted: dict[str, Any]) -> None:
    assert extracted["image"] == "gateway-old"
    rounds = measured(extracted)
    assert {name: block.shape[1:] for name, block in rounds.items()} == {
        "on-main": (24, 3),
        "off-control": (4, 3),
    }
    assert len(rounds["on-main"]) == 48
    assert len(rounds["off-control"]) >= 20
    for name, block in rounds.items():
        assert (block > 0).all()
        assert len(extracted["profiles"][name]["cells"]) == block.shape[1]


@pytest.mark.parametrize("blocks", [1, 2])
def test_at_most_five_percent_of_aa_verdicts_are_false(
    extracted: dict[str, Any], blocks: int
) -> None:
    total = false = 0.0
    for rounds in measured(extracted).values():
        rates = simulate(rounds, order(blocks), SESSIONS, seed=1)
        assert rates.called <= 0.05
        total += rates.verdicts
        false += rates.called * rates.verdicts
    assert total == SESSIONS * 28
    assert false / total <= 0.05


def test_the_bootstrap_alone_would_call_far_too_often(
    extracted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the t interval is there for: two rounds an arm do not know their own spread."""
    monkeypatch.setattr(ratios, "half_width", lambda *_: 0.0)
    rates = simulate(measured(extracted)["on-main"], order(1), 100, seed=1)
    assert rates.called > 0.08


def quiet(rounds: int, spread: float) -> np.ndarray:
    """Rounds of one cell of a quiet machine: `spread` between rounds, 3 % between trials."""
    rng = np.random.default_rng(11)
    each = rng.lognormal(0, spread, (rounds, 1, 1))
    return each * rng.lognormal(0, 0.03, (rounds, 1, 3))


@pytest.mark.parametrize(("blocks", "power"), [(2, 0.6), (4, 0.9)])
def test_an_effect_of_a_sixth_is_found_with_enough_blocks(blocks: int, power: float) -> None:
    rounds = quiet(200, 0.05)
    assert simulate(rounds, order(blocks), 100, seed=1, factor=0.83).faster >= power
    assert simulate(rounds, order(blocks), 100, seed=1, factor=1 / 0.83).slower >= power
    assert simulate(rounds, order(blocks), 100, seed=1).called <= 0.07


def test_a_quiet_machine_gives_equivalent() -> None:
    assert simulate(quiet(100, 0.002), order(4), 50, seed=1).equivalent > 0.9


def test_sessions_are_stretches_in_order() -> None:
    rng = np.random.default_rng(2)
    forward = backward = 0
    for _ in range(300):
        places = draw(20, 8, rng)
        steps = np.diff(places)
        assert len(places) == 8
        assert min(places) >= 0
        assert max(places) < 20
        assert set(abs(steps)) <= {1, 2}
        assert len(set(np.sign(steps))) == 1
        forward += steps[0] > 0
        backward += steps[0] < 0
    assert min(forward, backward) > 80
    assert sorted(draw(8, 8, rng)) == list(range(8))
    with pytest.raises(ValueError, match="8 rounds are wanted, 7 are there"):
        draw(7, 8, rng)


def test_the_extract_is_in_the_order_of_measuring_and_of_one_image() -> None:
    def record(n: int, image: str, valid: bool = True) -> dict[str, Any]:
        trials = [{"stats": {"p50_ms": n + 0.00004, "p95_ms": 9.0}}]
        cell = {"profile": "cold", "operation": "o", "engine": "gateway", "clients": 1}
        cell |= {"requests": 200, "trials": trials}
        return {
            "valid": valid, "profile": "on-main", "started_at": f"2026-01-01T00:00:0{n}.000Z",
            "ended_at": "x", "cells": [cell],
            "engines": {"gateway": {"image": {"name": image}}},
            "host": {"cpu": {"model": "m", "cores_usable": 2}},
        }  # fmt: skip

    found = extract([record(3, "a"), record(1, "a"), record(2, "a", valid=False)])
    assert found["profiles"]["on-main"]["trials"] == [[[1.0], [9.0]], [[3.0], [9.0]]]
    with pytest.raises(ValueError, match="of one image"):
        extract([record(1, "a"), record(2, "b")])


def test_the_command_prints_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulate", str(TRIALS), "--blocks", "1", "--factors", "0.3", "--sessions", "3"]) == 0
    )
    told, *lines = capsys.readouterr().out.splitlines()
    assert "worst-cell" in told
    assert lines[0].startswith("profile blocks factor faster")
    assert [line.split()[:3] for line in lines[1:]] == [
        ["on-main", "1", "0.3"], ["off-control", "1", "0.3"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such record"),
        ("{}", "schema: must be 'refill.trials/1'"),
        ('{"schema": "refill.trials/1"}', "profiles: must be an object"),
        (
            '{"schema": "refill.trials/1", "profiles": {"a": {}}}',
            "profiles.a.trials: must be lists",
        ),
        (
            '{"schema": "refill.trials/1", "profiles": {"a": {"trials": [[[0.0]]]}}}',
            "profiles.a.trials: must be rounds of cells of trials, each above 0",
        ),
        (
            '{"schema": "refill.trials/1", "profiles": {"a": {"trials": [[[1.0]]]}}}',
            "rounds are wanted, 1 are there: measure more blocks",
        ),
    ],
)
def test_what_is_no_extract_is_an_error_with_its_key(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trials.json"
    if text is not None:
        path.write_text(text)
    assert main(["simulate", str(path), "--sessions", "1"]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith(str(path))


def test_no_aa_run_gives_no_extract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "trials.json"
    assert main(["extract", str(tmp_path), "--output", str(output)]) == 1
    assert "of 0 rounds none is valid: make an A/A run first" in capsys.readouterr().err
    assert not output.exists()

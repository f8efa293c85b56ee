"""The page with every part of it, from records in the shape of real ones, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from refill.config import load_claims
from refill.report.page import render
from report_browser import (
    check_console,
    check_keyboard,
    check_print,
    check_schemes,
    check_structure,
    check_widths,
    opened,
    programs,
)
from report_fixture import make_run
from selenium import webdriver
from test_report_proofs import RECORD as PROOF
from test_report_rounds import EXPECTED, make_record

LONG = "/a/path/that/" + "does-not-break-" * 12


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    programs()
    runs = [make_run(id_, scale=0.1) for id_ in ("A1", "A3", "B2", "C2", "D1")]
    runs[3].record["warnings"] = [LONG]
    keyed = {(r.record["id"], r.record["repeat"]): r for r in runs}
    attempts = [
        {"attempt": "a", "target": "optimizers/A1/1", "begun_at": "2026-01-01T00:00:00.000Z",
         "ended_at": None, "outcome": "died", "reason": LONG, "facts": {}, "files": {}},
    ]  # fmt: skip
    rounds = [
        make_record(profile, image, n)
        for profile in ("on-main", "off-control")
        for image, n in (("old", 1), ("new", 1), ("new", 2), ("old", 2))
    ]
    html = render(
        [r.record for r in runs],
        {key: run.ledger for key, run in keyed.items()},
        {key: run.polls for key, run in keyed.items()},
        load_claims(),
        attempts,
        {"git": {"revision": "0" * 40}, "versions": {"packages": {"numpy": "2.4.6"}}},
        rounds,
        EXPECTED,
        [PROOF],
    )
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture
def shown(page: Path, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    with opened(page, tmp_path) as browser:
        yield browser
        check_console(browser)


def test_sections_headings_tables_and_pictures_are_made_for_every_reader(
    shown: webdriver.Chrome,
) -> None:
    check_structure(shown)


def test_nothing_but_a_box_scrolls_sideways(shown: webdriver.Chrome, tmp_path: Path) -> None:
    check_widths(shown, tmp_path)
    assert len(list(tmp_path.glob("report-*.png"))) == 6


def test_both_colour_schemes_and_print_can_be_read(shown: webdriver.Chrome) -> None:
    check_schemes(shown)


def test_print_shows_what_is_folded(shown: webdriver.Chrome) -> None:
    check_print(shown)


def test_the_keyboard_reaches_everything(shown: webdriver.Chrome) -> None:
    check_keyboard(shown)


def test_decided_claims_are_unfolded_and_a_link_unfolds_the_others(shown: webdriver.Chrome) -> None:
    groups = shown.execute_script(
        "return [...document.querySelectorAll('details.group')].map(e => [e.id, e.open])"
    )
    decided = ("reproduced", "contradicted")
    assert groups == [[name, name.endswith(decided)] for name, _ in groups]
    folded = next(name for name, is_open in groups if not is_open)
    link = shown.find_element("css selector", f"a[href='#{folded}']")
    assert link.is_displayed()
    claim = shown.execute_script(
        "return document.querySelector('details.group:not([open]) [id^=claim-]').id"
    )
    shown.execute_script("location.hash = arguments[0]", claim)
    assert shown.find_element("id", claim).is_displayed()

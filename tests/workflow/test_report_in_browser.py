"""The report that the workflow made, from real rounds and a real run, in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_copy import Project
from report_browser import (
    check_console,
    check_schemes,
    check_structure,
    check_widths,
    opened,
    programs,
)


def test_the_measured_report_can_be_read_in_a_browser(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    programs()
    small: Project = request.getfixturevalue("small_results")
    with opened(small.folder / "results/report.html", tmp_path) as shown:
        check_structure(shown)
        check_widths(shown, tmp_path)
        check_schemes(shown)
        check_console(shown)

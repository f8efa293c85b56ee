"""What is looked at before the first job."""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.told import ToldError
from refill.workflow import check_results


def test_results_that_cannot_be_written_are_told_before_the_first_job(tmp_path: Path) -> None:
    check_results(tmp_path / "a/results")
    assert list((tmp_path / "a/results").iterdir()) == []
    (tmp_path / "results").touch()
    with pytest.raises(ToldError, match="results: nothing can be written there: File exists"):
        check_results(tmp_path / "results")
    # A file system that takes no file of anybody.
    with pytest.raises(ToldError, match="nothing can be written there: No such file"):
        check_results(Path("/proc/self"))

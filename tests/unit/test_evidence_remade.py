"""Differences between a table that is there and the one its records give, cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.evidence.remade import differences, remake, table_differences

GOOD = b'run,repeat,status,p50_ms,note\nA1,1,completed,1.25,\nA2,1,completed,0.5,"x, y"\n'


def test_an_equal_table_has_none() -> None:
    assert table_differences("t.csv", GOOD, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (b"1.25", b"1.24", "row 1 (run A1, repeat 1), column p50_ms: is '1.24', the records give "),
        (b"0.5", b"", "row 2 (run A2, repeat 1), column p50_ms: is '', the records give '0.5'"),
        (b"x, y", b"x, z", "row 2 (run A2, repeat 1), column note: is 'x, z', the records give "),
        (b'A2,1,completed,0.5,"x, y"\n', b"", "row 2 (run A2, repeat 1) is missing"),
        (
            b"p50_ms",
            b"p50",
            "header: column 'p50_ms' of what the records give is not there as such",
        ),
        (b"\nA2", b"\r\nA2", "is not written as the records give it, though its cells are equal"),
        (b"A1", b"\xff\xfe", "is no table any more: "),
    ],
)
def test_each_difference_names_row_and_column(old: bytes, new: bytes, line: str) -> None:
    assert old in GOOD
    (found,) = table_differences("t.csv", GOOD.replace(old, new, 1), GOOD)
    assert found.startswith(f"t.csv: {line}")


def test_a_row_that_nothing_gives_is_named_and_an_emptied_table_too() -> None:
    (found,) = table_differences("t.csv", GOOD + b"A9,1,completed,0.1,\n", GOOD)
    assert found == "t.csv: row 3 (run A9, repeat 1) is not in what the records give"
    assert table_differences("t.csv", b"", GOOD)[0].startswith("t.csv: header: column 'run' ")


def test_many_differing_cells_are_counted() -> None:
    new = b"run,p50_ms\n" + b"".join(b"A%d,1.5\n" % n for n in range(9))
    found = table_differences("t.csv", new.replace(b"1.5", b"1.6"), new)
    assert len(found) == 6
    assert found[-1] == "t.csv: 4 more cells differ"


def test_a_table_that_nothing_makes_again_is_named(tmp_path: Path) -> None:
    known = {"results/tables/mine.csv": {"kind": "table"}, "results/x": {"kind": "other"}}
    assert differences([], tmp_path, known) == [
        "results/tables/mine.csv: nothing in the manifest makes it"
    ]


@pytest.mark.parametrize("script", ["write_nothing.py", "../scripts/write_tables.py"])
def test_only_scripts_of_this_workflow_are_run(tmp_path: Path, script: str) -> None:
    entry = {"script": script, "input": {}, "output": {"x": "results/x.csv"}, "plan": {}}
    failure = remake(entry, tmp_path, tmp_path / "made")
    assert failure is not None
    assert failure.endswith(f"{script}: no such script of this workflow")


def test_a_script_that_fails_says_why(tmp_path: Path) -> None:
    entry = {
        "script": "write_tables.py",
        "input": {"records": ["results/never.json"], "rounds": []},
        "output": {"optimizers": "results/tables/optimizers.csv"},
        "plan": {},
    }
    (line,) = differences([entry], tmp_path, {})
    assert line.startswith(
        "results/tables/optimizers.csv: cannot be made again: write_tables.py failed: "
    )
    assert "results/never.json: no such record" in line

"""Tables and report made again from records, by the scripts that made them, and compared.

The manifest says which script of the workflow wrote which files from which inputs. Each is run
again as it is, in a process of its own, on the results that are there, with its outputs in a
folder for the occasion: whatever the tables hold, the comparison is of the same code's text.
"""

from __future__ import annotations

import csv
import io
import json
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refill.evidence import measured
from refill.evidence.records import read_json
from refill.processes import module_command, module_environment
from refill.report import plots

SCRIPTS = Path(__file__).parents[2]
LIMIT_S = 600
# So many differing cells of a table are named, and the others counted.
NAMED_CELLS = 5

# Pictures are drawn with the fonts of the machine, so they are compared by their hash only.
_PICTURE = re.compile(r"<svg\b.*?</svg>", re.DOTALL)


class _Named(list[str]):
    """Paths in a list that have names too, as Snakemake gives them to a script."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        values = [[v] if isinstance(v, str) else v for v in named.values()]
        super().__init__(path for several in values for path in several)
        self.__dict__.update(named)


def remake(entry: Mapping[str, Any], work: Path, folder: Path) -> str | None:
    """Run one script of the manifest's `written` again; return why it failed, or None.

    `work` is the folder that holds results, `folder` takes the outputs under their own paths and
    the log. The script is the one beside this package.
    """
    given = json.dumps({"entry": entry, "folder": str(folder.resolve())})
    try:
        done = subprocess.run(
            module_command("refill.evidence.remade"),
            cwd=work,
            env=module_environment(),
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{entry['script']} did not end within {LIMIT_S} s"
    if done.returncode == 0:
        return None
    log = folder / "remade.log"
    told = log.read_text(encoding="utf-8") if log.exists() else done.stderr
    last = next((line for line in reversed(told.splitlines()) if line.strip()), "no word of it")
    return f"{entry['script']} failed: {last}"


def differences(
    written: Sequence[Mapping[str, Any]], work: Path, known: Mapping[str, Any]
) -> list[str]:
    """Return one line for each cell or line in which a file is not what its records give.

    `written` is the manifest's, `work` the folder that holds results, `known` the manifest's
    `results`. A table below results/tables that nothing makes again is named too.
    """
    found = []
    made = {str(path) for entry in written for path in entry["output"].values()}
    for entry in written:
        with tempfile.TemporaryDirectory(prefix="refill-remade-") as folder:
            if (failure := remake(entry, work, Path(folder))) is not None:
                outputs = ", ".join(entry["output"].values())
                found.append(f"{outputs}: cannot be made again: {failure}")
                continue
            for path in entry["output"].values():
                found += _compared(work / path, Path(folder) / path, path)
    tables = sorted(path for path, entry in known.items() if entry["kind"] == "table")
    found += [f"{path}: nothing in the manifest makes it" for path in tables if path not in made]
    return found


def _compared(there: Path, again: Path, path: str) -> list[str]:
    if not there.is_file():
        return []  # that it is missing is said where files are hashed
    if not again.is_file():
        return [f"{path}: is not among what its script writes"]
    old, new = there.read_bytes(), again.read_bytes()
    if path.endswith(".csv"):
        return table_differences(path, old, new)
    if path.endswith(".html"):
        return _page_differences(path, old, new)
    return [] if old == new else [f"{path}: is not what the records give"]


def table_differences(path: str, old: bytes, new: bytes) -> list[str]:
    """Return the differing cells of two CSV texts, by row and column; [] when they are equal.

    A row is named by its number and by the cells before the first that holds a figure or the
    status, which is what tells rows apart in every table here.
    """
    if old == new:
        return []
    try:
        there, again = _rows(old), _rows(new)
    except (UnicodeDecodeError, csv.Error) as error:
        return [f"{path}: is no table any more: {error}"]
    if not there or there[0] != again[0]:
        heads = (there[0] if there else [], again[0])
        wrong = next((b for a, b in zip_longest(*heads) if a != b), None)
        return [f"{path}: header: column {wrong!r} of what the records give is not there as such"]
    header, cells = again[0], []
    for number, (row, wanted) in enumerate(zip_longest(there[1:], again[1:]), 1):
        if row is None or wanted is None:
            what = "is missing" if row is None else "is not in what the records give"
            cells.append(f"{path}: row {number} ({_key(header, row or wanted)}) {what}")
            continue
        for column, is_, should in zip_longest(header, row, wanted):
            if is_ != should:
                where = f"row {number} ({_key(header, wanted)}), column {column}"
                cells.append(f"{path}: {where}: is {is_!r}, the records give {should!r}")
    if not cells:
        return [f"{path}: is not written as the records give it, though its cells are equal"]
    more = len(cells) - NAMED_CELLS
    return cells[:NAMED_CELLS] + ([f"{path}: {more} more cells differ"] if more > 0 else [])


def _rows(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))


def _key(header: Sequence[str], row: Sequence[str]) -> str:
    pairs = []
    for column, value in zip(header, row, strict=False):
        if column == "status" or re.fullmatch(r"-?\d+\.\d+(e[-+]\d+)?", value):
            break
        pairs.append(f"{column} {value}")
    return ", ".join(pairs[:6])


def _page_differences(path: str, old: bytes, new: bytes) -> list[str]:
    there, again = (_PICTURE.sub("<svg/>", d.decode(errors="replace")) for d in (old, new))
    pairs = zip_longest(there.splitlines(), again.splitlines())
    for number, (line, wanted) in enumerate(pairs, 1):
        if line != wanted:
            shown = [
                None if text is None else _around(text, line, wanted) for text in (line, wanted)
            ]
            return [f"{path}: line {number}: is {shown[0]!r}, the records give {shown[1]!r}"]
    return []


def _around(text: str, one: str | None, other: str | None) -> str:
    pairs = zip(one or "", other or "", strict=False)
    start = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
    return text[max(0, start - 20) : start + 60]


def _no_picture(chart: Any, prefix: str) -> str:
    return "<svg></svg>"


def _no_chart(record: Any, ledger: Any, polls: Any, width: int = 0) -> None:
    return None


def _as_they_are(paths: Sequence[str], schema: str, root: Path) -> list[dict[str, Any]]:
    return [read_json(root / path, schema) for path in paths]


def _run(entry: Mapping[str, Any], folder: Path) -> None:
    """Run a script with the `snakemake` that it had, but for outputs and log in `folder`."""
    outputs = {name: str(folder / path) for name, path in entry["output"].items()}
    for path in outputs.values():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    snakemake = SimpleNamespace(
        input=_Named(entry["input"]),
        output=_Named(outputs),
        params=SimpleNamespace(plan=entry["plan"]),
        log=[str(folder / "remade.log")],
    )
    script = SCRIPTS / entry["script"]
    if Path(entry["script"]).name != entry["script"] or not script.is_file():
        raise ValueError(f"{entry['script']}: no such script of this workflow")
    # Pictures take nearly all of the time, and are not compared here.
    plots.to_svg, plots.timeline = _no_picture, _no_chart
    # A record is held against its attempt by `verification.unlike_attempts`. Here the question is
    # what the tables would be if it were true.
    measured.read_measured = _as_they_are
    runpy.run_path(str(script), {"snakemake": snakemake}, "__main__")


if __name__ == "__main__":
    task = json.load(sys.stdin)
    _run(task["entry"], Path(task["folder"]))

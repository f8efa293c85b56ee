"""A/A: one image measured against itself. Every verdict of a difference is false; how many are?

Two things are told here: what one A/A run gave (`aa_table`), and, from its trials, what many more
sessions like it would give (`refill.stats.sessions`):

    python -m refill.report.aa extract aa/results --output trials.json
    python -m refill.report.aa simulate trials.json --blocks 1 2 4
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from refill.evidence.records import RecordError, read_json
from refill.phases.round_plan import order
from refill.report.lookup import NOT_MEASURED
from refill.report.rounds import QUANTILES, Expected, rounds_table
from refill.stats.ratios import INVALID, false_calls
from refill.stats.sessions import simulate

Record = Mapping[str, Any]

SCHEMA = "refill.trials/1"
HEADER = (
    "Shares of all verdicts; worst-cell: false in the cell that has most; any-in-session: sessions "
    "in which any cell is called. At factor 1.0 every call is false."
)
_CELL = ("profile", "cell", "operation", "title", "engine", "clients")
_FIGURES = (
    "ratio", "ratio_low", "ratio_high", "verdict", "why", "mde_faster", "mde_slower", "drift_block",
)  # fmt: skip
AA_COLUMNS = (*_CELL, "quantile", *_FIGURES, "false", "false_verdicts", "verdicts", "blocks")


def arms_differ(expected: Expected) -> str:
    """Return why this is no A/A run, or nothing."""
    old, new = expected.images.get("old"), expected.images.get("new")
    if old == new:
        return ""
    return (
        f"rounds.images: old is {old}, new is {new}: false verdicts can be counted only where both "
        "are one image; use --configfile config/aa.yaml"
    )


def aa_table(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any]
) -> pd.DataFrame:
    """Return one row a measured cell and quantile: the verdict, and whether it is false.

    `false_verdicts` and `verdicts` are the counts over all rows, the same in each.
    Raises ValueError when the arms are two images, or no cell was measured.
    """
    if problem := arms_differ(expected):
        raise ValueError(problem)
    table = aa_rows(records, expected, published)
    if not len(table):
        raise ValueError("no cell was measured in both arms: results/tables/rounds.csv says why")
    table["false_verdicts"], table["verdicts"] = int(table["false"].sum()), len(table)
    return table.reindex(columns=list(AA_COLUMNS))


def aa_rows(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any]
) -> pd.DataFrame:
    """Return one row a measured cell and quantile with `false`; empty where none was measured."""
    rows = []
    for row in rounds_table(records, expected, published).to_dict("records"):
        for quantile in (q.removesuffix("_ms") for q in QUANTILES):
            if row[f"{quantile}_verdict"] in (NOT_MEASURED, INVALID):
                continue
            figures = {name: row[f"{quantile}_{name}"] for name in _FIGURES}
            wrong = bool(false_calls([str(figures["verdict"])]))
            named = {key: row[key] for key in (*_CELL, "blocks")}
            rows.append({**named, "quantile": quantile, **figures, "false": wrong})
    return pd.DataFrame(rows)


def sentence(table: pd.DataFrame) -> str:
    """Return what an A/A table comes to: over all verdicts, in the worst cell, in this session."""
    false, total = int(table["false"].sum()), len(table)
    found = f"A/A: {false} of {total} verdicts are false ({false / total:.1%})"
    if not false:
        return f"{found}, so none in this session"
    by_cell: dict[tuple[Any, ...], list[bool]] = {}
    for row in table.to_dict("records"):
        by_cell.setdefault(tuple(row[key] for key in _CELL), []).append(bool(row["false"]))
    worst = max(by_cell.values(), key=sum)
    cells = sum(map(any, by_cell.values()))
    return (
        f"{found}, in {cells} of {len(by_cell)} cells, in the worst {sum(worst)} of "
        f"{len(worst)}; so this session holds a false one"
    )


def extract(records: Sequence[Record]) -> dict[str, Any]:
    """Return the trial quantiles of the valid rounds of an A/A run, in the order of measuring.

    `trials` is, for each profile, a list of rounds, each a list by cell and quantile, each the ms
    of its trials to 4 digits after the point; `cells` names the places.
    Raises ValueError when no round is valid, or they are of several images.
    """
    valid = sorted((r for r in records if r["valid"]), key=lambda r: str(r["started_at"]))
    if not valid:
        raise ValueError(
            f"of {len(records)} rounds none is valid: make an A/A run first, `make aa`"
        )
    images = sorted({str(r["engines"]["gateway"]["image"]["name"]) for r in valid})
    if len(images) != 1:
        raise ValueError(f"an A/A run is of one image, these rounds are of {images}")
    found: dict[str, Any] = {"schema": SCHEMA, "image": images[0], "unit": "ms", "profiles": {}}
    for profile in dict.fromkeys(str(r["profile"]) for r in valid):
        mine = [r for r in valid if r["profile"] == profile]
        found["profiles"][profile] = {
            "first": mine[0]["started_at"],
            "last": mine[-1]["ended_at"],
            "machine": f"{mine[0]['host']['cpu']['model']}, "
            f"{mine[0]['host']['cpu']['cores_usable']} cores",
            "requests_a_trial": sorted({c["requests"] for r in mine for c in r["cells"]}),
            "cells": [
                f"{c['profile']} {c['operation']} {c['engine']} {c['clients']} {q}"
                for c in mine[0]["cells"]
                for q in QUANTILES
            ],
            "trials": [
                [
                    [round(float(t["stats"][q]), 4) for t in c["trials"]]
                    for c in r["cells"]
                    for q in QUANTILES
                ]
                for r in mine
            ],
        }
    return found


def measured(extracted: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return (rounds, cells and quantiles, trials) of each profile of an extract.

    Raises ValueError, with the key, for what is none.
    """
    profiles = extracted.get("profiles")
    if not isinstance(profiles, dict) or not profiles:
        raise ValueError("profiles: must be an object with a profile at least")
    found = {}
    for name, block in profiles.items():
        where = f"profiles.{name}.trials"
        try:
            rounds = np.asarray(block["trials"], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: must be lists of numbers, all as long: {error}") from error
        if rounds.ndim != 3 or not rounds.size or not (np.isfinite(rounds) & (rounds > 0)).all():
            raise ValueError(
                f"{where}: must be rounds of cells of trials, each above 0; its shape is "
                f"{rounds.shape}"
            )
        found[str(name)] = rounds
    return found


def main(arguments: Sequence[str]) -> int:
    """Write an extract, or print what simulated sessions give; see the module's docstring.

    The exit status is 0, or 1 when what was named is no A/A run, no extract or too short.
    """
    parser = argparse.ArgumentParser(prog="python -m refill.report.aa")
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("extract", help="write the trials of an A/A run to one file")
    write.add_argument("results", type=Path, help="its folder `results`")
    write.add_argument("--output", type=Path, required=True)
    run = commands.add_parser("simulate", help="count false verdicts in drawn sessions")
    run.add_argument("trials", type=Path, help="what `extract` wrote")
    run.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4])
    run.add_argument("--factors", type=float, nargs="+", default=[1.0, 0.85, 0.8])
    run.add_argument("--sessions", type=int, default=200)
    run.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    source = given.results if given.command == "extract" else given.trials
    try:
        return _run(given)
    except (RecordError, OSError) as error:
        sys.stderr.write(f"{error}\n")
    except ValueError as error:
        sys.stderr.write(f"{source}: {error}\n")
    return 1


def _run(given: argparse.Namespace) -> int:
    if given.command == "extract":
        records = [
            read_json(path, "refill.round/1")
            for path in sorted((given.results / "rounds").glob("*/*.json"))
            if path.name.count(".") == 1
        ]
        text = json.dumps(extract(records), separators=(",", ":"))
        given.output.write_text(text + "\n", encoding="utf-8")
        return 0
    extracted = read_json(given.trials, SCHEMA)
    print(HEADER)
    print("profile blocks factor faster slower equivalent undecidable worst-cell any-in-session")
    for profile, rounds in measured(extracted).items():
        for blocks in given.blocks:
            for factor in given.factors:
                r = simulate(rounds, order(blocks), given.sessions, given.seed, factor)
                rest = 1 - r.called - r.equivalent
                print(
                    f"{profile} {blocks} {factor} {r.faster:.3f} {r.slower:.3f} "
                    f"{r.equivalent:.3f} {rest:.3f} {r.worst:.3f} {r.sessions_with_a_call:.3f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the page shows of the gateway rounds, as text: cells, log, rounds, wrong responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from markupsafe import Markup

from refill.phases.round_plan import order
from refill.report import text
from refill.report.aa import aa_rows, arms_differ, sentence
from refill.report.lookup import NOT_MEASURED
from refill.report.natives_view import natives_table
from refill.report.plots import to_svg
from refill.report.rounds import (
    IMAGES,
    PROFILES,
    QUANTILES,
    Expected,
    aof_table,
    cell_keys,
    published_of,
    rounds_table,
    trial_values,
)
from refill.report.rounds_plot import trial_plot
from refill.report.rounds_verdicts import blocks_text
from refill.report.verdicts_view import detectable, ratio_text, rows_of, verdict_cell
from refill.report.views import Cell, Table
from refill.stats.ratios import EQUIVALENT, FASTER, SLOWER
from refill.stats.ratios import VERDICTS as DECIDED

Record = Mapping[str, Any]

SHOWN_WRONG = 10
WIDTHS = (("wide", 900), ("narrow", 350))
# What a verdict means of an engine that is the same in all rounds.
_OF_A_GAUGE = {FASTER: "drifted", SLOWER: "drifted", EQUIVALENT: "steady"}
_NAMES = {"on-main": "cache serving", "off-control": "cache off"}
_LEADS = {
    "warm": "The cache served every one of these requests.",
    "cold": "Every request had a cache key that was never used before in its round.",
}


def section(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that `templates/rounds.html.j2` prints.

    Args:
        records: the rounds' records, in any order.
        expected: what was to be measured.
        published: the `gateway` experiment of config/claims.yaml.
    """
    ordered = sorted(records, key=lambda r: str(r["started_at"]))
    table = rounds_table(records, expected, published)
    return {
        "published": published,
        "records": ordered,
        "title": published["title"],
        "summary": _summary(table),
        "verdicts": _verdicts(table),
        "aa": _false_verdicts(records, expected, published),
        "order": [f"{image}-{n}" for image, n in order(expected.blocks)],
        "late": _late(ordered, expected),
        "margin": f"{expected.margin:.0%}",
        "controls": [engine for engine in expected.engines if engine != "gateway"],
        "engines": _engines(ordered),
        "embedded": any(r["engines"].get("qdrant", {}).get("embedded") for r in ordered),
        "images": _images(ordered),
        "cells": _cell_tables(table, expected),
        "pictures": _pictures(records, expected, published, table),
        "aof": _aof(aof_table(records, expected, published)),
        "natives": natives_table(ordered),
        "rounds": [_round(record) for record in ordered],
        "missing": _missing(records, expected),
        "wrong": _wrong(ordered),
        "limits": _limits(ordered, published),
    }


def _late(ordered: Sequence[Record], expected: Expected) -> list[str]:
    """Name the rounds that began after one that comes later in their profile's order.

    Both arms meet a steady drift alike only where they take turns as planned.
    """
    place = {planned: n for n, planned in enumerate(order(expected.blocks))}
    found = []
    for profile in expected.profiles:
        ran = [place.get((r["image"], r["repeat"]), 0) for r in ordered if r["profile"] == profile]
        names = [r["round"] for r in ordered if r["profile"] == profile]
        found += [name for n, name in enumerate(names) if any(ran[n] < p for p in ran[:n])]
    return found


def _summary(table: pd.DataFrame) -> list[tuple[str, int]]:
    """Return how many cells are completed, invalid, not measured."""
    kinds = [_kind(status) for status in table["status"]]
    return [(name, kinds.count(name)) for name in ("completed", "invalid", NOT_MEASURED)]


def _verdicts(table: pd.DataFrame) -> list[tuple[str, int]]:
    """Return how often each verdict was given on the gateway, over p50 and p95 of all cells."""
    ours = table[table["engine"] == "gateway"]
    given = [*ours["p50_verdict"], *ours["p95_verdict"]]
    return [(name, given.count(name)) for name in DECIDED if name in given]


def _false_verdicts(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any]
) -> str:
    """Return how many verdicts of an A/A run are false; nothing in any other."""
    if not expected.images or arms_differ(expected) or not records:
        return ""
    table = aa_rows(records, expected, published)
    counted = sentence(table) if len(table) else "A/A: no cell has a verdict"
    return f"Both arms are one image. {counted}."


def _kind(status: str) -> str:
    return status.partition(":")[0]


def _engines(records: Sequence[Record]) -> list[str]:
    found = []
    for record in records:
        for engine in record["engines"].values():
            title = str(engine.get("title") or engine["name"])
            version = "" if engine.get("embedded") else f" {engine.get('version')}"
            place = " (docker)" if engine.get("runtime") == "docker" else ""
            found.append(f"{title}{version}{place}")
    return list(dict.fromkeys(found))


def _images(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return each gateway image that was measured: its name in the rounds, tag, content id."""
    found = {}
    for record in records:
        block = record["engines"].get("gateway")
        if block:
            image = block["image"]
            found[record["image"], image["id"]] = {
                "name": record["image"],
                "tag": image["tag"],
                "id": image["id"],
                "tree": image["tree"],
                "differs": _differs(image.get("differs_from")),
            }
    return sorted(found.values(), key=lambda i: IMAGES.index(i["name"]))


def _differs(block: Mapping[str, Any] | None) -> str:
    if not block:
        return ""
    return f"differs from {block['image']} in {', '.join(block['files'])} alone"


def _cell_tables(table: pd.DataFrame, expected: Expected) -> list[Table]:
    """Return one table a profile and cell kind: old, new, ratio and verdict, at p50 and p95.

    Engines that were not to be measured stand in a note; their rows are in the CSV file.
    """
    tables = []
    for profile, cells in PROFILES.items():
        for cell in cells:
            part = table[(table["profile"] == profile) & (table["cell"] == cell)]
            asked = part["engine"].isin(["gateway", *expected.engines])
            rows = [_cell_row(row) for row in rows_of(part[asked])]
            name = f"{cell.capitalize()}, {_NAMES[profile]}"
            reasons = [s for s in part["status"] if _kind(s) == NOT_MEASURED]
            tables.append(
                Table(
                    f"rounds-{profile}-{cell}",
                    name,
                    f"{_LEADS[cell]} Each figure is the median over all trials of that trial's "
                    "quantile; their lowest and highest, and the reason of each verdict, stand in "
                    "results/tables/rounds.csv.",
                    [("", 2), ("p50, ms", 5), ("p95, ms", 5), ("", 1)],
                    [
                        "operation", "clients",
                        *(("old", "new", "new / old", "verdict", "drift") * 2), "hit ratio",
                    ],
                    rows,
                    [f"{reason.capitalize()}." for reason in dict.fromkeys(reasons)],
                )
            )  # fmt: skip
    return tables


def _cell_row(row: Mapping[str, Any]) -> list[Cell]:
    kind = _kind(row["status"])
    looks = {"completed": "state ok", "invalid": "state bad"}.get(kind, "state")
    cells = [
        Cell(row["title"], row["engine"]),
        Cell(kind if kind == NOT_MEASURED else row["status"], kind=looks),
        Cell(f"{row['clients']}"),
    ]
    for quantile in QUANTILES:
        short = quantile.removesuffix("_ms")
        for image in IMAGES:
            known = row[f"published_{image}_{quantile}"]
            cells.append(
                Cell(
                    text.number(row[f"{image}_{quantile}"]),
                    "" if pd.isna(known) else text.printed(known),
                    "number edge" if image == "old" else "number",
                )
            )
        ratio = row[f"published_{short}_ratio"]
        shown = ratio_text(
            *(row[f"{short}_{name}"] for name in ("ratio", "ratio_low", "ratio_high"))
        )
        cells.append(Cell(shown, "" if pd.isna(ratio) else f"{ratio:.2f}"))
        verdict = str(row[f"{short}_verdict"])
        faster, slower = row[f"{short}_mde_faster"], row[f"{short}_mde_slower"]
        wanted = row[f"{short}_blocks_to_decide"]
        parts = (
            detectable(faster, slower),
            "" if pd.isna(wanted) else f"{blocks_text(int(wanted))} to decide the published ratio",
        )
        cell = verdict_cell(verdict, "; ".join(filter(None, parts)))
        if row["engine"] != "gateway" and verdict in _OF_A_GAUGE:
            cell = replace(cell, text=_OF_A_GAUGE[verdict], kind="state")
        cells.append(cell)
        controls = row[f"{short}_drift_controls"]
        cells.append(
            Cell(_ratio(row[f"{short}_drift_block"]), note="" if pd.isna(controls) else controls)
        )
    cells.append(Cell(text.share(row["hit_ratio"]), kind="number edge"))
    return cells


def _ratio(value: float | None) -> str:
    return text.NONE if value is None or pd.isna(value) else f"{value:.2f}"


def _pictures(
    records: Sequence[Record],
    expected: Expected,
    published: Mapping[str, Any],
    table: pd.DataFrame,
) -> list[tuple[str, Markup]]:
    """Return the picture of the cold cells of the gateway, in two widths; [] without any."""
    points: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    keys = [k for k in cell_keys(expected) if k.cell == "cold" and k.engine == "gateway"]
    for key in keys:
        row = table[
            (table["profile"] == key.profile)
            & (table["cell"] == key.cell)
            & (table["operation"] == key.operation)
            & (table["engine"] == key.engine)
            & (table["clients"] == key.clients)
        ].iloc[0]
        if row["status"] != "completed":
            continue
        clients = "1 client" if key.clients == 1 else f"{key.clients} clients"
        panel = f"{_NAMES[key.profile]}, {clients}"
        known = published_of(published, key)
        for quantile in QUANTILES:
            for image in IMAGES:
                place = {"panel": panel, "image": image, "quantile": quantile.removesuffix("_ms")}
                points += [
                    {**place, "ms": value} for value in trial_values(key, records, image, quantile)
                ]
                marks.append({**place, "ms": float(row[f"{image}_{quantile}"]), "of": "measured"})
                if quantile in known:
                    value = float(known[quantile][image])
                    marks.append({**place, "ms": value, "of": "published"})
    if not points:
        return []
    return [
        (name, Markup(to_svg(trial_plot(points, marks, width), f"rounds-{name}")))
        for name, width in WIDTHS
    ]


def _aof(table: pd.DataFrame) -> Table:
    rows = []
    for row in rows_of(table):
        kind = _kind(row["status"])
        looks = {"completed": "state ok", "invalid": "state bad"}.get(kind, "state")
        grown = "rewritten" if row["rewritten"] is True else _whole(row["growth_bytes"])
        rows.append(
            [
                Cell(f"{row['profile']}/{row['image']}-{row['n']}", row["cell"]),
                Cell(row["status"], kind=looks),
                Cell(_whole(row["responses"])),
                Cell(_whole(row["fills"])),
                Cell(_whole(row["aof_before_bytes"]), kind="number edge"),
                Cell(_whole(row["aof_after_bytes"])),
                Cell(grown, _whole(row["published_growth_bytes"])),
                Cell(text.number(row["bytes_per_fill"])),
                Cell(_whole(row["replication_offset"]), kind="number edge"),
            ]
        )
    return Table(
        "rounds-aof",
        "What each raw profile added to the append-only log",
        "Sizes in bytes, before and after the profile's trials; nothing else wrote meanwhile.",
        [("", 1), ("requests", 2), ("log, bytes", 4), ("propagated", 1)],
        ["round", "responses", "fills", "before", "after", "growth", "a fill", "commands"],
        rows,
        ["Growth is not known where the log was rewritten meanwhile."],
    )


def _whole(value: Any) -> str:
    return text.NONE if value is None or pd.isna(value) else f"{int(value):,}"


def _round(record: Record) -> dict[str, Any]:
    """Return one round in a line: what it was, how it ended, what it took."""
    ledger = record["ledger"]
    counts = ledger["counts"]
    return {
        "name": record["round"],
        "started": record["started_at"],
        "ended": record["ended_at"],
        "state": "completed" if record["valid"] else record["outcome"],
        "valid": record["valid"],
        "why": "; ".join([*(record["invalid"][:5] or ["valid"]), *record.get("warnings", [])[:3]]),
        "requests": f"{counts['ok']:,} of {counts['issued']:,} right",
        "floor": text.number(record["driver"]["floor_p50_ms"]),
        "measured": f"{record['wall']['measured_s']:.1f} of {record['wall']['total_s']:.1f} s",
    }


def _missing(records: Sequence[Record], expected: Expected) -> list[str]:
    there = {record["round"] for record in records}
    wanted = [f"{p}/{i}-{n}" for p in expected.profiles for n in expected.numbers for i in IMAGES]
    return [name for name in wanted if name not in there]


def _wrong(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return responses that were not right, with request, expected and got."""
    found = [
        {
            "where": f"{record['round']}: {cell['operation']}, {cell['clients']} clients, "
            f"trial {trial['trial']}",
            **shown,
        }
        for record in records
        for cell in record["cells"]
        for trial in cell["trials"]
        for shown in trial["wrong"]
    ]
    return found[:SHOWN_WRONG]


def _limits(records: Sequence[Record], published: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what limits the figures that were published, and those that were measured here."""
    theirs = [f"Another machine and other builds: {published['setting']}.", *published["caveats"]]
    return [("Published", theirs), ("Measured here", _own_limits(records))]


def _own_limits(records: Sequence[Record]) -> list[str]:
    sentences = []
    if requests := [cell["requests"] for record in records for cell in record["cells"]]:
        sentences.append(
            f"A trial of {min(requests)} requests has {min(requests) // 20} samples above its p95: "
            "the tail is coarse."
        )
    measured = {name for r in records for name in r.get("natives", {}) if name in r["engines"]}
    if measured:
        sentences.append(
            f"{' and '.join(sorted(measured))}: one node, one shard merged to one segment, without "
            "a response cache, so a warm request there is a repeated one that is worked out anew. "
            "They run beside the gateway and idle while another engine is asked; their median "
            "over the rounds shows the machine's drift and says nothing of the two images."
        )
    if any(r["engines"].get("qdrant", {}).get("embedded") for r in records):
        sentences.insert(
            0,
            "Qdrant is embedded here (its own storage engine behind this project's HTTP front): "
            "no cold latency on this page is one of a Qdrant server.",
        )
    return sentences

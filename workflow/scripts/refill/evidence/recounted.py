"""The figures of a record, made again from the ledger that was written beside it.

What is made again is what a ledger (or its polls, or a reading of the log's size) decides: counts,
quantiles, means, recall, visible share, steadiness, growth of the log, and what follows from them
about validity. What only the running driver knew (its own pauses, the clients' windows) cannot be.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from refill.engines.valkey import Aof, growth
from refill.evidence import ledger_rows, proof_recount
from refill.evidence.json_difference import Unequal, unequal
from refill.evidence.records import RecordError, read_json
from refill.load.ledger import SCHEMA as RUN_LEDGER
from refill.load.ledger import STATUSES, latency_s
from refill.phases.optimizer_record import judged, phase_figures
from refill.phases.optimizer_run import Phase, Settings
from refill.phases.round_ledger import SCHEMA as ROUND_LEDGER
from refill.phases.round_record import hit_ratio, raw_profile, unproven
from refill.stats.quantiles import search_stats

Record = Mapping[str, Any]

GATEWAY = "gateway"


def differences(work: Path, path: str) -> list[str]:
    """Return one line for each key of a record that its ledger does not give.

    `work` is the folder that holds results, `path` the record's below it. A record of a kind that
    has no ledger gives none. A ledger that cannot be read is one line.
    """
    try:
        record = read_json(work / path)
        match record.get("schema"):
            case "refill.optimizer-run/1":
                found = list(_optimizer_run(work, record))
            case "refill.round/1":
                found = list(_round(work, record))
            case "refill.proof/1":
                wrong = proof_recount.unequal_parts(record)
                return [f"{path}: {k}: says {s!r}, its checks give {g!r}" for k, s, g in wrong]
            case _:
                return []
    except (RecordError, OSError, pa.ArrowException) as error:
        return [f"{path}: cannot be counted again: {error}"]
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        return [f"{path}: does not fit its ledger: {type(error).__name__}: {error}"]
    return [f"{path}: {k}: says {says!r}, the ledger gives {gives!r}" for k, says, gives in found]


def _optimizer_run(work: Path, record: Record) -> Iterator[Unequal]:
    rows = _read(work, record["ledger"], RUN_LEDGER)
    polls = _read(work, record["polls"])
    yield from _counted(record, rows)
    yield from unequal(record["polls"]["rows"], len(polls), "polls.rows")
    points = record["corpus"]["points"]
    figures = phase_figures(_phases(record), rows, polls, points, _settings(record, rows))
    for block, again in itertools.zip_longest(record["phases"], figures):
        yield from unequal(block, again, f"phases.{(block or again)['name']}")
    drain = next((p["drain_s"] for p in figures if p["name"] == "draining"), None)
    yield from unequal(record["drain_s"], drain, "drain_s")
    there = [phase["name"] for phase in record["phases"]]
    kept = record["ledger"]["conservation"]
    # Why a run broke off is in no ledger, nor whether the driver stood still.
    decided = [judged(figures, there, kept, [], failure) for failure in (None, "it broke off")]
    if record["warnings"] not in [warnings for _, _, warnings in decided]:
        yield "warnings", record["warnings"], decided[0][2]
    yield from _judged_as(record, decided[0][1], "")
    if record["outcome"] != "failed":
        yield from unequal(record["outcome"], decided[0][0], "outcome")


def _phases(record: Record) -> list[Phase]:
    return [
        Phase(
            block["name"],
            block["start_s"],
            block["end_s"],
            block["ended_by"],
            drained_at=block.get("drained_at_s"),
            outcome=block.get("outcome"),
            event=block.get("event"),
            # The searches without an index stand in no ledger.
            exact=block.get("exact"),
            completed=block["optimizers_completed"],
        )
        for block in record["phases"]
    ]


def _settings(record: Record, rows: pd.DataFrame) -> Settings:
    """Give the settings that figures depend on, as the record and its ledger tell them."""
    sampler = record["sampler"]
    firsts = np.unique(rows.loc[rows["loop"] == "upload", "first"].to_numpy())
    points = record["corpus"]["points"]
    batch = int(np.diff(firsts).min()) if len(firsts) > 1 else points
    pace = next((p["upload"]["paced_at"] for p in record["phases"] if "upload" in p), None)
    return Settings(
        {},
        {},
        None,
        {"batch": batch, "points_per_s": pace or 0},
        {key: sampler[key] for key in ("limit", "timeout_s")},
        sampler["draining"],
        sampler["steady"],
        0,
    )


def _round(work: Path, record: Record) -> Iterator[Unequal]:
    rows = _read(work, record["ledger"], ROUND_LEDGER)
    # A round's clients send as soon as they are answered.
    rows = rows.assign(loop="closed", planned=rows["sent"])
    yield from _counted(record, rows)
    statuses = Counter(rows.loc[rows["profile"] == "warm-up", "status"].astype(str))
    warm_up = {"requests": statuses.total(), **{s: statuses[s] for s in STATUSES}}
    yield from unequal(record["warm_up"], warm_up, "warm_up")
    for cell in record["cells"]:
        where = f"cells.{cell['profile']}, {cell['operation']}, {cell['engine']}, "
        yield from _cell(record, cell, rows, f"{where}{cell['clients']}")
    for profile in record["profiles"]:
        yield from _profile(work, record, profile, rows)
    # A native engine's cells are beside the gateway's, and say for themselves.
    ours = [cell for cell in record["cells"] if cell["engine"] == GATEWAY]
    invalid = [why for cell in ours for why in cell["invalid"]]
    yield from unequal(record["valid"], not record["invalid"], "valid")
    if invalid and record["valid"]:
        yield "valid", True, f"false: {invalid[0]}"


def _cell(record: Record, cell: Record, rows: pd.DataFrame, where: str) -> Iterator[Unequal]:
    reasons = []
    for trial in cell["trials"]:
        place = f"{where}.trial {trial['trial']}"
        mine = rows[rows["window"] == trial["window"]]
        stats = search_stats(
            latency_s(mine), mine["status"].astype(str).to_numpy(), None, None, 0,
            record["configuration"]["timeout_s"],
        )  # fmt: skip
        # Requests a second are over the clients' own span, which no ledger has.
        for key, says in trial["stats"].items():
            if key == "per_s":
                yield from _rate(says, stats["n"], trial, mine, f"{place}.stats.per_s")
            else:
                yield from unequal(says, stats[key], f"{place}.stats.{key}")
        yield from _grown(trial, place)
        invalid = [
            f"{stats[status]} of {stats['n']} responses {words}"
            for status, words in (("wrong", "are wrong"), ("error", "failed"))
            if stats[status]
        ]
        if cache := trial.get("cache"):
            yield from unequal(trial["hit_ratio"], hit_ratio(cache), f"{place}.hit_ratio")
        # Its own counters show of the gateway alone whether a trial was warm or cold.
        if cache and cell["engine"] == GATEWAY:
            invalid += unproven(cell["profile"], record["serving"], stats["n"], cache)
        yield from _judged_as(trial, invalid, f"{place}.")
        reasons += [f"trial {trial['trial']}: {why}" for why in trial["invalid"]]
    yield from _judged_as(cell, reasons, f"{where}.")


def _rate(
    says: float | None, n: int, trial: Record, rows: pd.DataFrame, where: str
) -> Iterator[Unequal]:
    """Hold a rate against the shortest and the longest span that it can be over."""
    if not says or not len(rows):
        return
    shortest = float(rows["done"].max() - rows["sent"].min())
    longest = trial["end_s"] - trial["start_s"]
    if not shortest * (1 - 1e-6) <= n / says <= longest * (1 + 1e-6):
        yield where, says, f"{n / longest:.6g} to {n / shortest:.6g}"


def _profile(work: Path, record: Record, profile: Record, rows: pd.DataFrame) -> Iterator[Unequal]:
    where = f"profiles.{profile['name']}"
    yield from _grown(profile, where)
    if "requests" in profile:
        issued = int(rows["window"].isin(_windows(record, profile["name"])).sum())
        yield from unequal(profile["requests"], issued, f"{where}.requests")
    identity = {key: record[key] for key in ("id", "repeat", "attempt", "code")}
    bare = {key: value for key, value in profile.items() if key not in ("path", "sha256")}
    raw = read_json(work / profile["path"])
    again = raw_profile(identity, bare, record["cells"], rows)
    again["schema"] = raw["schema"]
    for place, says, gives in unequal(raw, again):
        yield f"{where}: {profile['path']}: {place.lstrip('.')}", says, gives


def _windows(record: Record, profile: str) -> list[int]:
    cells = [
        cell for cell in record["cells"] if cell["profile"] == profile and cell["engine"] == GATEWAY
    ]
    return [trial["window"] for cell in cells for trial in cell["trials"]]


def _grown(block: Record, where: str) -> Iterator[Unequal]:
    """Hold the growth of the append-only log against its two readings, where there are any."""
    aof = block.get("aof")
    if aof and aof.get("before"):
        again = growth(Aof(**aof["before"]), Aof(**aof["after"]))
        yield from unequal(aof, again, f"{where}.aof")


def _judged_as(block: Record, invalid: Sequence[str], where: str) -> Iterator[Unequal]:
    """A block must give every reason that can be found again, and be valid without any only."""
    for reason in invalid:
        if reason not in block["invalid"]:
            yield f"{where}invalid", block["invalid"], reason
    yield from unequal(block["valid"], not block["invalid"], f"{where}valid")


def _counted(record: Record, rows: pd.DataFrame) -> Iterator[Unequal]:
    statuses = Counter(rows["status"].astype(str))
    ledger = record["ledger"]
    yield from unequal(ledger["rows"], len(rows), "ledger.rows")
    counts = {"issued": len(rows), **{status: statuses[status] for status in STATUSES}}
    yield from unequal(ledger["counts"], counts, "ledger.counts")
    if (rows["seq"].to_numpy() != np.arange(len(rows))).any():
        yield "ledger.seq", "no gap", "a gap in the sequence of the requests"
    yield from ledger_rows.impossible(rows)


def _read(work: Path, entry: Record, columns: pa.Schema | None = None) -> pd.DataFrame:
    try:
        rows = pd.read_parquet(work / str(entry["path"]))
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{entry['path']}: {error}") from error
    if columns is not None and list(rows.columns) != columns.names:
        raise RecordError(
            f"{entry['path']}: its columns are {', '.join(rows.columns)}, a ledger's are "
            f"{', '.join(columns.names)}"
        )
    return rows

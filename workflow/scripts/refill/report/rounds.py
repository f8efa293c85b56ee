"""The tables of the gateway rounds: old against new for each cell, and the growth of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refill.report.lookup import NOT_MEASURED
from refill.report.machine import mixed

Record = Mapping[str, Any]

ENGINES = ("gateway", "elasticsearch", "opensearch")
IMAGES = ("old", "new")
REPEATS = (1, 2)
# Which raw profiles a round of a profile has: with the cache off nothing can be warm.
PROFILES = {"on-main": ("warm", "cold"), "off-control": ("cold",)}
QUANTILES = ("p50_ms", "p95_ms")

ROUND_COLUMNS = (
    "profile", "cell", "operation", "title", "engine", "clients", "status",
    "old_p50_ms", "new_p50_ms", "p50_ratio", "old_p95_ms", "new_p95_ms", "p95_ratio",
    "old_p50_low_ms", "old_p50_high_ms", "new_p50_low_ms", "new_p50_high_ms",
    "old_p95_low_ms", "old_p95_high_ms", "new_p95_low_ms", "new_p95_high_ms",
    "old_trials", "new_trials", "responses", "hit_ratio", "scale",
    "published_old_p50_ms", "published_new_p50_ms", "published_p50_ratio",
    "published_old_p95_ms", "published_new_p95_ms", "published_p95_ratio",
)  # fmt: skip
AOF_COLUMNS = (
    "profile", "image", "n", "cell", "status", "responses", "fills", "aof_before_bytes",
    "aof_after_bytes", "growth_bytes", "bytes_per_fill", "rewritten", "replication_offset",
    "published_growth_bytes", "scale",
)  # fmt: skip
_WHOLE = (
    "responses", "fills", "aof_before_bytes", "aof_after_bytes", "growth_bytes",
    "replication_offset", "published_growth_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """What the whole experiment measures; from the configuration, not from the records.

    Attributes:
        operations: `warm` and `cold`, each a list of entries with `id` and `title`.
        clients: numbers of clients.
        engines: the engines that were to be measured.
        profiles: the profiles that were to be run.
    """

    operations: Mapping[str, Sequence[Mapping[str, Any]]]
    clients: Sequence[int]
    engines: Sequence[str]
    profiles: Sequence[str]


NO_ROUNDS = Expected({"warm": (), "cold": ()}, (), (), ())


@dataclass(frozen=True)
class CellKey:
    """What names one row of the table."""

    profile: str
    cell: str
    operation: str
    title: str
    engine: str
    clients: int


def cell_keys(expected: Expected) -> Iterator[CellKey]:
    """Give the rows of the table in their order: every cell, measured or not."""
    for profile, cells in PROFILES.items():
        for cell in cells:
            for entry in expected.operations[cell]:
                for engine in ENGINES:
                    for clients in expected.clients:
                        yield CellKey(profile, cell, entry["id"], entry["title"], engine, clients)


def rounds_table(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any]
) -> pd.DataFrame:
    """Return one row a cell: medians of the trials' p50 and p95 of both images, and their ratio.

    Latencies in ms. A median is over all trials of both rounds of an image; `low` and `high` are
    the lowest and highest of these trials. `ratio` is new by old. Of a cell that is invalid or was
    not measured there are no figures, and its status says why. `published_*` are the source's.
    """
    rows = []
    for key in cell_keys(expected):
        known = published_of(published, key)
        row: dict[str, Any] = {**vars(key), "status": status_of(key, records, expected)}
        if row["status"] == "completed":
            row |= _measured(key, records)
        for name, pair in known.items():
            row |= {f"published_{image}_{name}": pair[image] for image in IMAGES}
            row[f"published_{name.removesuffix('_ms')}_ratio"] = pair["new"] / pair["old"]
        rows.append(row)
    table = pd.DataFrame(rows).reindex(columns=list(ROUND_COLUMNS))
    return table.astype(dict.fromkeys(("old_trials", "new_trials", "responses"), "Int64"))


def published_of(published: Mapping[str, Any], key: CellKey) -> dict[str, Mapping[str, float]]:
    """Return the published pairs (old, new) of a cell by quantile; {} where there is none."""
    for entry in published["figures"]:
        same = (
            entry["engine"] == key.engine
            and entry["cell"] == key.cell
            and entry["profile"] == key.profile
            and entry["operation"] == key.operation
            and entry["clients"] == key.clients
        )
        if same:
            return {name: entry[name] for name in QUANTILES if name in entry}
    return {}


def status_of(key: CellKey, records: Sequence[Record], expected: Expected) -> str:
    """Return `completed`, or why a cell has no figures."""
    if key.engine not in expected.engines:
        return f"{NOT_MEASURED}: {key.engine} is not in rounds.engines of the configuration"
    if key.profile not in expected.profiles:
        return f"{NOT_MEASURED}: {key.profile} is not in rounds.profiles of the configuration"
    mine = [r for r in records if r["profile"] == key.profile]
    absent = [f"{i}-{n}" for i in IMAGES for n in REPEATS if not _of(mine, i, n)]
    if absent:
        return f"{NOT_MEASURED}: no record of {', '.join(absent)}"
    why_not = {_absent(record, key.engine) for record in mine}
    if len(why_not) == 1 and (why := why_not.pop()):
        return f"{NOT_MEASURED}: {why}"
    reasons = [why for record in mine for why in _reasons(record, key)]
    if not reasons:
        reasons = incomparable(mine, key.engine)
    return f"invalid: {'; '.join(reasons)}" if reasons else "completed"


def _reasons(record: Record, key: CellKey) -> list[str]:
    """Return why a cell of one round does not count."""
    if record["outcome"] == "failed":
        return [f"{record['round']} failed: {record['invalid'][0]}"]
    cell = cell_of(record, key)
    if cell is None:
        native = record.get("natives", {}).get(key.engine, {})
        return [f"{record['round']}: {native.get('why', 'there is no such cell')}"]
    return [f"{record['round']}: {why}" for why in cell["invalid"]]


def _absent(record: Record, engine: str) -> str | None:
    """Return why a native engine was not at hand in a round; None when it was."""
    native = record.get("natives", {}).get(engine, {})
    return str(native["why"]) if native.get("status") == "not measured" else None


def incomparable(records: Sequence[Record], engine: str = "gateway") -> list[str]:
    """Say in what the rounds of one profile differ that must be equal; [] when in nothing.

    Equal must be: corpus, counts, code, machine, Qdrant, Valkey, the native engine that the cell
    is of, and within each image the gateway's.
    """
    found = []
    parts: dict[str, list[Any]] = {
        "corpus": [r["corpus"] for r in records],
        "scale": [r["scale"] for r in records],
        "configuration": [r["configuration"] for r in records],
        "Qdrant": [r["engines"].get("qdrant") for r in records],
        "Valkey": [r["engines"].get("valkey") for r in records],
    }
    if engine != "gateway":
        parts[engine] = [r["engines"].get(engine) for r in records]
    names = [w for w, values in parts.items() if len({_canonical(v) for v in values}) > 1]
    for what in [*names, *mixed(list(records))]:
        found.append(f"the rounds differ in {what}: measure them anew")
    for image in IMAGES:
        ids = {r["engines"]["gateway"]["image"]["id"] for r in records if r["image"] == image}
        if len(ids) > 1:
            found.append(f"the rounds of {image} are of different images: measure them anew")
    return found


def cell_of(record: Record, key: CellKey) -> Mapping[str, Any] | None:
    """Return a cell of one round's record."""
    for cell in record["cells"]:
        same = (
            cell["engine"] == key.engine
            and cell["profile"] == key.cell
            and cell["operation"] == key.operation
            and cell["clients"] == key.clients
        )
        if same:
            found: Mapping[str, Any] = cell
            return found
    return None


def trial_values(key: CellKey, records: Sequence[Record], image: str, quantile: str) -> list[float]:
    """Return one quantile of each trial of a cell, both rounds of an image, in their order."""
    values = []
    for n in REPEATS:
        for record in _of([r for r in records if r["profile"] == key.profile], image, n):
            cell = cell_of(record, key)
            values += [t["stats"][quantile] for t in cell["trials"]] if cell else []
    return values


def _measured(key: CellKey, records: Sequence[Record]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for quantile in QUANTILES:
        short = quantile.removesuffix("_ms")
        for image in IMAGES:
            values = trial_values(key, records, image, quantile)
            # The usual median, the mean of the middle two of six, as in the source.
            row[f"{image}_{quantile}"] = float(np.median(values))
            row[f"{image}_{short}_low_ms"] = min(values)
            row[f"{image}_{short}_high_ms"] = max(values)
            row[f"{image}_trials"] = len(values)
        row[f"{short}_ratio"] = row[f"new_{quantile}"] / row[f"old_{quantile}"]
    mine = [r for r in records if r["profile"] == key.profile]
    cells = [cell for r in mine if (cell := cell_of(r, key)) is not None]
    trials = [trial for cell in cells for trial in cell["trials"]]
    row["responses"] = sum(trial["stats"]["n"] for trial in trials)
    # Only the gateway has a response cache.
    ours = trials if key.engine == "gateway" else []
    ratios = [t["hit_ratio"] for t in ours if t["hit_ratio"] is not None]
    row["hit_ratio"] = min(ratios, default=None)
    row["scale"] = mine[0]["scale"]
    return row


def aof_table(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any]
) -> pd.DataFrame:
    """Return one row a raw profile: what it added to Valkey's append-only log.

    `growth_bytes` is empty when the log was rewritten meanwhile. `replication_offset` counts what
    was propagated: it is what tells a fill that is in the log from one that is not.
    """
    rows = []
    for profile, cells in PROFILES.items():
        for image in IMAGES:
            for n in REPEATS:
                mine = _of([r for r in records if r["profile"] == profile], image, n)
                for cell in cells:
                    row = {"profile": profile, "image": image, "n": n, "cell": cell}
                    growth = published["aof_growth_bytes"][_published_name(profile, cell)]
                    row["published_growth_bytes"] = growth[image][n - 1]
                    rows.append(row | _aof_row(mine, cell, profile, expected))
    table = pd.DataFrame(rows).reindex(columns=list(AOF_COLUMNS))
    # Whole numbers stay whole beside rows that have none.
    return table.astype(dict.fromkeys(_WHOLE, "Int64"))


def _published_name(profile: str, cell: str) -> str:
    if cell == "warm":
        return "warm"
    return "cold_enabled" if profile == "on-main" else "cold_disabled"


def _aof_row(mine: Sequence[Record], cell: str, profile: str, expected: Expected) -> dict[str, Any]:
    if not mine:
        why = "no record" if profile in expected.profiles else "not in rounds.profiles"
        return {"status": f"{NOT_MEASURED}: {why}"}
    record = mine[0]
    if record["outcome"] == "failed":
        return {"status": f"failed: {record['invalid'][0]}", "scale": record["scale"]}
    block = next(p for p in record["profiles"] if p["name"] == cell)
    aof, fills = block["aof"], block["cache"]["fills"]
    per_fill = aof["bytes"] / fills if fills and aof["bytes"] is not None else None
    return {
        "status": "completed" if block["valid"] else "invalid",
        "responses": block["requests"],
        "fills": fills,
        "aof_before_bytes": aof["before"]["current_size"],
        "aof_after_bytes": aof["after"]["current_size"],
        "growth_bytes": aof["bytes"],
        "bytes_per_fill": per_fill,
        "rewritten": aof["rewritten"],
        "replication_offset": aof["replication_offset"],
        "scale": record["scale"],
    }


def write_tables(
    records: Sequence[Record], expected: Expected, published: Mapping[str, Any], folder: Path
) -> dict[str, Path]:
    """Write rounds.csv and aof.csv to `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "rounds": rounds_table(records, expected, published),
        "aof": aof_table(records, expected, published),
    }
    paths = {name: folder / f"{name}.csv" for name in tables}
    for name, table in tables.items():
        table.to_csv(paths[name], index=False, lineterminator="\n", float_format="%.6g")
    return paths


def _of(records: Sequence[Record], image: str, n: int) -> list[Record]:
    return [r for r in records if r["image"] == image and r["repeat"] == n]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)

"""The tables of the gateway rounds: old against new for each cell, and the growth of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from refill.config.claims import published_log_growth
from refill.report.files import write_csv
from refill.report.lookup import NOT_MEASURED
from refill.report.machine import mixed
from refill.report.rounds_verdicts import (
    Trials,
    compared,
    decided,
    undecided,
    verdict_columns,
)
from refill.stats.ratios import MARGIN, Comparison
from refill.stats.resampling import arm_median

Record = Mapping[str, Any]

ENGINES = ("gateway", "elasticsearch", "opensearch")
IMAGES = ("old", "new")
# Which raw profiles a round of a profile has: with the cache off nothing can be warm.
PROFILES = {"on-main": ("warm", "cold"), "off-control": ("cold",)}
QUANTILES = ("p50_ms", "p95_ms")

ROUND_COLUMNS = (
    "profile", "cell", "operation", "title", "engine", "clients", "status",
    "old_p50_ms", "new_p50_ms", "p50_ratio", *verdict_columns("p50"),
    "old_p95_ms", "new_p95_ms", "p95_ratio", *verdict_columns("p95"),
    "interval_level", "interval_method", "margin", "blocks",
    "old_p50_low_ms", "old_p50_high_ms", "new_p50_low_ms", "new_p50_high_ms",
    "old_p95_low_ms", "old_p95_high_ms", "new_p95_low_ms", "new_p95_high_ms",
    "old_trials", "new_trials", "responses", "hit_ratio", "scale", "arms",
    "published_old_p50_ms", "published_new_p50_ms", "published_p50_ratio",
    "published_old_p95_ms", "published_new_p95_ms", "published_p95_ratio",
)  # fmt: skip
AOF_COLUMNS = (
    "profile", "image", "n", "cell", "status", "responses", "fills", "aof_before_bytes",
    "aof_after_bytes", "growth_bytes", "bytes_per_fill", "rewritten", "replication_offset",
    "published_growth_bytes", "scale",
)  # fmt: skip
_COUNTS = (
    "old_trials", "new_trials", "responses", "blocks", "p50_blocks_to_decide",
    "p95_blocks_to_decide",
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
        blocks: blocks of each profile, each of two rounds of both images.
        margin: share by which two medians may differ and be equivalent.
        images: entries of config/images.yaml by arm; in an A/A run they are one.
    """

    operations: Mapping[str, Sequence[Mapping[str, Any]]]
    clients: Sequence[int]
    engines: Sequence[str]
    profiles: Sequence[str]
    blocks: int = 1
    margin: float = MARGIN
    images: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The numbers of an image's rounds."""
        return range(1, 2 * self.blocks + 1)


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
    """Return one row a cell: medians of the trials' p50 and p95 of both images, ratio and verdict.

    Latencies in ms. A median is over all trials of all rounds of an image; `old_p50_low_ms` and the
    like are the lowest and highest of these trials. `ratio` is new by old, its interval, verdict,
    smallest detectable effects and drift are those of `refill.stats.ratios`; `blocks_to_decide` of
    an undecidable one is that of `refill.stats.planning` for the published ratio. The rows of an
    engine other than the gateway compare its rounds beside old with those beside new, and are a
    control.
    Of a cell that is invalid or was not measured there are no figures, and its status says why.
    `arms` names the two images, or says that they are one. `published_*` are the source's.
    """
    rows = []
    for key in cell_keys(expected):
        known = published_of(published, key)
        status = status_of(key, records, expected)
        row: dict[str, Any] = {**vars(key), "status": status, "arms": arms(expected)}
        if row["status"] == "completed":
            row |= _measured(key, records, expected, known)
        else:
            row |= undecided("p50", row["status"]) | undecided("p95", row["status"])
        for name, pair in known.items():
            row |= {f"published_{image}_{name}": pair[image] for image in IMAGES}
            row[f"published_{name.removesuffix('_ms')}_ratio"] = pair["new"] / pair["old"]
        rows.append(row)
    table = pd.DataFrame(rows).reindex(columns=list(ROUND_COLUMNS))
    return table.astype(dict.fromkeys(_COUNTS, "Int64"))


def arms(expected: Expected) -> str | None:
    """Return which images are compared, in words; None where none are to be."""
    if not expected.images:
        return None
    old, new = (expected.images[image] for image in IMAGES)
    return f"one image (A/A): {old} in both arms" if old == new else f"{old} against {new}"


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
    mine = asked_for(records, key.profile, expected)
    absent = [f"{i}-{n}" for i in IMAGES for n in expected.numbers if not _of(mine, i, n)]
    if absent:
        return f"{NOT_MEASURED}: no record of {', '.join(absent)}"
    why_not = {_absent(record, key.engine) for record in mine}
    if len(why_not) == 1 and (why := why_not.pop()):
        return f"{NOT_MEASURED}: {why}"
    reasons = [why for record in mine for why in _reasons(record, key)]
    if not reasons:
        reasons = [*incomparable(mine, key.engine), *_unequal_trials(key, mine)]
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


def _unequal_trials(key: CellKey, records: Sequence[Record]) -> list[str]:
    """Say when rounds have unequal numbers of trials: no resample treats them alike."""
    counts = sorted({len(cell["trials"]) for r in records if (cell := cell_of(r, key))})
    return [f"the rounds have {counts} trials: measure them anew"] if len(counts) > 1 else []


def _absent(record: Record, engine: str) -> str | None:
    """Return why a native engine was not at hand in a round; None when it was."""
    native = record.get("natives", {}).get(engine, {})
    return str(native["why"]) if native.get("status") == "not measured" else None


def incomparable(records: Sequence[Record], engine: str = "gateway") -> list[str]:
    """Say in what the rounds of one profile differ that must be equal; [] when in nothing.

    Equal must be: corpus, counts, code, machine, Qdrant, Valkey, how the gateway runs (runtime,
    limits), the native engine that the cell is of, and within each image the gateway's.
    """
    found = []
    parts: dict[str, list[Any]] = {
        "corpus": [r["corpus"] for r in records],
        "scale": [r["scale"] for r in records],
        "configuration": [r["configuration"] for r in records],
        "runtime and limits of the gateway": [
            [r["engines"]["gateway"].get(key) for key in ("runtime", "applied")] for r in records
        ],
        "Qdrant": [r["engines"].get("qdrant") for r in records],
        "Valkey": [r["engines"].get("valkey") for r in records],
        # Of a cluster: two nodes of one hardware are still two machines.
        "node": [r["host"].get("node") for r in records],
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
    return [*found, *_moved_bases(records)]


def _moved_bases(records: Sequence[Record]) -> list[str]:
    """Say which base both gateways name and each was built on in another state.

    A tag that was moved between the builds makes the images differ in more than their source.
    """
    meant: dict[str, set[str]] = {}
    for record in records:
        if base := record["engines"]["gateway"]["image"].get("base"):
            meant.setdefault(str(base["reference"]), set()).add(str(base["id"]))
    return [
        f"the gateways are built on different images that {reference} meant in turn: delete "
        "results/images/gateway-*.json and measure them anew"
        for reference, ids in sorted(meant.items())
        if len(ids) > 1
    ]


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


def trials_by_round(
    key: CellKey, records: Sequence[Record], image: str, quantile: str
) -> list[list[float]]:
    """Return one quantile of each trial of a cell, by round of an image in the order of `n`."""
    mine = [r for r in records if r["profile"] == key.profile and r["image"] == image]
    cells = [cell_of(record, key) for record in sorted(mine, key=lambda r: int(r["repeat"]))]
    return [[float(t["stats"][quantile]) for t in cell["trials"]] for cell in cells if cell]


def trial_values(key: CellKey, records: Sequence[Record], image: str, quantile: str) -> list[float]:
    """Return one quantile of each trial of a cell, all rounds of an image, in their order."""
    return [value for trials in trials_by_round(key, records, image, quantile) for value in trials]


def _measured(
    key: CellKey,
    records: Sequence[Record],
    expected: Expected,
    published: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    mine = asked_for(records, key.profile, expected)
    row: dict[str, Any] = {"margin": expected.margin, "blocks": expected.blocks}
    for quantile in QUANTILES:
        short = quantile.removesuffix("_ms")
        for image in IMAGES:
            values = trial_values(key, mine, image, quantile)
            row[f"{image}_{quantile}"] = arm_median(trials_by_round(key, mine, image, quantile))
            row[f"{image}_{short}_low_ms"] = min(values)
            row[f"{image}_{short}_high_ms"] = max(values)
            row[f"{image}_trials"] = len(values)
        trials, controls = _judged(key, mine, expected, quantile)
        pair = published.get(quantile)
        ratio = pair["new"] / pair["old"] if pair else None
        row |= decided(short, trials, controls, expected.margin, ratio)
    cells = [cell for r in mine if (cell := cell_of(r, key)) is not None]
    trials_of_all = [trial for cell in cells for trial in cell["trials"]]
    row["responses"] = sum(trial["stats"]["n"] for trial in trials_of_all)
    # Only the gateway has a response cache.
    ours = trials_of_all if key.engine == "gateway" else []
    ratios = [t["hit_ratio"] for t in ours if t["hit_ratio"] is not None]
    row["hit_ratio"] = min(ratios, default=None)
    row["scale"] = mine[0]["scale"]
    return row


def decided_cell(
    key: CellKey, records: Sequence[Record], expected: Expected, quantile: str
) -> tuple[Comparison, dict[str, float]]:
    """Return the verdict on a completed cell, and the median of each image's trials in ms."""
    mine = asked_for(records, key.profile, expected)
    found = compared(*_judged(key, mine, expected, quantile), expected.margin)
    return found, {i: arm_median(trials_by_round(key, mine, i, quantile)) for i in IMAGES}


def _judged(
    key: CellKey, records: Sequence[Record], expected: Expected, quantile: str
) -> tuple[Trials, dict[str, Trials]]:
    trials = {image: trials_by_round(key, records, image, quantile) for image in IMAGES}
    return trials, _controls(key, records, expected, quantile)


def _controls(
    key: CellKey, records: Sequence[Record], expected: Expected, quantile: str
) -> dict[str, Trials]:
    """Return the trials of the same cell of each engine that no image is of, where it counts.

    Of an engine that some rounds lost, those of the others: a gauge that is gone in one round must
    not make the verdict firmer. An arm without any round of it is empty.
    """
    found: dict[str, Trials] = {}
    for engine in ENGINES:
        other = replace(key, engine=engine)
        never = status_of(other, records, expected).startswith(NOT_MEASURED)
        if engine in (key.engine, "gateway") or never:
            continue
        kept = [r for r in records if not _reasons(r, other)]
        found[engine] = {i: trials_by_round(other, kept, i, quantile) for i in IMAGES}
    return found


def asked_for(records: Sequence[Record], profile: str, expected: Expected) -> list[Record]:
    """Return the records of a profile that the blocks ask for; others can lie there too."""
    return [r for r in records if r["profile"] == profile and r["repeat"] in expected.numbers]


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
            for n in expected.numbers:
                mine = _of([r for r in records if r["profile"] == profile], image, n)
                for cell in cells:
                    row = {"profile": profile, "image": image, "n": n, "cell": cell}
                    growth = published_log_growth(published, profile, cell)[image]
                    # The source has one block.
                    if n <= len(growth):
                        row["published_growth_bytes"] = growth[n - 1]
                    rows.append(row | _aof_row(mine, cell, profile, expected))
    table = pd.DataFrame(rows).reindex(columns=list(AOF_COLUMNS))
    # Whole numbers stay whole beside rows that have none.
    return table.astype(dict.fromkeys(_WHOLE, "Int64"))


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
        write_csv(table, paths[name])
    return paths


def _of(records: Sequence[Record], image: str, n: int) -> list[Record]:
    return [r for r in records if r["image"] == image and r["repeat"] == n]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)

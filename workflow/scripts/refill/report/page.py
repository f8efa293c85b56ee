"""results/report.html: one file that works offline, from records, ledgers, polls and claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import pyarrow as pa
from markupsafe import Markup

from refill.evidence.hashes import sha256_file
from refill.report import containers_view, proofs_view, rounds_view, text, verdicts_view, views
from refill.report.claims import VERDICTS, claims_table, identical_runs
from refill.report.gateway_claims import PROOF_SERVER
from refill.report.lookup import figure, status_of, usable
from refill.report.machine import described, mixed_runs, noted
from refill.report.plots import ACTIVITY, timeline, to_svg, trade_off
from refill.report.rounds import NO_ROUNDS, Expected
from refill.stats.ratios import LEVEL
from refill.stats.verdict import CONTRADICTED, NOT_MEASURED, REPRODUCED, Value

Record = Mapping[str, Any]
Key = tuple[str, int]

TEMPLATES = Path(__file__).parent / "templates"
WIDE, NARROW = 900, 350


class ReportError(Exception):
    """The page cannot be made; the text names the file and what to do."""


def write(
    project: Path,
    records: Sequence[Record],
    claims: Mapping[str, Any],
    out: Path,
    attempts: Sequence[Mapping[str, Any]] = (),
    manifest: Mapping[str, Any] | None = None,
    rounds: Sequence[Record] = (),
    expected: Expected = NO_ROUNDS,
    proofs: Sequence[Record] = (),
) -> None:
    """Read the ledger and polls of each record and write the page to `out`.

    Paths in records are relative to `project`. `attempts` are those of
    `refill.evidence.attempts.list_attempts`. Raises ReportError when a file that a record names
    is missing, or is not the one that was written with it.
    """
    for record in rounds:
        for name, part in _round_files(record):
            _checked(project, record, name, part)
    ledgers = {_key(r): _read(project, r, "ledger") for r in records}
    polls = {_key(r): _read(project, r, "polls") for r in records}
    page = render(records, ledgers, polls, claims, attempts, manifest, rounds, expected, proofs)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def render(
    records: Sequence[Record],
    ledgers: Mapping[Key, pd.DataFrame],
    polls: Mapping[Key, pd.DataFrame],
    claims: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]] = (),
    manifest: Mapping[str, Any] | None = None,
    rounds: Sequence[Record] = (),
    expected: Expected = NO_ROUNDS,
    proofs: Sequence[Record] = (),
) -> str:
    """Return the whole page. `ledgers` and `polls` are by (id, repeat).

    `rounds` are the records of the gateway rounds, `expected` is what they were to measure;
    `proofs` is the record of the AOF crash proof, if there is one.

    A run without its tables has no picture, and the page says so. No records at all give a page
    that says that nothing was measured.
    """
    records = views.in_order(records)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    experiment = claims["experiments"]["optimizers"]
    table = claims_table(records, claims, rounds, expected, next(iter(proofs), None))
    table = table.astype(object)
    table = table.where(table.notna(), "")
    verdicts = Counter(table["verdict"])
    repeated = views.repeated_ids(records)
    return environment.get_template("report.html.j2").render(
        css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        records=records,
        engines=list(dict.fromkeys(text.engine(r) for r in records)),
        scales=list(dict.fromkeys(text.scale(r) for r in records)),
        embedded=any(r["engine"]["embedded"] for r in records),
        bad=[(views.run_name(r, r["id"] in repeated), _problem(r)) for r in records if _problem(r)],
        not_asked_for=(manifest or {}).get("not_asked_for", []),
        mixed=mixed_runs([r for r in records if usable(r)]),
        across=noted([r for r in records if usable(r)]),
        nodes=_nodes([*records, *rounds]),
        missing=[i for i in experiment["runs"] if i not in {r["id"] for r in records}],
        experiment=experiment,
        verdicts=[(name, verdicts.get(name, 0)) for name in VERDICTS],
        claims={
            name: _by_verdict(table[table["experiment"] == name].to_dict("records"))
            for name in claims["experiments"]
        },
        measured_on={
            name: _measured_on(table[table["experiment"] == name].to_dict("records"))
            for name in claims["experiments"]
        },
        decided=(REPRODUCED, CONTRADICTED),
        level=f"{LEVEL:.0%}",
        proof_server=PROOF_SERVER,
        comparisons=verdicts_view.comparisons(records, experiment["identical"]),
        identical=identical_runs(records, experiment["identical"]).sentence(),
        differ=views.why_absolute_values_differ(records, claims),
        tables=views.tables(records, claims),
        trade_offs=_trade_offs(records, experiment),
        runs=[_run(r, r["id"] in repeated, ledgers, polls, experiment) for r in records],
        optimizers=list(ACTIVITY),
        attempts=attempts,
        outcomes=sorted(Counter(str(a["outcome"]) for a in attempts).items()),
        hosts=_hosts([*records, *rounds, *proofs]),
        host_warnings=_host_warnings([*records, *rounds, *proofs]),
        software=_software(records, manifest),
        packages=_packages(manifest),
        limits=[*views.limits(records), *containers_view.sentences([*records, *rounds, *proofs])],
        rounds=rounds_view.section(rounds, expected, claims["experiments"]["gateway"]),
        proofs=proofs_view.section(proofs),
    )


def _by_verdict(rows: Sequence[Mapping[Any, Any]]) -> list[tuple[str, list[Mapping[Any, Any]]]]:
    """Return (verdict, its claims) for each verdict, decided ones first, in the claims' order."""
    return [(name, [row for row in rows if row["verdict"] == name]) for name in VERDICTS]


def _measured_on(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return the scale and engine of most measured claims, which the page says once above them."""
    names = Counter(
        f"{row['scale']}; {row['engine']}" for row in rows if row["measured"] != NOT_MEASURED
    )
    return next((name for name, _ in names.most_common(1)), "")


def _problem(record: Record) -> str:
    """Return why a run is not simply completed and valid, or nothing."""
    status = status_of(record)
    return "" if status == "completed" else status


def _run(
    record: Record,
    repeated: bool,
    ledgers: Mapping[Key, pd.DataFrame],
    polls: Mapping[Key, pd.DataFrame],
    experiment: Mapping[str, Any],
) -> dict[str, Any]:
    key = _key(record)
    slug = f"run-{''.join(c if c.isalnum() else '-' for c in key[0])}-{key[1]}"
    ended = any(phase["end_s"] > 0 for phase in record["phases"])
    pictures = []
    if ended and key in ledgers and key in polls:
        pictures = [
            (
                name,
                Markup(to_svg(timeline(record, ledgers[key], polls[key], width), f"{slug}{name}")),
            )
            for name, width in (("wide", WIDE), ("narrow", NARROW))
        ]
    return {
        "slug": slug,
        "name": views.run_name(record, repeated),
        "label": record["label"],
        "description": record["description"],
        "problem": _problem(record),
        "usable": usable(record),
        "warnings": record.get("warnings", []),
        "facts": views.run_facts(record),
        "phases": views.run_phases(record),
        "pictures": pictures,
        "alt": views.picture_text(record),
        "settings": views.settings(record),
        "notes": record["configuration"].get("notes", []),
        "caveats": experiment["runs"].get(record["id"], {}).get("caveats", []),
    }


def _trade_offs(records: Sequence[Record], experiment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the pictures of drain time against steady latency: measured, published."""
    repeated = views.repeated_ids(records)
    measured: list[dict[str, Any]] = []
    undrawn = [i for i in experiment["runs"] if i not in {r["id"] for r in records}]
    for record in records:
        drain = figure(record, "drain_s", None, None)
        p50 = figure(record, "p50_ms", "steady", "open")
        recall = figure(record, "recall_mean", "steady", "open")
        if isinstance(drain, Value) and isinstance(p50, Value):
            measured.append(
                {
                    "id": views.run_name(record, record["id"] in repeated),
                    "drain_s": drain.value,
                    "p50_ms": p50.value,
                    "recall": recall.value if isinstance(recall, Value) else None,
                    "bound": drain.bound,
                    "at_most": drain.at_most,
                }
            )
        else:
            undrawn.append(views.run_name(record, record["id"] in repeated))
    published: list[dict[str, Any]] = [
        {
            "id": id_,
            "drain_s": run["draining_s"],
            "p50_ms": run["phases"]["steady"]["p50_ms"],
            "recall": None,
            "bound": bool(run.get("drain_limit_reached")),
            "at_most": False,
        }
        for id_, run in experiment["runs"].items()
    ]
    return [
        _trade_off("measured", "measured, open loop", measured, undrawn),
        _trade_off("published", "published, closed loop, recall not measured", published, []),
    ]


def _trade_off(
    slug: str, title: str, points: Sequence[dict[str, Any]], undrawn: Sequence[str]
) -> dict[str, Any]:
    svg = to_svg(trade_off(points, title, 440, 400), f"trade-{slug}") if points else ""
    listed = "; ".join(
        f"{p['id']} {text.value(Value(p['drain_s'], p['bound'], p['at_most']))} s, "
        f"{text.number(p['p50_ms'])} ms"
        f"{'' if p['recall'] is None else ', recall ' + text.recall(p['recall'])}"
        for p in points
    )
    return {
        "title": title,
        "svg": Markup(svg),
        "alt": f"Drain time against steady p50, {title}: {listed}",
        "undrawn": sorted(undrawn),
    }


def _hosts(records: Sequence[Record]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each distinct machine with the runs that it measured; what varies is left out."""
    hosts: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for record in records:
        facts = tuple(views.flat(described(record.get("host", {}))))
        hosts.setdefault(facts, []).append(str(record["id"]))
    return [(", ".join(dict.fromkeys(ids)), list(facts)) for facts, ids in hosts.items()]


def _nodes(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return (node, runs) for each node of a cluster that measured; [] where there was none."""
    found: dict[str, list[str]] = {}
    for record in records:
        if node := record.get("host", {}).get("node"):
            found.setdefault(node, []).append(f"{record['id']} {record['repeat']}")
    return [(node, ", ".join(ids)) for node, ids in sorted(found.items())]


def _host_warnings(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return (runs, warning) for what made a machine unsteady when a run began."""
    found: dict[str, list[str]] = {}
    for record in records:
        for warning in record.get("host", {}).get("warnings", []):
            found.setdefault(warning, []).append(str(record["id"]))
    total = len(records)
    return [
        ("all runs" if len(ids) == total else ", ".join(ids), warning)
        for warning, ids in found.items()
    ]


def _software(
    records: Sequence[Record], manifest: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Return engine identities and, from the manifest, revision, command and versions."""
    pairs: list[tuple[str, str]] = []
    for record in records:
        engine = {k: v for k, v in record["engine"].items() if k != "name"}
        pairs += [(f"engine {name}", value) for name, value in views.flat(engine)]
        pairs.append(("code", str(record["code"])))
    if manifest:
        pairs += views.flat(manifest.get("git", {}), "git")
        pairs.append(("command", " ".join(manifest.get("command", []))))
        versions = {k: v for k, v in manifest.get("versions", {}).items() if k != "packages"}
        pairs += views.flat(versions)
    return [pair for pair in dict.fromkeys(pairs) if pair[1]]


def _packages(manifest: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return views.flat(((manifest or {}).get("versions") or {}).get("packages") or {})


def _key(record: Record) -> Key:
    return str(record["id"]), int(record["repeat"])


def _round_files(record: Record) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (key, entry with path and SHA-256) of each file that a round's record names."""
    profiles = [(f"profiles.{p['name']}", p) for p in record["profiles"]]
    return [("ledger", record["ledger"]), ("resources", record["resources"]), *profiles]


def _read(project: Path, record: Record, part: str) -> pd.DataFrame:
    path = _checked(project, record, part, record[part])
    try:
        return pd.read_parquet(path)
    except pa.ArrowException as error:
        problem = f"is no Parquet file ({error})"
        raise _refused(record, f"{part}.path", record[part]["path"], problem) from error


def _checked(project: Path, record: Record, key: str, entry: Mapping[str, Any]) -> Path:
    """Return the path of a file of a record; it must be the one that was written with it."""
    path = project / str(entry["path"])
    if not path.is_file():
        raise _refused(record, f"{key}.path", entry["path"], "is missing")
    if (got := sha256_file(path)) != entry["sha256"]:
        changed = f"is not the file of this record: its SHA-256 is {got}, not {entry['sha256']}"
        raise _refused(record, f"{key}.sha256", entry["path"], changed)
    return path


def _refused(record: Record, key: str, path: str, problem: str) -> ReportError:
    return ReportError(
        f"results of {record['id']} repeat {record['repeat']}: {key}: {path} {problem}; put the "
        "right file back, or delete the record and run the workflow again"
    )

"""What the page shows, as text: tables of cells, facts and sentences. No HTML here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refill.report import text
from refill.report.lookup import NOT_MEASURED, drain_text, phase_of, status_of, timeout_s, usable
from refill.report.tables import expected_ids

Record = Mapping[str, Any]
QUANTILES = ("p50_ms", "p95_ms", "p99_ms")
UNRESOLVED = "†"


@dataclass(frozen=True)
class Cell:
    """One cell: the measured text, the published figure beside it, a class for its look, a note."""

    text: str
    published: str = ""
    kind: str = "number"
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a two-line head: `groups` are (title, columns it spans), `heads` the columns.

    The second cell of a row is its state; it has no column, and stands with the name.
    """

    id: str
    title: str
    lead: str
    groups: Sequence[tuple[str, int]]
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def published(self) -> bool:
        """Whether any published figure stands in it."""
        return any(cell.published for row in self.rows for cell in row[1:])


def run_name(record: Record, repeated: bool) -> str:
    """Return the id of a run, with its repeat where there are several."""
    return f"{record['id']} · {record['repeat']}" if repeated else str(record["id"])


def in_order(records: Sequence[Record]) -> list[Record]:
    """Return records by id and repeat."""
    return sorted(records, key=lambda r: (str(r["id"]), int(r["repeat"])))


def tables(records: Sequence[Record], claims: Mapping[str, Any]) -> list[Table]:
    """Return the tables of all configurations: draining, steady, follow-up, upload."""
    return [
        _draining(records, claims),
        _steady(records, claims),
        _followups(records, claims),
        _uploads(records, claims),
    ]


def repeated_ids(records: Sequence[Record]) -> set[str]:
    """Return the ids that were measured more than once."""
    ids = [str(r["id"]) for r in records]
    return {i for i in ids if ids.count(i) > 1}


def why_absolute_values_differ(records: Sequence[Record], claims: Mapping[str, Any]) -> str:
    """Return the plain sentence on why measured and published times are not the same."""
    setting = claims["experiments"]["optimizers"]["setting"].strip()
    measured = "; ".join(dict.fromkeys(f"{text.scale(r)} on {text.engine(r)}" for r in records))
    return (
        "Absolute values differ from the published ones because number, dimension and kind of "
        "vectors, engine build, machine and client differ: published are "
        f"{setting}; measured is {measured or 'nothing yet'}. "
        "Compare directions and orders of size, not milliseconds."
    )


def limits(records: Sequence[Record]) -> list[str]:
    """Return what the figures on the page cannot say, as sentences."""
    sentences = []
    if any(r["engine"]["embedded"] for r in records):
        sentences += [
            "The engine is embedded: Qdrant's own storage, index and optimizers (qdrant-edge), "
            "behind a small HTTP front of this project. It is not the Qdrant server, and no "
            "figure here is one of the server's.",
            "Every call into the embedded engine holds Python's interpreter lock (GIL), so one "
            "search runs at a time in the front; the optimizer runs in a second process. Under "
            "the open loop, searches that arrive together queue.",
            "With prevent_unoptimized, the front leaves segments that wait for their index out of "
            "searches; the engine itself has no such switch. max_optimization_threads above 1 is "
            "not modelled.",
        ]
    repeats = {str(r["id"]): 0 for r in records}
    for record in records:
        repeats[str(record["id"])] += int(usable(record))
    if repeats and max(repeats.values()) < 2:
        sentences.append(
            "Each configuration was measured once: the only measure of noise is the spread over "
            "configurations that are the same."
        )
    return [
        *sentences,
        "Client and engine share one machine and its cores.",
        "The sampler is part of the load: a drain under an open loop and one under a closed loop "
        "take different times. All runs here use the same sampler; the published ones used a "
        "closed loop alone.",
        "The open loop counts from the planned time of sending, so a stall counts for every "
        "request it holds up. The closed loop sends when the last answer is there, so a stall "
        "counts once; it is kept to compare with the published figures.",
        "An upload that is paced says nothing about how fast an upload can be.",
        "Recall is recall@10 against exact search over all stored points.",
    ]


def run_facts(record: Record) -> list[tuple[str, str]]:
    """Return name and value of what a reader wants to know first about a run."""
    facts = [
        ("outcome", status_of(record)),
        ("engine", text.engine(record)),
        ("data", text.scale(record)),
    ]
    if usable(record):
        facts.append(("drain", f"{drain_text(record)} s"))
    ledger = record["ledger"]
    counts = ledger["counts"]
    kept = "conserved" if ledger["conservation"]["ok"] else "NOT conserved"
    facts.append(
        (
            "requests",
            f"{counts['issued']:,} issued = {counts['ok']:,} ok + {counts['wrong']:,} wrong + "
            f"{counts['error']:,} error + {counts['timeout']:,} timeout ({kept})",
        )
    )
    driver = record.get("driver") or {}
    if driver.get("floor_p50_ms") is not None:
        facts.append(("driver floor", f"p50 {text.number(driver['floor_p50_ms'])} ms"))
    return facts


def run_phases(record: Record) -> list[tuple[str, ...]]:
    """Return one row a phase: name, length, what ended it, optimizers, recall, visible, p50s."""
    rows: list[tuple[str, ...]] = []
    for phase in record["phases"]:
        ended = {k: v for k, v in phase["ended_by"].items() if v is not None}
        evidence = ", ".join(f"{k} {_plain(v)}" for k, v in ended.items() if k != "reason")
        share = phase.get("visible_share") or {}
        rows.append(
            (
                str(phase["name"]),
                text.number(phase["seconds"]),
                f"{ended.get('reason', 'not recorded')}{f' ({evidence})' if evidence else ''}",
                ", ".join(phase.get("optimizers_seen", [])) or "none seen",
                text.recall((phase.get("recall") or {}).get("mean")),
                text.share(share.get("min")),
                text.latency(phase.get("open"), "p50_ms", timeout_s(record)),
                text.latency(phase.get("closed"), "p50_ms", timeout_s(record)),
            )
        )
    return rows


def published_drain(run: Mapping[str, Any]) -> str:
    """Return the published drain time of a run, marked where it is the limit of the drain."""
    return f"{'≥ ' if run.get('drain_limit_reached') else ''}{run['draining_s']:,.1f}"


def picture_text(record: Record) -> str:
    """Return what the timeline shows, in words, for those who do not see it."""
    parts = []
    for phase in record["phases"]:
        loop = "latency" if phase["name"] == "upload" else "open"
        block = (phase.get("upload") or {}) if phase["name"] == "upload" else phase
        p50 = text.latency(block.get(loop), "p50_ms", timeout_s(record))
        seen = ", ".join(phase.get("optimizers_seen", [])) or "no optimizer"
        parts.append(
            f"{phase['name']} from {text.number(phase['start_s'])} to "
            f"{text.number(phase['end_s'])} s: median {p50} ms, {seen} running"
        )
    return f"Timeline of {record['id']}. {'; '.join(parts)}."


def settings(record: Record) -> list[tuple[str, str]]:
    """Return what was really set, flat."""
    return flat(record["configuration"].get("applied", {}))


def flat(value: Any, where: str = "") -> list[tuple[str, str]]:
    """Return a nested JSON value as (dotted name, text) pairs; empty parts are left out."""
    if isinstance(value, Mapping):
        return [pair for k, v in value.items() for pair in flat(v, f"{where}.{k}".lstrip("."))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        joined = ", ".join(_plain(item) for item in value)
        return [(where, joined)] if joined else []
    if where.endswith("_bytes") and isinstance(value, int):
        return [(where.removesuffix("_bytes"), text.bytes_(value))]
    return [] if value is None else [(where, _plain(value))]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else text.number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    return str(value)


def _rows(
    records: Sequence[Record], claims: Mapping[str, Any], row: Any, ids: Sequence[str] | None = None
) -> list[list[Cell]]:
    published = claims["experiments"]["optimizers"]["runs"]
    repeated = repeated_ids(records)
    rows: list[list[Cell]] = []
    for id_ in ids if ids is not None else expected_ids(records, claims):
        mine: list[Record | None] = [*in_order([r for r in records if r["id"] == id_])]
        for record in mine or [None]:
            source = published.get(id_)
            label = record["label"] if record else source["label"]
            name = run_name(record, id_ in repeated) if record else id_
            state = _state(record)
            rows.append([Cell(name, label, "name"), state, *row(record, source)])
    return rows


def _state(record: Record | None) -> Cell:
    if record is None:
        return Cell(NOT_MEASURED, kind="state missing")
    kind = "state ok" if usable(record) and record["outcome"] == "completed" else "state bad"
    return Cell(status_of(record), kind=kind)


def _shown(record: Record | None, phase: str) -> Mapping[str, Any]:
    """Return a phase whose figures may be shown, else an empty one."""
    if record is None or not usable(record):
        return {}
    return phase_of(record, phase) or {}


def _latencies(
    record: Record | None, phase: Mapping[str, Any], source: Mapping[str, Any] | None
) -> list[Cell]:
    """Return n, p50, p95, p99 of the open loop and of the closed one with the published figures."""
    limit = timeout_s(record) if record else 0.0
    cells = []
    for loop in ("open", "closed"):
        stats = phase.get(loop)
        beside = source if loop == "closed" else None
        cells.append(
            Cell(f"{stats['n']:,}" if stats else text.NONE, f"{beside['n']:,}" if beside else "")
        )
        for key in QUANTILES:
            shown = text.latency(stats, key, limit)
            if key == "p99_ms" and stats and not stats["p99_resolved"]:
                shown += UNRESOLVED
            cells.append(Cell(shown, text.printed(beside[key]) if beside else ""))
    return cells


def _truth(phase: Mapping[str, Any]) -> list[Cell]:
    share = phase.get("visible_share") or {}
    return [
        Cell(text.recall((phase.get("recall") or {}).get("mean"))),
        Cell(text.share(share.get("min"))),
    ]


_LATENCY_GROUPS = (("open loop, ms", 4), ("closed loop, ms (published below)", 4))
_LATENCY_HEADS = ("n", "p50", "p95", "p99") * 2
_RESOLVED = f"{UNRESOLVED} fewer than 10 samples lie beyond this p99."
_BOUND = "≥ a lower bound: a time limit was reached. ≤ an upper one: shorter than a poll interval."


def _draining(records: Sequence[Record], claims: Mapping[str, Any]) -> Table:
    def row(record: Record | None, source: Mapping[str, Any] | None) -> list[Cell]:
        phase = _shown(record, "draining")
        drain = drain_text(record) if record and phase else text.NONE
        beside = published_drain(source) if source else ""
        return [
            Cell(drain, beside),
            *_truth(phase),
            *_latencies(record, phase, source["phases"]["draining"] if source else None),
        ]

    return Table(
        "draining",
        "While the backlog drains",
        "From the end of the upload until no optimizer runs or waits. Beside each latency stand "
        "recall and the smallest share of points that searches could see.",
        (("", 1), ("drain", 1), ("truth", 2), *_LATENCY_GROUPS),
        ("run", "s", "recall@10", "visible, lowest", *_LATENCY_HEADS),
        _rows(records, claims, row),
        (_RESOLVED, _BOUND),
    )


def _steady(records: Sequence[Record], claims: Mapping[str, Any]) -> Table:
    def row(record: Record | None, source: Mapping[str, Any] | None) -> list[Cell]:
        phase = _shown(record, "steady")
        check = phase.get("stationary")
        steady, kind = text.NONE, "words"
        if check is not None:
            steady = "yes" if check["ok"] else f"no: {check['reason']}"
            kind = "state ok" if check["ok"] else "state warn"
        return [
            Cell(steady, kind=kind),
            *_truth(phase),
            *_latencies(record, phase, source["phases"]["steady"] if source else None),
        ]

    return Table(
        "steady",
        "Once it is steady",
        "After the drain, with polling going on. A run that reached its drain limit has no steady "
        "phase.",
        (("", 1), ("check", 1), ("truth", 2), *_LATENCY_GROUPS),
        ("run", "stationary", "recall@10", "visible, lowest", *_LATENCY_HEADS),
        _rows(records, claims, row),
        (_RESOLVED, _BOUND),
    )


def _followups(records: Sequence[Record], claims: Mapping[str, Any]) -> Table:
    published = claims["experiments"]["optimizers"]["runs"]
    with_event = [
        id_
        for id_ in expected_ids(records, claims)
        if "followup" in published.get(id_, {})
        or any(phase_of(r, "followup-draining") for r in records if r["id"] == id_)
    ]
    rows: list[list[Cell]] = []
    for id_ in with_event:
        for name in ("followup-draining", "followup-steady"):
            rows += _rows(records, claims, _followup_row(name), [id_])
    return Table(
        "followup",
        "After the follow-up event",
        "D deletes 25 % of the points, E switches indexing on; then the drain and the steady state "
        "again. The source searched once after the event: its figures stand at the drain.",
        (("", 1), ("event", 3), ("truth", 2), *_LATENCY_GROUPS),
        ("run", "phase", "s", "optimizers seen", "recall@10", "visible, lowest",
         *_LATENCY_HEADS),
        rows,
        (_RESOLVED, _BOUND),
    )  # fmt: skip


def _followup_row(name: str) -> Any:
    def row(record: Record | None, source: Mapping[str, Any] | None) -> list[Cell]:
        phase = _shown(record, name)
        beside = seen = None
        if source and name == "followup-draining":
            beside = source["phases"].get("followup")
            seen = source.get("followup", {}).get("running_optimizers")
        length = phase.get("drain_s", phase.get("seconds"))
        return [
            Cell(name.removeprefix("followup-"), kind="words"),
            Cell(text.bounded(length, phase.get("outcome") == "drain_limit")),
            Cell(
                (", ".join(phase["optimizers_seen"]) or "none") if phase else text.NONE,
                "" if seen is None else ", ".join(seen) or "none",
                "words",
            ),
            *_truth(phase),
            *_latencies(record, phase, beside),
        ]

    return row


def _uploads(records: Sequence[Record], claims: Mapping[str, Any]) -> Table:
    def row(record: Record | None, source: Mapping[str, Any] | None) -> list[Cell]:
        phase = _shown(record, "upload")
        upload = phase.get("upload") or {}
        paced = upload.get("paced_at")
        peaks = [
            (p.get("memory") or {}).get("rss_peak_bytes")
            for p in (record["phases"] if record and phase else [])
        ]
        wall = (record["wall"] if record else None) or {}
        beside = text.printed(source["upload_s"]) if source else ""
        return [
            Cell(text.number(phase.get("seconds")), beside),
            Cell(text.number(upload.get("points_per_s"))),
            Cell(f"{paced:,}/s" if paced else "no" if phase else text.NONE),
            Cell(text.latency(upload.get("latency"), "p50_ms", timeout_s(record) if record else 0)),
            Cell(text.bytes_(max((p for p in peaks if p is not None), default=None))),
            Cell(text.number(wall.get("total_s"))),
            Cell(text.share(wall.get("share"))),
        ]  # fmt: skip

    return Table(
        "upload",
        "Upload, memory, time",
        "The upload ends when the counts of the engine are verified.",
        (("", 1), ("upload (published below)", 4), ("engine", 1), ("whole run", 2)),
        ("run", "s", "points/s", "paced at", "batch p50, ms", "memory, peak", "s",
         "measured share"),
        _rows(records, claims, row),
    )  # fmt: skip

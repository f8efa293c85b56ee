"""Measure one optimizer configuration once, and leave a record whatever happens.

The steps: hold the machine, begin an attempt, measure the driver's floor, start the engine, run
the phases, end the engine, work out the figures, write ledger, polls and record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from refill.batch_job import scratch, unspoken
from refill.config import resolve_optimizers
from refill.corpora.store import Corpus
from refill.engines import qdrant
from refill.engines.description import EngineError
from refill.engines.qdrant import Api
from refill.evidence.attempts import Attempt
from refill.evidence.hashes import sha256_file
from refill.evidence.host import host_facts
from refill.evidence.records import write_json
from refill.evidence.scrub import without_paths
from refill.evidence.turns import staged
from refill.load.clients import ClientError
from refill.load.floor import measure as measure_floor
from refill.load.ledger import conservation
from refill.oracle.recall import TruthError
from refill.phases.attempted import attempted
from refill.phases.containers import opened
from refill.phases.optimizer_record import judged, phase_figures
from refill.phases.optimizer_run import OPEN_CONNECTIONS, OptimizerRun, PhaseError, Settings
from refill.phases.pauses import stood_still
from refill.phases.qdrant_engine import QdrantParts
from refill.progress import Progress
from refill.runtimes.engine import explained

SCHEMA = "refill.optimizer-run/1"


@dataclass(frozen=True)
class Files:
    """What a run reads and writes, relative to the project's folder `root`.

    Attributes:
        corpus: folder of the prepared corpus.
        image: record of the engine's image; None for a binary or a URL.
        record, ledger, polls: what is written.
    """

    root: Path
    corpus: Path
    image: Path | None
    record: Path
    ledger: Path
    polls: Path


def measure(plan: Mapping[str, Any], files: Files, progress: Progress) -> dict[str, Any]:
    """Measure one configuration and write its record, ledger and polls.

    Args:
        plan: `id`, `repeat`, `group`, `label`, `description`, `scale`, `seed`, `qdrant`,
            `entry`, `defaults`, `hnsw_defaults` and `override` (what the optimizers are to do),
            `upload`, `search`, `draining`, `steady`, `cpus` and `code`, all from the config.
        files: what is read and written.
        progress: where the run says how far it is.

    Returns:
        The record.

    Raises:
        StoppedError: the run was stopped; the attempt says so and no record is written.
    """
    return attempted(
        files.root,
        f"optimizers/{plan['id']}/{plan['repeat']}",
        plan,
        [files.record, files.ledger, files.polls],
        progress,
        lambda attempt, waited: _measure(plan, files, attempt, progress, waited),
    )


def _drop(run: OptimizerRun, progress: Progress) -> None:
    """Remove what this run made on a server that is not ours; say so when that fails."""
    if not run.created:
        return
    try:
        run.api.drop()
    except EngineError as error:
        progress.say(f"note: the run's collection stays on the server: {error}")


def _measure(
    plan: Mapping[str, Any], files: Files, attempt: Attempt, progress: Progress, waited: float
) -> dict[str, Any]:
    started, clock = datetime.now(UTC), time.monotonic()
    corpus = Corpus.open(files.corpus, verify=True)
    configuration = _configuration(plan, corpus)
    settings = _settings(plan, configuration["applied"])
    host = host_facts(scratch(files.root))
    failure: str | None = None
    identity: dict[str, Any] = {}
    containers: dict[str, Any] | None = None
    with ExitStack() as stack:
        images = [files.image] if files.image is not None else []
        inside = stack.enter_context(opened(plan, attempt.folder, 1, progress.say, images))
        # Here, where the driver has the CPUs that it has in the run.
        floor = measure_floor()
        parts = QdrantParts(files.root, files.image, plan["qdrant"], plan["cpus"])
        # One folder for each target, so that a rerun finds and removes what a killed run left.
        data = scratch(files.root) / attempt.target.replace("/", "-")
        engine = parts.engine(data, attempt.folder / "qdrant.log", inside)
        stack.enter_context(engine)
        api = Api(engine.address, qdrant.api_key(plan["qdrant"]["api_key_env"]))
        stack.callback(api.close)
        containers = inside.record() if inside else None
        run = OptimizerRun(settings, corpus, engine, api, attempt.folder, progress)
        if engine.runtime == "external":
            stack.callback(_drop, run, progress)
        try:
            identity = parts.identity(engine, api.identity())
            run.run()
        except (PhaseError, EngineError, ClientError, TruthError) as error:
            # While the engine is still there to tell. Its words may hold paths of this machine; a
            # record holds none.
            failure = without_paths(explained(error, [engine]), unspoken(files.root))
            if not run.phases:  # nothing was measured: an error, not a result
                raise type(error)(failure) from error
            progress.say(f"the run is invalid: {failure}")
        ended = run.now()
    rows, polls = run.ledger.frame(), run.polls.frame()
    if failure and run.phases and not run.phases[-1].end:
        run.phases[-1].end = ended
        run.phases[-1].ended_by = {"reason": "failed", "why": failure}
    figures = phase_figures(run.phases, rows, polls, corpus.points, settings)
    kept = conservation(rows, run.windows) if failure is None else _not_kept(run)
    longest_stall_s, stalls = stood_still(run.windows, polls, settings.steady["poll_s"])
    outcome, invalid, warnings = judged(figures, _expected(settings), kept, stalls, failure)
    ledger, polls_table = staged(attempt, files.ledger), staged(attempt, files.polls)
    ledger_rows, poll_rows = run.ledger.finish(ledger), run.polls.finish(polls_table)
    total = time.monotonic() - clock
    measured = sum(phase["seconds"] for phase in figures)
    record = {
        "schema": SCHEMA,
        **{key: plan[key] for key in ("id", "repeat", "group", "label", "description", "scale")},
        "attempt": attempt.name,
        "started_at": _stamp(started),
        "ended_at": _stamp(datetime.now(UTC)),
        "waited_for_machine_s": waited,
        "valid": not invalid,
        "invalid": invalid,
        "warnings": warnings,
        "outcome": outcome,
        "code": plan["code"],
        "corpus": _corpus_block(files, corpus),
        "engine": identity,
        "containers": containers,
        "configuration": {**configuration, "readback": run.readback},
        "host": host,
        "driver": {**floor, "longest_stall_s": longest_stall_s},
        "sampler": {
            "draining": dict(settings.draining),
            "steady": dict(settings.steady),
            "open_connections": OPEN_CONNECTIONS,
            **settings.search,
        },
        "phases": figures,
        "drain_s": next((p["drain_s"] for p in figures if p["name"] == "draining"), None),
        "memory": run.memory,
        "ledger": {
            "path": _relative(files, files.ledger),
            "sha256": sha256_file(ledger),
            "rows": ledger_rows,
            "counts": kept["counts"],
            "conservation": {key: kept[key] for key in ("ok", "violations", "checks")},
        },
        "polls": {
            "path": _relative(files, files.polls),
            "sha256": sha256_file(polls_table),
            "rows": poll_rows,
        },
        "wall": {"total_s": total, "measured_s": measured, "share": measured / total},
    }
    write_json(staged(attempt, files.record), record)
    return record


def _configuration(plan: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
    """Give what was asked for and what it means as numbers, now that the corpus is known."""
    overrides = {plan["id"]: plan["override"]} if plan["override"] else {}
    return resolve_optimizers(
        plan["entry"],
        plan["defaults"],
        overrides,
        corpus.points,
        corpus.dimension,
        plan["cpus"],
        plan["hnsw_defaults"],
    )


def _settings(plan: Mapping[str, Any], applied: Mapping[str, Any]) -> Settings:
    return Settings(
        applied["optimizers"],
        applied["hnsw"],
        applied["followup"] or None,
        plan["upload"],
        plan["search"],
        plan["draining"],
        plan["steady"],
        plan["seed"],
    )


def _expected(settings: Settings) -> list[str]:
    names = ["upload", "draining", "steady"]
    return [*names, "followup-draining", "followup-steady"] if settings.followup else names


def _corpus_block(files: Files, corpus: Corpus) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "points": corpus.points,
        "dimension": corpus.dimension,
        "distance": corpus.distance,
        "queries": len(corpus.queries()),
        "sha256": sha256_file(files.corpus / "corpus.json"),
    }


def _not_kept(run: OptimizerRun) -> dict[str, Any]:
    """A run that broke off: the clients' own accounts are incomplete, so nothing is claimed."""
    counts = {status: run.ledger.counts[status] for status in ("ok", "wrong", "error", "timeout")}
    return {
        "ok": False,
        "violations": ["the run broke off, so its requests cannot be accounted for"],
        "counts": {"issued": run.ledger.issued, **counts},
        "checks": {"windows": 0, "widest_hole_share": None, "longest_wait_s": None},
    }


def _relative(files: Files, path: Path) -> str:
    return path.resolve().relative_to(files.root.resolve()).as_posix()


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

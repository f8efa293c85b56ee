"""Run the whole proof as an attempt, and leave a record whatever comes of it."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from refill.batch_job import scratch as scratch_of
from refill.batch_job import unspoken
from refill.engines.description import EngineError
from refill.evidence.attempts import Attempt
from refill.evidence.host import host_facts
from refill.evidence.records import write_json
from refill.evidence.scrub import without_paths
from refill.evidence.turns import staged
from refill.phases.attempted import attempted
from refill.progress import Progress
from refill.proofs import crash_gateway, crash_server
from refill.proofs.disk import IMAGE_NAME, remove_leftovers
from refill.proofs.findings import IMAGES, OUTCOMES
from refill.proofs.servers import DEFAULT, Program
from refill.proofs.setup import Setup, opened
from refill.proofs.subject import Subject
from refill.proofs.suite import SCALES, judge, run_all

SCHEMA = "refill.proof/1"
TARGET = "proofs/aof"
SCRATCH = TARGET.replace("/", "-")


@dataclass(frozen=True)
class Files:
    """What the proof reads and writes.

    Attributes:
        root: the working folder; attempts go below its `results`, as scratch does outside of a
            cluster's job.
        images: the image records of `old`, `new` and `qdrant`, in containers of `valkey` too.
        record: what is written.
    """

    root: Path
    images: Mapping[str, Path]
    record: Path


def prove(plan: Mapping[str, Any], files: Files, progress: Progress) -> dict[str, Any]:
    """Run the proof and write its record.

    Args:
        plan: `code`, `scale` (a name for records), `form` (`smoke` or `full`), `seed`, `servers`
            (paths by name, null for one to look for); `runtime`, for docker also `docker`: `host`.
        files: what is read and written.
        progress: where the proof says how far it is.

    Returns:
        The record.

    Raises:
        EngineError: there is no default server or no daemon, or an image is not the one of its
            record.
        StoppedError: the proof was stopped; its attempt says so, and no record is written.
    """
    inside = files.record.resolve().is_relative_to(files.root.resolve())
    written = [files.record] if inside else []

    def work(attempt: Attempt, waited: float) -> dict[str, Any]:
        record = _prove(plan, files, attempt, progress, waited)
        write_json(staged(attempt, files.record) if inside else files.record, record)
        if not (inside and record["valid"]):
            # A rerun replaces the record; the attempt keeps this one.
            write_json(attempt.folder / f"{files.record.stem}.json", record)
        return record

    return attempted(files.root, TARGET, plan, written, progress, work)


def replay(
    plan: Mapping[str, Any], files: Files, what: str, say: Callable[[str], None]
) -> list[str]:
    """Run one episode of a crash history again; what it found.

    Args:
        what: `crash-server:IMAGE:EPISODE` or `crash-gateway:IMAGE:EPISODE`, as a failure names it.
        say: told what is removed that an earlier run left.

    Raises:
        EngineError: it names no episode.
    """
    id_, _, rest = what.partition(":")
    image, _, number = rest.partition(":")
    if (
        id_ not in (crash_server.ID, crash_gateway.ID)
        or image not in IMAGES
        or not number.isdigit()
    ):
        raise EngineError(
            f"{what!r} is no episode: write {crash_server.ID}:IMAGE:EPISODE or "
            f"{crash_gateway.ID}:IMAGE:EPISODE, with IMAGE {' or '.join(IMAGES)}"
        )
    scratch = _empty_scratch(files.root)
    try:
        with opened(plan, files.images, scratch, say) as setup:
            default = next(p for p in setup.programs if p.name == DEFAULT)
            subject = _subject(plan, setup, image, default, scratch)
            if id_ == crash_server.ID:
                return crash_server.episode(
                    subject, int(number), crash_server.KILLS_AN_EPISODE
                ).failures
            return crash_gateway.episode(
                subject, int(number), crash_gateway.KILLS_AN_EPISODE
            )[0].failures  # fmt: skip
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _prove(
    plan: Mapping[str, Any], files: Files, attempt: Attempt, progress: Progress, waited: float
) -> dict[str, Any]:
    started, clock = datetime.now(UTC), time.monotonic()
    host = host_facts(scratch_of(files.root))
    scratch = _empty_scratch(files.root)
    try:
        with opened(plan, files.images, scratch, progress.say) as setup:
            subjects = [
                _subject(plan, setup, image, program, scratch)
                for program in setup.programs
                if not program.missing
                for image in reversed(IMAGES)
            ]
            entries = run_all(subjects, progress.say, progress.at)
    finally:
        _empty_scratch(files.root)
    for made in entries:
        made["why"] = without_paths(made["why"], unspoken(files.root))
    invalid = judge(entries)
    return {
        "schema": SCHEMA,
        "id": TARGET,
        "repeat": 1,
        "attempt": attempt.name,
        "code": plan["code"],
        "scale": plan["scale"],
        "form": plan["form"],
        "seed": plan["seed"],
        "started_at": _stamp(started),
        "ended_at": _stamp(datetime.now(UTC)),
        "waited_for_machine_s": waited,
        "valid": not invalid,
        "invalid": invalid,
        "outcome": "failed" if invalid else "completed",
        "runtime": setup.runtime,
        "containers": setup.containers,
        "images": setup.images,
        "servers": [program.as_json() for program in setup.programs],
        "default_server": DEFAULT,
        # As other records give engines.
        "engines": {p.name: p.engine_json() for p in setup.programs if not p.missing},
        "configuration": {"form": plan["form"], "root": os.geteuid() == 0},
        "host": host,
        "counts": _counts(entries, setup.programs),
        "checks": entries,
        "wall": {"total_s": time.monotonic() - clock},
    }


def _subject(
    plan: Mapping[str, Any], setup: Setup, image: str, program: Program, scratch: Path
) -> Subject:
    return Subject(
        image,
        setup.sources[image],
        program,
        scratch,
        SCALES[plan["form"]],
        plan["seed"],
        setup.parts[image],
    )


def _counts(entries: list[dict[str, Any]], programs: list[Program]) -> dict[str, Any]:
    """Give how many checks had which outcome, by server."""
    counts = {}
    for program in programs:
        seen = Counter(made["outcome"] for made in entries if made["server"] == program.name)
        counts[program.name] = {outcome: seen[outcome] for outcome in OUTCOMES}
    return counts


def _empty_scratch(root: Path) -> Path:
    """Make the scratch folder empty: what a killed proof left in it may be mounted."""
    scratch = (scratch_of(root) / SCRATCH).resolve()
    for image in scratch.glob(f"*/{IMAGE_NAME}"):
        remove_leftovers(image.parent)
    shutil.rmtree(scratch, ignore_errors=True)
    return scratch


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

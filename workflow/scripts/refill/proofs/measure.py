"""Run the whole proof as an attempt, and leave a record whatever comes of it."""

from __future__ import annotations

import json
import os
import secrets
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
from refill.evidence.records import RecordError, read_json, write_json
from refill.evidence.scrub import without_paths
from refill.evidence.turns import staged
from refill.phases.attempted import attempted
from refill.progress import Progress
from refill.proofs.asked_for import asked_for
from refill.proofs.disk import IMAGE_BYTES
from refill.proofs.findings import IMAGES, OUTCOMES
from refill.proofs.lanes import run_lanes
from refill.proofs.scratch import Scratch
from refill.proofs.servers import DEFAULT, Program
from refill.proofs.setup import Setup, opened
from refill.proofs.subject import Subject
from refill.proofs.suite import SCALES, judge

SCHEMA = "refill.proof/1"
TARGET = "proofs/aof"
# Of the data sets that lie there at the same time, beside the disks whose power is cut.
NEEDED_BYTES = 256 << 20


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
        EngineError: there is no default server or no daemon, an image is not the one of its
            record, the record cannot be written, or the disk has not enough room.
        StoppedError: the proof was stopped; its attempt says so, and no record is written.
    """
    inside = files.record.resolve().is_relative_to(files.root.resolve())
    written = [files.record] if inside else []
    _try_output(files.record, files.root)

    def work(attempt: Attempt, waited: float) -> dict[str, Any]:
        record = _prove(plan, files, attempt, progress, waited)
        # First: whatever becomes of the record then, a rerun too, the attempt keeps this one.
        kept = attempt.folder / f"{files.record.stem}.json"
        write_json(kept, record)
        write_json(staged(attempt, files.record) if inside else files.record, record)
        if inside and record["valid"]:
            # It gets a second name there.
            kept.unlink()
        return record

    return attempted(files.root, TARGET, plan, written, progress, work)


def _try_output(path: Path, root: Path) -> None:
    """Try to write at a record's place before minutes of work depend on it.

    The record replaces what has its name, so that must be nothing else than such a record.
    """
    if path.is_dir():
        raise EngineError(f"{path}: is a folder: name the file that the record is to be")
    results, place = (root / "results").resolve(), path.resolve()
    if place.is_relative_to(results) and not place.is_relative_to(results / "proofs"):
        raise EngineError(
            f"{path}: lies among other results: give a path in results/proofs, or outside results"
        )
    if path.is_symlink() or path.exists():
        if path.is_symlink() or not path.is_file():
            raise EngineError(f"{path}: is no plain file: give another path")
        try:
            read_json(path, SCHEMA)
        except RecordError as error:
            raise EngineError(
                f"{path}: is there and is no record of a proof, which would take its place: "
                "give another path, or remove it"
            ) from error
    trial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise EngineError(
            f"{path}: the record could not be written there: {error.strerror}: give another path"
        ) from error


def _check_room(folder: Path) -> None:
    """Refuse a disk that is too full: a server that ends for want of room is no finding."""
    needed = NEEDED_BYTES + (len(IMAGES) * IMAGE_BYTES if os.geteuid() == 0 else 0)
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise EngineError(
            f"the folder for the servers' data: the proof needs {needed / 1e6:.0f} MB there, "
            f"{free / 1e6:.0f} MB are free: make room, or let REFILL_SCRATCH name a folder on "
            "another disk"
        )


def _prove(
    plan: Mapping[str, Any], files: Files, attempt: Attempt, progress: Progress, waited: float
) -> dict[str, Any]:
    started, clock = datetime.now(UTC), time.monotonic()
    host = host_facts(scratch_of(files.root))
    _check_room(scratch_of(files.root))
    kept = Kept(attempt.folder, files.root)
    with (
        Scratch(files.root, progress.say) as scratch,
        opened(plan, files.images, scratch.path, progress.say) as setup,
    ):
        lanes = [
            [
                subject_of(plan, setup, image, program, scratch.path, kept.history)
                for program in setup.programs
                if not program.missing
            ]
            for image in reversed(IMAGES)
        ]
        if setup.containers is not None:
            # They are of one run, with connections to its daemon that no fork can share.
            lanes = [[subject for lane in lanes for subject in lane]]
        entries = run_lanes(lanes, progress.say, progress.at, kept.entry)
    order = [program.name for program in setup.programs]
    entries.sort(key=lambda made: order.index(made["server"]))
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
        "asked_for": asked_for(plan, setup.images, files.root),
        "started_at": _stamp(started),
        "ended_at": _stamp(datetime.now(UTC)),
        "waited_for_machine_s": waited,
        "valid": not invalid,
        "invalid": invalid,
        "outcome": "failed" if invalid else "completed",
        "runtime": setup.runtime,
        "containers": setup.containers,
        "images": setup.images,
        "servers": [_server(program, files.root) for program in setup.programs],
        "default_server": DEFAULT,
        # As other records give engines.
        "engines": {p.name: p.engine_json() for p in setup.programs if not p.missing},
        "configuration": {"form": plan["form"], "root": os.geteuid() == 0},
        "host": host,
        "counts": _counts(entries, setup.programs),
        "checks": entries,
        "wall": {"total_s": time.monotonic() - clock},
    }


def subject_of(
    plan: Mapping[str, Any],
    setup: Setup,
    image: str,
    program: Program,
    scratch: Path,
    keep: Callable[[str, str], None] = lambda *_: None,
) -> Subject:
    """Give an image on a server as a plan tries it; `keep` takes the histories of failures."""
    return Subject(
        image,
        setup.sources[image],
        program,
        scratch,
        SCALES[plan["form"]],
        plan["seed"],
        setup.parts[image],
        keep=keep,
    )


@dataclass(frozen=True)
class Kept:
    """What is kept in an attempt's folder while the proof runs, so that its end takes none of it.

    Args:
        folder: the attempt's.
        root: the working folder, whose path is taken out of texts.
    """

    folder: Path
    root: Path

    def entry(self, made: dict[str, Any]) -> None:
        """Append a check's entry; its `why` is without paths from here on."""
        made["why"] = without_paths(made["why"], unspoken(self.root))
        # In a folder: the parts of a proof that is valid go, as they stand in its record.
        parts = self.folder / "parts"
        parts.mkdir(exist_ok=True)
        with (parts / "checks.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(made, sort_keys=True, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def history(self, name: str, text: str) -> None:
        """Write the history of an episode that failed."""
        (self.folder / name).write_text(text, encoding="utf-8")


def _server(program: Program, root: Path) -> dict[str, Any]:
    # Why one is missing may hold the end of its log.
    found = program.as_json()
    return {**found, "status": without_paths(found["status"], unspoken(root))}


def _counts(entries: list[dict[str, Any]], programs: list[Program]) -> dict[str, Any]:
    """Give how many checks had which outcome, by server."""
    counts = {}
    for program in programs:
        seen = Counter(made["outcome"] for made in entries if made["server"] == program.name)
        counts[program.name] = {outcome: seen[outcome] for outcome in OUTCOMES}
    return counts


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Measure one round, and leave a record whatever happens.

The steps: hold the machine, begin an attempt, make the requests, measure the driver's floor, make
the system new, run the round, end the system, work out the figures, write ledger, raw profiles,
resources and record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from refill.batch_job import scratch, unspoken
from refill.corpora.documents import Documents
from refill.engines.description import EngineError
from refill.engines.installations import home_of, is_at_hand, open_installation, read_record
from refill.evidence.attempts import Attempt
from refill.evidence.hashes import sha256_file
from refill.evidence.host import host_facts
from refill.evidence.records import write_json
from refill.evidence.scrub import without_paths
from refill.evidence.turns import staged
from refill.load.clients import ClientError
from refill.load.floor import measure as measure_floor
from refill.load.ledger import STATUSES
from refill.operations.catalog import Operations
from refill.operations.requests import RequestSet
from refill.phases.attempted import attempted
from refill.phases.containers import Containers, departures, opened
from refill.phases.failure import first_failure
from refill.phases.pauses import client_pauses
from refill.phases.round_engines import SCHEMA, asked_for
from refill.phases.round_ledger import write_ledger
from refill.phases.round_native import RECORDED, NativeParts
from refill.phases.round_parts import Parts
from refill.phases.round_plan import Settings, cells, from_plain
from refill.phases.round_record import (
    accounted,
    cell_figures,
    judged,
    profile_figures,
    raw_profile,
    resource_phases,
    warned,
)
from refill.phases.round_run import WARM_UP, RoundRun
from refill.phases.round_stack import GatewayStack, new_namespace
from refill.phases.round_system import GATEWAY, RoundSystem
from refill.phases.unanswered import PATIENCE_TIMEOUTS
from refill.phases.url_index import new_name
from refill.progress import Progress

PROFILE_SCHEMA = "refill.raw-profile/1"
RESOURCES_SCHEMA = "refill.round-resources/1"
INDEX = "flights"


@dataclass(frozen=True)
class Files:
    """What a round reads and writes, relative to the project's folder `root`.

    Attributes:
        corpus: folder of the prepared documents.
        gateway_image: record of the gateway's image.
        qdrant_image: record of Qdrant's image; None for a binary or a URL.
        valkey_image: record of Valkey's image; None where it is a process.
        engines: by native engine, its record; its home may lie beside it.
        record, ledger, resources: what is written.
        profiles: the raw profile of each of the round's profiles (`warm`, `cold`).
    """

    root: Path
    corpus: Path
    gateway_image: Path
    qdrant_image: Path | None
    record: Path
    ledger: Path
    resources: Path
    profiles: Mapping[str, Path]
    engines: Mapping[str, Path] = field(default_factory=dict)
    valkey_image: Path | None = None

    @property
    def image_records(self) -> list[Path]:
        """Records of all images that a round may run: its parts' and its native engines'."""
        parts = (self.gateway_image, self.qdrant_image, self.valkey_image)
        return [*(path for path in parts if path is not None), *self.engines.values()]

    @property
    def written(self) -> list[Path]:
        """All that a round writes."""
        return [self.record, self.ledger, self.resources, *self.profiles.values()]


def measure(plan: Mapping[str, Any], files: Files, progress: Progress) -> dict[str, Any]:
    """Measure one round and write its record, ledger, raw profiles and resources.

    Args:
        plan: `profile`, `image`, `n`, `serving`, `scale`, `seed`, `engines`, `operations`,
            `counts`, `warm_up`, `timeout_s`, `trial_limit_s`, `qdrant`, `valkey`, `gateway`,
            `native`, `native_specs`, `cpus` and `code`, all from the config; in containers also
            `runtime` and `docker`.
        files: what is read and written.
        progress: where the round says how far it is.

    Returns:
        The record.

    Raises:
        StoppedError: the round was stopped; the attempt says so and no record is written.
    """
    return attempted(
        files.root,
        f"rounds/{plan['profile']}/{plan['image']}-{plan['n']}",
        plan,
        files.written,
        progress,
        lambda attempt, waited: _measure(plan, files, attempt, progress, waited),
    )


def _measure(
    plan: Mapping[str, Any], files: Files, attempt: Attempt, progress: Progress, waited: float
) -> dict[str, Any]:
    started, clock = datetime.now(UTC), time.monotonic()
    documents = Documents.open(files.corpus, verify=True)
    operations = from_plain(plan["operations"], plan["counts"])
    settings = _settings(plan, operations)
    name = f"{plan['profile']}/{plan['image']}-{plan['n']}"
    indices = _indices(plan)
    sets = {
        index: RequestSet.build(operations, documents, plan["seed"], index, name)
        for index in dict.fromkeys(indices.values())
    }
    requests = {engine: sets[index] for engine, index in indices.items()}
    data = scratch(files.root)
    host = host_facts(data)
    data = data / attempt.target.replace("/", "-")
    failure: str | None = None
    # No daemon, or a machine too small for the budgets, is an error and no round.
    budgets, say = _budgets(plan, files), progress.say
    with opened(plan, attempt.folder, budgets, say, files.image_records) as inside:
        # Here, where the driver has the CPUs that it has in the round.
        floor = measure_floor()
        stack = GatewayStack(_parts(plan, files), data, attempt.folder, inside)
        absent = _absent(plan, files)
        openers = {
            name: partial(_native_parts, name, indices[name], plan, files, inside)
            for name in natives_of(plan)
            if name not in absent
        }
        system = RoundSystem(stack, openers, absent, data, attempt.folder, progress.say)
        run = RoundRun(settings, requests, system, attempt.folder, progress)
        try:
            with system:
                try:
                    run.run(documents)
                except (EngineError, ClientError) as error:
                    # While the parts are still there to tell.
                    raise EngineError(system.explain(error)) from error
        except EngineError as error:
            # An engine's own words may hold paths of this machine; a record holds none.
            failure = without_paths(first_failure(error), unspoken(files.root))
            progress.say(f"the round is invalid: {failure}")
        containers = inside.record() if inside else None
    rows = run.ledger.frame()
    natives = system.report(natives_of(plan))
    for block in natives.values():
        if "why" in block:
            block["why"] = without_paths(block["why"], unspoken(files.root))
    lost = {name: block["why"] for name, block in natives.items() if block["status"] == "failed"}
    figures = cell_figures(
        settings, run.trials, rows, run.judge.shown, plan["serving"], _request_cache(plan), lost
    )
    profiles = profile_figures(figures, run.trials, settings)
    # A round that broke off has no trial of its later profiles: what is written of them says so.
    begun = {profile["name"] for profile in profiles}
    profiles += [{"name": name, "valid": False} for name in files.profiles if name not in begun]
    kept = accounted(rows, run.windows, run.broken, failure)
    statuses = rows[rows["phase"] == WARM_UP]["status"].astype(str)
    warm_up = {status: int((statuses == status).sum()) for status in STATUSES}
    outcome, invalid = judged(figures, warm_up, kept, failure)
    longest_stall_s, stalls = client_pauses(run.windows)
    invalid += stalls
    invalid += [f"{name}: {why}" for name, why in lost.items()]
    invalid += inside.disturbances if inside else []
    identity = {
        "id": f"{plan['profile']}/{plan['image']}",
        "repeat": plan["n"],
        "attempt": attempt.name,
        "code": plan["code"],
    }
    written = _write(files, attempt, identity, run, rows, figures, profiles)
    total = time.monotonic() - clock
    measured = sum(trial.end - trial.start for trial in run.trials)
    record = {
        "schema": SCHEMA,
        **identity,
        "round": name,
        **{key: plan[key] for key in ("profile", "image", "serving", "scale", "seed")},
        "started_at": _stamp(started),
        "ended_at": _stamp(datetime.now(UTC)),
        "waited_for_machine_s": waited,
        "valid": not invalid,
        "invalid": invalid,
        "warnings": [
            *departures(containers),
            *(without_paths(line, unspoken(files.root)) for line in system.warnings),
            *warned(figures),
        ],
        "outcome": outcome,
        "corpus": {
            "name": documents.record["name"],
            "documents": documents.count,
            "sha256": sha256_file(files.corpus / "corpus.json"),
        },
        "engines": system.identities,
        "containers": containers,
        "natives": natives,
        "asked_for": asked_for(plan),
        "configuration": {
            "counts": plan["counts"],
            "gateway": plan["gateway"],
            "operations": plan["operations"],
            "warm_up": plan["warm_up"],
            "timeout_s": plan["timeout_s"],
            "trial_limit_s": plan["trial_limit_s"],
            "native": _native_settings(plan),
        },
        "host": host,
        "driver": {**floor, "longest_stall_s": longest_stall_s},
        "primed": run.primed,
        "warm_up": {"requests": len(statuses), **warm_up},
        "profiles": [{**profile, **written["profiles"][profile["name"]]} for profile in profiles],
        "cells": figures,
        "ledger": {
            **written["ledger"],
            "counts": kept["counts"],
            "conservation": {key: kept[key] for key in ("violations", "checks")},
        },
        "resources": written["resources"],
        "wall": {"total_s": total, "measured_s": measured, "share": measured / total},
    }
    write_json(staged(attempt, files.record), record)
    return record


def _write(
    files: Files,
    attempt: Attempt,
    identity: Mapping[str, Any],
    run: RoundRun,
    rows: pd.DataFrame,
    figures: list[dict[str, Any]],
    profiles: list[dict[str, Any]],
) -> dict[str, Any]:
    """Write all but the record; give path and hash of each file."""
    written: dict[str, Any] = {"profiles": {}}
    for profile in profiles:
        path = files.profiles[profile["name"]]
        content = raw_profile(identity, profile, figures, rows)
        write_json(staged(attempt, path), {"schema": PROFILE_SCHEMA, **content})
        written["profiles"][profile["name"]] = _file(files, attempt, path)
    phases = resource_phases(run.moments)
    resources = {"schema": RESOURCES_SCHEMA, **identity, "phases": phases}
    write_json(staged(attempt, files.resources), resources)
    written["resources"] = _file(files, attempt, files.resources)
    count = write_ledger(staged(attempt, files.ledger), rows, run.trials, run.engine_of)
    written["ledger"] = {**_file(files, attempt, files.ledger), "rows": count}
    return written


def _settings(plan: Mapping[str, Any], operations: Operations) -> Settings:
    return Settings(
        cells(operations, plan["engines"], plan["serving"]),
        operations.counts["trials"],
        plan["warm_up"],
        plan["timeout_s"],
        plan["trial_limit_s"],
        plan["native"]["warm_up"] if natives_of(plan) else 0,
    )


def natives_of(plan: Mapping[str, Any]) -> list[str]:
    """Give the native engines of a plan, in its order."""
    return [engine for engine in plan["engines"] if engine != GATEWAY]


def _absent(plan: Mapping[str, Any], files: Files) -> dict[str, str]:
    """Give, by native engine that is not at hand, why: what its record says, and nothing else.

    One that was at hand when the rounds were planned and is not any more is no such engine.
    """
    return {
        name: str(read_record(files.engines[name])["why"])
        for name in natives_of(plan)
        if not is_at_hand(files.engines[name])
    }


def _budgets(plan: Mapping[str, Any], files: Files) -> int:
    """Say how many budgets there are at once: of the gateway's parts together, and of natives.

    A native engine at a URL runs wherever it runs, and takes none.
    """
    own = [name for name in natives_of(plan) if plan["native"][name]["url"] is None]
    return 1 + sum(is_at_hand(files.engines[name]) for name in own)


def _indices(plan: Mapping[str, Any]) -> dict[str, str]:
    """Give the name of each engine's index: one of the round's own where the engine is not."""
    return {
        engine: new_name(INDEX)
        if engine != GATEWAY and plan["native"][engine]["url"] and plan.get("runtime") != "docker"
        else INDEX
        for engine in plan["engines"]
    }


def _native_parts(
    name: str, index: str, plan: Mapping[str, Any], files: Files, inside: Containers | None
) -> NativeParts:
    """Give what a native engine is made of.

    Raises:
        EngineError: it is not any more what its record says.
    """
    record, settings = files.engines[name], plan["native"]
    installed = open_installation(
        record, name, plan["native_specs"][name], settings, home_of(record)
    )
    # In a container the CPUs of its budget, whatever this machine has.
    budget = plan["docker"]["budget"]["cpus"] if installed.image else None
    cpus = settings["cpus"] or budget or len(os.sched_getaffinity(0))
    answer_s = PATIENCE_TIMEOUTS * plan["timeout_s"]
    return NativeParts(name, installed, settings, cpus, index, answer_s, inside)


def _native_settings(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    if not natives_of(plan):
        return None
    return {key: plan["native"][key] for key in RECORDED}


def _request_cache(plan: Mapping[str, Any]) -> bool:
    return bool(natives_of(plan) and plan["native"]["request_cache"])


def _parts(plan: Mapping[str, Any], files: Files) -> Parts:
    return Parts(
        root=files.root,
        gateway_image=files.gateway_image,
        qdrant_image=files.qdrant_image,
        valkey_image=files.valkey_image,
        qdrant=plan["qdrant"],
        valkey=plan["valkey"],
        gateway=plan["gateway"],
        cpus=plan["cpus"],
        serving=plan["serving"],
        index=INDEX,
        # Of this attempt alone, so that what another one left in a kept Qdrant is not in its way.
        namespace=new_namespace(),
    )


def _file(files: Files, attempt: Attempt, path: Path) -> dict[str, Any]:
    relative = path.resolve().relative_to(files.root.resolve()).as_posix()
    return {"path": relative, "sha256": sha256_file(staged(attempt, path))}


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

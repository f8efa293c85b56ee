"""One run of one optimizer configuration: upload, draining, steady state, follow-up.

Source of the experiment: qdrant-labs/optimizers-in-action (commit in `config/claims.yaml`). What
is done differently and why stands in the README: nothing is dropped, a phase ends on evidence,
latency goes with recall and visible points, an open loop stands beside the closed one.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refill.corpora.store import Corpus
from refill.engines.description import EngineError
from refill.engines.qdrant import Api
from refill.engines.qdrant_requests import SearchSource, UploadSource
from refill.load.clients import Clients
from refill.load.ledger import Ledger
from refill.load.loops import Job, Row
from refill.load.worker import Done, Setup
from refill.oracle.scores import RightScores
from refill.phases.drain import Drain
from refill.phases.judge import OptimizerJudge
from refill.phases.polls import Poll, Polls
from refill.progress import Progress
from refill.runtimes.engine import Engine
from refill.stats.quantiles import recall_summary

OPEN_CONNECTIONS = 16
# Searches without an index after a steady phase: enough to see a missing part of the points.
EXACT_SEARCHES = 20
DELETE_BATCH = 1000


@dataclass(frozen=True)
class Settings:
    """What a run does; the `optimizers` part of the config and one configuration, resolved.

    Attributes:
        optimizers, hnsw: numbers that are set when the collection is made.
        followup: `{"delete": {"points": n}}`, `{"reconfigure": {"optimizers", "hnsw"}}` with
            resolved numbers, or None.
        upload, search, draining, steady: the sections of the config by these names.
        seed: seeds the choice of the points that a follow-up deletes.
    """

    optimizers: Mapping[str, Any]
    hnsw: Mapping[str, Any]
    followup: Mapping[str, Any] | None
    upload: Mapping[str, Any]
    search: Mapping[str, Any]
    draining: Mapping[str, Any]
    steady: Mapping[str, Any]
    seed: int


@dataclass
class Phase:
    """A phase that happened: its span (seconds since the run's start) and what ended it."""

    name: str
    start: float
    end: float = 0.0
    ended_by: dict[str, Any] = field(default_factory=dict)
    drained_at: float | None = None
    outcome: str | None = None
    event: dict[str, Any] | None = None
    exact: dict[str, Any] | None = None
    completed: dict[str, int] = field(default_factory=dict)


class PhaseError(Exception):
    """A phase could not do what it is for; the run is invalid and says why."""


class OptimizerRun:
    """Drives one run; `phases`, the ledger and the polls hold what happened, also after a failure.

    Args:
        settings: what to do.
        corpus: what is uploaded and searched.
        engine: a running engine.
        api: its control side.
        folder: this attempt's own folder; rows are written there as the run goes.
        progress: where the run says how far it is.
    """

    def __init__(
        self,
        settings: Settings,
        corpus: Corpus,
        engine: Engine,
        api: Api,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.corpus = corpus
        self.engine = engine
        self.api = api
        self.progress = progress
        self.phases: list[Phase] = []
        self.windows: list[Done] = []
        self.visible_points = corpus.points
        self.readback: dict[str, Any] = {}
        self.memory: dict[str, Any] | None = None
        self._completed: set[str] = set()
        self.created = False
        self._origin = time.monotonic()
        self._window = itertools.count()
        best_is_low = corpus.distance in ("Euclid", "Manhattan")
        self.judge = OptimizerJudge(
            corpus.truth(settings.search["limit"]),
            corpus.points,
            settings.search["limit"],
            best_is_low,
            api.key,
            RightScores(corpus),
        )
        self.ledger = Ledger(folder / "ledger", self.judge)
        self.polls = Polls(folder / "polls", api.state, engine.resources, self.now)

    def now(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._origin

    def run(self) -> None:
        """Run all phases.

        Raises:
            PhaseError: a phase could not end as it should.
            EngineError: the engine ended or stopped answering.
        """
        self._origin = time.monotonic()
        settings = self.settings
        self.api.create(
            self.corpus.dimension, self.corpus.distance, settings.optimizers, settings.hnsw
        )
        self.created = True
        self.readback = self.api.settings()
        # Started before the upload, so that the drain is watched from its first moment.
        with self._search_clients() as clients:
            self._upload()
            self._drain_and_steady(clients, "")
            if settings.followup and self.phases[-1].name == "steady":
                self._follow_up(clients, settings.followup)
        self.memory = self.api.memory()

    # ---- upload

    def _upload(self) -> None:
        upload, points = self.settings.upload, self.corpus.points
        batch, count = upload["batch"], upload["clients"]
        phase = self._begin("upload")
        source = UploadSource(self.corpus.folder, batch, self.engine.address, self.api.headers)
        setups = [
            Setup(n, self.engine.address, source, self.settings.search["timeout_s"], self._origin)
            for n in range(count)
        ]
        firsts = range(0, points, batch)
        per_s = upload["points_per_s"] / batch
        with Clients(setups, self.ledger.add) as clients:
            phase.start = self.now()
            jobs = [
                Job(
                    "upload", "upload", next(self._window), keys, count=len(keys),
                    per_s=per_s / count, first=phase.start + (n / per_s if per_s else 0.0),
                )
                for n in range(count)
                if (keys := firsts[n::count])
            ]  # fmt: skip
            self._run(clients, jobs, self._poll_upload)
        phase.ended_by = self._verify_counts(points, "upload")
        self._end(phase)

    def _poll_upload(self) -> None:
        poll = self._poll("upload")
        self.progress.at(
            f"upload: {poll.points:,.0f} of {self.corpus.points:,} points, "
            f"{poll.indexed:,.0f} indexed, {self._p50()}"
        )

    def _verify_counts(self, expected: int, phase: str) -> dict[str, Any]:
        """Wait until the engine holds `expected` points, deferred ones too, and no update waits."""
        limit = self.settings.upload["verify_timeout_s"]
        start = self.now()
        while True:
            poll = self._poll(phase)
            if poll.points == expected and not poll.busy.endswith("updates wait"):
                readable = self.api.count()
                if readable == expected or poll.deferred > 0:
                    return {
                        "reason": "counts verified",
                        "points": poll.points,
                        "expected": expected,
                        "readable": readable,
                        "waited_s": round(self.now() - start, 3),
                    }
            if self.now() - start > limit:
                raise PhaseError(
                    f"{phase}: the engine holds {poll.points:,.0f} points, {expected:,} were "
                    f"expected, and all to be readable; not right within {limit:g} s "
                    f"(optimizers.upload.verify_timeout_s).{self.engine.trouble()}"
                )
            time.sleep(0.05)

    # ---- draining and steady

    def _search_clients(self) -> Clients:
        search = self.settings.search
        source = SearchSource(
            self.corpus.queries(), search["limit"], self.engine.address, self.api.headers
        )
        self._queries = range(len(source))
        setup = Setup(0, self.engine.address, source, search["timeout_s"], self._origin)
        return Clients([setup], self.ledger.add)

    def _drain_and_steady(self, clients: Clients, prefix: str, phase: Phase | None = None) -> None:
        if self._drain(clients, phase or self._begin(f"{prefix}draining")) == "idle":
            self._steady(clients, self._begin(f"{prefix}steady"))

    def _drain(self, clients: Clients, phase: Phase) -> str:
        """Sample in alternating windows, open and closed, until the optimizers are idle."""
        draining = self.settings.draining
        drain = Drain(self.now(), draining["idle_polls"], draining["limit_s"])
        issued = 0

        def tick() -> None:
            poll = self._poll(phase.name)
            self.progress.at(_drain_line(phase.name, poll, self._p50()))
            if drain.outcome is None and drain.see(poll):
                clients.stop()

        for loop in itertools.cycle(("open", "closed")):
            if drain.outcome:
                break
            job = Job(
                phase.name,
                loop,
                next(self._window),
                _from(self._queries, issued),
                seconds=draining[f"{loop}_window_s"],
                per_s=draining["open_per_s"] if loop == "open" else 0.0,
                workers=OPEN_CONNECTIONS,
            )
            issued += sum(done.issued for done in self._run(clients, [job], tick))
        self._end(phase)
        phase.drained_at = drain.end
        phase.outcome = drain.outcome
        phase.ended_by = drain.evidence()
        self.progress.say(f"{phase.name}: {drain.outcome} after {drain.end - phase.start:.2f} s")
        return drain.outcome or "stopped"

    def _steady(self, clients: Clients, phase: Phase) -> None:
        """Closed passes over all queries, and between them equal slices of the open loop."""
        steady, queries = self.settings.steady, len(self._queries)
        slice_size = max(1, round(queries * steady["open_passes"] / steady["passes"]))
        for number in range(steady["passes"]):

            def tick(number: int = number) -> None:
                poll = self._poll(phase.name)
                self.progress.at(
                    f"{phase.name}: pass {number + 1} of {steady['passes']}, "
                    f"{poll.visible:,.0f} points visible, {self._p50()}"
                )

            if steady["open_passes"]:
                self._run(
                    clients,
                    [
                        Job(
                            phase.name, "open", next(self._window),
                            _from(self._queries, number * slice_size), count=slice_size,
                            per_s=steady["open_per_s"], workers=OPEN_CONNECTIONS,
                        )
                    ],
                    tick,
                    steady["poll_s"],
                )  # fmt: skip
            closed = Job(phase.name, "closed", next(self._window), self._queries, count=queries)
            self._run(clients, [closed], tick, steady["poll_s"])
        self._poll(phase.name)
        self._end(phase)
        phase.ended_by = {
            "reason": "all passes done",
            "passes": steady["passes"],
            "queries": queries,
            "readable": self.api.count(),
        }
        phase.exact = self._exact_searches(phase.name)

    def _exact_searches(self, phase: str) -> dict[str, Any]:
        """Search some queries without an index, outside of all timing.

        An index may miss neighbours, such a search must find all that are visible: what it does
        not find the engine does not hold, whatever it counts.
        """
        queries = self.corpus.queries()
        chosen = np.unique(np.linspace(0, len(queries) - 1, EXACT_SEARCHES).astype(int)).tolist()
        counts, recalls = Counter({"ok": 0, "wrong": 0, "error": 0}), []
        detail = ""
        for query in chosen:
            try:
                http, body = self.api.exact_search(queries[query], self.settings.search["limit"])
            except EngineError as error:
                counts["error"] += 1
                detail = detail or str(error)
                continue
            now = self.now()
            judgement = self.judge(
                Row(phase, "exact", -1, -1, query, now, now, now, "answered", http, body, "")
            )
            counts[judgement.status] += 1
            detail = detail or judgement.detail
            recalls.append(judgement.recall)
        return {
            "queries": len(chosen),
            **counts,
            "recall_mean": recall_summary(recalls)["mean"],
            "detail": detail,
        }

    # ---- follow-up

    def _follow_up(self, clients: Clients, followup: Mapping[str, Any]) -> None:
        phase = self._begin("followup-draining")
        if "delete" in followup:
            phase.event = self._delete(followup["delete"]["points"])
        else:
            change = followup["reconfigure"]
            optimizers, hnsw = change.get("optimizers", {}), change.get("hnsw", {})
            self.api.reconfigure(optimizers, hnsw)
            phase.event = {
                "kind": "reconfigure",
                "applied": {"optimizers": dict(optimizers), "hnsw": dict(hnsw)},
                "readback": self.api.settings(),
            }
        phase.event["seconds"] = round(self.now() - phase.start, 3)
        phase.start = self.now()
        self._drain_and_steady(clients, "followup-", phase)

    def _delete(self, count: int) -> dict[str, Any]:
        """Delete points drawn by the seed: the same ones in every run of this corpus."""
        points = self.corpus.points
        rng = np.random.default_rng(self.settings.seed)
        chosen = rng.choice(points, size=count, replace=False)
        ids = np.sort(chosen).tolist()
        truth = self.judge.truth.without(ids)
        for first in range(0, len(ids), DELETE_BATCH):
            self.api.delete(ids[first : first + DELETE_BATCH])
        self.visible_points = points - len(ids)
        verified = self._verify_counts(self.visible_points, "followup-draining")
        self.judge.truth, self.judge.deleted = truth, frozenset(ids)
        return {"kind": "delete", "deleted": len(ids), "verified": verified}

    # ---- helpers

    def _begin(self, name: str) -> Phase:
        phase = Phase(name, self.now())
        self.phases.append(phase)
        self.progress.say(f"{name} begins")
        return phase

    def _end(self, phase: Phase) -> None:
        """End a phase; note the optimizations that ended in it, also those between two polls."""
        phase.end = self.now()
        done = self.api.completed()
        phase.completed = dict(Counter(done[uuid] for uuid in done.keys() - self._completed))
        self._completed |= done.keys()

    def _run(
        self,
        clients: Clients,
        jobs: Sequence[Job],
        tick: Callable[[], None],
        tick_s: float | None = None,
    ) -> list[Done]:
        """Run jobs to their end; a job with a count must have issued all of it.

        Raises:
            PhaseError: it has not.
        """
        done = clients.run(jobs, tick, tick_s or self.settings.draining["poll_s"])
        self.windows += done
        issued = {window.window: window.issued for window in done}
        for job in jobs:
            if job.count is not None and issued[job.window] != job.count:
                raise PhaseError(
                    f"{job.phase}, window {job.window}: {issued[job.window]} of {job.count} "
                    "requests were issued"
                )
        return done

    def _poll(self, phase: str) -> Poll:
        self.engine.check()
        poll = self.polls.poll(phase)
        self.ledger.tick()
        return poll

    def _p50(self) -> str:
        recent = self.ledger.recent_ms
        return f"p50 {np.median(recent):.2f} ms" if recent else "no request yet"


def _from(queries: range, start: int) -> list[int]:
    """Give the queries in their order, beginning with the `start`-th."""
    at = start % len(queries)
    return [*queries[at:], *queries[:at]]


def _drain_line(name: str, poll: Poll, p50: str) -> str:
    if poll.error:
        return f"{name}: poll failed: {poll.error}"
    waiting = max(0.0, poll.points - poll.indexed)
    return (
        f"{name}: {poll.visible:,.0f} of {poll.points:,.0f} points visible, {waiting:,.0f} not "
        f"indexed, {poll.busy or 'quiet'}, {p50}"
    )


__all__ = ["EngineError", "OptimizerRun", "Phase", "PhaseError", "Settings"]

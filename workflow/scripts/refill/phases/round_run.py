"""One round: prime, warm up, then every cell's trials, in a closed loop of client processes.

A *cell* is one operation at one number of clients; a *trial* is one measurement of it. Bodies are
prepared before the trial, responses are kept as bytes and judged after it, and all counters are
read between trials, so that a timed section holds requests and nothing else.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from refill.corpora.documents import Documents
from refill.engines.description import EngineError
from refill.load.clients import Clients
from refill.load.ledger import Judgement, Ledger
from refill.load.loops import Job, Row
from refill.load.prepared import Prepared
from refill.load.worker import Done, Setup
from refill.operations.requests import Request, RequestSet
from refill.oracle.documents import NATIVE_ALSO, judge
from refill.phases.round_plan import Cell, Settings
from refill.phases.round_stack import Moment
from refill.phases.round_system import GATEWAY, EngineLostError, RoundSystem
from refill.phases.unanswered import Unanswered
from refill.progress import Progress

CHECK_S = 0.25
# Of the responses of one trial that are wrong, so many are shown whole.
SHOWN_WRONG = 3
SHOWN_BYTES = 2000
WARM_UP = "warm-up"


@dataclass(frozen=True)
class Trial:
    """A trial that was run: its place, its span in seconds since the round's start, counters."""

    cell: Cell
    number: int
    window: int
    start: float
    end: float
    before: Moment
    after: Moment
    done: Sequence[Done]


class RoundJudge:
    """Judges the responses of a round, and keeps some of those that are not right.

    Args:
        requests: by engine, all requests of the round; a row's key is the place in it.
        engines: which engine a window's requests went to.
    """

    def __init__(
        self, requests: Mapping[str, Sequence[Request]], engines: Mapping[int, str]
    ) -> None:
        self._requests = requests
        self._engines = engines
        self.shown: dict[int, list[dict[str, Any]]] = defaultdict(list)

    def __call__(self, row: Row) -> Judgement:
        """Give the status of an answered request."""
        engine = self._engines[row.window]
        request = self._requests[engine][row.key]
        also = NATIVE_ALSO if engine != GATEWAY else {}
        judgement = judge(request, row.http, row.body, also)
        if judgement.status != "ok" and len(self.shown[row.window]) < SHOWN_WRONG:
            self.shown[row.window].append(
                {
                    "status": judgement.status,
                    "http": row.http,
                    "client": row.client,
                    "request": {
                        "method": request.method,
                        "path": request.path,
                        "body": request.body[:SHOWN_BYTES].decode(errors="replace"),
                    },
                    "detail": judgement.detail,
                    "response": row.body[:SHOWN_BYTES].decode(errors="replace"),
                }
            )
        return judgement


class RoundRun:
    """Drives one round; `trials`, the ledger and `primed` hold what happened, also after a failure.

    Args:
        settings: what to do.
        requests: by engine, where its requests come from; all are asked the same, of the index
            that each has.
        system: the running engines.
        folder: this attempt's own folder; rows are written there as the round goes.
        progress: where the round says how far it is.

    Attributes:
        engine_of: which engine the requests of a window went to.
        broken: windows of a native engine that was lost in them: their requests stand in the
            ledger and belong to no trial.
    """

    def __init__(
        self,
        settings: Settings,
        requests: Mapping[str, RequestSet],
        system: RoundSystem,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.settings = settings
        self.system = system
        self.progress = progress
        self.trials: list[Trial] = []
        self.windows: list[Done] = []
        self.moments: list[tuple[str, float, Moment]] = []
        self.primed: dict[str, Any] | None = None
        self._origin = time.monotonic()
        self._windows = itertools.count()
        self.engine_of: dict[int, str] = {}
        self.broken: set[int] = set()
        self._clients: dict[str, tuple[Clients, ExitStack]] = {}
        self._rows: list[Row] = []
        self._unanswered = Unanswered(settings.timeout_s)
        # Latencies of the last trial, or part of a warm-up.
        self._last_ms: list[float] = []
        self._plan = _Plan(settings, requests)
        self.judge = RoundJudge(self._plan.requests, self.engine_of)
        self.ledger = Ledger(folder / "ledger", self.judge)

    def now(self) -> float:
        """Seconds since the round's start."""
        return time.monotonic() - self._origin

    def run(self, documents: Documents) -> None:
        """Run the round.

        A native engine that is lost takes what is left of its own cells with it.

        Raises:
            EngineError: a part of the gateway's system ended, did not answer a control call,
                answered no request for several timeouts, or did not end its warm-up in time.
            ClientError: a client process ended or failed.
        """
        self._moment("start")
        self.system.now = "load"
        self.primed = self.system.prime(documents)
        self.progress.say(
            f"primed: {self.primed['documents']:,} documents in {self.primed['load_s']:.1f} s"
        )
        self._moment("primed")
        with ExitStack() as open_:
            for engine in self.system.engines:
                self._start_clients(engine, open_)
            self._moment("clients started")
            for engine in self.system.engines:
                with self._alone(engine, f"warm-up of {engine}"):
                    self._warm_up(engine)
            self._moment("warmed up")
            for cell in self.settings.cells:
                for number in range(1, self.settings.trials + 1):
                    if cell.engine not in self.system.engines:
                        break
                    with self._alone(cell.engine, f"{cell.name}, trial {number}"):
                        self._trial(cell, number)
                if spans := [t.end - t.start for t in self.trials if t.cell == cell]:
                    self._moment(cell.name)
                    self.progress.say(f"{cell.name}: {self._p50s(spans)}")

    def _start_clients(self, engine: str, open_: ExitStack) -> None:
        """Start client processes for one engine; those of the others wait meanwhile."""
        address = self.system.address(engine)
        known = ((r.method, r.path, r.body) for r in self._plan.requests[engine])
        source = Prepared(known, address, self.system.headers(engine))
        setups = [
            Setup(n, address, source, self.settings.timeout_s, self._origin)
            for n in range(max(cell.clients for cell in self.settings.cells))
        ]
        ends = open_.enter_context(ExitStack())
        clients = ends.enter_context(Clients(setups, partial(self._take, engine)))
        self._clients[engine] = clients, ends

    @contextmanager
    def _alone(self, engine: str, what: str) -> Iterator[None]:
        """Do a part of the round with one engine; if it is lost in it, go on without it."""
        self.system.now = what
        try:
            yield
        except EngineLostError as error:
            self.system.lose(engine, EngineError(self.system.explain(error, engine)))
            _, ends = self._clients.pop(engine)
            ends.close()

    def _take(self, engine: str, rows: Sequence[Row]) -> None:
        self._rows.extend(rows)
        try:
            self._unanswered.note(engine, rows)
        except EngineError as error:
            raise _of(engine, str(error)) from error

    def _warm_up(self, engine: str) -> None:
        """Fill the cache with every warm request, see each once more, and walk the cold path.

        A native engine is walked longer and by all clients, for its Java compiles what runs often
        while it runs.
        """
        phases = [self._plan.fill, self._plan.fill, self._plan.warm_up]
        share = 1
        if engine != GATEWAY:
            keys = [key for part in phases for key in part]
            wanted = self.settings.native_warm_up if keys else 0
            phases = [[keys[i % len(keys)] for i in range(wanted)]]
            share = max(cell.clients for cell in self.settings.cells)
        for part in phases:
            window = self._window(engine)
            parts = [mine for n in range(share) if (mine := part[n::share])]
            limit = self.settings.trial_limit_s
            jobs = [Job(WARM_UP, "closed", window, mine, len(mine), limit) for mine in parts]
            if not jobs:
                continue
            issued = sum(done.issued for done in self._issue(engine, jobs))
            if issued < len(part):
                raise _of(
                    engine,
                    f"{engine}: {issued} of {len(part)} requests of a part of the warm-up were "
                    f"issued within rounds.trial_limit_s ({limit:g} s): raise the limit, or ask "
                    "for fewer",
                )

    def _trial(self, cell: Cell, number: int) -> None:
        keys, window = self._plan.keys(cell, number), self._window(cell.engine)
        jobs = [
            Job(
                cell.profile, "closed", window, part, len(part), self.settings.trial_limit_s,
            )
            for n in range(cell.clients)
            if (part := keys[n :: cell.clients])
        ]  # fmt: skip
        before = self.system.moment()
        if cell.engine not in self.system.engines:
            return
        start = self.now()
        done = self._issue(cell.engine, jobs)
        end, after = self.now(), self.system.moment()
        self.trials.append(Trial(cell, number, window, start, end, before, after, done))

    def _window(self, engine: str) -> int:
        window = next(self._windows)
        self.engine_of[window] = engine
        return window

    def _issue(self, engine: str, jobs: Sequence[Job]) -> list[Done]:
        """Run jobs, then judge their responses; rows of a trial that broke off are kept too."""
        clients, _ = self._clients[engine]
        try:
            done = clients.run(jobs, partial(self.system.check, engine), CHECK_S)
        except EngineLostError:
            self.broken.add(jobs[0].window)
            raise
        finally:
            self.ledger.add(self._rows)
            self._last_ms = [(row.done - row.sent) * 1e3 for row in self._rows]
            self._rows.clear()
        self.windows += done
        return done

    def _moment(self, name: str) -> None:
        self.moments.append((name, self.now(), self.system.moment()))

    def _p50s(self, spans: Sequence[float]) -> str:
        p50 = f"{np.median(self._last_ms):.3f} ms" if self._last_ms else "not known"
        return f"{len(spans)} trials in {sum(spans):.2f} s, p50 of the last {p50}"


def _of(engine: str, why: str) -> EngineError:
    """Give the error of an engine: of the gateway's it ends the round."""
    return EngineError(why) if engine == GATEWAY else EngineLostError(why)


def _warm(operation: str, source: RequestSet) -> Sequence[Request]:
    return source.warm(operation)


def _cold(cell: Cell, number: int, source: RequestSet) -> Sequence[Request]:
    return source.cold(cell.requests, number, cell.clients, cell.profile)


class _Plan:
    """All requests of a round, made before it begins, and which of them each trial issues."""

    def __init__(self, settings: Settings, sources: Mapping[str, RequestSet]) -> None:
        # Engines with an index of one name share their requests.
        made: dict[int, list[Request]] = {id(source): [] for source in sources.values()}
        self.requests = {engine: made[id(source)] for engine, source in sources.items()}
        self._sources = list({id(source): source for source in sources.values()}.values())
        self._made = made
        self._warm: dict[str, range] = {}
        self._cold: dict[tuple[int, int], range] = {}
        for cell in settings.cells:
            if cell.profile == "warm" and cell.operation not in self._warm:
                self._warm[cell.operation] = self._add(partial(_warm, cell.operation))
        self.fill = [key for keys in self._warm.values() for key in keys]
        self.warm_up = self._add(lambda s: s.cold(settings.warm_up, 0, 1, WARM_UP))
        for cell in settings.cells:
            if cell.profile == "cold":
                for number in range(1, settings.trials + 1):
                    # Every engine is asked the same; what is new to one is new to all.
                    if (cell.clients, number) in self._cold:
                        continue
                    self._cold[cell.clients, number] = self._add(partial(_cold, cell, number))

    def _add(self, make: Callable[[RequestSet], Sequence[Request]]) -> range:
        """Make requests of every source, and give the keys that they have in each."""
        places = set()
        for source in self._sources:
            known, new = self._made[id(source)], make(source)
            places.add(range(len(known), len(known) + len(new)))
            known += new
        (keys,) = places
        return keys

    def keys(self, cell: Cell, number: int) -> Sequence[int]:
        """Give the keys of a trial: new ones when cold, the same few over and over when warm."""
        if cell.profile == "cold":
            return self._cold[cell.clients, number]
        known = self._warm[cell.operation]
        return [known[i % len(known)] for i in range(cell.requests)]

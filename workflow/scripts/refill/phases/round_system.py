"""Everything that runs in one round: the gateway's stack, and the native engines beside it.

One engine alone gets requests at a time; the others idle, and what they use meanwhile is counted.
A native engine that is not at hand, as its record says, is absent. One that is at hand and fails
takes its own cells with it and no other, whenever that is, for the gateway is what the round is
for; but a gauge of drift is lost then, so the round is not valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from refill.contexts import OpensParts
from refill.corpora.documents import Documents
from refill.engines.description import EngineError
from refill.evidence.scrub import make_packable
from refill.load.wire import Address
from refill.phases.round_engines import NOT_MEASURED
from refill.phases.round_native import NativeEngine, NativeParts
from refill.phases.round_stack import GatewayStack, Moment
from refill.runtimes.engine import explained

GATEWAY = "gateway"
Opener = Callable[[], NativeParts]


class EngineLostError(EngineError):
    """A native engine has ended, or does not answer any more; the gateway's system is unharmed."""


class RoundSystem(OpensParts):
    """The engines of a round. Used as a context: leaving it ends all of them.

    Args:
        stack: the gateway and what it works on.
        natives: by engine at hand, what gives its parts; an EngineError of it says why they are not
            what its record says.
        absent: by engine that is not at hand, why.
        scratch: folder of the native engines' data.
        logs: folder that takes their logs.
        say: told what is started.

    Attributes:
        failed: by engine at hand, why it is not measured, or not to the end.
        now: what the round is at, in words.
    """

    def __init__(
        self,
        stack: GatewayStack,
        natives: Mapping[str, Opener],
        absent: Mapping[str, str],
        scratch: Path,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.stack = stack
        self._openers = dict(natives)
        self._absent = dict(absent)
        self._scratch = scratch
        self._logs = logs
        self._say = say
        self._ends: dict[str, ExitStack] = {}
        self.natives: dict[str, NativeEngine] = {}
        self.measured: list[NativeEngine] = []
        self.failed: dict[str, str] = {}
        self._during: dict[str, str] = {}
        self.now = "start"

    def _start(self) -> None:
        self._open.enter_context(self.stack)
        for name, why in self._absent.items():
            self._say(f"{name} is not measured: {why}")
        for name, opener in self._openers.items():
            self._start_native(name, opener)

    def _start_native(self, name: str, opener: Opener) -> None:
        self._ends[name] = self._open.enter_context(ExitStack())
        try:
            log = self._logs / f"{name}.log"
            ends = self._ends[name]
            # Called last, when the engine has ended: it writes where it lies.
            ends.callback(make_packable, log, [Path(), self._scratch])
            engine = NativeEngine(opener(), self._scratch / name, log, ends, self._say)
        except EngineError as error:
            self.lose(name, error)
            return
        self.natives[name] = engine
        self.measured.append(engine)
        if engine.started_s is not None:
            self._say(f"{name} {engine.identity['version']} was ready in {engine.started_s:.1f} s")

    def lose(self, name: str, error: EngineError) -> None:
        """Go on without a native engine.

        It is killed: one that stands still would not hear that it is to end.
        """
        if name in self.failed:
            return
        self.failed[name], self._during[name] = str(error), self.now
        self._say(f"{name} is lost ({self.now}): {error}")
        self.measured = [engine for engine in self.measured if engine.name != name]
        try:
            if name in self.natives:
                self.natives[name].kill()
            self._ends.pop(name).close()
        except EngineError as ending:
            self.failed[name] += f"; and it could not be ended: {ending}"

    @property
    def engines(self) -> list[str]:
        """Names of the engines that are measured."""
        return [GATEWAY, *(engine.name for engine in self.measured)]

    @property
    def identities(self) -> dict[str, Any]:
        """What runs, by name."""
        return {
            **self.stack.identities,
            **{name: engine.identity for name, engine in self.natives.items()},
        }

    def address(self, engine: str) -> Address:
        """Give where an engine listens."""
        return self.stack.address if engine == GATEWAY else self.natives[engine].address

    def headers(self, engine: str) -> Mapping[str, str]:
        """Give the headers that each of its requests needs."""
        return {} if engine == GATEWAY else self.natives[engine].headers

    def prime(self, documents: Documents) -> dict[str, Any]:
        """Load all engines, one after the other; give what was seen of the gateway's.

        Raises:
            EngineError: the gateway could not be loaded.
        """
        primed = self.stack.prime(documents)
        for engine in list(self.measured):
            try:
                engine.prime(documents)
            except EngineError as error:
                self.lose(engine.name, EngineError(explained(error, [engine.engine])))
        return primed

    @property
    def warnings(self) -> list[str]:
        """What the record warns of; complete once all engines have been ended."""
        return [*self.stack.left, *(w for engine in self.natives.values() for w in engine.warnings)]

    def check(self, engine: str = GATEWAY) -> None:
        """Look whether what is asked now still runs; the others are looked at between the trials.

        Raises:
            EngineLostError: the native engine has ended.
            EngineError: a part of the gateway's system has.
        """
        self.stack.check()
        if engine != GATEWAY:
            try:
                self.natives[engine].check()
            except EngineError as error:
                raise EngineLostError(str(error)) from error

    def explain(self, error: Exception, engine: str = GATEWAY) -> str:
        """Give an error's words with what the parts tell that it can come of."""
        if engine == GATEWAY:
            return explained(error, list(self.stack.engines.values()))
        return explained(error, [self.natives[engine].engine])

    def moment(self) -> Moment:
        """Give all counters now; a native engine that has none to give is lost.

        Raises:
            EngineError: a part of the gateway's system does not answer.
        """
        now = self.stack.moment()
        used, counted = {}, {}
        for engine in list(self.measured):
            try:
                engine.check()
                used[engine.name] = engine.resources()
                counted[engine.name] = engine.counters()
            except EngineError as error:
                self.lose(engine.name, error)
        return replace(now, resources={**now.resources, **used}, natives=counted)

    def report(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Give what the record says of each native engine that was to be measured."""
        found: dict[str, Any] = {}
        for name in wanted:
            if name in self._absent:
                found[name] = {"status": NOT_MEASURED, "why": self._absent[name]}
                continue
            block: dict[str, Any] = {"status": "measured"}
            if name in self.failed:
                block = {
                    "status": "failed",
                    "why": self.failed[name],
                    "during": self._during[name],
                }
            if name in self.natives:
                engine = self.natives[name]
                block |= {"started_s": engine.started_s, "primed": engine.primed}
            # A round that broke off before it came to this engine says nothing of it.
            if name in self.failed or name in self.natives:
                found[name] = block
        return found

"""Everything that runs in one round: the gateway's stack, and the native engines beside it.

One engine alone gets requests at a time; the others idle, and what they use meanwhile is counted.
A native engine that is not at hand, or fails before anything is timed, takes its own cells with it
and no other: the gateway is what the round is for.
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
from refill.load.wire import Address
from refill.phases.round_native import NativeEngine, NativeParts
from refill.phases.round_stack import GatewayStack, Moment
from refill.runtimes.engine import explained

GATEWAY = "gateway"
Opener = Callable[[], NativeParts]


class RoundSystem(OpensParts):
    """The engines of a round. Used as a context: leaving it ends all of them.

    Args:
        stack: the gateway and what it works on.
        natives: by engine, what gives its parts; an EngineError of it says why it is not at hand.
        scratch: folder of the native engines' data.
        logs: folder that takes their logs.
        say: told what is started.

    Attributes:
        absent: by engine, why it is not measured: it is not at hand.
        failed: by engine, why it is not measured although it is at hand.
    """

    def __init__(
        self,
        stack: GatewayStack,
        natives: Mapping[str, Opener],
        scratch: Path,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.stack = stack
        self._openers = dict(natives)
        self._scratch = scratch
        self._logs = logs
        self._say = say
        self._ends: dict[str, ExitStack] = {}
        self.natives: dict[str, NativeEngine] = {}
        self.measured: list[NativeEngine] = []
        self.absent: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def _start(self) -> None:
        self._open.enter_context(self.stack)
        for name, opener in self._openers.items():
            self._start_native(name, opener)

    def _start_native(self, name: str, opener: Opener) -> None:
        try:
            parts = opener()
        except EngineError as error:
            self.absent[name] = str(error)
            self._say(f"{name} is not measured: {error}")
            return
        self._ends[name] = self._open.enter_context(ExitStack())
        try:
            log = self._logs / f"{name}.log"
            engine = NativeEngine(parts, self._scratch / name, log, self._ends[name])
        except EngineError as error:
            self._give_up(name, error)
            return
        self.natives[name] = engine
        self.measured.append(engine)
        if engine.started_s is not None:
            self._say(f"{name} {engine.identity['version']} was ready in {engine.started_s:.1f} s")

    def _give_up(self, name: str, error: EngineError) -> None:
        self.failed[name] = str(error)
        self._say(f"{name} is not measured: {error}")
        self.measured = [engine for engine in self.measured if engine.name != name]
        self._ends.pop(name).close()

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
                self._give_up(engine.name, EngineError(explained(error, [engine.engine])))
        return primed

    def drop(self) -> None:
        """Delete what engines that were not started here would keep."""
        self.stack.drop()
        for engine in self.measured:
            engine.drop()

    def check(self) -> None:
        """Raise EngineError when one of the engines has ended."""
        self.stack.check()
        for engine in self.measured:
            engine.check()

    def explain(self, error: Exception) -> str:
        """Give an error's words with what the parts tell that it can come of."""
        natives = [engine.engine for engine in self.measured]
        return explained(error, [*self.stack.engines.values(), *natives])

    def moment(self) -> Moment:
        """Give all counters now.

        Raises:
            EngineError: a part does not answer.
        """
        now = self.stack.moment()
        used = {engine.name: engine.resources() for engine in self.measured}
        return replace(
            now,
            resources={**now.resources, **used},
            natives={engine.name: engine.counters() for engine in self.measured},
        )

    def report(self, wanted: Sequence[str]) -> dict[str, Any]:
        """Give what the record says of each native engine that was to be measured."""
        found: dict[str, Any] = {}
        for name in wanted:
            if name in self.absent:
                found[name] = {"status": "not measured", "why": self.absent[name]}
            elif name in self.failed:
                found[name] = {"status": "failed", "why": self.failed[name]}
            elif name in self.natives:
                engine = self.natives[name]
                found[name] = {
                    "status": "measured",
                    "started_s": engine.started_s,
                    "primed": engine.primed,
                }
        return found

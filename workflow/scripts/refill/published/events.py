"""Read published files of the optimizer benchmark; a line that is not of the format is an error.

Two formats, seen in qdrant-labs/optimizers-in-action (commit 125e802, `results/`) and in what
wrote them (`src/bench.rs`, `src/search.rs`):

- `bench-*.jsonl`, one event a line, told apart by `kind`; `t` is seconds since the upload began,
  taken when the event was over, `phase` is `draining` or `steady`:
  `phase_change`; `search` with `latency_ms` (a search that failed leaves no line); `optimizer`
  with `queued_optimizations`, `running`, `running_optimizers` and more; `memory` with byte counts.
- `*-post-*.log`, the searches after a follow-up: `round R query Q latency 12.3ms` each, a duration
  as Rust prints it, and at the end `search: n=5000 min=... (5.4 qps)`, if it got there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHASES = ("draining", "steady")
FOLLOWUP = "follow-up"
# The fields that each kind of event must have, beside `kind`.
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "phase_change": ("t",),
    "search": ("t", "latency_ms"),
    "optimizer": ("t", "queued_optimizations", "running"),
    "memory": ("t", "disk_bytes", "ram_bytes", "cached_bytes", "expected_cache_bytes"),
}
_COUNTS = ("queued_optimizations", "running")
# No second and no byte of a benchmark is more; sums of what is less are exact enough.
_MOST = 10**15
_SEARCH = re.compile(
    r"round (\d{1,9}) query (\d{1,9}) latency (\d{1,12}(?:\.\d{1,30})?)(ns|µs|us|ms|s)"
)
_SUMMARY = re.compile(r"search: n=(\d{1,9}) ")
_SECONDS = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class LogError(ValueError):
    """A line is not of the format; the text begins with file and line."""


@dataclass(frozen=True)
class Search:
    """One search that succeeded; `t` is NaN where a log states no times (seconds)."""

    line: int
    t: float
    phase: str
    latency_s: float
    place: tuple[int, int] | None = None  # round and query, where they are stated


@dataclass(frozen=True)
class Optimizer:
    """One look at the optimizers."""

    line: int
    t: float
    phase: str
    queued: int
    running: int
    names: tuple[str, ...]

    @property
    def busy(self) -> str | None:
        """What they do; None when they are idle."""
        if self.names and not self.running:
            return f"0 running, yet {', '.join(self.names)} is named"
        if self.running:
            return f"{self.running} running ({', '.join(self.names) or 'not named'})"
        return f"{self.queued} queued" if self.queued else None


@dataclass(frozen=True)
class Change:
    """A phase begins."""

    line: int
    t: float
    phase: str


@dataclass
class Log:
    """One file.

    Attributes:
        name: of the file.
        lines: how many it has.
        summed_up: whether a follow-up's log ends with its summary.
        memory: number of looks at the memory.
    """

    name: str
    lines: int = 0
    searches: list[Search] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    memory: int = 0
    summed_up: bool = False

    @property
    def phases(self) -> list[str]:
        """The phases that it has, in the order of their first line."""
        first = [(change.line, change.phase) for change in self.changes]
        first = sorted([*first, *((search.line, search.phase) for search in self.searches)])
        return list(dict.fromkeys(phase for _, phase in first))


def read(path: Path) -> Log:
    """Read a file; its first character tells which format it is.

    Raises:
        LogError: it is empty, not UTF-8, or a line is not of its format.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LogError(f"{path.name}:{line}: not UTF-8 text (byte {error.start})") from error
    if not text.strip():
        raise LogError(f"{path.name}: it is empty: give a log of the optimizer benchmark")
    log = Log(path.name, len(text.splitlines()))
    (_read_events if text.lstrip().startswith("{") else _read_followup)(text, log)
    return log


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line


def _read_events(text: str, log: Log) -> None:
    for number, line in _lines(text):
        where = f"{log.name}:{number}"
        try:
            event = json.loads(line)
        except RecursionError as error:
            raise LogError(f"{where}: not an event: it is nested too deeply") from error
        except ValueError as error:
            raise LogError(f"{where}: not a JSON object: {error}") from error
        if not isinstance(event, dict):
            raise LogError(f"{where}: not a JSON object but {type(event).__name__}")
        kind = event.get("kind")
        if not isinstance(kind, str) or kind not in NUMBERS:
            raise LogError(f"{where}: kind {kind!r}: must be one of {', '.join(NUMBERS)}")
        numbers = {name: _number(event, name, kind, where) for name in NUMBERS[kind]}
        phase = event.get("phase")
        if phase not in PHASES:
            raise LogError(f"{where}: phase {phase!r} of kind {kind}: must be draining or steady")
        t = numbers["t"]
        if kind == "phase_change":
            log.changes.append(Change(number, t, phase))
        elif kind == "search":
            log.searches.append(Search(number, t, phase, numbers["latency_ms"] / 1e3))
        elif kind == "optimizer":
            names = event.get("running_optimizers")
            if not isinstance(names, list):
                raise LogError(f"{where}: running_optimizers of kind {kind}: must be a list")
            queued, running = int(numbers["queued_optimizations"]), int(numbers["running"])
            log.optimizers.append(
                Optimizer(number, t, phase, queued, running, tuple(map(str, names)))
            )
        else:
            log.memory += 1


def _number(event: Mapping[str, Any], name: str, kind: str, where: str) -> float:
    value = event.get(name)
    if name not in event:
        raise LogError(f"{where}: {name} is missing, kind {kind} must have it")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LogError(f"{where}: {name} {value!r}: must be a number")
    # Compared before it is made a float: a whole number of 400 digits has none.
    if value != value or value < 0:
        raise LogError(f"{where}: {name} {value!r}: must be 0 or more")
    if value > _MOST:
        raise LogError(f"{where}: {name}: must be at most {_MOST:,}")
    if name in _COUNTS and value != int(value):
        raise LogError(f"{where}: {name} {value!r}: must be a whole number, it is a count")
    return float(value)


def _read_followup(text: str, log: Log) -> None:
    for number, line in _lines(text):
        where = f"{log.name}:{number}"
        if log.summed_up:
            raise LogError(f"{where}: a line behind the summary")
        if found := _SUMMARY.match(line):
            if int(found[1]) != len(log.searches):
                raise LogError(
                    f"{where}: the summary counts {found[1]} searches, {len(log.searches)} lines "
                    "stand above it"
                )
            log.summed_up = True
            continue
        if (found := _SEARCH.fullmatch(line.strip())) is None:
            raise LogError(f"{where}: neither `round R query Q latency D` nor the summary")
        latency = float(found[3]) * _SECONDS[found[4]]
        place = (int(found[1]), int(found[2]))
        log.searches.append(Search(number, math.nan, FOLLOWUP, latency, place))

"""Attempts: every try at a measurement leaves lines that nothing rewrites.

Snakemake deletes a job's declared outputs before it starts, so a failed rerun would take the old
record with it. Attempts live beside the outputs: `results/attempts/attempts.jsonl` gets one line
when an attempt begins and one when it ends, and each attempt has a folder of its own for its
raw parts and its log. An attempt that was killed has no second line and counts as `died`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from refill.evidence.hashes import sha256_file
from refill.evidence.records import canonical_json
from refill.evidence.scrub import without_paths

FOLDER = Path("results/attempts")
LINES = FOLDER / "attempts.jsonl"
SCHEMA = "refill.attempt/1"

_TARGET = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")


class AttemptError(ValueError):
    """An attempt cannot begin or end; the text says which one and why."""


@dataclass
class Attempt:
    """A begun attempt. Make one with `Attempt.begin`.

    `name` is `<target with / as ->/<UTC stamp>-<6 hex>`; `folder` is where its files go.
    """

    root: Path
    target: str
    name: str
    ended: bool = field(default=False, init=False)

    @property
    def folder(self) -> Path:
        """The attempt's own folder below `root`/results/attempts."""
        return self.root / FOLDER / self.name

    @classmethod
    def named(cls, root: Path, target: str, now: datetime) -> Attempt:
        """Give an attempt with a name of its own that has not begun, and leaves no line."""
        stamp = f"{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}Z-{secrets.token_hex(3)}"
        return cls(root, target, f"{folder_of(root, target).name}/{stamp}")

    @classmethod
    def begin(cls, root: Path, target: str, facts: Mapping[str, Any]) -> Attempt:
        """Make the attempt's folder and append its first line, flushed to the disk.

        `root` is the working folder of the workflow (the one that holds `results`), `target` the
        result that is tried, such as "optimizers/A1/1"; `facts` is JSON: what was asked for.
        Raises AttemptError for a target that is no plain path, RecordError for facts that JSON
        cannot hold, OSError when the disk refuses.
        """
        if not _TARGET.fullmatch(target) or ".." in target.split("/"):
            raise AttemptError(f"attempt target {target!r}: use letters, digits, _ . + - and /")
        now = datetime.now(UTC)
        attempt = cls.named(root, target, now)
        line = {"event": "begin", "attempt": attempt.name, "target": target, "facts": dict(facts)}
        text = _line(line, now)
        with _locked(root / LINES) as file:
            attempt.folder.mkdir(parents=True)
            _append(file, text)
        return attempt

    def end(
        self,
        outcome: str,
        reason: str,
        files: Sequence[Path] = (),
        hashes: Mapping[str, str] | None = None,
    ) -> None:
        """Append the attempt's last line: how it ended, why, and the SHA-256 of its files.

        `outcome` is one word ("completed", "drain_limit", "failed", "interrupted", "superseded"),
        `reason` a sentence; absolute paths of `root` and home are taken out of it. `files` must
        exist below `root`; `hashes` are of further ones, by their path below it. Raises
        AttemptError when it has ended already or a file is missing or elsewhere.
        """
        if self.ended:
            raise AttemptError(f"attempt {self.name}: has ended already; begin another one")
        if not re.fullmatch(r"[a-z_]+", outcome) or outcome == "died":
            raise AttemptError(
                f"attempt {self.name}: outcome {outcome!r}: use one lower-case word other than "
                "'died', which is for attempts without an end"
            )
        found = {self._relative(path): sha256_file(path) for path in files}
        line = {
            "event": "end",
            "attempt": self.name,
            "target": self.target,
            "outcome": outcome,
            "reason": without_paths(reason, [self.root]),
            "files": {**(hashes or {}), **found},
        }
        text = _line(line, datetime.now(UTC))
        with _locked(self.root / LINES) as file:
            _append(file, text)
        self.ended = True

    def _relative(self, path: Path) -> str:
        if not path.is_file():
            raise AttemptError(f"attempt {self.name}: file {path.name} does not exist")
        whole, root = path.resolve(), self.root.resolve()
        if not whole.is_relative_to(root):
            raise AttemptError(f"attempt {self.name}: file {path.name} is outside of the workflow")
        return whole.relative_to(root).as_posix()


def folder_of(root: Path, target: str) -> Path:
    """Give the folder that holds those of all attempts at a target."""
    return root / FOLDER / target.replace("/", "-")


def link_all(files: Sequence[Path], folder: Path) -> None:
    """Give files a second name in an attempt's folder (a hard link: no second copy of the data).

    Where the file system has no hard links they are copied.
    """
    for path in files:
        try:
            os.link(path, folder / path.name)
        except OSError:
            shutil.copy2(path, folder / path.name)


def list_attempts(root: Path) -> list[dict[str, Any]]:
    """Return all attempts in the order in which they began.

    Each is {"attempt", "target", "begun_at", "ended_at", "outcome", "reason", "facts", "files"};
    `outcome` is `died` and `ended_at` null for one without an end line. A line that cannot be
    read, or an end without a beginning, is an entry of outcome `unreadable` whose reason says
    which line and why. No file means no attempts.
    """
    path = root / LINES
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    begun: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(path.read_bytes().split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            name, event = line["attempt"], line["event"]
            if event == "begin":
                begun[name] = _entry(name, line)
                found.append(begun[name])
            elif event == "end":
                begun[name].update(
                    ended_at=line["at"],
                    outcome=line["outcome"],
                    reason=line["reason"],
                    files=line["files"],
                )
            else:
                raise ValueError(f"unknown event {event!r}")
        except (ValueError, KeyError, TypeError) as error:
            why = f"line {number} of {LINES.name}: {type(error).__name__}: {error}"
            found.append(_entry(None, {}) | {"outcome": "unreadable", "reason": why})
    return found


def _entry(name: str | None, line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attempt": name,
        "target": line["target"] if name else None,
        "begun_at": line["at"] if name else None,
        "ended_at": None,
        "outcome": "died",
        "reason": "no end was written: killed, or still running",
        "facts": line["facts"] if name else {},
        "files": {},
    }


def _line(values: Mapping[str, Any], now: datetime) -> bytes:
    at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    whole = json.loads(canonical_json({"schema": SCHEMA, "at": at, **values}))
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode() + b"\n"


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        # The lock goes when the file is closed, also by the kernel after a kill.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield file


def _append(file: IO[bytes], line: bytes) -> None:
    handle = file.fileno()
    size = os.fstat(handle).st_size
    # A writer that was killed in the middle of its line must not spoil the next one.
    if size and os.pread(handle, 1, size - 1) != b"\n":
        line = b"\n" + line
    written = os.write(handle, line)
    if written != len(line):
        raise OSError(f"{LINES}: {written} of {len(line)} bytes written; is the disk full?")
    os.fsync(handle)

"""What a check is, what it finds, and how that becomes an entry of the proof's record."""

from __future__ import annotations

import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from refill.engines.description import EngineError, RunnerError
from refill.told import with_notes

if TYPE_CHECKING:
    from refill.proofs.subject import Subject

PUBLISHED, BEYOND = "published", "beyond"
PASS, FAIL, VOID, NOT_RUN = "pass", "fail", "void", "not run"
OUTCOMES = (PASS, FAIL, VOID, NOT_RUN)
IMAGES = ("old", "new")
# What was not run for a fault of the proof itself is told from what a machine lacks.
HARNESS = "harness"


class NotRunError(Exception):
    """A check cannot run here; the text says why, and what it would need."""


class HarnessError(EngineError):
    """Something of the proof itself failed, which says nothing of the server."""


class ControlError(Exception):
    """What a check rests on is not so, such as a server that is dead after its kill."""


class ChangedError(ControlError):
    """What is tried has changed what it is tried on, which is a failure; the text says how."""


class Findings:
    """What one run of a check found.

    Attributes:
        evidence: numbers and replies, JSON.
        failures: what did not hold, as sentences.
        void: controls that did not do what they must, as sentences.
    """

    def __init__(self) -> None:
        self.evidence: dict[str, Any] = {}
        self.failures: list[str] = []
        self.void: list[str] = []

    def note(self, **evidence: Any) -> None:
        """Keep evidence."""
        self.evidence.update(evidence)

    def expect(self, holds: bool, sentence: str) -> None:
        """State what must hold; `sentence` says what is wrong when it does not."""
        if not holds:
            self.failures.append(sentence)

    def same(self, what: str, got: Any, wanted: Any) -> None:
        """State that two values must be equal."""
        self.expect(got == wanted, f"{what}: {_short(got)}, wanted {_short(wanted)}")

    def control(self, holds: bool, sentence: str) -> None:
        """State what must happen for the check to say anything at all."""
        if not holds:
            self.void.append(sentence)

    @property
    def outcome(self) -> str:
        """A failure counts more than a control that did not work."""
        if self.failures:
            return FAIL
        return VOID if self.void else PASS


@dataclass(frozen=True)
class Check:
    """One property, tried on a real server.

    Attributes:
        id: its name in records.
        title: the property, as a sentence.
        source: `published` (one of the six of the published experiment) or `beyond`.
        run: tries it, and tells the findings.
        expected: what must be seen, for each image.
        needs: what only some machines have, in words; without it the check is `not run`, and the
            proof is still valid.
        default_only: tried on the default server only.
        full_only: tried in the full form only, as it takes long for what it is.
        cheap: takes well under a second, so that it can be run against every mutation.
    """

    id: str
    title: str
    source: str
    run: Callable[[Subject, Findings], None]
    expected: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    default_only: bool = False
    full_only: bool = False
    cheap: bool = True

    def expectation(self, image: str) -> str:
        """What must be seen with an image."""
        return self.expected.get(image) or self.expected.get("both") or "holds"


def run_check(check: Check, subject: Subject) -> dict[str, Any]:
    """Run a check on an image and a server, and give its entry.

    A server that ends, or answers with an error or in a form that the check did not expect, is a
    failure of the check, and so is one whose settings were changed while it served; one that is not
    what the check rests on makes it void. A program or file of the proof itself that fails makes it
    `not run`, which leaves a required check without proof. What had failed before then stays a
    failure. Any other exception is a fault of the proof itself and is raised.

    Where somebody else took away what the check ran in, it tells nothing whatever was seen.
    """
    found = Findings()
    began, known = time.monotonic(), len(subject.program.disturbances())
    why = ""
    try:
        check.run(subject, found)
        found.control(bool(found.evidence), "it looked at nothing: it has no evidence")
        outcome = found.outcome
    except NotRunError as error:
        # What could not be cleaned up is no matter of what this machine lacks.
        mark = f"{HARNESS}: " if with_notes(error) != str(error) else ""
        outcome, why = _cut_short(found, mark + with_notes(error))
    except ChangedError as error:
        found.expect(False, with_notes(error))
        outcome = found.outcome
    except ControlError as error:
        found.control(False, with_notes(error))
        outcome = found.outcome
    except (HarnessError, RunnerError) as error:
        outcome, why = _cut_short(found, _of_the_harness(error))
    except (RedisError, EngineError, ConnectionError, TimeoutError) as error:
        found.failures.append(f"{type(error).__name__}: {with_notes(error)}")
        outcome = FAIL
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # A reply of another form than any that the scripts give.
        place = traceback.extract_tb(error.__traceback__)[-1]
        found.failures.append(
            f"an answer was not understood: {type(error).__name__}: {with_notes(error)} "
            f"({Path(place.filename).name}:{place.lineno})"
        )
        outcome = FAIL
    except (OSError, subprocess.SubprocessError) as error:
        outcome, why = _cut_short(found, _of_the_harness(error))
    why = why or "; ".join((*found.failures, *found.void))
    if done := subject.program.disturbances()[known:]:
        seen = f" (seen as: {why})" if why else ""
        outcome, why = NOT_RUN, f"{HARNESS}: {'; '.join(done)}{seen}"
    return entry(check, subject, outcome, why, found.evidence, time.monotonic() - began)


def told_of_episode(
    check_id: str, subject: Subject, number: int, history: Iterable[Mapping[str, Any]]
) -> str:
    """Keep the history of an episode that failed; give how it is run again, for a failure."""
    name = f"{check_id}-{subject.image}-{subject.server_name}-{number}.jsonl"
    subject.keep(name, "".join(f"{json.dumps(event)}\n" for event in history))
    return (
        f"history in {name}; again with --scale {subject.scale.name} --seed {subject.seed} "
        f"--replay {check_id}:{subject.image}:{number}:{subject.server_name}"
    )


def _of_the_harness(error: Exception) -> str:
    return f"{HARNESS}: {type(error).__name__}: {with_notes(error)}"


def _cut_short(found: Findings, why: str) -> tuple[str, str]:
    """Give outcome and reason of a check that could not go on."""
    if not found.failures:
        return NOT_RUN, why
    return FAIL, "; ".join((*found.failures, f"then not run: {why}"))


def entry(
    check: Check,
    subject: Subject,
    outcome: str,
    why: str,
    evidence: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Give a check's entry in the record."""
    return {
        "id": check.id,
        "title": check.title,
        "source": check.source,
        "image": subject.image,
        "server": subject.server_name,
        "outcome": outcome,
        "expected": check.expectation(subject.image),
        "required": not check.needs,
        "needs": check.needs,
        "evidence": dict(evidence),
        "why": why,
        "seconds": round(seconds, 3),
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:160]}... ({len(text)} characters)"

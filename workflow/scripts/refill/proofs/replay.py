"""One episode of a crash history again, as a failure names it.

A replay makes the same attack: the same steps, kills and wishes of the clients. The history is
another one, as the server takes calls that are in flight in any order and a kill meets them at any
point, so a fault may need several replays to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from refill.engines.description import EngineError
from refill.phases.lock import machine_lock
from refill.processes import Watch
from refill.proofs import crash_gateway, crash_server
from refill.proofs.findings import IMAGES
from refill.proofs.measure import Files, subject_of
from refill.proofs.scratch import Scratch
from refill.proofs.servers import DEFAULT, Program
from refill.proofs.setup import Setup, opened
from refill.proofs.subject import Subject

FORM = "CHECK:IMAGE:EPISODE[:SERVER]"
_CHECKS = (crash_server.ID, crash_gateway.ID)


@dataclass(frozen=True)
class Name:
    """An episode: `number` of a check, on an image and a server."""

    check: str
    image: str
    number: int
    server: str

    @classmethod
    def read(cls, text: str) -> Name:
        """Read `crash-server:new:3` or `crash-server:new:3:valkey-9`.

        Raises:
            EngineError: it names no episode.
        """
        check, image, number, server = (*text.split(":"), *("",) * 4)[:4]
        if not (
            check in _CHECKS
            and image in IMAGES
            # Not isdigit, which takes figures that are no numbers, such as the one of a square.
            and number.isascii()
            and number.isdecimal()
            and text.count(":") == (3 if server else 2)
        ):
            raise EngineError(
                f"{text!r} is no episode: write {FORM} with CHECK {' or '.join(_CHECKS)} and IMAGE "
                f"{' or '.join(IMAGES)}, as a failure names it"
            )
        return cls(check, image, int(number), server or DEFAULT)


def replay(
    plan: Mapping[str, Any], files: Files, what: str, say: Callable[[str], None]
) -> list[str]:
    """Run one episode again, alone on the machine; what it found.

    Args:
        plan: as of the proof; its form says how many episodes there are.
        files: the images; no record is written.
        what: `CHECK:IMAGE:EPISODE` or, on another server than the default, `...:SERVER`.
        say: told when the machine is waited for, and what is removed that an earlier run left.

    Raises:
        EngineError: it names no episode of such a proof, or a server that is not here.
        StoppedError: it was stopped.
    """
    name = Name.read(what)
    with (
        Watch(),
        machine_lock(say),
        Scratch(files.root, say) as scratch,
        opened(plan, files.images, scratch.path, say) as setup,
    ):
        program = _program(setup, name)
        subject = subject_of(plan, setup, name.image, program, scratch.path)
        kills = _kills(subject, name)
        if name.check == crash_server.ID:
            return crash_server.episode(subject, name.number, kills).failures
        return crash_gateway.episode(subject, name.number, kills)[0].failures


def _program(setup: Setup, name: Name) -> Program:
    found = {program.name: program for program in setup.programs}
    if name.check == crash_gateway.ID and name.server != DEFAULT:
        raise EngineError(f"{name.check} is tried on {DEFAULT} only, not on {name.server}")
    if name.server not in found:
        raise EngineError(f"there is no server {name.server!r}, only {', '.join(found)}")
    if found[name.server].missing:
        raise EngineError(f"{name.server} cannot be tried here: {found[name.server].missing}")
    return found[name.server]


def _kills(subject: Subject, name: Name) -> int:
    """Give how many kills an episode has in a proof of this form."""
    if name.check == crash_server.ID:
        kills, each = crash_server.kills_on(subject), crash_server.KILLS_AN_EPISODE
    else:
        kills = subject.scale.gateway_kills
        each = crash_gateway.KILLS_AN_EPISODE
    if (left := kills - name.number * each) > 0:
        return min(left, each)
    raise EngineError(
        f"there is no episode {name.number}: {name.check} has the episodes 0 to "
        f"{(kills - 1) // each} with --scale {subject.scale.name} on {name.server}"
    )

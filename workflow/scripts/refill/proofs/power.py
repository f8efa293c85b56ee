"""The power is cut under a server: what SIGKILL cannot show, as the page cache outlives it."""

from __future__ import annotations

import time
from collections.abc import Callable

from refill.proofs.calls import Index
from refill.proofs.disk import FILE_SYSTEMS, Disk
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.servers import Server
from refill.proofs.subject import Subject, create

POLICIES = ("always", "everysec", "no")


FILLS = 50


class Steps:
    """Durable steps, one behind the other, and what was acknowledged of them.

    Attributes:
        tokens: of writers that were admitted and stay.
        generation: the last one.
        fresh: responses of that generation, by fill; all others are of one before.
        steps: how many there were.
    """

    def __init__(self, server: Server, index: Index) -> None:
        self._server = server
        self._index = index
        self.tokens: list[str] = []
        self.generation = 0
        self.fresh: dict[str, str] = {}
        self.steps = 0

    def write_for(self, seconds: float) -> None:
        """Admit writers and release every other one, with fills between."""
        run, index = self._server.run, self._index
        deadline = time.monotonic() + seconds
        number = 0
        while time.monotonic() < deadline:
            # A writer that stays on an index of its own, and one whose release counts.
            token = f"w{number}"
            run(index.admit(token))
            self.generation = run(index.release(token))[1]
            fill, body = index.fill(number % FILLS), f"x{number}"
            run(index.publish(fill, body, self.generation))
            self.fresh = {fill: body}
            run(STAYING.admit(token))
            self.tokens.append(token)
            self.steps += 3
            number += 1


STAYING = Index("staying", incarnation="c2")


def power_cut(kind: str, policy: str) -> Callable[[Subject, Findings], None]:
    """The check of one file system and one policy."""

    def check(subject: Subject, found: Findings) -> None:
        with (
            Disk(kind, subject.place()) as disk,
            subject.server(disk.mount_point / "data", appendfsync=policy) as server,
        ):
            index = create(server)
            create(server, STAYING)
            # What all policies begin with is on the disk.
            server.rewrite()
            steps = Steps(server, index)
            steps.write_for(subject.scale.cut_s)
            disk.cut()
            server.kill()
            disk.come_back()
            server.start()
            seen = server.snapshot()
            there = seen.get(STAYING.writers_key, [{}])[0]
            generation = int(seen.get(index.key, [{}])[0].get("generation", 0))
            lost = sum(token not in there for token in steps.tokens)
            # Each lost generation is the release of one writer.
            lost_releases = max(0, steps.generation - generation)
            served = _served(server, index)
            old = sum(steps.fresh.get(fill) != body for fill, body in served.items())
            found.note(
                file_system=kind, appendfsync=policy, acknowledged=steps.steps,
                lost=lost + lost_releases, lost_admissions=lost, lost_releases=lost_releases,
                catalog_is_there=index.key in seen, hits_after=len(served), old_answers_after=old,
                property_holds=lost + lost_releases == 0,
            )  # fmt: skip
            if policy == "always":
                found.same("admissions lost", lost, 0)
                found.same("generation", generation, steps.generation)
                found.expect(steps.steps > 0, "no step was acknowledged")
                found.same("old answers that are served after the cut", old, 0)
                if subject.ephemeral:
                    found.same("responses that the log brought back", len(served), 0)
            else:
                found.control(
                    lost + lost_releases > 0,
                    f"appendfsync {policy} lost nothing: the cut does not cut",
                )

    check.__doc__ = f"Cut the power of {kind} under appendfsync {policy}."
    return check


def _served(server: Server, index: Index) -> dict[str, str]:
    """Look all fills up; the bodies of those that are hits."""
    replies = {fill: server.run(index.lookup(fill)) for fill in map(index.fill, range(FILLS))}
    return {
        fill: str(reply[1]).partition("\n")[2] for fill, reply in replies.items() if reply[0] == 1
    }


def _title(kind: str, policy: str) -> str:
    if policy == "always":
        return f"Power cut on {kind}, appendfsync always: no acknowledged durable step is lost"
    return f"Power cut on {kind}, appendfsync {policy} (control): acknowledged steps are lost"


CHECKS = tuple(
    Check(
        f"power-cut-{kind}-{policy}",
        _title(kind, policy),
        BEYOND,
        power_cut(kind, policy),
        {"both": "nothing lost" if policy == "always" else "MUST lose, or the check is void"},
        needs="root, a loop device, mkfs",
        default_only=True,
        cheap=False,
    )
    for kind in FILE_SYSTEMS
    for policy in POLICIES
)

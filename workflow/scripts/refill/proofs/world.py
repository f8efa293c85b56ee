"""What is known of the catalog while clients call its scripts and the server is killed.

What was acknowledged is certain. What was sent and not answered can be either, until it is
repeated by its token or looked at after a recovery. Qdrant is played by a number for each
incarnation of an index: how many writes it has applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refill.proofs.calls import Index
from refill.proofs.servers import Server

NAMES = ("a", "b", "c")
FILLS = 3
HELD, MAYBE = "held", "maybe"


@dataclass
class Life:
    """One incarnation of an index.

    Attributes:
        value: writes that Qdrant has applied.
        acknowledged: value that every later response must hold at least.
        generation, mapping_version, numbers: the highest that were acknowledged.
        ranges: the sequence numbers that each admitted writer was given.
        leaving: a commit of its deletion was sent.
        tokens: of its writers; `maybe`: an admission or a release of it was not answered.
    """

    name: str
    value: int = 0
    acknowledged: int = 0
    generation: int = 0
    mapping_version: int = 1
    numbers: int = 0
    leaving: bool = False
    tokens: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, range] = field(default_factory=dict)


@dataclass
class Claim:
    """A claim on a name; `maybe`: its claim, commit or abort was not answered."""

    kind: str
    incarnation: str
    state: str = MAYBE


@dataclass(frozen=True)
class DeadWriter:
    """A writer that was given up; `wrote`: its write may still reach Qdrant."""

    name: str
    incarnation: str
    token: str
    wrote: bool


class World:
    """The certain and the possible.

    Attributes:
        standing: for each name the incarnations that it can have; None: no index.
        deleted: incarnations whose deletion was acknowledged.
        dead: writers that were given up and not released by a recovery yet.
        failures: what contradicts what was acknowledged.
        counts: what happened, by kind.
        history: what clients called and were told, and the kills between, in their order.
    """

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.standing: dict[str, set[str | None]] = {name: {None} for name in NAMES}
        self.claims: dict[str, dict[str, Claim]] = {name: {} for name in NAMES}
        self.deleted: set[str] = set()
        self.dead: list[DeadWriter] = []
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.history: list[dict[str, Any]] = []
        self.now = "before the first step"
        self._made = 0

    def new_name(self, kind: str) -> str:
        """A token or an incarnation that nothing had before."""
        self._made += 1
        return f"{kind}{self._made}"

    def fail(self, what: str) -> None:
        """Keep a contradiction, with the step at which it was seen."""
        self.failures.append(f"{self.now}: {what}")
        self.note("failure", text=what)

    def note(self, event: str, **what: Any) -> None:
        """Add to the history."""
        self.history.append({"at": self.now, "event": event, **what})

    def give_numbers(self, incarnation: str, token: str, numbers: range) -> None:
        """Take note of an admitted writer's numbers, which nobody else may have."""
        life = self.lives[incarnation]
        for other, taken in life.ranges.items():
            if other != token and taken.start < numbers.stop and numbers.start < taken.stop:
                self.fail(f"the writers {token} and {other} have the same sequence numbers")
        life.ranges[token] = numbers
        life.numbers = max(life.numbers, numbers.stop)

    def turning(self, kind: str, name: str, incarnation: str) -> None:
        """Take note that a commit to create or delete is sent: it can happen from here on."""
        if kind == "create":
            self.lives[incarnation] = Life(name)
            self.standing[name] = self.standing[name] | {incarnation}
        else:
            self.lives[incarnation].leaving = True
            self.standing[name] = self.standing[name] | {None}

    def turned(self, kind: str, name: str, incarnation: str) -> None:
        """Take note that a commit was acknowledged.

        A client may be told late: what was created can be gone again by then, and where something
        was deleted, something else can stand.
        """
        self.counts[f"{kind}s acknowledged"] += 1
        if kind == "delete":
            self.deleted.add(incarnation)
            self.standing[name] = (self.standing[name] - {incarnation}) or {None}
        elif incarnation not in self.deleted:
            leaving = self.lives[incarnation].leaving
            self.standing[name] = {incarnation, None} if leaving else {incarnation}

    def floor(self, name: str) -> tuple[Mapping[str, int], frozenset[str]]:
        """What a response for this name that is asked for now must hold at least."""
        values = {i: life.acknowledged for i, life in self.lives.items() if life.name == name}
        return values, frozenset(self.deleted)

    def check_response(
        self, entry: str, floor: tuple[Mapping[str, int], frozenset[str]], when: str
    ) -> None:
        """Check a response that was served against what was acknowledged when it was asked for."""
        head, _, text = entry.partition("\n")
        incarnation, _, value = text.partition(":")
        values, deleted = floor
        if head.split(" ")[1] != incarnation:
            self.fail(f"{when}: an entry of {head.split(' ')[1]} holds a response of {incarnation}")
        if incarnation in deleted:
            self.fail(f"{when}: a response of {incarnation}, whose deletion was acknowledged")
        if int(value) < values.get(incarnation, 0):
            self.fail(
                f"{when}: stale: {incarnation} is served with write {value}, "
                f"{values[incarnation]} was acknowledged"
            )
        if incarnation in self.lives and int(value) > self.lives[incarnation].value:
            self.fail(f"{when}: write {value} of {incarnation} has not been made")

    def audit(self, server: Server, when: str) -> None:
        """Compare the whole catalog with what is known, and look every response up."""
        state = server.snapshot()
        epoch = state.get("proof:epoch", [None])[0]
        if epoch != "e1":
            self.fail(f"{when}: the epoch is {epoch}")
        listed = set(state.get("proof:indices", [[]])[0])
        for name in NAMES:
            index = Index(name)
            found: dict[str, Any] = state.get(index.key, [{}])[0]
            incarnation = found.get("incarnation")
            self._audit_index(name, found, when)
            if (name in listed) != (incarnation is not None):
                self.fail(f"{when}: {name} is {incarnation}, the list of indices says otherwise")
            life = self.lives.get(incarnation or "")
            self._audit_tokens(name, life, state.get(index.writers_key, [{}])[0], when)
            self._audit_claim(name, state.get(index.claim_key, [{}])[0], when)
            for number in range(FILLS):
                floor = self.floor(name)
                reply = server.run(index.lookup(index.fill(number)))
                if reply[0] == 1:
                    self.counts["hits in audits"] += 1
                    self.check_response(reply[1], floor, when)
        self.counts["audits"] += 1

    def _audit_index(self, name: str, found: Mapping[str, Any], when: str) -> None:
        incarnation = found.get("incarnation")
        if incarnation not in self.standing[name]:
            self.fail(
                f"{when}: {name} is {incarnation}, can be {sorted(map(str, self.standing[name]))}"
            )
            return
        if incarnation is None:
            return
        life = self.lives[incarnation]
        for what, least in (
            ("generation", life.generation),
            ("mapping_version", life.mapping_version),
            ("seq", life.numbers),
        ):
            if int(found[what]) < least:
                self.fail(
                    f"{when}: lost: {what} of {incarnation} is {found[what]}, {least} was "
                    "acknowledged"
                )

    def _audit_tokens(
        self, name: str, life: Life | None, found: Mapping[str, str], when: str
    ) -> None:
        known = life.tokens if life else {}
        for token, state in known.items():
            if state == HELD and token not in found:
                self.fail(f"{when}: lost: the writer {token} of {name} was admitted")
        for token in found.keys() - known.keys():
            self.fail(f"{when}: the writer {token} of {name} was released, or never admitted")

    def _audit_claim(self, name: str, found: Mapping[str, str], when: str) -> None:
        known = self.claims[name]
        for token, claim in known.items():
            if claim.state == HELD and found.get("token") != token:
                self.fail(f"{when}: lost: the claim {token} to {claim.kind} {name}")
        if found and found["token"] not in known:
            self.fail(f"{when}: the claim {found['token']} on {name} was resolved, or never made")

"""The requests of one round, made by seed before anything is timed, each with its right answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import orjson

from refill.corpora.documents import Documents
from refill.operations.catalog import INDEX, NAME, Operation, Operations
from refill.operations.limits import FRACTIONS, ROUNDS
from refill.oracle.columns import OracleError
from refill.oracle.documents import DocumentOracle, Expected
from refill.told import ToldError

BILLION = 1_000_000_000
# Draws that may repeat what was drawn before, for each request that is wanted.
ATTEMPTS = 100


class RequestError(ToldError, ValueError):
    """Requests cannot be made as they are asked for; the text says why and what to do."""


@dataclass(frozen=True)
class Request:
    """One request, ready to be sent.

    Attributes:
        key: its number in the set, from 0.
        operation: id of its operation.
        method: of HTTP.
        path: with the index.
        body: JSON, empty without one.
        expected: the right answer.
    """

    key: int
    operation: str
    method: str
    path: str
    body: bytes
    expected: Expected = field(repr=False)


class RequestSet:
    """All requests of one round.

    What is drawn depends on `seed` and on the place in the round (operation, phase, clients,
    trial) alone, so every round asks for the same and has the same right answers. Only the
    fraction that makes a cold request new depends on the round.

    Attributes:
        by_key: every request so far.
    """

    def __init__(self, operations: Operations, oracle: DocumentOracle, seed: int, index: str):
        self._operations = operations
        self._oracle = oracle
        self._seed = seed
        self._index = index
        self._round = 0
        self._fractions = 0
        self._asked: set[tuple[str, int, int]] = set()
        self._sent: set[tuple[str, bytes]] = set()
        self._warm: dict[str, list[Request]] = {}
        self.by_key: dict[int, Request] = {}

    @classmethod
    def build(
        cls, operations: Operations, documents: Documents, seed: int, index: str, round_id: str
    ) -> Self:
        """Make the warm requests of a round; the cold ones are made when they are asked for.

        Args:
            operations: as in config/operations.yaml.
            documents: the corpus that is loaded.
            seed: draws all values.
            index: name of the index.
            round_id: name of the round: its cold requests differ from those of other rounds.

        Raises:
            RequestError: an operation has fewer distinct requests than it must have.
            OracleError: the oracle cannot answer an operation.
        """
        requests = cls(operations, DocumentOracle(documents, index), seed, index)
        requests._round = _number(round_id) % ROUNDS
        for operation in operations.warm:
            requests._warm[operation.id] = requests._distinct(operation, operations.bodies)
        return requests

    def warm(self, operation: str) -> list[Request]:
        """Give the distinct requests of a warm operation.

        Raises:
            RequestError: there is no such warm operation.
        """
        if operation not in self._warm:
            listed = ", ".join(self._warm)
            raise RequestError(f"no warm operation {operation!r}: there are {listed}")
        return list(self._warm[operation])

    def cold(self, n: int, trial: int, clients: int, phase: str) -> list[Request]:
        """Make `n` requests of the cold operation, none of which was made before in this round.

        Raises:
            RequestError: this trial's requests were made already, or the round has had too many.
        """
        place = (phase, clients, trial)
        if place in self._asked:
            raise RequestError(
                f"the cold requests of {phase}, {clients} clients, trial {trial} were made "
                "already: a second time they would be in the cache"
            )
        self._asked.add(place)
        operation = self._operations.cold
        rng = self._rng(operation.id, phase, str(clients), str(trial))
        made = []
        for _ in range(n):
            request = self._draw(operation, rng)
            if request is None:
                raise RuntimeError(f"{operation.id}: a request came twice")
            made.append(request)
        return made

    def _distinct(self, operation: Operation, wanted: int) -> list[Request]:
        rng = self._rng(operation.id)
        draws = (self._draw(operation, rng) for _ in range(ATTEMPTS * wanted))
        found = []
        for request in draws:
            if request is not None:
                found.append(request)
            if len(found) == wanted:
                return found
        raise RequestError(
            f"operations.{operation.id}: only {len(found)} distinct requests came in "
            f"{ATTEMPTS * wanted} draws, `bodies` asks for {wanted}: widen its values"
        )

    def _draw(self, operation: Operation, rng: np.random.Generator) -> Request | None:
        """Draw a request; None when it was made before."""
        values: dict[str, Any] = {INDEX: self._index}
        cursors = {}
        for name, how in operation.values.items():
            if how["kind"] == "cursor":
                cursors[name] = how
            else:
                values[name] = self._value(how, rng)
        for name, how in cursors.items():
            values[name] = self._cursor(operation, values, how, rng)
        path = NAME.sub(lambda match: str(values[match[1]]), operation.path)
        body = None if operation.body is None else _filled(operation.body, values)
        data = b"" if body is None else orjson.dumps(body)
        if (path, data) in self._sent:
            return None
        self._sent.add((path, data))
        expected = self._oracle.expected(operation.method, path, body)
        key = len(self.by_key)
        request = Request(key, operation.id, operation.method, path, data, expected)
        self.by_key[key] = request
        return request

    def _value(self, how: Mapping[str, Any], rng: np.random.Generator) -> Any:
        if how["kind"] == "document":
            return self._oracle.ids[int(rng.integers(len(self._oracle.ids)))]
        if how["kind"] == "frequent":
            words = self._oracle.frequent(how["field"], how["among"])
            return words[int(rng.integers(len(words)))]
        whole = int(rng.integers(how["from"], how["to"], endpoint=True))
        return self._unique(whole) if how["unique"] else whole

    def _unique(self, whole: int) -> float:
        self._fractions += 1
        if self._fractions > FRACTIONS:
            raise RequestError(f"more than {FRACTIONS} cold requests in one round: ask for fewer")
        return whole + (self._round * FRACTIONS + self._fractions) / BILLION

    def _cursor(
        self,
        operation: Operation,
        values: Mapping[str, Any],
        how: Mapping[str, Any],
        rng: np.random.Generator,
    ) -> list[Any]:
        assert operation.body is not None
        search = {key: part for key, part in operation.body.items() if key != "search_after"}
        hits = self._oracle.page(_filled(search, values) | {"size": how["to"]})
        if len(hits) < how["to"]:
            raise OracleError(
                f"operations.{operation.id}: a search has {len(hits)} hits, too few for a cursor "
                f"at hit {how['to']}: widen its filter or lower `to`"
            )
        return hits[int(rng.integers(how["from"], how["to"], endpoint=True)) - 1][1]

    def _rng(self, *place: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, _number("\0".join(place))])


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Give a copy of a template with a value in the place of each string `${name}`."""
    if isinstance(template, Mapping):
        return {key: _filled(part, values) for key, part in template.items()}
    if isinstance(template, list):
        return [_filled(part, values) for part in template]
    if isinstance(template, str) and (match := NAME.fullmatch(template)):
        return values[match[1]]
    return template


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())

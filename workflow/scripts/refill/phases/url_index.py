"""The index of one round in an engine at a URL: named for the round, marked as its, and removed.

Such an engine is somebody's own, and its indices outlive the round. So the round's is made under a
name that nobody else has, with a mark in its mapping of the run and the process that made it, and
nothing without this run's mark is ever deleted but what a dead process of this project left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from refill.engines.description import EngineError
from refill.engines.native import Api
from refill.runtimes.owner import Owner

PREFIX = "refill-"
PROJECT = "refill"


def new_name(index: str) -> str:
    """Give a name of a round's own for an index; always of the same length."""
    return f"{PREFIX}{index}-{secrets.token_hex(6)}"


class UrlIndex:
    """The index of this round in an engine at a URL.

    Args:
        api: asks the engine.
        name: the index's, of `new_name`.
        say: told what is found and removed.

    Attributes:
        left: in words, what stays there and why.
    """

    def __init__(self, api: Api, name: str, say: Callable[[str], None]) -> None:
        self._api = api
        self._name = name
        self._say = say
        self._mark = {"run": name, "owner": Owner.this_process().label}
        self.left: list[str] = []

    def marked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give the body that creates the index, with the mark in its mapping."""
        return {**body, "mappings": {**body["mappings"], "_meta": {PROJECT: self._mark}}}

    def sweep(self) -> None:
        """Remove indices of rounds that were killed; tell of those of which it cannot be known.

        Raises:
            EngineError: the engine does not answer, or refuses.
        """
        kind = self._name.rpartition("-")[0]
        for name, mapping in self._api.mappings(f"{kind}-*").items():
            mark = _mark_of(mapping)
            owner = Owner.from_label(str(mark.get("owner"))) if mark.get("run") == name else None
            lives = owner.lives() if owner else None
            if lives is False:
                self._api.delete_index(name)
                self._say(f"{self._api.name}: removed the index {name}, which a killed run left")
            elif lives is None:
                self.left.append(
                    f"{self._api.name}: the index {name} is there still, of a run of which it "
                    f"cannot be seen from here whether it goes on: if not, DELETE /{name}"
                )
                self._say(self.left[-1])

    def remove(self) -> None:
        """Delete the index, if it is there; what cannot be done is said in `left`."""
        try:
            found = self._api.mappings(f"{self._name}*").get(self._name)
            if found is None:
                return
            if _mark_of(found) != self._mark:
                raise EngineError("it has not the mark of this run")
            self._api.delete_index(self._name)
        except EngineError as error:
            self.left.append(
                f"{self._api.name}: the index {self._name} could not be deleted ({error}): "
                f"DELETE /{self._name} by hand"
            )
            self._say(self.left[-1])


def _mark_of(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Give the mark in a mapping; {}: it has none."""
    meta = mapping.get("_meta")
    mark = meta.get(PROJECT) if isinstance(meta, dict) else None
    return dict(mark) if isinstance(mark, dict) else {}

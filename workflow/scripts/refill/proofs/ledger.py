"""What HTTP clients of a gateway have been told, and what they may be told from then on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ABSENT = 0


@dataclass
class Document:
    """What is known of one document, whose writes carry rising numbers, one at a time.

    Attributes:
        least: the number that was acknowledged, or read; nothing lower may be read again.
        most: the highest number that was sent.
    """

    least: int = ABSENT
    most: int = ABSENT


@dataclass
class Ledger:
    """All documents of all indices; used by several threads.

    Attributes:
        failures: answers that contradict what was told before.
        counts: what happened, by kind.
        history: what clients were told, and what was done between, in the order it was seen.
    """

    documents: dict[tuple[str, str], Document] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    history: list[dict[str, Any]] = field(default_factory=list)
    now: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def _note(self, event: str, **what: Any) -> None:
        seconds = round(time.monotonic() - self._began, 4)
        self.history.append({"s": seconds, "at": self.now, "event": event, **what})

    def count(self, what: str) -> None:
        """Count one of a kind."""
        with self._lock:
            self.counts[what] += 1
            self._note(what)

    def fail(self, what: str) -> None:
        """Keep a contradiction."""
        with self._lock:
            self._fail(what)

    def _fail(self, what: str) -> None:
        self.failures.append(f"{self.now}: {what}")
        self._note("failure", text=what)

    def sending(self, index: str, id_: str) -> int:
        """The number that the next write of a document carries."""
        with self._lock:
            document = self.documents.setdefault((index, id_), Document())
            document.most += 1
            self._note("write sent", index=index, id=id_, n=document.most)
            return document.most

    def acknowledged(self, index: str, id_: str, number: int) -> None:
        """A write was acknowledged."""
        with self._lock:
            document = self.documents[index, id_]
            document.least = max(document.least, number)
            self.counts["writes acknowledged"] += 1
            self._note("write acknowledged", index=index, id=id_, n=number)

    def floor(self, index: str) -> dict[str, int]:
        """What a read of an index that begins now must give at least, by document."""
        with self._lock:
            return {id_: d.least for (name, id_), d in self.documents.items() if name == index}

    def read(
        self, index: str, floor: Mapping[str, int], found: Mapping[str, int], when: str
    ) -> None:
        """An answer gave these numbers; `floor` was taken before it was asked for."""
        with self._lock:
            self.counts["answers checked"] += 1
            self._note(when, index=index, floor=dict(floor), found=dict(found))
            for id_, least in floor.items():
                number = found.get(id_, ABSENT)
                document = self.documents[index, id_]
                if number < least:
                    self._fail(
                        f"{when}: {index}/{id_} is {number}, {least} was acknowledged or read "
                        "before"
                    )
                elif number > document.most:
                    self._fail(
                        f"{when}: {index}/{id_} is {number}, {document.most} was the last that "
                        "was sent"
                    )
                document.least = max(document.least, number)


def numbers_of(answer: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """The number of each document in a search's answer, and what is wrong with its form."""
    hits = answer["hits"]["hits"]
    found = {hit["_id"]: int(hit["_source"]["n"]) for hit in hits}
    order = [-hit["_source"]["n"] for hit in hits]
    if order != sorted(order):
        return found, f"a sorted page is out of order: {[-n for n in order]}"
    if answer["hits"]["total"]["value"] != len(hits) or len(found) != len(hits):
        return found, f"{len(hits)} hits, total {answer['hits']['total']}"
    return found, ""

"""What each fault does to one exchange of a request and its answer.

A fault is told apart by when it acts: in the place of the engine (the request is not forwarded), on
the request that is forwarded, or on the engine's answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from refill.faults.messages import Message, answer

SEARCH, UPLOAD, CONTROL, ALL = "search", "upload", "control", "all"
PAGE = b"<!DOCTYPE html><html><body><h1>The service is being updated</h1></body></html>"
# The values that a wrong answer is made of; each is a number or a string that begins with a digit.
_VALUE = re.compile(rb'"(?:id|_id|score|value|doc_count)":\s*"?(-?\d[\d.]*)')
# How many earlier answers are kept to be served again.
KEPT = 2000


@dataclass(frozen=True)
class Sent:
    """What goes back to the client.

    Attributes:
        message: the answer; None: the connection is closed without one.
        claimed: the length that its head states, where that is not the body's.
    """

    message: Message | None
    claimed: int | None = None


@dataclass(frozen=True)
class Fault:
    """A fault by its name.

    Attributes:
        words: what it is, for people.
        kind: the requests that it concerns: `search`, `upload`, `control`, `all`.
        share: the share of those requests that it hits, unless another is asked for.
        instead: makes the answer in the place of the engine.
        request: changes what is forwarded.
        response: changes the engine's answer; None when it cannot act on this one.
    """

    words: str
    kind: str = SEARCH
    share: float = 0.01
    instead: Callable[[Message], Message] | None = None
    request: Callable[[Message], Message] | None = None
    response: Callable[[Message, Message, random.Random], Sent | None] | None = None


def kind_of(request: Message) -> str:
    """Tell a search or a read from an upload and from everything else."""
    path = request.path
    if path.endswith(("/points/query", "/_search")) or "/_doc/" in path:
        return SEARCH
    if path.endswith("/_bulk") or (request.method == "PUT" and path.endswith("/points")):
        return UPLOAD
    return CONTROL


class Earlier:
    """Answers that were given before, so that one can be served again."""

    def __init__(self) -> None:
        self._answers: dict[bytes, Message] = {}

    def keep(self, request: Message, response: Message) -> None:
        """Keep the first answer to a request; the oldest go when there are too many."""
        self._answers.setdefault(_key(request), response)
        if len(self._answers) > KEPT:
            del self._answers[next(iter(self._answers))]

    def same(self, request: Message) -> Message | None:
        """Give the first answer to this very request, if it is still there."""
        return self._answers.get(_key(request))

    def other(self, request: Message) -> Message | None:
        """Give the newest answer to another request of the same kind."""
        mine, form = _key(request), _form(request)
        for key in reversed(self._answers):
            if key != mine and key.startswith(form):
                return self._answers[key]
        return None


def _form(request: Message) -> bytes:
    path = request.path
    document = path.find("/_doc/")
    form = path if document < 0 else path[: document + 6]
    return f"{request.method} {form}".encode()


def _key(request: Message) -> bytes:
    return f"{request.method} {request.path}\0".encode() + request.body


def _drop(_: Message, __: Message, ___: random.Random) -> Sent:
    return Sent(None)


def _broken(_: Message, response: Message, rng: random.Random) -> Sent | None:
    if not response.body:
        return None
    body = bytearray(response.body)
    # No JSON text may hold this byte, wherever it stands.
    body[rng.randrange(len(body))] = 0xFF
    return Sent(replace(response, body=bytes(body)))


def _changed(_: Message, response: Message, rng: random.Random) -> Sent | None:
    """Change one digit of an id, a score, a total or a count; the body stays JSON of its length."""
    found = list(_VALUE.finditer(response.body))
    if not found:
        at = response.body.find(b"acknowledged")
        if at < 0:
            return None
        return Sent(replace(response, body=response.body.replace(b"acknow", b"acknew", 1)))
    match = rng.choice(found)
    number = match[1]
    # The first digit behind the point of a score, the last one of a whole number.
    place = number.find(b".") + 1 or len(number) - 1
    place = min(place, len(number) - 1)
    digit = number[place] - ord("0")
    if not 0 <= digit <= 9:
        return None
    other = (digit + rng.randint(2, 7)) % 10 or (digit + 1) % 10 or 1
    body = bytearray(response.body)
    body[match.start(1) + place] = ord("0") + other
    return Sent(replace(response, body=bytes(body)))


def _truncated(_: Message, response: Message, rng: random.Random) -> Sent | None:
    """Send a part of the body and close, while the head states the whole length."""
    if len(response.body) < 2:
        return None
    kept = response.body[: rng.randrange(1, len(response.body))]
    return Sent(replace(response, body=kept, closes=True), len(response.body))


def _cut(_: Message, response: Message, rng: random.Random) -> Sent | None:
    """Send a part of the body and state its length: to HTTP all is well."""
    if len(response.body) < 2:
        return None
    return Sent(replace(response, body=response.body[: rng.randrange(1, len(response.body))]))


def _page(status: int, reason: str) -> Callable[[Message], Message]:
    return lambda _: answer(status, reason, "text/html", PAGE)


def _json(message: Message, value: Any) -> Message:
    return replace(message, body=orjson.dumps(value))


def _empty(request: Message, response: Message, _: random.Random) -> Sent | None:
    """Answer as a server without a point or document would."""
    if "/_doc/" in request.path:
        body = {"_index": "", "_id": request.path.rpartition("/")[2], "found": False}
        return Sent(answer(404, "Not Found", "application/json", orjson.dumps(body)))
    value = orjson.loads(response.body)
    if "result" in value:
        value["result"]["points"] = []
        return Sent(_json(response, value))
    value["hits"]["hits"], value["hits"]["total"]["value"] = [], 0
    for part in value.get("aggregations", {}).values():
        part["buckets"] = []
    return Sent(_json(response, value))


def _twice_the_limit(request: Message) -> Message:
    try:
        body = orjson.loads(request.body)
        body["limit"] = 2 * body["limit"]
    except (ValueError, KeyError, TypeError):
        return request
    return replace(request, body=orjson.dumps(body))


def _half(request: Message, response: Message, _: random.Random) -> Sent | None:
    """Answer from every second point: as many hits as were asked for, and none of an odd id."""
    if "/_doc/" in request.path:
        return None
    value = orjson.loads(response.body)
    if "result" in value:
        wanted = orjson.loads(request.body).get("limit", 10)
        points = value["result"]["points"]
        value["result"]["points"] = [p for p in points if p["id"] % 2 == 0][:wanted]
        return Sent(_json(response, value))
    hits = value["hits"]
    hits["hits"], hits["total"]["value"] = hits["hits"][::2], hits["total"]["value"] // 2
    for part in value.get("aggregations", {}).values():
        for bucket in _buckets(part):
            bucket["doc_count"] //= 2
    return Sent(_json(response, value))


def _buckets(part: dict[str, Any]) -> list[dict[str, Any]]:
    buckets = part["buckets"]
    return list(buckets.values()) if isinstance(buckets, dict) else list(buckets)


def _acknowledge(_: Message) -> Message:
    """Say that an upsert was taken, and forget it."""
    body = {"result": {"operation_id": 0, "status": "acknowledged"}, "status": "ok", "time": 0.0}
    return answer(200, "OK", "application/json", orjson.dumps(body))


def _half_of_bulk(request: Message) -> Message:
    """Keep the first half of a bulk request's documents; each is two lines."""
    lines = request.body.splitlines(keepends=True)
    if not request.path.endswith("/_bulk") or len(lines) < 4:
        return request
    return replace(request, body=b"".join(lines[: len(lines) // 4 * 2]))


def _whole_bulk(request: Message, response: Message, _: random.Random) -> Sent | None:
    """Acknowledge every document of a bulk request, those too that were never passed on."""
    value = orjson.loads(response.body)
    if "items" not in value or not value["items"]:
        return None
    wanted = len(request.body.splitlines()) // 2
    value["items"] = [value["items"][n % len(value["items"])] for n in range(wanted)]
    return Sent(_json(response, value))


NONE, STALL, STALE, OUTDATED = "none", "stall", "stale", "outdated"
FAULTS: dict[str, Fault] = {
    NONE: Fault("passes everything on", share=0.0),
    "drop": Fault("closes the connection without an answer", response=_drop),
    "corrupt-json": Fault("changes a byte of the body so that it is not JSON", response=_broken),
    "corrupt-value": Fault("changes a digit of an id, score or count", response=_changed),
    "truncate": Fault("sends a part of the body, then closes", response=_truncated),
    "cut": Fault("sends a part of the body as if it were all", response=_cut),
    STALL: Fault("answers nothing for some seconds, once", kind=ALL),
    "page-200": Fault("answers early with an HTML page, 200", instead=_page(200, "OK")),
    "page-502": Fault("answers early with an HTML page, 502", instead=_page(502, "Bad Gateway")),
    STALE: Fault("gives an earlier answer to another request"),
    OUTDATED: Fault("gives its first answer to the same request again", share=1.0),
    "empty": Fault("answers as if it held nothing", share=1.0, response=_empty),
    "half": Fault(
        "answers from half of what it holds", share=1.0, request=_twice_the_limit, response=_half
    ),
    "swallow": Fault(
        "acknowledges half of the upserts and forgets them",
        kind=UPLOAD, share=0.5, instead=_acknowledge,
    ),
    "swallow-bulk": Fault(
        "acknowledges whole bulk requests and keeps half of their documents",
        kind=UPLOAD, share=1.0, request=_half_of_bulk, response=_whole_bulk,
    ),
}  # fmt: skip

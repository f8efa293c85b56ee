"""Qdrant, embedded or the server: how it is run, asked, and what its answers mean.

Source of the shapes: Qdrant 1.19's OpenAPI document. What one of the two engines does not offer
(`/collections/{c}/memory` and the update queue are the server's) is None or NaN, never 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from refill.engines.description import Description, EngineError, Place
from refill.load.wire import Address, Connection, WireError, prepare
from refill.runtimes.ports import free_port

COLLECTION = "refill"
VECTOR = "dense"
UNKNOWN = float("nan")
NOT_QDRANT = ": is this a Qdrant server of version 1.19 or newer?"
# `status` of an optimization that is not over yet.
ACTIVE = "optimizing"
# Where the published image keeps its data.
IMAGE_DATA = "/qdrant/storage"


def embedded(program: Sequence[str], cpus: int, start_timeout_s: float) -> Description:
    """Describe the embedded Qdrant that is built from `images/qdrant-edge`.

    Args:
        program: what starts it; empty for a container, whose image knows.
        cpus: CPUs that it may use.
        start_timeout_s: until it must be ready.
    """

    def command(place: Place) -> Sequence[str]:
        where = ["--storage", str(place.storage), "--host", place.host, "--port", str(place.port)]
        return [*program, *where]

    return Description("qdrant", command, is_ready, {"QDRANT_NUM_CPUS": str(cpus)}, start_timeout_s)


def server(program: Sequence[str], cpus: int, start_timeout_s: float) -> Description:
    """Describe a Qdrant server.

    Args:
        program: the path of its binary; empty for a container, whose image knows.
        cpus: CPUs that it may use.
        start_timeout_s: until it must be ready.
    """

    def variables(place: Place) -> Mapping[str, str]:
        return {
            "QDRANT__SERVICE__HOST": place.host,
            "QDRANT__SERVICE__HTTP_PORT": str(place.port),
            "QDRANT__SERVICE__GRPC_PORT": str(free_port()),
            "QDRANT__STORAGE__STORAGE_PATH": str(place.storage / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(place.storage / "snapshots"),
            "QDRANT__TELEMETRY_DISABLED": "true",
        }

    return Description(
        "qdrant",
        lambda _: list(program),
        is_ready,
        {"QDRANT_NUM_CPUS": str(cpus)},
        start_timeout_s,
        variables=variables,
    )


def container(image: Mapping[str, Any], cpus: int, start_timeout_s: float) -> Description:
    """Describe a Qdrant in a container: the embedded one, built here, or the published server.

    Args:
        image: record of the image.
        cpus: CPUs that it may use.
        start_timeout_s: until it must be ready.
    """
    if "reference" not in image:
        return embedded([], cpus, start_timeout_s)
    return replace(server([], cpus, start_timeout_s), data=IMAGE_DATA)


def external(start_timeout_s: float) -> Description:
    """Describe a Qdrant that already runs somewhere."""
    return Description("qdrant", lambda _: [], is_ready, {}, start_timeout_s)


def is_ready(address: Address) -> bool:
    """Ask `/readyz` once."""
    connection = Connection(address, 5.0)
    try:
        status, _ = connection.request(prepare(address, "GET", "/readyz"))
    except WireError as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    # Behind a key even this is refused; the first call that carries the key tells more.
    return status in (200, 401, 403)


def api_key(variable: str) -> str | None:
    """Read the API key from the environment; it goes into request heads and nowhere else.

    Raises:
        EngineError: it holds what cannot stand in a request's head; the key is not shown.
    """
    key = os.environ.get(variable) or None
    if key and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise EngineError(
            f"the API key in the variable {variable} has a line break, a space at an end, or a "
            "letter that is not ASCII: set it again (qdrant.api_key_env names the variable)"
        )
    return key


def without_key(text: str, key: str | None) -> str:
    """Take an API key out of an engine's words: a proxy may send back what it was sent."""
    return text.replace(key, "<API key>") if key else text


@dataclass(frozen=True)
class CollectionState:
    """What a collection says of itself at one moment; NaN where it does not say."""

    points: float
    indexed: float
    deferred: float
    segments: float
    color: str
    optimizer_status: str
    running: tuple[str, ...]
    running_done: float
    running_total: float
    queued: float
    queued_points: float
    update_queue: float

    @property
    def visible(self) -> float:
        """Points that a search can see: all but the deferred ones."""
        return self.points - (0.0 if np.isnan(self.deferred) else self.deferred)

    @property
    def busy(self) -> str | None:
        """Why the optimizers are not idle; None when they are.

        Grey means that optimizations are possible and not triggered, so it is not idle; an
        optimization that ended in an error leaves its work undone, so that is not idle either.
        """
        if self.running:
            return "running: " + ", ".join(self.running)
        if self.queued > 0:
            return f"{self.queued:.0f} optimizations wait"
        if self.update_queue > 0:
            return f"{self.update_queue:.0f} updates wait"
        if self.color != "green":
            return f"the collection is {self.color}"
        if self.optimizer_status != "ok":
            return f"optimizer status: {self.optimizer_status}"
        return None


UNKNOWN_STATE = CollectionState(
    points=UNKNOWN,
    indexed=UNKNOWN,
    deferred=UNKNOWN,
    segments=UNKNOWN,
    color="unknown",
    optimizer_status="unknown",
    running=(),
    running_done=UNKNOWN,
    running_total=UNKNOWN,
    queued=UNKNOWN,
    queued_points=UNKNOWN,
    update_queue=UNKNOWN,
)


class Api:
    """The control side of Qdrant's REST API: never used inside a timed request.

    Args:
        address: where it listens.
        key: API key or None.
        timeout_s: limit for one answer.
    """

    def __init__(self, address: Address, key: str | None, timeout_s: float = 30.0) -> None:
        self.address = address
        self.key = key
        self.headers = {"api-key": key} if key else {}
        self._connection = Connection(address, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Make one call and give its `result`.

        Raises:
            EngineError: no answer, a status other than 200 (with the engine's own words), or an
                answer that is not Qdrant's.
        """
        answer = self._json(method, path, body)
        if answer.get("result") is None:
            raise EngineError(f"qdrant: {method} {path}: the answer has no `result`{NOT_QDRANT}")
        return answer["result"]

    def _json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        status, answer = self._exchange(method, path, body)
        if status != 200:
            words = without_key(error_text(answer), self.key)
            raise EngineError(f"qdrant: {method} {path}: {status}: {words}")
        try:
            value = orjson.loads(answer)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise EngineError(f"qdrant: {method} {path}: the answer is no JSON object{NOT_QDRANT}")
        return value

    def _exchange(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        data = None if body is None else orjson.dumps(body)
        try:
            return self._connection.request(prepare(self.address, method, path, data, self.headers))
        except WireError as error:
            raise EngineError(f"qdrant: {method} {path}: {error}") from error

    def identity(self) -> dict[str, Any]:
        """Give title, version and commit as the engine states them."""
        stated = self._json("GET", "/")
        return {name: stated.get(name) for name in ("title", "version", "commit")}

    def create(
        self,
        dimension: int,
        distance: str,
        optimizers: Mapping[str, Any],
        hnsw: Mapping[str, Any],
    ) -> None:
        """Create the collection anew; one named vector, as in the published experiment."""
        path = f"/collections/{COLLECTION}/exists"
        if self._part(self.call("GET", path), "exists", path):
            raise EngineError(
                f"qdrant: a collection named {COLLECTION!r} is already there; it is left as it "
                f"is: delete it yourself (DELETE /collections/{COLLECTION}), then run again"
            )
        body: dict[str, Any] = {"vectors": {VECTOR: {"size": dimension, "distance": distance}}}
        if optimizers:
            body["optimizers_config"] = dict(optimizers)
        if hnsw:
            body["hnsw_config"] = dict(hnsw)
        self.call("PUT", f"/collections/{COLLECTION}", body)

    def drop(self) -> None:
        """Delete the collection."""
        self.call("DELETE", f"/collections/{COLLECTION}")

    def reconfigure(self, optimizers: Mapping[str, Any], hnsw: Mapping[str, Any]) -> None:
        """Change optimizer and HNSW settings of the collection."""
        body: dict[str, Any] = {}
        if optimizers:
            body["optimizers_config"] = dict(optimizers)
        if hnsw:
            body["hnsw_config"] = dict(hnsw)
        self.call("PATCH", f"/collections/{COLLECTION}", body)

    def delete(self, ids: Sequence[int]) -> None:
        """Delete points; the answer does not wait until it is done, as in the source."""
        path = f"/collections/{COLLECTION}/points/delete?wait=false"
        self.call("POST", path, {"points": list(ids)})

    def count(self) -> int:
        """Count the points that reads can see, exactly."""
        path = f"/collections/{COLLECTION}/points/count"
        count = self._part(self.call("POST", path, {"exact": True}), "count", path)
        return int(count)

    def exact_search(self, query: NDArray[np.float32], limit: int) -> tuple[int, bytes]:
        """Search without an index; give status and body as they came, for the judge.

        Raises:
            EngineError: no answer.
        """
        body = {
            "query": np.asarray(query, dtype=np.float32).tolist(),
            "using": VECTOR,
            "limit": limit,
            "params": {"exact": True},
        }
        return self._exchange("POST", f"/collections/{COLLECTION}/points/query", body)

    def settings(self) -> dict[str, Any]:
        """Give the collection's optimizer and HNSW settings as the engine states them."""
        path = f"/collections/{COLLECTION}"
        config = self._part(self.call("GET", path), "config", path)
        return {
            "optimizers": config.get("optimizer_config"),
            "hnsw": config.get("hnsw_config"),
            "vectors": (config.get("params") or {}).get("vectors"),
        }

    def memory(self) -> dict[str, Any] | None:
        """Give the server's own account of memory; None where it has none."""
        try:
            account = self.call("GET", f"/collections/{COLLECTION}/memory")
        except EngineError:
            return None
        total: dict[str, Any] | None = account.get("total")
        return total

    def completed(self) -> dict[str, str]:
        """Give the optimizations that are over, well or badly: optimizer name by uuid."""
        path = f"/collections/{COLLECTION}/optimizations?with=completed"
        done = self.call("GET", path).get("completed") or []
        return {str(job["uuid"]): str(job.get("optimizer", "unknown")) for job in done}

    def state(self) -> CollectionState:
        """Ask for the collection's state: counts, colour, and what the optimizers do."""
        path = f"/collections/{COLLECTION}"
        info = self.call("GET", path)
        work = self.call("GET", f"{path}/optimizations?with=queued")
        for answer, part in ((info, "points_count"), (work, "summary"), (work, "running")):
            self._part(answer, part, path)
        return read_state(info, work)

    @staticmethod
    def _part(answer: Any, part: str, path: str) -> Any:
        """Give a part of an answer. What is not said must not pass for idle or empty."""
        if not isinstance(answer, dict) or answer.get(part) is None:
            raise EngineError(f"qdrant: {path}: the answer has no `{part}`{NOT_QDRANT}")
        return answer[part]


def error_text(answer: bytes) -> str:
    """Give the engine's own words from an error answer, at most 200 characters."""
    try:
        status = orjson.loads(answer).get("status")
        text = status["error"] if isinstance(status, dict) else str(status)
    except (ValueError, KeyError, AttributeError):
        text = answer.decode(errors="replace")
    return str(text)[:200]


def read_state(info: Mapping[str, Any], work: Mapping[str, Any]) -> CollectionState:
    """Read a collection's info and its optimizations into one state."""
    queue = info.get("update_queue") or {}
    summary = work.get("summary") or {}
    running = [o for o in work.get("running") or [] if o.get("status") == ACTIVE]
    progress = (running[0].get("progress") or {}) if running else {}
    status = info.get("optimizer_status", "unknown")
    if isinstance(status, Mapping):
        status = str(status.get("error", status))
    return CollectionState(
        points=_number(info.get("points_count")),
        indexed=_number(info.get("indexed_vectors_count")),
        deferred=_number(queue.get("deferred_points")),
        segments=_number(info.get("segments_count")),
        color=str(info.get("status", "unknown")),
        optimizer_status=str(status),
        running=tuple(str(o.get("optimizer", "unknown")) for o in running),
        running_done=_number(progress.get("done")),
        running_total=_number(progress.get("total")),
        queued=_number(summary.get("queued_optimizations")),
        queued_points=_number(summary.get("queued_points")),
        update_queue=_number(queue.get("length")),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else UNKNOWN

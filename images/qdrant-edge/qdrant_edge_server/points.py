"""Points in request bodies: upserts in both forms, selectors of points, and their JSON output."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge

from .checks import Json, as_object, kind, only, required, text
from .configuration import CollectionConfig
from .errors import bad_body, unsupported, wrong_input
from .filters import PointId, parse_filter, point_id, point_ids

_POINT_FIELDS = frozenset(("id", "vector", "payload"))
_NUMBERS = frozenset((int, float))
_INFERENCE = frozenset(("text", "model", "image", "object", "options"))


class PointReader:
    """Reads points for one collection's vectors. Made once per configuration: uploads are hot."""

    def __init__(self, config: CollectionConfig) -> None:
        self._sizes = {name: params["size"] for name, params in config.vectors.items()}
        self._multi = {
            name for name, params in config.vectors.items() if params.get("multivector_config")
        }
        self._sparse = frozenset(config.sparse_vectors)

    def upserts(self, body: Any) -> list[edge.Point]:
        """The points in the body of `PUT /collections/{name}/points`, in either form."""
        if "batch" in as_object(body, "body"):
            fields = only(body, ("batch", "shard_key", "update_filter", "update_mode"))
            _refuse_conditions(fields)
            return self._batch(fields["batch"])
        fields = only(body, ("points", "shard_key", "update_filter", "update_mode"))
        _refuse_conditions(fields)
        points = required(fields, "points")
        if not isinstance(points, list):
            raise bad_body(f"points: expected an array, got {kind(points)}")
        return [self._point(point, n) for n, point in enumerate(points)]

    def vector_updates(self, body: Any) -> list[tuple[PointId, edge.PointVectors]]:
        """The new vectors in the body of `PUT /collections/{name}/points/vectors`."""
        fields = only(body, ("points", "shard_key", "update_filter"))
        _refuse_conditions(fields)
        updates = []
        for n, point in enumerate(required(fields, "points")):
            where = f"points[{n}]"
            inner = only(point, ("id", "vector"), where)
            found = point_id(inner.get("id"), f"{where}.id")
            vector = self.vector(required(inner, "vector", where), f"{where}.vector")
            updates.append((found, edge.PointVectors(found, vector)))
        return updates

    def vector(self, value: Any, where: str) -> Any:
        """A point's vector or vectors, checked against the collection, as the wheel takes them."""
        if isinstance(value, list):
            return self._named(value, "", where)
        named = as_object(value, where)
        return {name: self._named(inner, name, f"{where}.{name}") for name, inner in named.items()}

    def _point(self, value: Any, n: int) -> edge.Point:
        fields = as_object(value, f"points[{n}]")
        if not fields.keys() <= _POINT_FIELDS:
            only(fields, _POINT_FIELDS, f"points[{n}]")
        return self._build(
            fields.get("id"), fields.get("vector"), fields.get("payload"), f"points[{n}]"
        )

    def _build(self, found: Any, vector: Any, payload: Any, where: str) -> edge.Point:
        if type(found) is not int or found < 0:
            found = point_id(found, f"{where}.id")
        if payload is not None and not isinstance(payload, dict):
            raise bad_body(f"{where}.payload: expected an object, got {kind(payload)}")
        if vector is None:
            raise bad_body(f"{where}: missing field `vector`")
        return edge.Point(found, self.vector(vector, f"{where}.vector"), payload)

    def _batch(self, value: Any) -> list[edge.Point]:
        fields = only(value, ("ids", "vectors", "payloads"), "batch")
        ids, vectors = required(fields, "ids", "batch"), required(fields, "vectors", "batch")
        payloads = fields.get("payloads")
        if not isinstance(ids, list):
            raise bad_body(f"batch.ids: expected an array, got {kind(ids)}")
        columns = vectors.values() if isinstance(vectors, dict) else [vectors]
        for column in [*columns, ids if payloads is None else payloads]:
            if not isinstance(column, list):
                raise bad_body(f"batch: expected arrays, got {kind(column)}")
            if len(column) != len(ids):
                raise wrong_input(
                    f"batch holds {len(ids)} ids but an array of {len(column)} vectors or payloads"
                )
        if payloads is None:
            payloads = [None] * len(ids)
        if isinstance(vectors, list):
            rows: Any = vectors
        else:
            # A vector that is null in its column is absent from that point.
            rows = [
                {name: row[n] for name, row in vectors.items() if row[n] is not None}
                for n in range(len(ids))
            ]
        return [
            self._build(found, vector, payload, f"batch[{n}]")
            for n, (found, vector, payload) in enumerate(zip(ids, rows, payloads, strict=True))
        ]

    def _named(self, value: Any, name: str, where: str) -> Any:
        size = self._sizes.get(name)
        if size is None:
            if name in self._sparse:
                return sparse_vector(value, where)
            raise wrong_input(f"Not existing vector name error: {name}")
        if type(value) is not list:
            if isinstance(value, dict) and value.keys() & _INFERENCE:
                raise unsupported("inference")
            raise bad_body(f"{where}: expected an array of numbers, got {kind(value)}")
        if name in self._multi:
            for row in value if value and type(value[0]) is list else [value]:
                _check_dense(row, size, where)
        else:
            _check_dense(value, size, where)
        return value


def _check_dense(value: Any, size: int, where: str) -> None:
    if type(value) is not list or not _NUMBERS.issuperset(map(type, value)):
        raise bad_body(f"{where}: expected an array of numbers")
    if len(value) != size:
        raise wrong_input(f"Vector dimension error: expected dim: {size}, got {len(value)}")


def sparse_vector(value: Any, where: str) -> edge.SparseVector:
    """A sparse vector `{"indices": [...], "values": [...]}`."""
    if isinstance(value, dict) and value.keys() & _INFERENCE:
        raise unsupported("inference")
    fields = only(value, ("indices", "values"), where)
    indices, values = required(fields, "indices", where), required(fields, "values", where)
    if not isinstance(indices, list) or not isinstance(values, list):
        raise bad_body(f"{where}: indices and values must be arrays")
    if len(indices) != len(values) or len(set(indices)) != len(indices):
        raise wrong_input(f"{where}: indices must be unique and as many as values")
    if any(type(index) is not int or not 0 <= index < 2**32 for index in indices):
        raise bad_body(f"{where}.indices: expected unsigned 32-bit integers")
    if not _NUMBERS.issuperset(map(type, values)):
        raise bad_body(f"{where}.values: expected numbers")
    return edge.SparseVector(indices, values)


def selector(fields: Json) -> tuple[list[PointId] | None, edge.Filter | None]:
    """Which points a request means: `points` (ids) or `filter`, exactly one of the two."""
    ids, found = fields.get("points"), fields.get("filter")
    if (ids is None) == (found is None):
        raise bad_body("body: exactly one of `points` and `filter` must be given")
    return (None if ids is None else point_ids(ids, "points"), parse_filter(found))


def payload_change(body: Any) -> tuple[Json, str | None]:
    """The payload and the optional key path of a set or overwrite request."""
    fields = only(body, ("payload", "points", "filter", "shard_key", "key"))
    return as_object(required(fields, "payload"), "payload"), text(fields, "key")


def _refuse_conditions(fields: Json) -> None:
    for feature in ("update_filter", "update_mode", "shard_key"):
        if fields.get(feature) is not None:
            raise unsupported(feature)


def vector_json(value: Any) -> Any:
    """A vector as the wheel returns it, as JSON."""
    if isinstance(value, dict):
        return {name: vector_json(inner) for name, inner in value.items()}
    if isinstance(value, edge.SparseVector):
        return {"indices": value.indices, "values": value.values}
    return value


def scored_json(point: edge.ScoredPoint) -> Json:
    """A search hit as JSON."""
    out: Json = {"id": point.id, "version": point.version, "score": point.score}
    _add_content(out, point)
    return out


def record_json(record: edge.Record) -> Json:
    """A retrieved or scrolled point as JSON."""
    out: Json = {"id": record.id}
    _add_content(out, record)
    return out


def _add_content(out: Json, point: edge.ScoredPoint | edge.Record) -> None:
    payload, vector, order_value = point.payload, point.vector, point.order_value
    if payload is not None:
        out["payload"] = payload
    if vector is not None:
        out["vector"] = vector_json(vector)
    if order_value is not None:
        out["order_value"] = order_value

"""A collection's configuration: read from Qdrant's JSON, kept as JSON, given to the wheel.

The JSON form (`CollectionConfig.as_json`) is the `config` of `GET /collections/{name}`, with the
server's defaults filled in, and is also what the manifest stores.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import qdrant_edge as edge

from .checks import Json, boolean, integer, kind, number, only
from .errors import bad_body, invalid_value, unsupported
from .vector_params import (
    HNSW_DEFAULTS,
    MEMORY,
    dense_params,
    hnsw_params,
    memory,
    parse_hnsw,
    parse_quantization,
    parse_sparse_vectors,
    parse_vectors,
    quantization_params,
    sparse_params,
)

# Qdrant's own defaults (config/config.yaml of the server).
OPTIMIZER_DEFAULTS: Json = {
    "deleted_threshold": 0.2,
    "vacuum_min_vector_number": 1_000,
    "default_segment_number": 0,
    "max_segment_size": None,
    "memmap_threshold": None,
    "indexing_threshold": 10_000,
    "flush_interval_sec": 5,
    "max_optimization_threads": None,
    "prevent_unoptimized": None,
}
_CREATE_FIELDS = (
    "vectors",
    "sparse_vectors",
    "shard_number",
    "sharding_method",
    "replication_factor",
    "write_consistency_factor",
    "on_disk_payload",
    "payload",
    "id_tracker",
    "hnsw_config",
    "wal_config",
    "optimizers_config",
    "quantization_config",
    "strict_mode_config",
    "metadata",
)
LEAST_UNIT = 64
_ELEMENT_BYTES = {"float16": 2, "uint8": 1}


@dataclass(frozen=True)
class CollectionConfig:
    """The configuration of one collection, complete with defaults, as plain JSON."""

    params: Json
    hnsw: Json
    optimizers: Json
    quantization: Json | None
    metadata: Json | None

    @classmethod
    def from_json(cls, value: Json) -> CollectionConfig:
        """The inverse of `as_json`, for a configuration that this module wrote."""
        return cls(
            params=value["params"],
            hnsw=value["hnsw_config"],
            optimizers=value["optimizer_config"],
            quantization=value.get("quantization_config"),
            metadata=value.get("metadata"),
        )

    def as_json(self) -> Json:
        """The `config` of `GET /collections/{name}`."""
        out: Json = {
            "params": self.params,
            "hnsw_config": self.hnsw,
            "optimizer_config": self.optimizers,
            "wal_config": None,
            "quantization_config": self.quantization,
        }
        if self.metadata is not None:
            out["metadata"] = self.metadata
        return out

    @property
    def vectors(self) -> dict[str, Json]:
        """Dense vectors by name; the unnamed one is ""."""
        vectors: Json = self.params.get("vectors") or {}
        return {"": vectors} if isinstance(vectors.get("size"), int) else vectors

    @property
    def sparse_vectors(self) -> dict[str, Json]:
        """Sparse vectors by name."""
        return self.params.get("sparse_vectors") or {}

    @property
    def prevent_unoptimized(self) -> bool:
        """Whether sealed, not yet optimized points are left out of reads."""
        return bool(self.optimizers["prevent_unoptimized"])

    @property
    def bytes_per_point(self) -> int:
        """Bytes of a point's largest dense vector: what Qdrant's size thresholds compare (0 if
        there is no dense vector)."""
        return max(
            (
                params["size"] * _ELEMENT_BYTES.get(params.get("datatype") or "", 4)
                for params in self.vectors.values()
            ),
            default=0,
        )

    def sealing_size(self) -> int | None:
        """Points after which the active segment is sealed: the indexing threshold or the maximum
        segment size (both in KB of vectors), whichever comes first. None: never.

        At least `LEAST_UNIT`: a threshold of a few vectors would make a shard of each few points.
        """
        if self.bytes_per_point == 0:
            return None
        limits = [
            kilobytes * 1024
            for kilobytes in (
                # 0 turns indexing off, as in Qdrant.
                self.optimizers["indexing_threshold"],
                self.optimizers["max_segment_size"],
            )
            if kilobytes
        ]
        return max(-(-min(limits) // self.bytes_per_point), LEAST_UNIT) if limits else None

    def edge_config(self, search_threads: int | None = None) -> edge.EdgeConfig:
        """The wheel's form; `search_threads` None leaves their number to the wheel.

        Without a WAL: a second process must be able to open a clone.
        """
        optimizers = self.optimizers
        id_tracker = self.params.get("id_tracker") or {}
        payload = self.params.get("payload") or {}
        return edge.EdgeConfig(
            vectors={name: dense_params(params, self.hnsw) for name, params in self.vectors.items()}
            or None,
            sparse_vectors={
                name: sparse_params(params) for name, params in self.sparse_vectors.items()
            }
            or None,
            on_disk_payload=self.params["on_disk_payload"],
            payload_memory=MEMORY.get(payload.get("memory") or ""),
            id_tracker_memory=MEMORY.get(id_tracker.get("memory") or ""),
            hnsw_config=hnsw_params(self.hnsw),
            quantization_config=quantization_params(self.quantization),
            optimizers=edge.EdgeOptimizersConfig(
                deleted_threshold=optimizers["deleted_threshold"],
                vacuum_min_vector_number=optimizers["vacuum_min_vector_number"],
                default_segment_number=optimizers["default_segment_number"],
                max_segment_size=optimizers["max_segment_size"],
                indexing_threshold=optimizers["indexing_threshold"],
            ),
            max_search_threads=search_threads,
            wal_enabled=False,
        )

    def warnings(self) -> list[Json]:
        """What this server accepts but models differently, as `warnings` of the info."""
        out = []
        threads = self.optimizers["max_optimization_threads"]
        if threads == "auto" or (isinstance(threads, int) and threads > 1):
            out.append(
                {
                    "message": f"max_optimization_threads {threads} is modelled as 1: the "
                    "embedded Qdrant runs one optimization at a time"
                }
            )
        if self.prevent_unoptimized:
            out.append(
                {
                    "message": "prevent_unoptimized is modelled by the embedded Qdrant itself: "
                    "sealed segments are left out of reads until they are optimized"
                }
            )
        return out


def parse_create(body: Any) -> CollectionConfig:
    """The configuration in the body of `PUT /collections/{name}`.

    Raises ApiError 400 for an unknown field or a feature that this server does not have, and 422
    for a value out of range.
    """
    fields = only(body, _CREATE_FIELDS)
    _single_node(fields)
    for feature in ("strict_mode_config", "sharding_method"):
        if fields.get(feature) is not None:
            raise unsupported(feature)
    if fields.get("wal_config") is not None:
        raise unsupported("wal_config")
    vectors = parse_vectors(fields.get("vectors"))
    sparse = parse_sparse_vectors(fields.get("sparse_vectors"))
    if not vectors and not sparse:
        raise bad_body("body: missing field `vectors` (or `sparse_vectors`)")
    on_disk = boolean(fields, "on_disk_payload")
    params: Json = {
        "vectors": vectors,
        "shard_number": 1,
        "replication_factor": 1,
        "write_consistency_factor": 1,
        "on_disk_payload": True if on_disk is None else on_disk,
    }
    if sparse:
        params["sparse_vectors"] = sparse
    for name in ("payload", "id_tracker"):
        if fields.get(name) is not None:
            params[name] = _memory_only(fields[name], name)
    return CollectionConfig(
        params=params,
        hnsw={**HNSW_DEFAULTS, **parse_hnsw(fields.get("hnsw_config"), "hnsw_config")},
        optimizers={**OPTIMIZER_DEFAULTS, **parse_optimizers(fields.get("optimizers_config"))},
        quantization=parse_quantization(fields.get("quantization_config"), "quantization_config"),
        metadata=_metadata(fields),
    )


def parse_patch(body: Any, config: CollectionConfig) -> CollectionConfig:
    """`config` after the body of `PATCH /collections/{name}`; same errors as `parse_create`."""
    fields = only(
        body,
        (
            "vectors",
            "optimizers_config",
            "params",
            "hnsw_config",
            "quantization_config",
            "sparse_vectors",
            "strict_mode_config",
            "metadata",
        ),
    )
    for feature in ("strict_mode_config", "sparse_vectors"):
        if fields.get(feature) is not None:
            raise unsupported(feature)
    params = copy.deepcopy(config.params)
    if fields.get("params") is not None:
        change = only(
            fields["params"],
            (
                "replication_factor",
                "write_consistency_factor",
                "read_fan_out_factor",
                "read_fan_out_delay_ms",
                "on_disk_payload",
            ),
            "params",
        )
        _single_node(change)
        on_disk = boolean(change, "on_disk_payload", "params")
        if on_disk is not None:
            params["on_disk_payload"] = on_disk
    if fields.get("vectors") is not None:
        _patch_vectors(params, fields["vectors"])
    quantized = config.quantization
    if fields.get("quantization_config") is not None:
        wanted = fields["quantization_config"]
        quantized = (
            None if wanted == "Disabled" else parse_quantization(wanted, "quantization_config")
        )
    metadata = _metadata(fields)
    return CollectionConfig(
        params=params,
        hnsw={**config.hnsw, **parse_hnsw(fields.get("hnsw_config"), "hnsw_config")},
        optimizers={**config.optimizers, **parse_optimizers(fields.get("optimizers_config"))},
        quantization=quantized,
        metadata=config.metadata if metadata is None else metadata,
    )


def parse_optimizers(value: Any) -> Json:
    """The fields that are set in an `optimizers_config`, with Qdrant's limits."""
    if value is None:
        return {}
    where = "optimizers_config"
    fields = only(value, OPTIMIZER_DEFAULTS, where)
    deleted = number(fields, "deleted_threshold", where)
    if deleted is not None and not 0 <= deleted <= 1:
        raise invalid_value(
            f"{where}.deleted_threshold", f"value {deleted} invalid, must be from 0 to 1"
        )
    threads = fields.get("max_optimization_threads")
    if threads is not None and threads != "auto":
        threads = integer(fields, "max_optimization_threads", where)
    if threads == 0:
        # Optimizations would never run, and nothing here would say so.
        raise unsupported("max_optimization_threads 0")
    if fields.get("memmap_threshold") is not None:
        raise unsupported("memmap_threshold")
    read: Json = {
        "deleted_threshold": deleted,
        "vacuum_min_vector_number": integer(fields, "vacuum_min_vector_number", where, least=100),
        "default_segment_number": integer(fields, "default_segment_number", where),
        "max_segment_size": integer(fields, "max_segment_size", where, least=1),
        "indexing_threshold": integer(fields, "indexing_threshold", where),
        "flush_interval_sec": integer(fields, "flush_interval_sec", where, least=1),
        "max_optimization_threads": threads,
        "prevent_unoptimized": boolean(fields, "prevent_unoptimized", where),
    }
    return {name: wanted for name, wanted in read.items() if wanted is not None}


def _memory_only(value: Any, where: str) -> Json:
    fields = only(value, ("memory",), where)
    return {"memory": memory(fields, where)}


def _metadata(fields: Json) -> Json | None:
    value = fields.get("metadata")
    if value is not None and not isinstance(value, dict):
        raise bad_body(f"metadata: expected an object, got {kind(value)}")
    return value


def _single_node(fields: Json) -> None:
    for name in ("shard_number", "replication_factor", "write_consistency_factor"):
        wanted = integer(fields, name, least=1)
        if wanted is not None and wanted != 1:
            raise unsupported(f"{name} above 1")


def _patch_vectors(params: Json, value: Any) -> None:
    vectors = params["vectors"]
    unnamed = isinstance(vectors.get("size"), int)
    for name, change in only(value, ("",) if unnamed else vectors, "vectors").items():
        where = f"vectors.{name}"
        fields = only(change, ("hnsw_config", "quantization_config", "on_disk", "memory"), where)
        target = vectors if unnamed else vectors[name]
        if fields.get("hnsw_config") is not None:
            target["hnsw_config"] = {
                **(target.get("hnsw_config") or {}),
                **parse_hnsw(fields["hnsw_config"], f"{where}.hnsw_config"),
            }
        if fields.get("quantization_config") is not None:
            target["quantization_config"] = parse_quantization(
                fields["quantization_config"], f"{where}.quantization_config"
            )
        on_disk = boolean(fields, "on_disk", where)
        if on_disk is not None:
            target["on_disk"] = on_disk
        placement = memory(fields, where)
        if placement is not None:
            target["memory"] = placement

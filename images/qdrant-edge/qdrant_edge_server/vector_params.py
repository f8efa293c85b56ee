"""The parameters of vectors: dense, sparse, multivectors, quantization, HNSW and placement."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge

from .checks import Json, as_object, boolean, choice, integer, number, only, required
from .errors import invalid_value, unsupported

MEMORY = {"cold": edge.Memory.Cold, "cached": edge.Memory.Cached, "pinned": edge.Memory.Pinned}
DISTANCES = {
    "Cosine": edge.Distance.Cosine,
    "Dot": edge.Distance.Dot,
    "Euclid": edge.Distance.Euclid,
    "Manhattan": edge.Distance.Manhattan,
}
# Qdrant's own defaults (config/config.yaml of the server).
HNSW_DEFAULTS: Json = {
    "m": 16,
    "ef_construct": 100,
    "full_scan_threshold": 10_000,
    "max_indexing_threads": 0,
    "on_disk": False,
}
_HNSW_FIELDS = (*HNSW_DEFAULTS, "payload_m", "inline_storage", "memory")
_DATATYPES = {
    "float32": edge.VectorStorageDatatype.Float32,
    "float16": edge.VectorStorageDatatype.Float16,
    "uint8": edge.VectorStorageDatatype.Uint8,
}
_COMPRESSION = {
    "x4": edge.CompressionRatio.X4,
    "x8": edge.CompressionRatio.X8,
    "x16": edge.CompressionRatio.X16,
    "x32": edge.CompressionRatio.X32,
    "x64": edge.CompressionRatio.X64,
}
_ENCODINGS = {
    "one_bit": edge.BinaryQuantizationEncoding.OneBit,
    "two_bits": edge.BinaryQuantizationEncoding.TwoBits,
    "one_and_half_bits": edge.BinaryQuantizationEncoding.OneAndHalfBits,
}
_DENSE_FIELDS = (
    "size",
    "distance",
    "hnsw_config",
    "quantization_config",
    "on_disk",
    "memory",
    "datatype",
    "multivector_config",
)


def parse_vectors(value: Any) -> Json:
    """`vectors` of a new collection: one unnamed vector's parameters, or parameters by name."""
    if value is None:
        return {}
    fields = as_object(value, "vectors")
    # A vector may be called "size"; then its value is an object, not a number.
    if "size" in fields and not isinstance(fields["size"], dict):
        return _parse_dense(fields, "vectors")
    return {name: _parse_dense(params, f"vectors.{name}") for name, params in fields.items()}


def _parse_dense(value: Any, where: str) -> Json:
    fields = only(value, _DENSE_FIELDS, where)
    required(fields, "size", where)
    size = integer(fields, "size", where, least=1)
    assert size is not None
    if size > 65_536:
        raise invalid_value(f"{where}.size", f"value {size} invalid, must be from 1 to 65536")
    choice(required(fields, "distance", where), DISTANCES, f"{where}.distance")
    out: Json = {"size": size, "distance": fields["distance"]}
    on_disk, placement = boolean(fields, "on_disk", where), memory(fields, where)
    if on_disk is not None:
        out["on_disk"] = on_disk
    if placement is not None:
        out["memory"] = placement
    if fields.get("hnsw_config") is not None:
        out["hnsw_config"] = parse_hnsw(fields["hnsw_config"], f"{where}.hnsw_config")
    if fields.get("quantization_config") is not None:
        out["quantization_config"] = parse_quantization(
            fields["quantization_config"], f"{where}.quantization_config"
        )
    if fields.get("datatype") is not None:
        if str(fields["datatype"]).startswith("turbo"):
            raise unsupported(f"datatype {fields['datatype']}")
        choice(fields["datatype"], _DATATYPES, f"{where}.datatype")
        out["datatype"] = fields["datatype"]
    if fields.get("multivector_config") is not None:
        inner = only(fields["multivector_config"], ("comparator",), f"{where}.multivector_config")
        choice(inner.get("comparator"), {"max_sim": None}, f"{where}.multivector_config.comparator")
        out["multivector_config"] = inner
    return out


def dense_params(values: Json, hnsw: Json) -> edge.EdgeVectorParams:
    """The wheel's form of one dense vector. `hnsw` is the collection's complete HNSW
    configuration, over which the vector's own fields stand."""
    own = values.get("hnsw_config")
    return edge.EdgeVectorParams(
        size=values["size"],
        distance=DISTANCES[values["distance"]],
        on_disk=values.get("on_disk"),
        memory=MEMORY.get(values.get("memory") or ""),
        datatype=_DATATYPES.get(values.get("datatype") or ""),
        hnsw_config=None if own is None else hnsw_params({**hnsw, **own}),
        quantization_config=quantization_params(values.get("quantization_config")),
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
        if values.get("multivector_config")
        else None,
    )


def parse_sparse_vectors(value: Any) -> dict[str, Json]:
    """`sparse_vectors` of a new collection, by name."""
    if value is None:
        return {}
    out = {}
    for name, params in as_object(value, "sparse_vectors").items():
        where = f"sparse_vectors.{name}"
        fields = only(params or {}, ("index", "modifier"), where)
        if fields.get("modifier") is not None:
            choice(fields["modifier"], {"idf": None, "none": None}, f"{where}.modifier")
        if fields.get("modifier") == "idf":
            # The inverse document frequency would be taken per layer, not over the collection.
            raise unsupported("sparse vector modifier idf")
        if fields.get("index") is not None:
            place = f"{where}.index"
            index = only(fields["index"], ("full_scan_threshold", "on_disk", "memory"), place)
            integer(index, "full_scan_threshold", place)
            boolean(index, "on_disk", place)
            memory(index, place)
        out[name] = fields
    return out


def sparse_params(values: Json) -> edge.EdgeSparseVectorParams:
    """The wheel's form of one sparse vector."""
    index = values.get("index") or {}
    return edge.EdgeSparseVectorParams(
        full_scan_threshold=index.get("full_scan_threshold"),
        on_disk=index.get("on_disk"),
        memory=MEMORY.get(index.get("memory") or ""),
    )


def parse_hnsw(value: Any, where: str) -> Json:
    """The fields that are set in an `hnsw_config`."""
    if value is None:
        return {}
    fields = only(value, _HNSW_FIELDS, where)
    read: Json = {
        "m": integer(fields, "m", where),
        "ef_construct": integer(fields, "ef_construct", where, least=4),
        "full_scan_threshold": integer(fields, "full_scan_threshold", where),
        "max_indexing_threads": integer(fields, "max_indexing_threads", where),
        "on_disk": boolean(fields, "on_disk", where),
        "payload_m": integer(fields, "payload_m", where),
        "inline_storage": boolean(fields, "inline_storage", where),
        "memory": memory(fields, where),
    }
    return {name: wanted for name, wanted in read.items() if wanted is not None}


def hnsw_params(values: Json) -> edge.HnswIndexConfig:
    """The wheel's form of a complete HNSW configuration."""
    return edge.HnswIndexConfig(
        m=values["m"],
        ef_construct=values["ef_construct"],
        full_scan_threshold=values["full_scan_threshold"],
        max_indexing_threads=values["max_indexing_threads"],
        on_disk=values["on_disk"],
        payload_m=values.get("payload_m"),
        inline_storage=values.get("inline_storage"),
        memory=MEMORY.get(values.get("memory") or ""),
    )


def parse_quantization(value: Any, where: str) -> Json | None:
    """A quantization configuration; `{"scalar": ..}`, `{"product": ..}` or `{"binary": ..}`."""
    if value is None:
        return None
    outer = only(value, ("scalar", "product", "binary", "turbo"), where)
    if "turbo" in outer:
        raise unsupported("turbo quantization")
    if len(outer) != 1:
        raise invalid_value(where, "exactly one of scalar, product, binary must be given")
    ((name, inner),) = outer.items()
    place = f"{where}.{name}"
    own = {"scalar": ("type", "quantile"), "product": ("compression",), "binary": ("encoding",)}
    fields = only(inner, ("always_ram", "memory", *own[name]), place)
    boolean(fields, "always_ram", place)
    memory(fields, place)
    if name == "scalar":
        choice(required(fields, "type", place), {"int8": None}, f"{place}.type")
        number(fields, "quantile", place)
    elif name == "product":
        choice(required(fields, "compression", place), _COMPRESSION, f"{place}.compression")
    elif fields.get("encoding") is not None:
        choice(fields["encoding"], _ENCODINGS, f"{place}.encoding")
    return outer


def quantization_params(value: Json | None) -> edge.QuantizationConfigType | None:
    """The wheel's form of a quantization configuration that `parse_quantization` passed."""
    if value is None:
        return None
    ((name, fields),) = value.items()
    placement = MEMORY.get(fields.get("memory") or "")
    always_ram = fields.get("always_ram")
    if name == "scalar":
        return edge.ScalarQuantizationConfig(
            edge.ScalarType.Int8, fields.get("quantile"), always_ram, placement
        )
    if name == "product":
        compression = _COMPRESSION[fields["compression"]]
        return edge.ProductQuantizationConfig(compression, always_ram, placement)
    encoding = _ENCODINGS.get(fields.get("encoding") or "")
    return edge.BinaryQuantizationConfig(always_ram, encoding, None, placement)


def memory(fields: Json, where: str) -> str | None:
    """An optional memory placement."""
    value: str | None = fields.get("memory")
    if value is not None:
        choice(value, MEMORY, f"{where}.memory")
    return value

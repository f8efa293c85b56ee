"""Payload indexes: `field_schema` in Qdrant's JSON and in the wheel's form."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge

from .checks import Json, boolean, choice, integer, only, required, text
from .errors import unsupported
from .vector_params import MEMORY, memory

SCHEMA_TYPES = {
    "keyword": edge.PayloadSchemaType.Keyword,
    "integer": edge.PayloadSchemaType.Integer,
    "float": edge.PayloadSchemaType.Float,
    "geo": edge.PayloadSchemaType.Geo,
    "text": edge.PayloadSchemaType.Text,
    "bool": edge.PayloadSchemaType.Bool,
    "datetime": edge.PayloadSchemaType.Datetime,
    "uuid": edge.PayloadSchemaType.Uuid,
}
_PARAMS: dict[str, Any] = {
    "keyword": edge.KeywordIndexParams,
    "integer": edge.IntegerIndexParams,
    "float": edge.FloatIndexParams,
    "geo": edge.GeoIndexParams,
    "text": edge.TextIndexParams,
    "bool": edge.BoolIndexParams,
    "datetime": edge.DatetimeIndexParams,
    "uuid": edge.UuidIndexParams,
}
_FLAGS = {
    "keyword": ("is_tenant", "prefix"),
    "integer": ("lookup", "range", "is_principal"),
    "float": ("is_principal",),
    "geo": (),
    "text": ("lowercase", "ascii_folding", "phrase_matching"),
    "bool": (),
    "datetime": ("is_principal",),
    "uuid": ("is_tenant",),
}
_TOKENIZERS = {
    "prefix": edge.TokenizerType.Prefix,
    "whitespace": edge.TokenizerType.Whitespace,
    "word": edge.TokenizerType.Word,
    "multilingual": edge.TokenizerType.Multilingual,
}


def parse_schema(value: Any) -> str | Json:
    """`field_schema` of `PUT /collections/{name}/index`: a type's name, or its parameters.

    Returns the JSON that the manifest keeps. Raises ApiError 400 for what the wheel lacks.
    """
    where = "field_schema"
    if isinstance(value, str):
        choice(value, SCHEMA_TYPES, where)
        return value
    name = required(only(value, value, where), "type", where)
    choice(name, SCHEMA_TYPES, f"{where}.type")
    if name == "text":
        for feature in ("stopwords", "stemmer", "scoring"):
            if value.get(feature) is not None:
                raise unsupported(f"text index {feature}")
    numbers = ("min_token_len", "max_token_len") if name == "text" else ()
    flags = ("on_disk", "enable_hnsw", *_FLAGS[name])
    more = ("tokenizer", "stopwords", "stemmer", "scoring") if name == "text" else ()
    fields = only(value, ("type", "memory", "nested", *flags, *numbers, *more), where)
    for flag in flags:
        boolean(fields, flag, where)
    for limit in numbers:
        integer(fields, limit, where)
    memory(fields, where)
    text(fields, "nested", where)
    if fields.get("tokenizer") is not None:
        choice(fields["tokenizer"], _TOKENIZERS, f"{where}.tokenizer")
    return {key: inner for key, inner in fields.items() if inner is not None}


def create_operation(field: str, schema: str | Json) -> edge.UpdateOperation:
    """The operation that creates the index `schema` (from `parse_schema`) on `field`."""
    if isinstance(schema, str):
        return edge.UpdateOperation.create_field_index(field, SCHEMA_TYPES[schema])
    arguments = {name: value for name, value in schema.items() if name != "type"}
    if "memory" in arguments:
        arguments["memory"] = MEMORY[arguments["memory"]]
    if "tokenizer" in arguments:
        arguments["tokenizer"] = _TOKENIZERS[arguments["tokenizer"]]
    return edge.UpdateOperation.create_field_index(field, _PARAMS[schema["type"]](**arguments))


def schema_json(schema: str | Json, points: int) -> Json:
    """One entry of `payload_schema` in the collection info."""
    if isinstance(schema, str):
        return {"data_type": schema, "points": points}
    return {"data_type": schema["type"], "params": schema, "points": points}

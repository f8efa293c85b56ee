"""An index's mapping: read from a request, kept in the catalog, extended by documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from gateway.dates import parse_formats, read_date
from gateway.errors import ApiError, unsupported
from gateway.fields import TYPES, Field

Json = dict[str, Any]

_ROOT = ("properties", "dynamic", "_meta", "date_detection", "numeric_detection", "_source")
# What a field's definition may hold, beside `type`; a value set is what it may say.
_ANY: Any = None
_PARAMETERS: dict[str, dict[str, Any]] = {
    "keyword": {"ignore_above": _ANY, "norms": (False,), "eager_global_ordinals": _ANY},
    "date": {"format": _ANY, "ignore_malformed": (False,)},
    "boolean": {},
    "text": {
        "analyzer": _ANY, "search_analyzer": _ANY, "norms": _ANY, "index_options": _ANY,
        "similarity": _ANY, "fielddata": (False,),
    },
}  # fmt: skip
_NUMERIC = {"coerce": (True,), "ignore_malformed": (False,)}
_COMMON = {
    "index": (True, False), "doc_values": (True,), "store": (False,), "fields": _ANY,
    "null_value": _ANY, "meta": _ANY,
}  # fmt: skip
_OTHER_TYPES = (
    "nested", "ip", "geo_point", "geo_shape", "flattened", "dense_vector", "sparse_vector",
    "completion", "half_float", "scaled_float", "unsigned_long", "date_nanos", "binary", "alias",
    "integer_range", "long_range", "float_range", "double_range", "date_range", "ip_range", "join",
    "percolator", "rank_feature", "search_as_you_type", "token_count", "constant_keyword",
    "wildcard", "version", "semantic_text", "match_only_text", "histogram", "point", "shape",
)  # fmt: skip
# What a definition may hold in Elasticsearch and not here.
_OTHER_PARAMETERS = frozenset((
    "copy_to", "normalizer", "script", "on_script_error", "locale", "term_vector",
    "index_prefixes", "index_phrases", "position_increment_gap", "search_quote_analyzer",
    "split_queries_on_whitespace", "time_series_dimension", "time_series_metric", "boost",
    "synthetic_source_keep", "dynamic", "enabled", "subobjects", "fielddata_frequency_filter",
    "coerce", "ignore_malformed", "ignore_above", "similarity", "eager_global_ordinals",
    "analyzer", "search_analyzer", "norms", "index_options", "fielddata",
))  # fmt: skip
# Names of a document's own metadata at its root, which no field can have.
METADATA = frozenset((
    "_doc_count", "_feature", "_field_names", "_id", "_ignored", "_index", "_index_mode",
    "_nested_path", "_routing", "_seq_no", "_source", "_tier", "_version",
))  # fmt: skip
# What dynamic mapping makes of a string.
_DYNAMIC_TEXT: Json = {
    "type": "text",
    "fields": {"keyword": {"type": "keyword", "ignore_above": 256}},
}


def index_keys(fields: Iterable[Field]) -> dict[str, str]:
    """The payload indexes that fields need: the kind by the payload key.

    Fields without an index of their own share one, of the names of those that a document has.
    """
    return {
        field.key if field.indexed else "n": field.index_kind if field.indexed else "keyword"
        for field in fields
    }


def bad_mapping(reason: str) -> ApiError:
    """A mapping that cannot be."""
    return ApiError(400, "mapper_parsing_exception", reason)


class IndexMapping:
    """A mapping.

    Args:
        record: as in the catalog: the root of the mapping, and `multi`, the paths of fields of
            which some document holds several values.

    Raises:
        ApiError: 400, the mapping is wrong or needs something that the gateway does not have.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = dict(record)
        self.multi: set[str] = set(record.get("multi", ()))
        self.dynamic = str(record.get("dynamic", "true")).lower()
        self.date_detection: bool = record.get("date_detection", True)
        self.fields: dict[str, Field] = {}
        self.objects: set[str] = set()
        self.by_source: dict[str, list[Field]] = {}
        self._read_properties(record.get("properties", {}), "")

    @classmethod
    def from_request(cls, body: Any, most_fields: int) -> IndexMapping:
        """Read the `mappings` of a request that creates an index."""
        if not isinstance(body, dict):
            raise bad_mapping("[mappings] must be an object")
        for name, value in body.items():
            if name == "dynamic_templates" or name not in _ROOT:
                if name in ("dynamic_templates", "runtime", "_routing", "_size", "subobjects"):
                    raise unsupported(f"mappings.{name}")
                raise bad_mapping(
                    f"Root mapping definition has unsupported parameters:  [{name} : {value}]"
                )
        if str(body.get("dynamic", "true")).lower() not in ("true", "false", "strict"):
            raise unsupported(f"dynamic: {body['dynamic']}", "use true, false or strict")
        if body.get("numeric_detection") not in (None, False):
            raise unsupported("mappings.numeric_detection")
        if body.get("date_detection") not in (None, True, False):
            raise bad_mapping("[date_detection] must be true or false")
        if body.get("_source") not in (None, {}, {"enabled": True}):
            raise unsupported("mappings._source")
        mapping = cls(body)
        mapping.check_size(most_fields)
        return mapping

    def check_size(self, most_fields: int) -> None:
        """Refuse a mapping with too many fields."""
        size = len(self.fields) + len(self.objects)
        if size > most_fields:
            raise ApiError(
                400,
                "illegal_argument_exception",
                f"Limit of total fields [{most_fields}] has been exceeded",
            )

    def shown(self) -> Json:
        """The mapping as `GET _mapping` gives it."""
        return {name: value for name, value in self.record.items() if name != "multi"}

    def stored(self) -> bytes:
        """The mapping as it stands in the catalog."""
        return orjson.dumps(self.record, option=orjson.OPT_SORT_KEYS)

    def get(self, path: str) -> Field | None:
        """A field by its path; None when there is none."""
        return self.fields.get(path)

    def below(self, path: str) -> list[Field]:
        """The fields of an object."""
        return [field for name, field in self.fields.items() if name.startswith(f"{path}.")]

    def extended(self, definitions: Mapping[str, Json], multi: set[str]) -> IndexMapping:
        """The mapping with further fields, and with further fields that hold several values."""
        record: Json = orjson.loads(self.stored())
        for path, definition in definitions.items():
            names = path.split(".")
            properties = record.setdefault("properties", {})
            for name in names[:-1]:
                properties = properties.setdefault(name, {}).setdefault("properties", {})
            properties[names[-1]] = definition
        if multi | self.multi:
            record["multi"] = sorted(multi | self.multi)
        return IndexMapping(record)

    def _read_properties(self, properties: Any, prefix: str) -> None:
        if not isinstance(properties, dict):
            raise bad_mapping(f"[properties] of [{prefix or '_doc'}] must be an object")
        for name, definition in properties.items():
            path = prefix + name
            if not name or any(not part.strip() for part in name.split(".")):
                raise bad_mapping(f"field name [{path}] is empty or has an empty part")
            if path in METADATA:
                raise bad_mapping(f"Field [{path}] is defined more than once: it is metadata")
            if not isinstance(definition, dict):
                raise bad_mapping(f"Expected map for property [{path}] but got [{definition}]")
            if "." in name:
                raise unsupported(
                    f"dots in the mapping's field name [{path}]", "nest the properties"
                )
            kind = definition.get("type", "object" if "properties" in definition else None)
            if kind == "object" or (kind is None and not definition):
                extra = sorted(definition.keys() - {"type", "properties"})
                if extra:
                    raise unsupported(f"[{extra[0]}] on the object [{path}]")
                self.objects.add(path)
                self._read_properties(definition.get("properties", {}), f"{path}.")
                continue
            self._add(path, path, kind, definition)

    def _add(self, path: str, source: str, kind: Any, definition: Json) -> None:
        if kind is None:
            raise bad_mapping(f"No type specified for field [{path}]")
        if kind in _OTHER_TYPES:
            raise unsupported(f"field type {kind}", f"field [{path}]")
        if kind not in TYPES:
            raise bad_mapping(f"No handler for type [{kind}] declared on field [{path}]")
        allowed = _COMMON | _PARAMETERS.get(kind, _NUMERIC)
        for name, value in definition.items():
            if name == "type":
                continue
            if name in allowed and (allowed[name] is _ANY or value in allowed[name]):
                continue
            if name in allowed or name in _OTHER_PARAMETERS:
                raise unsupported(f"{name}: {value}", f"field [{path}]")
            raise bad_mapping(f"unknown parameter [{name}] on mapper [{path}] of type [{kind}]")
        ignore_above = definition.get("ignore_above")
        if ignore_above is not None and (type(ignore_above) is not int or ignore_above < 0):
            raise bad_mapping(f"[ignore_above] of [{path}] must be a whole number from 0")
        try:
            formats = parse_formats(definition.get("format"))
            field = Field(
                path=path,
                source=source,
                kind=kind,
                indexed=kind != "text" and definition.get("index", True),
                ignore_above=ignore_above,
                null_value=definition.get("null_value"),
                formats=formats,
                multi=path in self.multi,
            )
            if field.null_value is not None and kind != "text":
                field.normalise(field.null_value)
        except ValueError as error:
            raise bad_mapping(f"field [{path}]: {error}") from error
        self.fields[path] = field
        self.by_source.setdefault(source, []).append(field)
        subfields = definition.get("fields", {})
        if not isinstance(subfields, dict) or (subfields and path != source):
            raise bad_mapping(f"[fields] of [{path}] must be an object of plain fields")
        for name, inner in subfields.items():
            if not isinstance(inner, dict) or not name or "." in name:
                raise bad_mapping(f"[fields] of [{path}]: [{name}] is not a field's definition")
            self._add(f"{path}.{name}", source, inner.get("type"), inner)


class Analysed:
    """What a document's values are, field by field.

    Attributes:
        payload: normalised values by payload name.
        names: the fields without an index that have a value.
        definitions: fields that dynamic mapping has to add first.
        multi: fields that hold several values here and are not yet known to.
    """

    def __init__(self) -> None:
        self.payload: Json = {}
        self.names: list[str] = []
        self.definitions: dict[str, Json] = {}
        self.multi: set[str] = set()


def analyse(mapping: IndexMapping, document: Json, id_: str, most_depth: int) -> Analysed:
    """Normalise a document.

    Raises:
        ApiError: 400, a value does not fit the mapping, or a field is not in a strict mapping.
    """
    for name in METADATA & document.keys():
        raise ApiError(
            400,
            "document_parsing_exception",
            f"Field [{name}] is a metadata field and cannot be added inside a document. Use the "
            "index API request parameters.",
        )
    found = Analysed()
    values: dict[str, list[Any]] = {}
    for path, value in _leaves(mapping, document, "", most_depth, found):
        values.setdefault(path, []).append(value)
    for path, raw in values.items():
        fields = mapping.by_source.get(path)
        if fields is None:
            _unmapped(mapping, path, raw, found, id_)
            continue
        for field in fields:
            _normalise(field, raw, found, id_)
    return found


def _leaves(
    mapping: IndexMapping, document: Json, prefix: str, depth: int, found: Analysed
) -> Iterator[tuple[str, Any]]:
    if depth <= 0:
        raise ApiError(
            400, "document_parsing_exception", "The depth of the document exceeds the limit"
        )
    for name, value in document.items():
        path = prefix + name
        if not name.strip() or any(not part.strip() for part in name.split(".")):
            raise ApiError(
                400, "document_parsing_exception", f"field name [{path}] has an empty part"
            )
        yield from _values(mapping, path, value, depth, found)


def _values(
    mapping: IndexMapping, path: str, value: Any, depth: int, found: Analysed
) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if path in mapping.by_source:
            raise ApiError(
                400,
                "document_parsing_exception",
                f"failed to parse field [{path}]: an object where the mapping has a value",
            )
        if path not in mapping.objects and mapping.dynamic == "strict":
            raise _strict(path)
        yield from _leaves(mapping, value, f"{path}.", depth - 1, found)
    elif isinstance(value, list):
        if depth <= 0:
            raise ApiError(
                400, "document_parsing_exception", "The depth of the document exceeds the limit"
            )
        for item in value:
            yield from _values(mapping, path, item, depth - 1, found)
    else:
        if path in mapping.objects and value is not None:
            raise ApiError(
                400,
                "document_parsing_exception",
                f"object mapping for [{path}] tried to parse field [{path}] as object, but found "
                "a concrete value",
            )
        yield path, value


def _normalise(field: Field, raw: list[Any], found: Analysed, id_: str) -> None:
    present = [field.null_value if value is None else value for value in raw]
    present = [value for value in present if value is not None]
    if not present:
        return
    if not field.indexed:
        found.names.append(field.path)
        if field.kind == "text":
            return
    try:
        values = [field.normalise(value) for value in present]
    except ValueError as error:
        raise ApiError(
            400,
            "document_parsing_exception",
            f"failed to parse field [{field.path}] of type [{field.kind}] in document with id "
            f"'{id_}'",
            caused_by={"type": "illegal_argument_exception", "reason": str(error)},
        ) from error
    if not field.indexed:
        return
    kept = [value for value in values if value is not None]
    if field.kind == "keyword":
        kept = list(dict.fromkeys(kept))
    if len(kept) == 1:
        found.payload[field.payload] = kept[0]
    elif kept:
        found.payload[field.payload] = kept
        if not field.multi:
            found.multi.add(field.path)


def _unmapped(mapping: IndexMapping, path: str, raw: list[Any], found: Analysed, id_: str) -> None:
    if mapping.dynamic == "strict":
        raise _strict(path)
    first = next((value for value in raw if value is not None), None)
    if mapping.dynamic == "false" or first is None:
        return
    parts = path.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parent in mapping.fields or parent in found.definitions:
            raise ApiError(
                400,
                "document_parsing_exception",
                f"field [{path}] in document with id '{id_}': [{parent}] is a value, not an object",
            )
    if any(name.startswith(f"{path}.") for name in found.definitions):
        raise ApiError(
            400,
            "document_parsing_exception",
            f"field [{path}] in document with id '{id_}' is both a value and an object",
        )
    found.definitions[path] = _guess(mapping, first)


def _guess(mapping: IndexMapping, value: Any) -> Json:
    """The type that dynamic mapping gives a field for its first value."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "long"}
    if isinstance(value, float):
        return {"type": "float"}
    # As in Elasticsearch, only a string with one of these signs may be a date.
    if mapping.date_detection and any(sign in value for sign in ":-/"):
        try:
            read_date(value, ("strict_date_optional_time",))
        except ValueError:
            return _DYNAMIC_TEXT
        return {"type": "date"}
    return _DYNAMIC_TEXT


def _strict(path: str) -> ApiError:
    parent, _, name = path.rpartition(".")
    return ApiError(
        400,
        "strict_dynamic_mapping_exception",
        f"mapping set to strict, dynamic introduction of [{name}] within [{parent or '_doc'}] is "
        "not allowed",
    )

"""Validation against the JSON Schemas of workflow/schemas, with errors that say what to do."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from jsonschema import Draft202012Validator, TypeChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from refill.config.errors import Problem, Where, nearest
from refill.config.yamlfile import read_yaml

FOLDER = Path(__file__).parents[3] / "schemas"
# Far above what any configuration needs.
DEEPEST = 30

TYPES = {
    "object": "a block of keys",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def _is_whole(_: TypeChecker, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# JSON Schema takes 2.0 for an integer; what counts things here must be one in Python, too.
# `extend` has no type hints.
_Validator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole),
)


@cache
def read_schema(name: str) -> dict[str, Any]:
    """Return a schema of workflow/schemas by its file name, such as "config.schema.yaml"."""
    return read_yaml(FOLDER / name)


def validator(name: str, fragment: str = "") -> Any:
    """Return a validator for a schema, or for a part of it (`fragment`: "/$defs/optimizers")."""
    return _Validator({"$ref": f"{name}#{fragment}"}, registry=_registry())


def problems(name: str, value: Any, fragment: str = "") -> list[Problem]:
    """Return every problem of `value` against a schema, in the order of the keys; [] when none.

    A key that is no text and a number that is not finite are problems in every schema; JSON, which
    the schemas are made for, has neither.
    """
    if foreign := list(_not_json(value, ())):
        return foreign
    found = [p for e in validator(name, fragment).iter_errors(value) for p in _explain(e)]
    found.sort(key=lambda p: ([str(part) for part in p.where], p.text))
    # A value that is no object at all is none of an object's forms either: said once.
    return list({p.where: p for p in reversed(found)}.values())[::-1]


def fill_defaults(name: str, value: Any) -> Any:
    """Return a copy of `value` with the defaults of the schema for keys that are not there.

    A default is filled in only where its parent object is there, so an object that was left out
    is not made up from defaults.
    """
    filled = copy.deepcopy(value)
    _fill(filled, read_schema(name), name)
    return filled


def resolve(schema: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
    """Follow `$ref`s: return the schema that is meant and the name of the file it stands in.

    Keys beside a `$ref` (its description here) win over those of its target.
    """
    while "$ref" in schema:
        reference = schema["$ref"]
        file, _, fragment = reference.partition("#")
        name = file or name
        target: Any = read_schema(name)
        for part in fragment.strip("/").split("/") if fragment else []:
            target = target[part]
        schema = {**target, **{key: item for key, item in schema.items() if key != "$ref"}}
        if target.get("$ref"):
            schema = {**schema, "$ref": target["$ref"]}
    return schema, name


def _not_json(value: Any, where: Where) -> Iterator[Problem]:
    if len(where) > DEEPEST:
        # A YAML alias can stand in what it names.
        yield Problem(where[:1], "is nested in itself, or too deep: write it out")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield Problem(where, f"the key {_value(key)} must be text: put it in quotes")
            else:
                yield from _not_json(item, (*where, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _not_json(item, (*where, i))
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(where, f"must be a finite number, is {value}: give a number with an end")


def _retrieve(uri: str) -> Resource[Any]:
    # A schema that names its draft would be given that draft's own validator.
    schema = {key: part for key, part in read_schema(uri).items() if key != "$schema"}
    return DRAFT202012.create_resource(schema)


@cache
def _registry() -> Registry[Any]:
    # The stubs of `referencing` declare `retrieve` as positional attrs field only.
    return Registry(retrieve=_retrieve)  # type: ignore[call-arg]


def _fill(value: Any, schema: Mapping[str, Any], name: str) -> None:
    schema, name = resolve(schema, name)
    if not isinstance(value, dict):
        return
    properties = schema.get("properties", {})
    for key, part in properties.items():
        whole, _ = resolve(part, name)
        if key not in value and "default" in whole:
            value[key] = copy.deepcopy(whole["default"])
        if key in value:
            _fill(value[key], part, name)
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        for key in value.keys() - properties.keys():
            _fill(value[key], others, name)
    for form in schema.get("oneOf", ()):
        kind = form.get("properties", {}).get("kind", {}).get("const")
        if kind is not None and kind == value.get("kind"):
            _fill(value, form, name)


def _explain(error: ValidationError) -> Iterator[Problem]:
    where: Where = tuple(error.absolute_path)
    schema = cast(Mapping[str, Any], error.schema)
    rule, wanted, value = str(error.validator), cast(Any, error.validator_value), _instance(error)
    about = f" ({schema['description']})" if "description" in schema else ""
    match rule:
        case "additionalProperties":
            known = list(schema.get("properties", {}))
            for key in sorted(set(value) - set(known), key=str):
                hint = nearest(key, known)
                keys = f"keys here: {', '.join(known)}"
                yield Problem((*where, key), f"unknown key: {hint}{keys}")
        case "required":
            for key in sorted(set(wanted) - set(value)):
                part = schema.get("properties", {}).get(key, {}).get("description", "")
                text = f"is missing: add it{f' ({part})' if part else ''}"
                yield Problem((*where, key), text)
        case "oneOf" | "anyOf":
            yield from _branches(error, where, about)
        case "propertyNames":
            yield Problem(where, "bad name")
        case "type":
            types = [wanted] if isinstance(wanted, str) else wanted
            names = " or ".join(TYPES[t] for t in types)
            quote = ""
            if "string" in types and isinstance(value, int | float) and not isinstance(value, bool):
                quote = ": put it in quotes"
            yield Problem(where, f"must be {names}, is {_value(value)}{quote}{about}")
        case _:
            yield Problem(where, f"must {_rule(rule, wanted, schema)}, is {_value(value)}{about}")


def _instance(error: ValidationError) -> Any:
    return error.instance


def _rule(rule: str, wanted: Any, schema: Mapping[str, Any]) -> str:
    match rule:
        case "minimum":
            return f"be >= {wanted}"
        case "exclusiveMinimum":
            return f"be > {wanted}"
        case "maximum":
            return f"be <= {wanted}"
        case "exclusiveMaximum":
            return f"be < {wanted}"
        case "const":
            return f"be {_value(wanted)}"
        case "enum":
            return f"be one of {', '.join(str(item) for item in wanted)}"
        case "pattern":
            return f"match the pattern {wanted}"
        case "minLength":
            return "not be empty"
        case "minItems":
            return f"have at least {wanted} item{'' if wanted == 1 else 's'}"
        case "uniqueItems":
            return "not name anything twice"
        case "minProperties":
            return f"have at least {wanted} key{'' if wanted == 1 else 's'}" + _known(schema)
        case "maxProperties":
            return f"have at most {wanted} key{'' if wanted == 1 else 's'}" + _known(schema)
    return f"satisfy {rule}: {wanted}"


def _known(schema: Mapping[str, Any]) -> str:
    known = schema.get("properties")
    return f" (of {', '.join(known)})" if known else ""


def _branches(error: ValidationError, where: Where, about: str) -> Iterator[Problem]:
    """Explain a value that has several forms: by the one form it is meant to be, or by all."""
    context = error.context or []
    forms = cast(list[Any], error.validator_value)
    wrong: dict[int, list[ValidationError]] = {}
    for part in context:
        wrong.setdefault(cast(int, part.relative_schema_path[0]), []).append(part)
    # A form whose type or whose telling key (`kind`) differs is not the one that was meant.
    meant = [parts for parts in wrong.values() if not any(map(_other_form, parts))]
    if len(meant) == 1:
        for part in meant[0]:
            yield from _explain(part)
        return
    kinds = [form.get("properties", {}).get("kind", {}).get("const") for form in forms]
    if all(kinds) and isinstance(error.instance, dict):
        kind = error.instance.get("kind")
        text = (
            "is missing: add" if kind is None else f"is {_value(kind)}: {nearest(kind, kinds)}use"
        )
        yield Problem((*where, "kind"), f"{text} `kind` {', '.join(kinds[:-1])} or {kinds[-1]}")
        return
    names = "; ".join(_form_name(form) for form in forms)
    yield Problem(where, f"must be one of: {names}; is {_value(error.instance)}{about}")


def _other_form(error: ValidationError) -> bool:
    depth = len(error.relative_path)
    if error.validator == "type":
        return depth == 0
    if error.validator == "required" and depth == 0 and isinstance(error.instance, dict):
        # {per_core: 4} where {share: X} is a form: another form, not one with a typo.
        return not set(error.instance) & set(cast(Any, error.schema).get("properties", {}))
    return error.validator in ("const", "enum") and depth == 1 and error.path[-1] == "kind"


def _form_name(form: Mapping[str, Any]) -> str:
    name = ""
    if "$ref" in form:
        form, name = resolve(form, "optimizers.schema.yaml")
    return str(form.get("title") or form.get("description") or form.get("type") or name)


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return repr(value)
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

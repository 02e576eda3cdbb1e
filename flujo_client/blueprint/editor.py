"""The blueprints' JSON Schema, of draft 2020-12, for editors: made of the shapes and keys that are used for reading, so that they agree.

It must not define a key. It covers shapes only; what else `flujo validate` finds is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import combinations
from typing import Any, Final

from flujo_client.blueprint import changes, keys, kind, shapes, value_types
from flujo_client.blueprint.shapes import FieldType, Table
from flujo_client.contract import processing
from flujo_client.plan.kinds import NESTED, STEP

Schema = dict[str, Any]


def json_schema() -> Schema:
    kinds = {word: of(kind.KINDS[word].table) for word in kind.words()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A flujo blueprint",
        "$ref": "#/$defs/document",
        "$defs": {
            "document": of(keys.DOCUMENT),
            "step": _step(),
            "body": {
                "oneOf": [{"$ref": "#/$defs/step"}, {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}}]
            },
            "import": of(kind.KINDS[str(NESTED.yaml_name)].table),
            "text": {"type": "string", "pattern": r"\S"},
            **{f"kind:{word}": schema for word, schema in kinds.items()},
        },
    }


def of(shape: FieldType) -> Schema:
    """Make the schema of what a shape takes; subclasses of a shape take the same."""
    return next(_OF[each] for each in type(shape).__mro__ if each in _OF)(shape)


def _step() -> Schema:
    is_import = {"properties": {"uses": {"type": "string", "pattern": r"^imports\."}}, "required": ["uses"]}
    is_kind = {
        word: {"properties": {"kind": {"const": word}}, "required": ["kind"]}
        for word in kind.words()
        if word != STEP.yaml_name
    }
    plain = {"if": is_import, "then": {"$ref": "#/$defs/import"}, "else": {"$ref": "#/$defs/kind:step"}}
    return {
        "type": "object",
        "properties": {"kind": {"enum": kind.words(), "description": "The kind of step; `step` by default."}},
        "allOf": [
            *({"if": condition, "then": {"$ref": f"#/$defs/kind:{word}"}} for word, condition in is_kind.items()),
            {"if": {"anyOf": list(is_kind.values())}, "else": plain},
        ],
    }


def _table(table: Table) -> Schema:
    known = {name: {**of(key.shape), "description": key.what} for name, key in table.keys.items()}
    schema: Schema = {"type": "object", "properties": known, "additionalProperties": False}
    needed = [name for name, key in table.keys.items() if key.required]
    several = [
        *({"oneOf": [{"required": [name]} for name in names]} for names in table.one_of),
        *({"not": {"required": list(pair)}} for names in table.at_most_one_of for pair in combinations(names, 2)),
    ]
    return schema | ({"required": needed} if needed else {}) | ({"allOf": several} if several else {})


def _processing() -> Schema:
    """Return the schema of AROS's block; its reader checks more, such as how long texts may be."""
    precheck: Schema = {each.name: {} for each in fields(processing.PrecheckSettings)} | {"agent": {}}
    allow = {name: {"type": "array", "items": {"enum": list(each)}} for name, each in processing.CONVERSIONS.items()}
    known: Schema = {
        "structured_output": {"enum": list(processing.STRUCTURED)},
        "aop": {"enum": list(processing.MODES)},
        "coercion": _closed(
            {
                "tolerant_level": {"enum": list(processing.LEVELS)},
                "allow": _closed(allow),
                "max_unescape_depth": {"type": "integer", "minimum": 0},
                "max_characters": {"type": "integer", "minimum": 1},
                "max_steps": {"type": "integer", "minimum": 1},
                "max_ms_per_mb": {"type": "number", "minimum": 0},
                "anyof_strategy": {"enum": list(processing.STRATEGIES)},
            }
        ),
        "reasoning_precheck": _closed(precheck),
    }
    return _closed({**{key: {} for key in processing.PROCESSING_KEYS}, **known})


def _closed(properties: Schema) -> Schema:
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _number(shape: shapes.Number) -> Schema:
    schema: Schema = {"type": "integer" if shape.whole else "number"}
    bounds = (("minimum", shape.least), ("exclusiveMinimum", shape.above))
    return schema | {name: bound for name, bound in bounds if bound is not None}


def _model(shape: value_types.Model) -> Schema:
    """Return a pydantic model's own schema with its references resolved, so that editors need no other file, and with its aliases."""
    made: Any = shape.model.model_json_schema()
    inner = made.pop("$defs", {})
    made = {**_inlined(made, inner), "additionalProperties": False}
    for other, name in shape.aliases.items():
        made["properties"][other] = made["properties"][name]
    return {key: each for key, each in made.items() if key not in ("title", "description")}


def _inlined(schema: Any, inner: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, inner) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(inner[schema["$ref"].rpartition("/")[2]], inner)
    return {key: _inlined(each, inner) for key, each in schema.items()}


def _ref(name: str) -> Callable[[Any], Schema]:
    return lambda _: {"$ref": f"#/$defs/{name}"}


_OF: Final[Mapping[type, Callable[[Any], Schema]]] = {
    shapes.Plain: lambda shape: dict(shape.schema),
    shapes.OfText: _ref("text"),
    shapes.Number: _number,
    shapes.OneOf: lambda shape: {"enum": list(shape.words)},
    shapes.ListOf: lambda shape: {"type": "array", "items": of(shape.each)},
    shapes.MapOf: lambda shape: {"type": "object", "additionalProperties": of(shape.each)},
    shapes.AnyOf: lambda shape: {"anyOf": [of(each) for each in shape.shapes]},
    shapes.Table: _table,
    value_types.OneOfOr: lambda shape: {
        "anyOf": [{"enum": list(shape.words.words)}, {"type": "string", "pattern": ":"}]
    },
    value_types.Templates: lambda _: {},
    value_types.JsonSchema: lambda _: {"type": "object"},
    value_types.Model: _model,
    value_types.Processing: lambda _: _processing(),
    changes.ItemsShape: _ref("text"),
    kind.StepShape: _ref("step"),
    kind.BodyShape: _ref("body"),
    keys.RegistryShape: lambda shape: {"type": "object", "minProperties": 1, "additionalProperties": of(shape.each)},
    keys.ImportShape: lambda _: {"anyOf": [{"$ref": "#/$defs/text"}, {"$ref": "#/$defs/document"}]},
}

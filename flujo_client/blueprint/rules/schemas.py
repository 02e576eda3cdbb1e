"""V-S: JSON Schemas. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.blueprint.rules.document_index import Data, DocumentIndex
from flujo_client.blueprint.rules.table import RuleFinding

_BOUNDS: Final = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_ELSEWHERE: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "const", "enum", "dependentSchemas")
_HOLD_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions")
_ARE_SCHEMAS: Final = (
    "items",
    "additionalProperties",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "anyOf",
    "oneOf",
    "allOf",
    "prefixItems",
)


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every schema of a document; one that a model receives must describe what it asks for."""
    for path, schema, is_for_model in _schemas(doc):
        yield from _impossible(schema, path)
        if is_for_model:
            yield from _little(schema, path)


def _schemas(doc: DocumentIndex) -> Iterator[tuple[Path, Data, bool]]:
    given: list[tuple[Path, Any, bool]] = []
    for name, agent in doc.table("agents").items():
        if isinstance(agent, Mapping):
            given.append(((*doc.path, "agents", name, "output_schema"), agent.get("output_schema"), True))
    for step in doc.steps:
        given += [((*step.path, key), step.data.get(key), False) for key in ("input_schema", "output_schema")]
        agent = step.data.get("agent")
        if isinstance(agent, Mapping):
            given.append(((*step.path, "agent", "output_schema"), agent.get("output_schema"), True))
    for path, schema, is_for_model in given:
        if isinstance(schema, Mapping):
            yield from ((inner_path, inner, is_for_model) for inner_path, inner in _inside(schema, path))


def _inside(schema: Data, path: Path) -> Iterator[tuple[Path, Data]]:
    """Return a schema and those in it."""
    yield path, schema
    for key, value in schema.items():
        named = value.items() if isinstance(value, Mapping) else ()
        listed = enumerate(value) if isinstance(value, list) else ()
        if key in _HOLD_SCHEMAS:
            found = [((*path, key, name), each) for name, each in named]
        elif key in _ARE_SCHEMAS:
            found = [((*path, key), value), *(((*path, key, index), each) for index, each in listed)]
        else:
            continue
        for inner_path, inner in found:
            if isinstance(inner, Mapping):
                yield from _inside(inner, inner_path)


def _impossible(schema: Data, path: Path) -> Iterator[RuleFinding]:
    for least, most in _BOUNDS:
        low, high = schema.get(least), schema.get(most)
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            yield RuleFinding("V-S2", (*path, least), f"no value fits: {least} {low:g} is above {most} {high:g}")
    if schema.get("enum") == []:
        yield RuleFinding("V-S2", (*path, "enum"), "no value fits: enum is empty")
    if schema.get("additionalProperties") is False and not any(key in schema for key in _ELSEWHERE):
        for name in _undescribed(schema):
            message = f"no value fits: '{shown(name)}' is required but not among the properties, and additionalProperties is false"
            yield RuleFinding("V-S2", (*path, "required"), message, nearest=nearest(name, _properties(schema)))


def _little(schema: Data, path: Path) -> Iterator[RuleFinding]:
    if any(key in schema for key in _ELSEWHERE):
        return
    if schema.get("type") == "array" and not {"items", "prefixItems"} & schema.keys():
        yield RuleFinding(
            "V-S3", path, "the schema does not describe the items of the list", "describe it with `items`"
        )
    if schema.get("type") == "object" and not {"properties", "additionalProperties"} & schema.keys():
        yield RuleFinding(
            "V-S3", path, "the schema does not describe the properties of the object", "describe it with `properties`"
        )
    if schema.get("additionalProperties") is not False and "properties" in schema:
        for name in _undescribed(schema):
            message = f"'{shown(name)}' is required but not among the properties"
            yield RuleFinding("V-S3", (*path, "required"), message, nearest=nearest(name, _properties(schema)))


def _undescribed(schema: Data) -> list[Any]:
    required = schema.get("required")
    return (
        [each for each in required if isinstance(each, str) and each not in _properties(schema)]
        if isinstance(required, list)
        else []
    )


def _properties(schema: Data) -> Data:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}

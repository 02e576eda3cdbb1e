"""Rewrite JSON Schemas: change a schema and every schema inside it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_NAMED_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS: Final = frozenset(
    [
        "items",
        "prefixItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "allOf",
        "anyOf",
        "oneOf",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)


def without_formats(schema: Any) -> Any:
    """Leave every `format` out of a schema that was derived from a Python type: pydantic validates dates and addresses.

    A naive datetime, for example, fits its type and is not an RFC 3339 date-time. A property that is named `format` stays.
    """
    return changed(schema, lambda each: {name: value for name, value in each.items() if name != "format"})


def changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change a schema and every schema inside it; values that only look like one, such as a default, stay."""
    if not isinstance(schema, dict):
        return schema
    return change({name: _within(name, value, change) for name, value in schema.items()})


def _within(name: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if name in _NAMED_SCHEMAS and isinstance(value, dict):
        return {key: changed(each, change) for key, each in value.items()}
    if name in _SCHEMAS:
        return [changed(each, change) for each in value] if isinstance(value, list) else changed(value, change)
    return value

"""Python types and their schemas: the schema of a type, its final verdict on a value, and the identity of a schema.

It must not read text that is not JSON: the parser does. In: an agent's declared type, JSON that satisfies its schema; out: the typed value,
or `AgentIOValidationError` that names each place, what was expected and what was found.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import pydantic
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from flujo_client.errors import AgentIOValidationError
from flujo_client.schemas.ambiguity import ambiguity, may_be_ambiguous
from flujo_client.schemas.fail_fast import fail_fast_json
from flujo_client.serial import digest
from flujo_worker.aros.decode import decode
from flujo_worker.aros.outcome import LIMIT, SCHEMA
from flujo_worker.aros.validation_feedback import misfit

try:
    import msgspec
except ImportError:  # an extra
    msgspec = None  # type: ignore[assignment]

Schema = Mapping[str, Any]

_LONGEST: Final = 600
_NOT_STRUCTURED: Final = (str, bytes, Any, None, object, type(None))
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


def structured_type(agent: Any) -> Any:
    """Find the type an agent declares for its output: `output_type`, else its return annotation; None for text and the undeclared."""
    declared = getattr(agent, "output_type", None) or _annotated(agent)
    return None if any(declared is each for each in _NOT_STRUCTURED) or not _is_type(declared) else declared


@functools.lru_cache(maxsize=256)
def adapter_of(output_type: Any) -> TypeAdapter[Any] | None:
    """Make the validator of a type; None for what pydantic cannot validate."""
    try:
        return TypeAdapter(output_type)
    except (PydanticUserError, TypeError):
        return None


@functools.lru_cache(maxsize=256)
def schema_of(output_type: Any) -> dict[str, Any] | None:
    """Derive the schema that texts are checked by, or None for a type that has none.

    Its `format`s are left out: the type itself is the judge of dates and the like, and takes more than RFC 3339.
    """
    adapter = adapter_of(output_type)
    try:
        written = msgspec.json.schema(output_type) if _is_struct(output_type) else adapter and adapter.json_schema()
        derived: dict[str, Any] = without_formats(written or {})
    except (PydanticUserError, ValueError):
        return None
    return derived or None


def validated(text: str, output_type: Any) -> Any:
    """Read JSON into a type; as it is, where there is none.

    Raises:
        AgentIOValidationError: the type refuses it.
    """
    if output_type is None:
        return decode(text)
    if _is_struct(output_type):
        try:
            return msgspec.json.decode(text, type=output_type)
        except msgspec.ValidationError as error:
            raise AgentIOValidationError(f"{error} [{SCHEMA}]"[:_LONGEST], rule=SCHEMA) from None
    adapter = adapter_of(output_type)
    if adapter is None:
        return decode(text)
    if ambiguous := _ambiguous(text, output_type):
        raise AgentIOValidationError(f"{ambiguous} [{LIMIT}]", rule=LIMIT)
    try:
        fail_fast_json(output_type, text)
        return adapter.validate_json(text)
    except pydantic.ValidationError as error:
        raise misfit(error, text, is_cut=False) from None


def _is_struct(output_type: Any) -> bool:
    return msgspec is not None and isinstance(output_type, type) and issubclass(output_type, msgspec.Struct)


def decoded(text: str, output_type: Any) -> Any:
    """Take the typed fast path: decode strictly, straight into the type.

    Raises:
        ValueError: the text is not right as it came, or the type cannot be decoded into.
    """
    if _is_struct(output_type):
        return msgspec.json.decode(text, type=output_type)
    adapter = adapter_of(output_type)
    if adapter is None:
        raise ValueError("no type to decode into")
    if ambiguous := _ambiguous(text, output_type):
        raise ValueError(ambiguous)
    fail_fast_json(output_type, text, strict=True)
    return adapter.validate_json(text, strict=True)


def _ambiguous(text: str, output_type: Any) -> str | None:
    return ambiguity(output_type, decode(text)) if may_be_ambiguous(output_type) else None


def schema_hash(schema: Schema | None) -> str | None:
    """Return the SHA-256 of a schema's canonical JSON, in hex; None without a schema."""
    return None if schema is None else digest(dict(schema))


def _annotated(agent: Any) -> Any:
    for target in (getattr(agent, "run", None), agent):
        try:
            hints = typing.get_type_hints(target)
        except (AttributeError, NameError, TypeError):
            continue
        if "return" in hints:
            return hints["return"]
    return None


def _is_type(declared: Any) -> bool:
    is_one = (
        isinstance(declared, type | types.GenericAlias | types.UnionType) or typing.get_origin(declared) is not None
    )
    return is_one and isinstance(declared, Hashable)


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

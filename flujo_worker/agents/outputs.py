"""Find how pydantic-ai requests an agent's output type: one type or several, directly or under a key.

Pure; it calls no model. In: an agent's `output_type` and a step's own schema. Out: types and schemas.
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Final, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, WithJsonSchema
from pydantic.errors import PydanticUserError
from pydantic_ai import StructuredDict
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import BinaryImage
from pydantic_ai.output import NativeOutput, PendingModelResponse, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.tools import DeferredToolRequests
from typing_extensions import is_typeddict

from flujo_worker.agents.shaping import Schema, is_structured_dict
from flujo_worker.aros.rewrite import changed

KEY: Final = "response"
"""The key under which pydantic-ai requests a type that is not an object with fields, such as `list[int]`."""

_MARKERS: Final = (NativeOutput, PromptedOutput, TextOutput, ToolOutput)
_BESIDES: Final = (BinaryImage, DeferredToolRequests, PendingModelResponse)


class Unsupported(Exception):
    """A schema that pydantic-ai cannot ask for: recursive, or without an object at its root."""


def members(output_type: Any) -> list[Any]:
    """Take lists and unions of output types apart."""
    if isinstance(output_type, (list, tuple)):
        return [member for each in output_type for member in members(each)]
    if get_origin(output_type) in (Union, UnionType):
        return [member for each in get_args(output_type) for member in members(each)]
    return [output_type]


def is_chosen(member: Any) -> bool:
    """Return whether the author has chosen how this output is requested: a marker, a function, something other than JSON."""
    return isinstance(member, _MARKERS) or inspect.isroutine(member) or member in _BESIDES


def has_fields(output_type: Any) -> TypeGuard[type]:
    """Return whether pydantic-ai asks for a type as it is: a model, a dataclass, a TypedDict, a StructuredDict."""
    kind = get_args(output_type)[0] if get_origin(output_type) is Annotated else output_type
    if not isinstance(kind, type) or get_origin(kind) is not None:
        return False
    return issubclass(kind, BaseModel) or is_dataclass(kind) or is_typeddict(kind) or is_structured_dict(kind)


def schema_of(types: list[Any]) -> Schema:
    """Derive the JSON Schema of what the types accept. Raises Unsupported: a type that has none."""
    union: Any = Union[tuple(types)]  # noqa: UP007 - of types known only now
    try:
        return TypeAdapter(union).json_schema()
    except (PydanticUserError, UserError, TypeError) as error:
        raise Unsupported from error


def structured(schema: Schema, name: str) -> type:
    """Make a type of dictionaries that are asked for by `schema`. Raises Unsupported: what pydantic-ai refuses."""
    try:
        kind = StructuredDict(_opened(schema), name=name)
        TypeAdapter(kind).json_schema()
    except (PydanticUserError, UserError, KeyError) as error:
        raise Unsupported from error
    return kind


def described(output_type: Any, schema: Schema) -> Any:
    """Make a type that is asked for by `schema` and validated as it was. Raises Unsupported: what pydantic-ai refuses."""
    if has_fields(output_type) and schema.get("type") != "object":
        raise Unsupported
    # `$defs` are allowed only at the root that is sent, which may not be this schema's: pydantic-ai's own way inlines them.
    inlined = TypeAdapter(structured(under_key(schema), name="")).json_schema()["properties"][KEY]
    return Annotated[output_type, WithJsonSchema(inlined)]


def under_key(schema: Schema) -> Schema:
    """Put a schema under pydantic-ai's key for its type; definitions stay at the root."""
    root = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    inner = {name: value for name, value in schema.items() if name not in root}
    return {"type": "object", "properties": {KEY: inner}, "required": [KEY], **root}


def _opened(schema: Schema) -> dict[str, Any]:
    """Allow any properties explicitly in an object that declares none: pydantic-ai closes it for OpenAI otherwise."""

    def change(each: dict[str, Any]) -> dict[str, Any]:
        is_open = each.get("type") == "object" and not each.keys() & {"properties", "additionalProperties"}
        return {**each, "additionalProperties": True} if is_open else each

    opened: dict[str, Any] = changed(dict(schema), change)
    return opened

"""Find how pydantic-ai requests an agent's output type, and bound what a model may send to be validated (ADR 26).

Values that would take pydantic too long, or produce too many errors, are rejected before its validation, and the model gets the error as for any
invalid argument: of users' tools, and of outputs that no step shapes.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, Field, Json, TypeAdapter, WithJsonSchema
from pydantic.errors import PydanticUserError
from pydantic_ai import RunContext, StructuredDict
from pydantic_ai import _utils as library_internals
from pydantic_ai import output as library_output
from pydantic_ai.exceptions import ModelRetry, UserError
from pydantic_ai.messages import BinaryImage
from pydantic_ai.output import NativeOutput, OutputContext, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.tools import DeferredToolRequests
from typing_extensions import TypedDict, is_typeddict

from flujo_client.schemas.ambiguity import ambiguity, may_be_ambiguous
from flujo_client.schemas.fail_fast import fail_fast, fail_fast_json
from flujo_worker.agents.shaping import Schema, is_structured_dict
from flujo_worker.aros.decode import ERRORS, decode
from flujo_worker.aros.typed import changed

KEY: Final = "response"
"""The key under which pydantic-ai requests a type that is not an object with fields, such as `list[int]`."""

_LOOKS_INTO_ANNOTATED: Final = hasattr(library_internals, "unwrap_annotated")
_MARKERS: Final = (NativeOutput, PromptedOutput, TextOutput, ToolOutput)
_BESIDES: Final = (BinaryImage, DeferredToolRequests, getattr(library_output, "PendingModelResponse", BinaryImage))


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
    kind = get_args(output_type)[0] if _LOOKS_INTO_ANNOTATED and get_origin(output_type) is Annotated else output_type
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
    if has_fields(output_type) and (schema.get("type") != "object" or not _LOOKS_INTO_ANNOTATED):
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


def refuse(kind: Any, sent: Any) -> None:
    """Raise ModelRetry if there are too many ways to read what a model sent for a type or validator, ValidationError if it is large and does not fit."""
    if ambiguous := too_ambiguous(kind, sent):
        raise ModelRetry(ambiguous)
    refuse_large(kind, sent)


def too_ambiguous(kind: Any, sent: Any) -> str | None:
    """Return why there are too many ways to read what a model sent; invalid JSON is left to pydantic's message."""
    if kind is None or not may_be_ambiguous(kind):
        return None
    try:
        data = decode(_object_in(sent)) if isinstance(sent, str) else sent
    except ERRORS:
        return None
    return ambiguity(kind, data)


def refuse_large(kind: Any, sent: Any) -> None:
    """Refuse what a model sent if it is large and does not fit, with a few errors. Raises ValidationError: it does not fit."""
    if kind is None:
        return
    if isinstance(sent, str):
        fail_fast_json(kind, _object_in(sent))
    else:
        fail_fast(kind, sent)


def kind_of_output(ctx: RunContext[Any], output: OutputContext) -> Any:
    """Return what pydantic-ai validates an output by: an output tool's validator, or a type; None if that is not known."""
    if output.tool_def is not None:
        return validator_of(ctx, output.tool_def.name)
    kind: Any = output.output_type
    try:
        if kind is None:
            return _envelope_of(getattr(ctx.agent, "output_type", None), output)
        return None if output.has_function else _data(kind)
    except TypeError:  # it cannot be hashed
        return None


def validator_of(ctx: RunContext[Any], name: str) -> Any:
    """Return what pydantic-ai validates a tool's arguments by; None if there is no such tool."""
    tools = ctx.tool_manager.tools if ctx.tool_manager is not None else None
    tool = (tools or {}).get(name)
    return None if tool is None else tool.args_validator


def _envelope_of(output_type: Any, output: OutputContext) -> Any:
    """Return the type of the object by which pydantic-ai asks for one of several types; its schema names them in their order."""
    marked = output_type.outputs if isinstance(output_type, NativeOutput | PromptedOutput) else output_type
    schema = output.object_def.json_schema if output.object_def is not None else {}
    named = schema.get("properties", {}).get("result", {}).get("anyOf", [])
    kinds = members(marked)
    names = tuple(each["properties"]["kind"]["const"] for each in named)
    return _envelope(tuple(kinds), names) if len(kinds) == len(names) else None


@functools.lru_cache(maxsize=64)
def _envelope(kinds: tuple[Any, ...], names: tuple[str, ...]) -> Any:
    branches = tuple(_typed_dict(kind=Literal[name], data=_data(each)) for each, name in zip(kinds, names, strict=True))
    named: Any = Union[branches]  # noqa: UP007 - of types known only now
    return _typed_dict(result=Annotated[named, Field(discriminator="kind")])


@functools.lru_cache(maxsize=64)
def _data(kind: Any) -> Any:
    if inspect.isroutine(kind):
        return Any
    return kind if has_fields(kind) else _typed_dict(**{KEY: kind | Json[kind]})  # type: ignore[misc]  # as pydantic-ai makes it


def _typed_dict(**fields: Any) -> Any:
    return TypedDict("Output", fields)  # type: ignore[operator]  # of fields known only now


def _object_in(text: str) -> str:
    """Return the object in a text, which pydantic-ai takes out of a Markdown fence."""
    return text if text.startswith("{") else text[text.find("{") : text.rfind("}") + 1] or text

"""Bound what a model may send to be validated: the arguments of users' tools, and outputs that no step shapes (ADR 26).

A capability, one for each run, before pydantic-ai's validation. It rejects values that would take pydantic too long, or produce too many
errors, and the model gets the error as for any invalid argument. It must not change the value. In: a type or validator, and the model's
value. Out: nothing, a `ModelRetry` or a `ValidationError`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any, Literal, Union

from pydantic import Field, Json
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.output import NativeOutput, OutputContext, PromptedOutput
from pydantic_ai.tools import ToolDefinition
from typing_extensions import TypedDict

from flujo_client.schemas.ambiguity import ambiguity, may_be_ambiguous
from flujo_client.schemas.fail_fast import fail_fast, fail_fast_json
from flujo_worker.agents.outputs import KEY, has_fields, members
from flujo_worker.aros.decode import ERRORS, decode


class Bounded(AbstractCapability[Any]):
    """Refuses what is too costly to validate."""

    async def before_tool_validate(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - the library passes it by name
        args: str | dict[str, Any],
    ) -> str | dict[str, Any]:
        """Refuse the arguments of a tool.

        Raises:
            ModelRetry: there are too many ways to read them.
            ValidationError: they are large and do not fit.
        """
        refuse(_validator_of(ctx, call.tool_name), args)
        return args

    async def before_output_validate(self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any) -> Any:
        """Refuse an output, as the arguments of a tool."""
        if not ctx.partial_output:
            refuse(kind_of_output(ctx, output_context), output)
        return output


def refuse(kind: Any, sent: Any) -> None:
    """Refuse what a model sent if it is too costly to validate. `kind` is the type that it is for, or its validator; None if that is not known.

    Raises:
        ModelRetry: there are too many ways to read it.
        ValidationError: it is large and does not fit.
    """
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
        return _validator_of(ctx, output.tool_def.name)
    try:
        if output.output_type is None:
            return _envelope_of(getattr(ctx.agent, "output_type", None), output)
        return None if output.has_function else _data(output.output_type)
    except TypeError:  # it cannot be hashed
        return None


def _validator_of(ctx: RunContext[Any], name: str) -> Any:
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


def _data(kind: Any) -> Any:
    return Any if inspect.isroutine(kind) else kind if has_fields(kind) else _under_key(kind)


@functools.lru_cache(maxsize=64)
def _under_key(kind: Any) -> Any:
    return _typed_dict(**{KEY: kind | Json[kind]})  # type: ignore[misc]  # as pydantic-ai makes it


def _typed_dict(**fields: Any) -> Any:
    return TypedDict("Output", fields)  # type: ignore[operator]  # of fields known only now


def _object_in(text: str) -> str:
    """Return the object in a text, which pydantic-ai takes out of a Markdown fence."""
    return text if text.startswith("{") else text[text.find("{") : text.rfind("}") + 1] or text

"""Call AROS inside a pydantic-ai run: between the model's answer and pydantic's validation.

It does not let the library call again: an invalid output leaves the run as an AgentIOValidationError, because the step's attempts are the only
retry layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, WrapModelRequestHandler, WrapOutputValidateHandler
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.output import OutputContext
from typing_extensions import override

from flujo_client.errors import AgentIOValidationError
from flujo_worker.agents.outputs import KEY, has_fields, kind_of_output, refuse_large, too_ambiguous, under_key
from flujo_worker.agents.shaping import Origin, Schema, Shaping, is_structured_dict
from flujo_worker.aros.outcome import LIMIT
from flujo_worker.aros.typed import misfit, without_formats

_BAD_REQUEST: Final = 400
_PARAMETERS: Final = (
    "response_format",
    "text.format",
    "json_schema",
    "response_schema",
    "output_format",
    "output_config",
)
"""What providers call the parameter: OpenAI's two, and those who follow them, Google, Anthropic."""


class OutputReader(AbstractCapability[Any]):
    """Reads a run's output by `shaping.read` before pydantic validates it. `on_request` gets each run's first request that is really sent.

    Attributes:
        was_sent: a request has gone out, and its form was not refused.
        was_read: an output was read and validated.
    """

    def __init__(self, shaping: Shaping, on_request: Callable[[ModelRequestContext], None]) -> None:
        self._shaping, self._on_request = shaping, on_request
        self.was_sent = self.was_read = False

    @override
    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Report how the model is asked, once per run, unless the library refused to ask, or the provider the form of the question."""
        try:
            response = await handler(request_context)
        except UserError:
            raise
        except BaseException as error:
            if not refuses_format(error):
                self._sent(request_context)
            raise
        self._sent(request_context)
        return response

    def _sent(self, request_context: ModelRequestContext) -> None:
        if not self.was_sent:
            self.was_sent = True
            self._on_request(request_context)

    @override
    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Take a text for the arguments of the output tool that the model should have called."""
        if self._shaping.shadow or not self._shaping.reads:
            return response
        return _as_tool_call(response, request_context.model_request_parameters)

    async def wrap_output_validate(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: WrapOutputValidateHandler
    ) -> Any:
        """Read, then let pydantic validate. Raises AgentIOValidationError: what could not be read, or does not fit the type."""
        if ctx.partial_output:
            return await handler(output)
        schema = expected(self._shaping.schema, output_context)
        kind = kind_of_output(ctx, output_context)
        is_derived = _is_derived(self._shaping.schema, output_context)
        origin = replace(_origin(ctx, output_context), kind=kind if is_derived else None)
        readable = await self._shaping.read(output, schema, origin)

        async def validate(readable: Any) -> Any:
            if ambiguous := too_ambiguous(kind, readable):
                raise AgentIOValidationError(f"{ambiguous} [{LIMIT}]", rule=LIMIT)
            try:
                refuse_large(kind, readable)
                return await handler(readable)
            except ValidationError as error:
                if self._shaping.shadow:
                    raise
                raise misfit(error, readable, is_cut=origin.is_cut) from None

        value = await self._shaping.fit(readable, schema, validate, origin)
        self.was_read = True
        return value


def refuses_format(error: BaseException) -> bool:
    """Return whether a provider refused a request for its parameter of structured output."""
    if not isinstance(error, ModelHTTPError) or error.status_code != _BAD_REQUEST:
        return False
    said = f"{error.message} {error.body}".lower()
    return any(name in said for name in _PARAMETERS)


def expected(own: Schema | None, output: OutputContext) -> Schema | None:
    """Choose the schema that an output must satisfy before pydantic sees it.

    It is the step's, under a key if pydantic-ai requests its type under one; a union of types is requested in pydantic-ai's envelope, so the
    envelope's schema applies.
    """
    derived: Schema | None = output.object_def.json_schema if output.object_def is not None else None
    if own is None or output.output_type is None:
        return without_formats(derived) if _is_derived(own, output) else derived
    return own if output.has_function or has_fields(output.output_type) else under_key(own)


def _is_derived(own: Schema | None, output: OutputContext) -> bool:
    """Return whether a schema was derived from a Python type, which is then the judge of what the schema refuses."""
    return (own is None or output.output_type is None) and not is_structured_dict(output.output_type)


def _origin(ctx: RunContext[Any], output: OutputContext) -> Origin:
    """Return how the output was requested: one type that is not an object under a key, several in an envelope."""
    is_whole = not output.has_function and output.output_type is not None
    is_under_key = is_whole and not has_fields(output.output_type)
    last = next(message for message in reversed(ctx.messages) if isinstance(message, ModelResponse))
    return Origin(last.finish_reason, KEY if is_under_key else None, is_whole)


def _as_tool_call(response: ModelResponse, parameters: ModelRequestParameters) -> ModelResponse:
    texts = [part for part in response.parts if isinstance(part, TextPart)]
    content = "".join(part.content for part in texts)
    is_wanted = parameters.output_mode == "tool" and not parameters.allow_text_output
    if not is_wanted or response.tool_calls or not content.strip() or len(parameters.output_tools) != 1:
        return response
    others = [part for part in response.parts if part not in texts]
    return replace(response, parts=[*others, ToolCallPart(parameters.output_tools[0].name, content)])

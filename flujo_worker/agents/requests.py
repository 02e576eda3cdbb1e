"""Check an agent's requests to its model, let them wait for their turn under a rate limit, emit their events, and bound what comes back."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import orjson
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, RawToolArgs, WrapModelRequestHandler
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import ToolDefinition
from typing_extensions import override

from flujo_client.attempt_info import current_attempt
from flujo_client.contract.limits import money
from flujo_client.redact import preview
from flujo_worker.agents.models import each_of, profile_of
from flujo_worker.agents.outputs import kind_of_output, refuse, validator_of
from flujo_worker.agents.previews import AGENT_TOOL, shown, text_of
from flujo_worker.agents.pricing import models_of, price_of
from flujo_worker.agents.response_check import ResponseCheck, Send, hearing
from flujo_worker.domain.budget import BYTES_PER_TOKEN, Amount
from flujo_worker.observe.log import emit, emitting_once
from flujo_worker.runtime.attempt_run import ModelPace, current_settings
from flujo_worker.runtime.http_errors import is_rate_refusal, left_of

T = TypeVar("T")
Execute = Callable[[Any], Awaitable[Any]]


class PacedRequest:
    """One request to a model that may have a rate limit: `begin` waits for its turn, and `send` reports what it has used."""

    def __init__(self, pace: ModelPace, model: Model[Any], messages: Sequence[ModelMessage], settings: Any) -> None:
        self._pace, self._model, self._messages, self._settings = pace, model, messages, settings
        first = each_of(model)[0]
        self._limit = pace.limit_of(f"{first.system}:{first.model_name}")
        self._grant: Any = None

    async def begin(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Wait until it may be sent."""
        if self._limit is not None:
            expected = sum(_expected_tokens(self._messages, self._settings))
            self._grant = await self._pace.begin(self._limit, expected, sleep)

    async def send(self, send: Callable[[], Awaitable[T]], used: Callable[[T], int]) -> T:
        """Send it; `used` reads the tokens off the answer."""
        if self._limit is None:
            return await send()
        try:
            with hearing(self._model) as heard:
                answer = await send()
        except Exception as error:
            if is_rate_refusal(error, by_library=True):
                await self._pace.end(self._limit, self._grant, 0)
            raise
        await self._pace.end(self._limit, self._grant, used(answer), left_of(heard.headers))
        return answer


async def paced(pace: ModelPace, send: Send, request_context: ModelRequestContext) -> ModelResponse:
    """Send a request when its model's limit allows it."""
    asked = request_context.messages, request_context.model_settings
    request = PacedRequest(pace, request_context.model, *asked)
    await request.begin()
    return await request.send(partial(send, request_context), lambda answer: answer.usage.total_tokens)


def expected_cost(model: Model[Any], messages: Sequence[ModelMessage], settings: Any) -> Amount:
    """Return what a request may cost: its whole prompt, and the most that it may write, at the price of the dearest model that it may ask."""
    read, written = _expected_tokens(messages, settings)
    prices = (price_of(each, read, written, current_settings().cost) or 0.0 for each in models_of(model))
    return Amount(money(max(prices, default=0.0)), read + written)


def _expected_tokens(messages: Sequence[ModelMessage], settings: Any) -> tuple[int, int]:
    contents = [part.content for each in messages for part in each.parts if hasattr(part, "content")]
    read = sum(len(text_of(each).encode()) for each in contents)
    read += sum(len((getattr(each, "instructions", None) or "").encode()) for each in messages)
    written = (settings or {}).get("max_tokens") or current_settings().cost.default_output_tokens
    return math.ceil(read / BYTES_PER_TOKEN), int(written)


class RequestEvents:
    """Emits a run's requests as events, each part of the conversation once. `shown` is the run's prompt, as it may be shown, in `most` characters."""

    def __init__(self, shown: str, most: int) -> None:
        self._shown, self._most = shown, most
        self._emitted, self._schema = 0, ""

    async def send(self, send: Send, request_context: ModelRequestContext) -> ModelResponse:
        """Emit a request, send it, and emit its cost."""
        with emitting_once():
            is_first = self._emitted == 0
            self._emit_request(request_context)
            began = time.monotonic()
            response = await send(request_context)
            known = {tool.name for tool in request_context.model_request_parameters.function_tools}
            functions = [part.tool_name for part in response.tool_calls if part.tool_name in known]
            if functions or not is_first:  # the cost of a single request is that of its call
                used = response.usage
                answered: dict[str, Any] = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
                answered |= {"functions": functions} if functions else {}
                emit("agent.request", "debug", **answered, latency_s=_since(began))
            return response

    async def execute(self, call: ToolCallPart, tool_def: ToolDefinition, args: Any, execute: Execute) -> Any:
        """Call a tool, then emit the result. Agents as tools emit further events."""
        if tool_def.metadata is not None and AGENT_TOOL in tool_def.metadata:
            return await execute(args)
        began, called = time.monotonic(), {"function": call.tool_name, "arguments_preview": shown(args, self._most)}
        with emitting_once():
            try:
                result = await execute(args)
            except Exception as error:
                emit("agent.tool", "debug", **called, error=type(error).__name__, latency_s=_since(began))
                raise
            emit("agent.tool", "debug", **called, result_preview=shown(result, self._most), latency_s=_since(began))
            return result

    def _emit_request(self, request: ModelRequestContext) -> None:
        news = [message for message in request.messages[self._emitted :] if isinstance(message, ModelRequest)]
        if self._emitted == 0:
            parts = [part.content for message in news for part in message.parts if isinstance(part, SystemPromptPart)]
            system = "\n\n".join([*parts, *(message.instructions for message in news if message.instructions)])
            asked, info = request.model.model_name, current_attempt()
            seen = preview(system, self._most) if system else None
            emit("agent.system", "debug", model_id=asked, attempt=info and info.number, system_prompt_preview=seen)
            emit("agent.prompt", "debug", prompt_preview=preview(self._shown, self._most))
        else:
            for part in (part for message in news for part in message.parts):
                emit("agent.prompt", "debug", prompt_preview=shown(getattr(part, "content", part), self._most))
        self._emitted = len(request.messages)
        self._emit_schema(request.model, request.model_request_parameters)

    def _emit_schema(self, model: Model[Any], request: ModelRequestParameters) -> None:
        form = request.output_object
        tools = [{"name": tool.name, "schema": tool.parameters_json_schema} for tool in request.output_tools]
        forms = tools if form is None else [{"name": form.name, "schema": form.json_schema}]
        schema = orjson.dumps(forms).decode() if forms else ""
        if schema and schema != self._schema:
            mode: str = request.output_mode
            if mode == "auto" and len(each_of(model)) == 1:
                mode = profile_of(model).get("default_structured_output_mode", "tool")
            emit("agent.schema", "debug", mode=mode, schema_preview=preview(schema, self._most))
        self._schema = schema


class Requests(AbstractCapability[Any]):
    """Checks, paces and logs a run's requests, and refuses what is too costly to validate.

    One capability, because pydantic-ai copies its context for each at every hook. With `reads_output`, another capability bounds the output.
    """

    def __init__(
        self,
        check: ResponseCheck,
        *,
        pace: ModelPace | None = None,
        events: RequestEvents | None = None,
        reads_output: bool = False,
    ) -> None:
        self._check, self._pace, self._events, self._reads_output = check, pace, events, reads_output

    @override
    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Send the request in its turn. Raises UnreadableResponse or AnswerTooLarge."""
        send: Send = handler if self._events is None else partial(self._events.send, handler)
        send = send if self._pace is None else partial(paced, self._pace, send)
        return await self._check.send(ctx, request_context, send)

    @override
    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Let an answer pass that the provider did not stop. Raises AnswerCut or AnswerFiltered."""
        return self._check.accept(ctx, request_context, response)

    @override
    async def before_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: RawToolArgs
    ) -> RawToolArgs:
        """Refuse the arguments of a tool, as `refuse` does."""
        refuse(validator_of(ctx, call.tool_name), args)
        return args

    async def before_output_validate(self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any) -> Any:
        """Refuse an output, as the arguments of a tool."""
        if not (self._reads_output or ctx.partial_output):
            refuse(kind_of_output(ctx, output_context), output)
        return output

    @override
    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Execute
    ) -> Any:
        """Call a tool, and emit its result."""
        return await (handler(args) if self._events is None else self._events.execute(call, tool_def, args, handler))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)

"""Let a request to a model wait for its turn under a rate limit, and emit its events.

Two capabilities, one of each for a run of an agent; durable agents are paced inside their units instead. They must not change a request. In: what the library is about to send. Out: the response,
perhaps later; who is asked, the system prompt, the prompts, the output's schema, and its tools' calls, as events.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic_ai.capabilities import AbstractCapability, WrapModelRequestHandler
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, ToolCallPart
from typing_extensions import override

from flujo_client.attempt_info import current_attempt
from flujo_client.contract.limits import money
from flujo_client.redact import preview
from flujo_worker.agents.models import each_of
from flujo_worker.agents.previews import AGENT_TOOL, emitting_once, hidden, text_of
from flujo_worker.agents.pricing import models_of, price_of
from flujo_worker.agents.response_check import hearing
from flujo_worker.domain.budget import BYTES_PER_TOKEN, Amount
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import ModelPace, current_settings
from flujo_worker.runtime.http_errors import is_rate_refusal, left_of

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

T = TypeVar("T")


class PacedRequest:
    """One request to a model that may have a rate limit: `begin` waits for its turn, and `send` reports what it has used."""

    def __init__(self, pace: ModelPace, model: Model[Any], messages: Sequence[ModelMessage], settings: Any) -> None:
        self._pace, self._model, self._messages, self._settings = pace, model, messages, settings
        self._limit = pace.limit_of(_name_of(model))
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


class Paced(AbstractCapability[Any]):
    """Paces an agent's requests."""

    def __init__(self, pace: ModelPace) -> None:
        self._pace = pace

    @override
    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Send the request when its model's limit allows it."""
        asked = request_context.messages, request_context.model_settings
        request = PacedRequest(self._pace, request_context.model, *asked)
        await request.begin()
        return await request.send(partial(handler, request_context), lambda answer: answer.usage.total_tokens)


def _name_of(model: Model[Any]) -> str:
    """Return the provider and the name of a model; of several that it may ask, those of the first."""
    first = each_of(model)[0]
    return f"{first.system}:{first.model_name}"


def expected_cost(model: Model[Any], messages: Sequence[ModelMessage], settings: Any) -> Amount:
    """Return what a request may cost: its whole prompt, and the most that it may write, at the price of the dearest model that it may ask."""
    read, written = _expected_tokens(messages, settings)
    prices = (price_of(each, read, written, current_settings().cost) or 0.0 for each in models_of(model))
    return Amount(money(max(prices, default=0.0)), read + written)


def _expected_tokens(messages: Sequence[ModelMessage], settings: Any) -> tuple[int, int]:
    read = sum(
        len(text_of(part.content).encode()) for each in messages for part in each.parts if hasattr(part, "content")
    )
    read += sum(len((getattr(each, "instructions", None) or "").encode()) for each in messages)
    written = (settings or {}).get("max_tokens") or current_settings().cost.default_output_tokens
    return math.ceil(read / BYTES_PER_TOKEN), int(written)


class RequestEvents(AbstractCapability[Any]):
    """Emits a run's requests as events, each part of the conversation once.

    `shown` is the run's prompt, as it may be shown, and `most` the characters of each text.
    """

    def __init__(self, shown: str, most: int) -> None:
        self._shown, self._most = shown, most
        self._emitted, self._schema = 0, ""

    @override
    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Emit the request, send it, and emit its cost."""
        with emitting_once():
            return await self._send(request_context, handler)

    async def _send(self, request_context: ModelRequestContext, handler: WrapModelRequestHandler) -> ModelResponse:
        is_first = self._emitted == 0
        self._emit_request(request_context)
        began = time.monotonic()
        response = await handler(request_context)
        functions = _called(response, request_context.model_request_parameters)
        if functions or not is_first:  # the cost of a single request is that of its call
            used = response.usage
            answered: dict[str, Any] = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
            answered |= {"functions": functions} if functions else {}
            emit("agent.request", "debug", **answered, latency_s=_since(began))
        return response

    @override
    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Call a tool, then emit the result. Agents as tools emit further events."""
        if tool_def.metadata is not None and AGENT_TOOL in tool_def.metadata:
            return await handler(args)
        with emitting_once():
            return await self._call(call, args, handler)

    async def _call(
        self, call: ToolCallPart, args: dict[str, Any], handler: Callable[[dict[str, Any]], Awaitable[Any]]
    ) -> Any:
        began, call_fields = time.monotonic(), {"function": call.tool_name, "arguments_preview": self._shown_data(args)}
        try:
            result = await handler(args)
        except Exception as error:
            emit("agent.tool", "debug", **call_fields, error=type(error).__name__, latency_s=_since(began))
            raise
        emit("agent.tool", "debug", **call_fields, result_preview=self._shown_data(result), latency_s=_since(began))
        return result

    def _shown_data(self, data: Any) -> str:
        return preview(text_of(hidden(data)), self._most)

    def _emit_request(self, request: ModelRequestContext) -> None:
        news = [message for message in request.messages[self._emitted :] if isinstance(message, ModelRequest)]
        if self._emitted == 0:
            self._emit_system(request, news)
            self._emit_prompt(self._shown)
        else:
            for part in (part for message in news for part in message.parts):
                self._emit_prompt(text_of(hidden(getattr(part, "content", part))))
        self._emitted = len(request.messages)
        self._emit_schema(request.model, request.model_request_parameters)

    def _emit_system(self, request: ModelRequestContext, news: list[ModelRequest]) -> None:
        system, info = _system(news), current_attempt()
        emit(
            "agent.system",
            "debug",
            model_id=request.model.model_name,
            attempt=info and info.number,
            system_prompt_preview=preview(system, self._most) if system else None,
        )

    def _emit_prompt(self, text: str) -> None:
        emit("agent.prompt", "debug", prompt_preview=preview(text, self._most))

    def _emit_schema(self, model: Model[Any], request: ModelRequestParameters) -> None:
        schema = _schema(request)
        if schema and schema != self._schema:
            mode = _mode_of(model) if request.output_mode == "auto" else request.output_mode
            emit("agent.schema", "debug", mode=mode, schema_preview=preview(schema, self._most))
        self._schema = schema


def _called(response: ModelResponse, request: ModelRequestParameters) -> list[str]:
    """Return the tools that a model calls, apart from those that take its output."""
    known = {tool.name for tool in request.function_tools}
    return [part.tool_name for part in response.parts if isinstance(part, ToolCallPart) and part.tool_name in known]


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def _schema(request: ModelRequestParameters) -> str:
    form = request.output_object
    tools = [{"name": tool.name, "schema": tool.parameters_json_schema} for tool in request.output_tools]
    forms = tools if form is None else [{"name": form.name, "schema": form.json_schema}]
    return orjson.dumps(forms).decode() if forms else ""


def _mode_of(model: Model[Any]) -> str:
    try:
        return str(model.profile.get("default_structured_output_mode", "tool"))
    except NotImplementedError:  # a fallback over several models has no profile
        return "auto"


def _system(messages: list[ModelRequest]) -> str:
    parts = [part.content for message in messages for part in message.parts if isinstance(part, SystemPromptPart)]
    return "\n\n".join([*parts, *(message.instructions for message in messages if message.instructions)])

"""Stream what an agent says and does while it runs (ADR 57): the library's own events, as JSON.

A model is asked by streaming beneath all that judges, paces and records its answers, which notices nothing. A model that cannot stream, and an
answer from record, is streamed whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import (
    AgentStreamEvent,
    FilePart,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelResponse,
    PartStartEvent,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestContext, StreamedResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from typing_extensions import override

from flujo_client.contract.stream import StreamKind
from flujo_worker.agents.previews import text_of
from flujo_worker.runtime.attempt_run import AttemptStream

_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(AgentStreamEvent)
_OF_PARTS: Final = ("part_start", "part_delta", "part_end")


class Streamed(AbstractCapability[Any]):
    """Streams the tools that a run calls, and the answers that nobody has streamed."""

    def __init__(self, stream: AttemptStream) -> None:
        self._stream, self._is_shown = stream, False

    def model(self, model: Model[Any]) -> Model[Any]:
        """Return a model that streams its answers here; the same, if it cannot stream."""
        is_silent = isinstance(model, FunctionModel) and model.stream_function is None
        is_silent = is_silent or type(model).request_stream is Model.request_stream
        return model if is_silent else _Live(model, self)

    def take(self, event: Any) -> None:
        """Stream an event."""
        kind: StreamKind = "token"
        if event.event_kind in _OF_PARTS:
            part = event.delta if event.event_kind == "part_delta" else event.part
            kind = "tool_call" if isinstance(part, ToolCallPart | ToolCallPartDelta) else "token"
            self._is_shown = True
            if isinstance(part, FilePart):  # too large, and of no use while it is not whole
                return
        elif event.event_kind != "final_result":
            kind = "tool_call" if isinstance(event, FunctionToolCallEvent) else "tool_result"
        try:
            self._stream.put(kind, _EVENT.dump_python(event, mode="json"))
        except Exception:  # noqa: BLE001 - what cannot be shown fails no attempt
            self._stream.put("gap", {})

    @override
    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Stream an answer whole that has not come in pieces."""
        if not self._is_shown:
            for index, part in enumerate(response.parts):
                self.take(PartStartEvent(index=index, part=part))
        self._is_shown = False
        return response

    @override
    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, args: Any, handler: WrapToolExecuteHandler, **_: Any
    ) -> Any:
        """Stream a call and what it gives."""
        self.take(FunctionToolCallEvent(call))
        try:
            given = await handler(args)
        except ModelRetry as error:
            self._return(call, error.message)
            raise
        self._return(call, given.return_value if isinstance(given, ToolReturn) else given)
        return given

    def _return(self, call: ToolCallPart, value: Any) -> None:
        part = ToolReturnPart(call.tool_name, text_of(value), call.tool_call_id)
        self.take(FunctionToolResultEvent(part))


class _Live(WrapperModel):
    """Asks a model by streaming."""

    def __init__(self, wrapped: Model[Any], streamed: Streamed) -> None:
        super().__init__(wrapped)
        self._streamed = streamed

    @override
    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        """Return the whole answer, and stream its pieces."""
        asking = self.wrapped.request_stream(messages, model_settings, model_request_parameters)
        async with asking as answer:
            async for event in answer:
                self._streamed.take(event)
        return answer.get()

    @asynccontextmanager
    @override
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream an answer to an agent that streams itself, and here."""
        asked = messages, model_settings, model_request_parameters, run_context
        async with self.wrapped.request_stream(*asked) as answer:
            answer._event_iterator = self._taken(aiter(answer))  # noqa: SLF001 - what its `__aiter__` returns
            yield answer

    async def _taken(self, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for event in events:
            self._streamed.take(event)
            yield event

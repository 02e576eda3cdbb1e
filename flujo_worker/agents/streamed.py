"""Stream what an agent says and does while it runs (ADR 57): the library's own events, as JSON.

A model that cannot stream is asked as ever, and its answer streamed whole. In: a run of an agent, its events. Out: entries of the attempt's
stream; the run is the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import AgentStreamEvent, ToolCallPart, ToolCallPartDelta
from pydantic_ai.models import CompletedStreamedResponse, Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from typing_extensions import override

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.models import StreamedResponse

    from flujo_client.contract.stream import StreamKind
    from flujo_worker.runtime.attempt_run import AttemptStream

_OF_TOOLS: Final[dict[str, StreamKind]] = {"function_tool_call": "tool_call", "function_tool_result": "tool_result"}
_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(AgentStreamEvent)


class Streamed(AbstractCapability[Any]):
    """Streams a run's events."""

    def __init__(self, stream: AttemptStream) -> None:
        self._stream = stream

    @override
    async def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterator[AgentStreamEvent]:
        """Stream each event, and pass it on."""
        async for event in stream:
            if (kind := _kind_of(event)) is not None:
                self._stream.put(kind, _EVENT.dump_python(event, mode="json"))
            yield event


def _kind_of(event: Any) -> StreamKind | None:
    kind = event.event_kind
    if kind in ("part_start", "part_delta", "part_end"):
        part = event.delta if kind == "part_delta" else event.part
        return "tool_call" if isinstance(part, ToolCallPart | ToolCallPartDelta) else "token"
    if kind == "final_result":
        return "token"
    return _OF_TOOLS.get(kind)


def streaming(model: Model[Any]) -> Model[Any]:
    """Return a model that streams: this one, or one that has its answers whole."""
    is_silent = isinstance(model, FunctionModel) and model.stream_function is None
    return _Whole(model) if is_silent or type(model).request_stream is Model.request_stream else model


class _Whole(WrapperModel):
    """Streams a model's answers whole."""

    @asynccontextmanager
    @override
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[StreamedResponse]:
        """Ask the model, and stream its answer."""
        response = await self.wrapped.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)

"""A durable agent's streamed answers as they come: the library has its handlers wait until the unit is on record, and then gives them whole parts.

An answer from record comes whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.durable_exec._utils import DurableModel
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, StreamedResponse
from typing_extensions import override

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent
    from pydantic_ai.models import Model, ModelRequestParameters

    Event = ModelResponseStreamEvent
    Handler = Callable[[Any, AsyncIterable[Any]], Any]

_take: ContextVar[Callable[[Event], object] | None] = ContextVar("flujo_live_events", default=None)


def live(model: DurableModel, handler: Handler | None) -> LiveModel:
    """Make a model of units stream as it is asked; `handler` is the capability's, which sees no answer from record otherwise."""
    made: Any = model
    made.__class__, made.handler = LiveModel, handler  # the library makes it, with what only it knows
    return cast("LiveModel", made)


def taking(handler: Handler | None) -> Handler | None:
    """Return the handler of the events inside a unit: it passes them to this one and to the open stream, if there is one."""
    take = _take.get()
    if take is None:
        return handler

    async def handle(ctx: Any, events: AsyncIterable[Event]) -> None:
        taken = _taken(events, take)
        if handler is not None:
            await handler(ctx, taken)
        async for _ in taken:
            pass

    return handle


async def _taken(events: AsyncIterable[Event], take: Callable[[Event], object]) -> AsyncIterator[Event]:
    async for event in events:
        take(event)
        yield event


class LiveModel(DurableModel):
    """Asks a model by units."""

    handler: Handler | None = None

    @asynccontextmanager
    @override
    async def request_stream(
        self, messages: Any, model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[Any]:
        """Stream an answer while its unit is asked."""
        stream = LiveStream(model_request_parameters, self.wrapped)
        token = _take.set(stream.take)
        asked = super().request_stream(messages, model_settings, model_request_parameters, run_context)
        stream.unit = asyncio.ensure_future(self._ask(asked, stream, run_context))
        _take.reset(token)
        stream.unit.add_done_callback(lambda _: stream.take(None))
        try:
            yield stream
        finally:
            stream.unit.cancel()
            await asyncio.gather(stream.unit, return_exceptions=True)  # the stream has raised its error

    async def _ask(self, asked: AbstractAsyncContextManager[StreamedResponse], live: LiveStream, ctx: Any) -> None:
        async with asked as stream:
            whole = [event async for event in stream]  # raises what the unit failed with
            response = stream.get()
        if not live.has_events:
            if self.handler is not None:
                await self.handler(ctx, _each(whole))
            for event in whole:
                live.take(event)
        live.response, live.state = response, response.state

    @override
    def _with_serving_wrapper(self, wrap: Callable[[Model[Any]], Model[Any]]) -> Model[Any]:
        return live(cast("DurableModel", super()._with_serving_wrapper(wrap)), self.handler)


async def _each(events: Iterable[Event]) -> AsyncIterator[Event]:
    for event in events:
        yield event


class LiveStream(CompletedStreamedResponse):
    """The events of a unit, as they come; complete once its answer is on record."""

    unit: asyncio.Task[None]
    has_events = False

    def __init__(self, parameters: ModelRequestParameters, model: Model[Any]) -> None:
        self._unanswered = ModelResponse(
            [], model_name=model.model_name, provider_name=model.system, provider_url=model.base_url
        )
        super().__init__(self._unanswered, model_request_parameters=parameters)
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def take(self, event: Event | None) -> None:
        """Take an event; None: there are no more."""
        self.has_events = True
        self._events.put_nowait(event)

    @override
    def __aiter__(self) -> AsyncIterator[Event]:
        if self._event_iterator is None:
            self._event_iterator = self._get_event_iterator()
        return self._event_iterator

    @override
    async def _get_event_iterator(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            self._parts_manager.apply_event(event)
            yield event
        self.unit.result()
        self._finished = True

    @override
    def get(self) -> ModelResponse:
        """Return the answer on record, or what has come until now."""
        return StreamedResponse.get(self) if self.response is self._unanswered else super().get()

    @override
    async def close_stream(self) -> None:
        """End the unit, because nothing waits for its answer."""
        self.unit.cancel()

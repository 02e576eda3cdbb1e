"""A run as chunks of Vercel's AI SDK: one message, from its start, for each browser that joins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from pydantic_ai.ui.vercel_ai import VercelAIEventStream
from pydantic_ai.ui.vercel_ai import response_types as sdk

from flujo_client.contract.stream import StreamEvent
from flujo_client.errors import FlujoError
from flujo_client.live.encoders import ENCODED, Encoders, NumberedIds, try_of
from flujo_client.live.host import Opened

SDK: Final = 6
"""The version of the AI SDK; 7 reads the same chunks."""
PARTS: Final = (
    ("id", sdk.TextStartChunk, sdk.TextDeltaChunk, sdk.TextEndChunk),
    ("id", sdk.ReasoningStartChunk, sdk.ReasoningDeltaChunk, sdk.ReasoningEndChunk),
)


class _Numbered(NumberedIds, VercelAIEventStream[Any, Any]):
    def __init__(self, prefix: str) -> None:
        super().__init__(sdk_version=SDK)
        self.prefix = prefix


async def events(opened: Opened) -> AsyncIterator[str]:
    """Yield a run as the chunks of one message. Text that was sent cannot be taken back: `data-flujo-withdrawn` names the attempt whose text is void."""
    encoders = Encoders[sdk.BaseChunk](_Numbered, PARTS)
    last: sdk.BaseChunk = sdk.ErrorChunk(error_text="this server stops; join the run again")
    yield _encoded(sdk.StartChunk(message_id=opened.handle.id), sdk.StartStepChunk())
    try:
        async for event in opened.events():
            yield _encoded(*(await _chunks(encoders, event))) if event else ""
            if event and event.kind == "end":
                last = _end(event.data)
    except FlujoError as error:
        last = sdk.ErrorChunk(error_text=error.message)
    yield _encoded(*encoders.close(), sdk.FinishStepChunk(), last, sdk.DoneChunk())


async def _chunks(encoders: Encoders[sdk.BaseChunk], event: StreamEvent) -> list[sdk.BaseChunk]:
    name = try_of(event.address, event.step, event.attempt)
    match event.kind:
        case kind if kind in ENCODED:
            return await encoders.encode(name, event.data)
        case "step_end" | "withdrawn" | "gap":
            return [*encoders.close("" if event.kind == "gap" else name), _data(event)]
        case "log" | "progress" | "question" | "snapshot":
            return [_data(event)]
    return []


def _end(data: Mapping[str, Any]) -> sdk.BaseChunk:
    if data.get("status") == "succeeded":
        return sdk.FinishChunk(finish_reason="stop")
    return sdk.ErrorChunk(error_text=str(data.get("error") or data.get("status")))


def _data(event: StreamEvent) -> sdk.BaseChunk:
    where = {"step": event.step, "address": event.address, "attempt": event.attempt}
    return sdk.DataChunk(type=f"data-flujo-{event.kind}", data={**where, **event.data})


def _encoded(*chunks: sdk.BaseChunk) -> str:
    return "".join(f"data: {each.encode(SDK)}\n\n" for each in chunks)

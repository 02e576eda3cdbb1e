"""A run as the AI SDK of Vercel wants it: one message, from its beginning, for each browser that joins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from pydantic_ai.ui.vercel_ai import VercelAIEventStream
from pydantic_ai.ui.vercel_ai import response_types as sdk

from flujo_client.contract.stream import StreamEvent
from flujo_client.errors import FlujoError
from flujo_client.live.encoders import SPOKEN, Encoders, NumberedIds, try_of
from flujo_client.live.host import Opened

SDK: Final = 6
"""The version of the AI SDK whose chunks are written; 7 reads the same."""
PARTS: Final = (
    ("id", sdk.TextStartChunk, sdk.TextDeltaChunk, sdk.TextEndChunk),
    ("id", sdk.ReasoningStartChunk, sdk.ReasoningDeltaChunk, sdk.ReasoningEndChunk),
)


class _Numbered(NumberedIds, VercelAIEventStream[Any, Any]):
    def __init__(self, prefix: str) -> None:
        super().__init__(sdk_version=SDK)
        self.prefix = prefix


class Chunks:
    """Tells a run in chunks. Text that was sent cannot be taken back: what an attempt said in vain is named by `data-flujo-withdrawn`."""

    def __init__(self) -> None:
        self.encoders = Encoders[sdk.BaseChunk](_Numbered, PARTS)
        self.last: sdk.BaseChunk = sdk.ErrorChunk(error_text="this server stops; join the run again")

    async def tell(self, event: StreamEvent) -> list[sdk.BaseChunk]:
        """Return what an event of the run is in chunks."""
        name = try_of(event.address, event.step, event.attempt)
        match event.kind:
            case kind if kind in SPOKEN:
                return await self.encoders.encode(name, event.data)
            case "step_end" | "withdrawn" | "gap":
                return [*self.encoders.close("" if event.kind == "gap" else name), _shown(event)]
            case "log" | "progress" | "question" | "snapshot":
                return [_shown(event)]
            case "end" if event.data.get("status") == "succeeded":
                self.last = sdk.FinishChunk(finish_reason="stop")
            case "end":
                self.last = sdk.ErrorChunk(error_text=str(event.data.get("error") or event.data.get("status")))
        return []


async def events(opened: Opened) -> AsyncIterator[str]:
    """Yield a run as the chunks of one message."""
    telling = Chunks()
    yield _written(sdk.StartChunk(message_id=opened.handle.id), sdk.StartStepChunk())
    try:
        async for event in opened.events():
            yield _written(*(await telling.tell(event))) if event else ""
    except FlujoError as error:
        telling.last = sdk.ErrorChunk(error_text=error.message)
    yield _written(*telling.encoders.close(), sdk.FinishStepChunk(), telling.last, sdk.DoneChunk())


def _shown(event: StreamEvent) -> sdk.BaseChunk:
    where = {"step": event.step, "address": event.address, "attempt": event.attempt}
    return sdk.DataChunk(type=f"data-flujo-{event.kind}", data={**where, **event.data})


def _written(*chunks: sdk.BaseChunk) -> str:
    return "".join(f"data: {each.encode(SDK)}\n\n" for each in chunks)

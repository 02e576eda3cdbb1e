"""A run as the AI SDK of Vercel wants it: one message, from its beginning, for each browser that joins."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final

from pydantic_ai.ui.vercel_ai import VercelAIEventStream
from pydantic_ai.ui.vercel_ai.response_types import (
    BaseChunk,
    DataChunk,
    DoneChunk,
    ErrorChunk,
    FinishChunk,
    FinishStepChunk,
    ReasoningEndChunk,
    ReasoningStartChunk,
    StartChunk,
    StartStepChunk,
    TextEndChunk,
    TextStartChunk,
)

from flujo_client.contract.stream import StreamEvent
from flujo_client.errors import FlujoError
from flujo_client.live.encoders import SPOKEN, Encoders, NumberedIds, try_of
from flujo_client.live.following import is_stopping
from flujo_client.live.host import Opened
from flujo_client.live.sse import BEAT, BEAT_S, LOOK_S

SDK: Final = 6
"""The version of the AI SDK whose chunks are written; 7 reads the same."""


class _Numbered(NumberedIds, VercelAIEventStream[Any, Any]):
    def __init__(self, prefix: str) -> None:
        super().__init__(sdk_version=SDK)
        self.prefix = prefix


class Chunks:
    """Tells a run in chunks. Text that was sent cannot be taken back: what an attempt said in vain is named by `data-flujo-withdrawn`."""

    def __init__(self) -> None:
        self._encoders = Encoders[BaseChunk](_Numbered)
        self._open: dict[str, tuple[str, BaseChunk]] = {}
        self.last: BaseChunk = ErrorChunk(error_text="this server stops; join the run again")

    async def tell(self, event: StreamEvent) -> list[BaseChunk]:
        """Return what an event of the run is in chunks."""
        name, where = try_of(event), {"step": event.step, "address": event.address, "attempt": event.attempt}
        match event.kind:
            case kind if kind in SPOKEN:
                return [each for each in await self._encoders.encode(event) if self._passes(name, each)]
            case "step_end" | "withdrawn" | "gap":
                by = None if event.kind == "gap" else name
                self._encoders.forget(by or "")
                return [*self.closed(by), DataChunk(type=f"data-flujo-{event.kind}", data={**where, **event.data})]
            case "log" | "progress" | "question" | "snapshot":
                return [DataChunk(type=f"data-flujo-{event.kind}", data={**where, **event.data})]
            case "end" if event.data.get("status") == "succeeded":
                self.last = FinishChunk(finish_reason="stop")
            case "end":
                self.last = ErrorChunk(error_text=str(event.data.get("error") or event.data.get("status")))
        return []

    def closed(self, by: str | None = None) -> list[BaseChunk]:
        """End the texts and thoughts that an attempt has open, or all have."""
        ids = [at for at, (name, _) in self._open.items() if by in (None, name)]
        return [self._open.pop(at)[1] for at in ids]

    def _passes(self, by: str, chunk: BaseChunk) -> bool:
        """Return whether a chunk is sent. Steps of the SDK are not: they end what other steps of the run have open."""
        match chunk:
            case StartStepChunk() | FinishStepChunk():
                return False
            case TextStartChunk(id=at):
                self._open[at] = by, TextEndChunk(id=at)
            case ReasoningStartChunk(id=at):
                self._open[at] = by, ReasoningEndChunk(id=at)
            case TextEndChunk(id=at) | ReasoningEndChunk(id=at):
                return self._open.pop(at, None) is not None
        return True


async def events(opened: Opened) -> AsyncIterator[str]:
    """Yield a run as the chunks of one message, and comments where nothing comes."""
    telling, sent_at = Chunks(), time.monotonic()
    yield from_chunks(StartChunk(message_id=opened.handle.id), StartStepChunk())
    try:
        while not opened.following.is_over and not is_stopping():
            event = await opened.following.next(LOOK_S)
            if event is not None and (chunks := await telling.tell(event)):
                sent_at = time.monotonic()
                yield from_chunks(*chunks)
            elif event is None and time.monotonic() > sent_at + BEAT_S:
                sent_at = time.monotonic()
                yield BEAT
    except FlujoError as error:
        telling.last = ErrorChunk(error_text=error.message)
    yield from_chunks(*telling.closed(), FinishStepChunk(), telling.last, DoneChunk())


def from_chunks(*chunks: BaseChunk) -> str:
    """Write chunks as server-sent events."""
    return "".join(f"data: {each.encode(SDK)}\n\n" for each in chunks)

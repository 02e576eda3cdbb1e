"""Follow a run's stream with pauses: what is idle is told, so that proxies hear of it and a reader that went away is noticed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final, cast

from flujo_client.contract.stream import StreamEvent

AHEAD: Final = 64
"""As many events are read before a slow browser has taken those before them."""


class Following:
    """A reader of a stream, in a task of its own, which ends with `close`."""

    def __init__(self, events: AsyncIterator[StreamEvent]) -> None:
        self._read: asyncio.Queue[StreamEvent | Exception | None] = asyncio.Queue(AHEAD)
        self._task = asyncio.create_task(self._follow(cast("AsyncGenerator[StreamEvent, None]", events)))
        self._next: StreamEvent | None = None
        self._is_at_end = False

    @property
    def is_over(self) -> bool:
        """Return whether nothing will come any more."""
        return self._is_at_end and self._next is None

    async def _follow(self, events: AsyncGenerator[StreamEvent, None]) -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    await self._read.put(event)
        except Exception as error:  # noqa: BLE001 - it is raised where the events are awaited
            await self._read.put(error)
        else:
            await self._read.put(None)

    async def peek(self, idle_s: float) -> None:
        """Wait for the first event up to so many seconds, without taking it; raises what the reader raises."""
        self._next = await self.next(idle_s)

    async def next(self, idle_s: float) -> StreamEvent | None:
        """Return the next event; None if none has come within so many seconds, or the stream is over. Raises what the reader raises."""
        if self._next is not None:
            found, self._next = self._next, None
            return found
        if self._is_at_end:
            return None
        try:
            read = await asyncio.wait_for(self._read.get(), idle_s)
        except TimeoutError:
            return None
        if isinstance(read, Exception):
            raise read
        self._is_at_end = read is None or read.kind == "end"
        return read

    def close(self) -> None:
        """End the reader."""
        self._task.cancel()


def is_stopping() -> bool:
    """Return whether uvicorn was asked to stop: it waits for open streams, and tells nobody so but its own handler of signals."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))

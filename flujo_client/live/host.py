"""The client, the login and the limit that all streams of a process share, and each open stream."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.api.handle import AsyncRunHandle
from flujo_client.contract.stream import Cursor, StreamEvent
from flujo_client.live.access import User, user_of

Auth: TypeAlias = Callable[[Request, str], "User | Awaitable[User | None] | None"]
"""The host's login: gets the request and the id of its run, and returns the user, or None if no one is logged in. It may raise Starlette's
`HTTPException`."""

HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
READ_S: Final = 0.3
"""Seconds that a stream waits for its first event before it answers: by then it is known whether the run has a stream."""
FULL_S: Final = 5
"""Seconds after which a browser may try again when all streams are taken, and up to twice as many."""
BEAT: Final = ": nothing has come\n\n"
BEAT_S: Final = 15
"""Seconds without an event after which a comment is sent: it keeps proxies from closing the stream, and shows that a reader is gone."""
LOOK_S: Final = 1.0
"""Seconds between checks whether the server stops."""


class Live:
    """The state that all streams of a process share; at most `most` of them may be open at once.

    Without a client, the first request creates one: servers fork after they have created the application, and a client must not cross a fork.
    """

    def __init__(self, client: AsyncFlujoClient | None, auth: Auth | None, most: int) -> None:
        self._client, self._is_given, self._auth, self.free = client, client is not None, auth, most

    @property
    def client(self) -> AsyncFlujoClient:
        self._client = self._client or AsyncFlujoClient()
        return self._client

    async def close(self) -> None:
        """Close the client, unless it was given."""
        if self._client is not None and not self._is_given:
            await self._client.close()
            self._client = None

    async def user(self, request: Request) -> User:
        """Return who reads a run's stream; raises HTTPException for users who may not."""
        user = await user_of(self._auth, request, request.path_params["run"])
        if not user.sees_values:
            raise HTTPException(403, "You may not read what runs say.")
        return user

    async def open(self, request: Request, user: User, *, from_start: bool = False) -> Opened:
        """Open the stream that a request names, after its cursor, or `from_start`.

        The header `Last-Event-ID` precedes `?after=`, which a browser repeats when it reconnects.

        Raises:
            HTTPException: 503: all streams are taken.
            ClientError: the cursor is invalid, there is no such run, or it has no stream.
        """
        after = request.headers.get("last-event-id") or request.query_params.get("after") or None
        if after is not None:
            Cursor.parse(after)
        handle = await self.client.get_run(request.path_params["run"])
        if self.free <= 0:
            later = FULL_S + secrets.randbelow(FULL_S)
            raise HTTPException(503, "Too many streams are open here. Try again.", {"retry-after": str(later)})
        opened = Opened(self, handle, user, after, handle.stream(None if from_start else after))
        try:
            await opened.peek(READ_S)
        except BaseException:
            await opened.close()
            raise
        return opened


class Opened:
    """An open stream, which takes one of the places of `live` until `close`. `after` is the reader's cursor, None for a new reader."""

    def __init__(
        self, live: Live, handle: AsyncRunHandle, user: User, after: str | None, events: AsyncGenerator[StreamEvent]
    ) -> None:
        self.live, self.handle, self.user, self.after = live, handle, user, after
        self.is_over = False
        """Whether all events were returned."""
        live.free -= 1
        self._events = events
        self._next: asyncio.Future[StreamEvent | None] | None = None

    async def peek(self, idle_s: float) -> asyncio.Future[StreamEvent | None] | None:
        """Wait up to so many seconds for the next event or the end; return it, or None. Raises what the reader raises."""
        self._next = self._next or asyncio.ensure_future(anext(self._events, None))
        await asyncio.wait([self._next], timeout=idle_s)
        if not self._next.done():
            return None
        self._next.result()
        return self._next

    async def next(self, idle_s: float) -> StreamEvent | None:
        """Return the next event; None if none comes within so many seconds, or the stream is over. Raises what the reader raises."""
        found = None if self.is_over else await self.peek(idle_s)
        if found is None:
            return None
        event, self._next = found.result(), None
        self.is_over = event is None or event.kind == "end"
        return event

    async def events(self) -> AsyncIterator[StreamEvent | None]:
        """Yield the events until the end or until the server stops, and None after each second without one; raises what the reader raises."""
        while not self.is_over and not is_stopping():
            yield await self.next(LOOK_S)

    async def close(self) -> None:
        """End the reader, and free its place."""
        self.live.free += 1
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._events.aclose()


class EventResponse(StreamingResponse):
    """Send a stream until it ends or the browser goes away, and close it. An empty text says that nothing has come for a while."""

    def __init__(self, opened: Opened, texts: AsyncIterator[str], headers: Mapping[str, str] = HEADERS) -> None:
        super().__init__(with_beats(texts), headers={**HEADERS, **headers}, media_type="text/event-stream")
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. ASGI 2.3 makes Starlette listen for the browser to disconnect; with 2.4 it would notice only at the next event."""
        old: Any = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        try:
            await super().__call__(old, receive, send)
        finally:
            await self._opened.close()


async def with_beats(texts: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield texts, and a comment in place of empty ones when nothing was sent for a while."""
    sent_at = time.monotonic()
    async for text in texts:
        if text or time.monotonic() > sent_at + BEAT_S:
            sent_at = time.monotonic()
            yield text or BEAT


def is_stopping() -> bool:
    """Return whether uvicorn stops: it waits for open streams, and only its own signal handler knows that it stops."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))

"""Hold the client, the login and the limit that all streams of a process share, and the state of each open stream."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.api.handle import AsyncRunHandle
from flujo_client.contract.stream import Cursor, StreamEvent
from flujo_client.live.access import User, user_of

Auth: TypeAlias = Callable[[Request, str], "User | Awaitable[User | None] | None"]
"""The host's login: gets a request and the id of its run, and returns the user, or None if no one is logged in. It may raise Starlette's
`HTTPException`."""

HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
READ_S: Final = 0.3
"""Seconds that a stream waits for its first event before it answers: a run that has no stream is known by then."""
FULL_S: Final = 5
"""Seconds after which whoever found all streams taken may try again, and up to twice as many."""
AHEAD: Final = 64
"""As many events are read before a slow browser has taken those before them."""
BEAT: Final = ": nothing has come\n\n"
BEAT_S: Final = 15
"""After so many seconds without an event a comment is sent, so that proxies hear of the stream and a reader that went away is noticed."""
LOOK_S: Final = 1.0
"""Seconds between two looks whether the server was asked to stop."""


class Live:
    """Holds what the streams of a process share.

    The client is made with the first request, because servers fork after they have made the application.

    Args:
        client: the client; with the settings of flujo.toml and the environment when None.
        auth: the host's login; None lets in whoever is on this machine.
        most: the most streams that are open at once.
    """

    def __init__(self, client: AsyncFlujoClient | None, auth: Auth | None, most: int) -> None:
        self._client, self._is_given, self._auth, self.free = client, client is not None, auth, most

    @property
    def client(self) -> AsyncFlujoClient:
        """Return the client."""
        self._client = self._client or AsyncFlujoClient()
        return self._client

    async def close(self) -> None:
        """Close the client, unless it was given."""
        if self._client is not None and not self._is_given:
            await self._client.close()
            self._client = None

    async def user(self, request: Request) -> User:
        """Return who reads a run's stream, or raise HTTPException for who may not."""
        user = await user_of(self._auth, request, request.path_params["run"])
        if not user.sees_values:
            raise HTTPException(403, "You may not read what runs say.")
        return user

    async def open(self, request: Request, user: User, *, begins: bool = False) -> Opened:
        """Open the stream that a request asks for, behind its cursor.

        Args:
            request: what was sent; its header `Last-Event-ID` comes before `?after=`, which a browser that reconnects repeats.
            user: who sent it.
            begins: whether all events are read, also those before the cursor.

        Raises:
            HTTPException: 503: all streams are taken.
            ClientError: the cursor is none, there is no such run, or it has no stream.
        """
        after = request.headers.get("last-event-id") or request.query_params.get("after") or None
        if after is not None:
            Cursor.parse(after)
        handle = await self.client.get_run(request.path_params["run"])
        if self.free <= 0:
            later = FULL_S + secrets.randbelow(FULL_S)
            raise HTTPException(503, "Too many streams are open here. Try again.", {"retry-after": str(later)})
        opened = Opened(self, handle, user, after, handle.stream(None if begins else after))
        try:
            await opened.peek(READ_S)
        except BaseException:
            opened.close()
            raise
        return opened


class Opened:
    """An open stream, which a task reads until `close`.

    Args:
        live: what it takes a place of.
        handle: the run.
        user: the person who reads.
        after: the cursor that the reader has; None for one that begins.
        events: the run's.
    """

    def __init__(
        self, live: Live, handle: AsyncRunHandle, user: User, after: str | None, events: AsyncIterator[StreamEvent]
    ) -> None:
        self.live, self.handle, self.user, self.after = live, handle, user, after
        self.is_over = False
        """Whether nothing will come any more."""
        live.free -= 1
        self._read: asyncio.Queue[StreamEvent | Exception | None] = asyncio.Queue(AHEAD)
        self._next: StreamEvent | None = None
        self._task = asyncio.create_task(self._follow(cast("AsyncGenerator[StreamEvent, None]", events)))

    async def _follow(self, events: AsyncGenerator[StreamEvent, None]) -> None:
        last: Exception | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    await self._read.put(event)
        except Exception as error:  # noqa: BLE001 - it is raised where the events are awaited
            last = error
        await self._read.put(last)

    async def peek(self, idle_s: float) -> None:
        """Wait for the first event up to so many seconds, without taking it; raises what the reader raises."""
        self._next = await self.next(idle_s)
        self.is_over = self.is_over and self._next is None

    async def next(self, idle_s: float) -> StreamEvent | None:
        """Return the next event; None if none has come within so many seconds, or the stream is over. Raises what the reader raises."""
        read: StreamEvent | Exception | None
        read, self._next = self._next, None
        if read is None and not self.is_over:
            try:
                read = await asyncio.wait_for(self._read.get(), idle_s)
            except TimeoutError:
                return None
        if isinstance(read, Exception):
            raise read
        self.is_over = read is None or read.kind == "end"
        return read

    async def events(self) -> AsyncIterator[StreamEvent | None]:
        """Yield what comes until it is over or the server stops, and None after each second without an event; raises what the reader raises."""
        while not self.is_over and not is_stopping():
            yield await self.next(LOOK_S)

    def close(self) -> None:
        """End the reader, and let another one in."""
        self._task.cancel()
        self.live.free += 1


class EventResponse(StreamingResponse):
    """Sends a stream until it ends or the browser goes away, and closes it. Empty texts say that nothing has come for a while."""

    def __init__(self, opened: Opened, texts: AsyncIterator[str], headers: Mapping[str, str] = HEADERS) -> None:
        super().__init__(_with_beats(texts), headers={**HEADERS, **headers}, media_type="text/event-stream")
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Servers of any version are asked whether the browser is gone; those of ASGI 2.4 would tell only at the next event."""
        old: Any = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        try:
            await super().__call__(old, receive, send)
        finally:
            self._opened.close()


async def _with_beats(texts: AsyncIterator[str]) -> AsyncIterator[str]:
    sent_at = time.monotonic()
    async for text in texts:
        if text or time.monotonic() > sent_at + BEAT_S:
            sent_at = time.monotonic()
            yield text or BEAT


def is_stopping() -> bool:
    """Return whether uvicorn was asked to stop: it waits for open streams, and tells nobody so but its own handler of signals."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))

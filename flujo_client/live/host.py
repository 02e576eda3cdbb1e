"""What all streams of a process share: the client, the login, and how many there may be; and what one open stream has."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.api.handle import AsyncRunHandle
from flujo_client.contract.stream import Cursor
from flujo_client.live.access import User, user_of
from flujo_client.live.following import Following

Auth: TypeAlias = Callable[[Request, str], "User | Awaitable[User | None] | None"]
"""The host's login: gets a request and the id of the run that it is about, and returns the user, or None for nobody. It may raise Starlette's
`HTTPException`."""

HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}
READ_S: Final = 0.3
"""Seconds that a stream waits for its first event before it answers: a run that has no stream is known by then."""
FULL_S: Final = 5
"""Seconds after which whoever found all streams taken may try again, and up to twice as many."""


@dataclass(slots=True)
class Opened:
    """An open stream.

    Attributes:
        handle: its run.
        user: the person who reads it.
        after: the cursor that the reader has; None for one that begins.
        following: its events.
        give_back: lets another one in.
    """

    handle: AsyncRunHandle
    user: User
    after: str | None
    following: Following
    give_back: Callable[[], None]

    def close(self) -> None:
        """End the reader, and let another one in."""
        self.following.close()
        self.give_back()


class Live:
    """What all streams of a process share.

    The client is made with the first request, because servers fork after they have made the application.

    Args:
        client: the client; with the settings of flujo.toml and the environment when None.
        auth: the host's login; None lets in whoever is on this machine.
        most: the most streams that are open at once.
    """

    def __init__(self, client: AsyncFlujoClient | None, auth: Auth | None, most: int) -> None:
        self._given, self._auth, self._free = client, auth, most
        self._made: AsyncFlujoClient | None = None

    @property
    def client(self) -> AsyncFlujoClient:
        """Return the client."""
        if self._given is not None:
            return self._given
        self._made = self._made or AsyncFlujoClient()
        return self._made

    async def close(self) -> None:
        """Close the client, unless it was given."""
        made, self._made = self._made, None
        if made is not None:
            await made.close()

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
        give_back = self._take()
        following = Following(handle.stream(None if begins else after))
        opened = Opened(handle, user, after, following, give_back)
        try:
            await following.peek(READ_S)
        except BaseException:
            opened.close()
            raise
        return opened

    def _take(self) -> Callable[[], None]:
        if self._free <= 0:
            later = FULL_S + secrets.randbelow(FULL_S)
            raise HTTPException(503, "Too many streams are open here. Try again.", {"retry-after": str(later)})
        self._free -= 1
        is_open = [True]

        def give_back() -> None:
            self._free += is_open.pop() if is_open else 0

        return give_back


class EventResponse(StreamingResponse):
    """Sends a stream until it ends or the browser goes away, and closes it."""

    def __init__(self, opened: Opened, events: AsyncIterator[str], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(events, headers={**HEADERS, **(headers or {})}, media_type="text/event-stream")
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Servers of any version are asked whether the browser is gone; those of ASGI 2.4 would tell only at the next event."""
        old: Any = {**scope, "asgi": {**scope.get("asgi", {}), "spec_version": "2.3"}}
        try:
            await super().__call__(old, receive, send)
        finally:
            self._opened.close()

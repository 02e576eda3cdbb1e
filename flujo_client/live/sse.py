"""A run's stream as server-sent events, and as pages of JSON for hosts that cannot keep a request open."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from flujo_client.contract.stream import StreamEvent
from flujo_client.errors import ClientError, FlujoError
from flujo_client.live.host import HEADERS, EventResponse, Live, Opened
from flujo_client.serial.tree import dumps

LONGEST_S: Final = 300
"""Seconds after which a stream of server-sent events ends; the browser opens another, and the login is called again."""
MOST: Final = 1000
"""The maximum number of events in a page."""
SETTLED_S: Final = 0.05
"""A page ends with the first pause of so many seconds."""
LONGEST_WAIT_S: Final = 25.0


async def stream(request: Request) -> Response:
    """Send a run's events as they come; under WSGI, or to a client that accepts JSON, a page of those that are there."""
    live: Live = request.app.state.live
    is_page = "wsgi_environ" in request.scope or "application/json" in request.headers.get("accept", "")
    user, wait_s = await live.user(request), _wait_of(request)
    opened = await live.open(request, user)
    if not is_page:
        return EventResponse(opened, _events(opened))
    try:
        return await _page(opened, wait_s)
    finally:
        await opened.close()


def refusal(error: FlujoError) -> dict[str, Any]:
    return {"error": error.message, "code": error.error_code, "suggestion": error.suggestion}


async def _events(opened: Opened) -> AsyncIterator[str]:
    until = time.monotonic() + LONGEST_S
    yield f"retry: {2000 + secrets.randbelow(3000)}\n\n"
    try:
        async for event in opened.events():
            yield f"id: {event.cursor}\nevent: {event.kind}\ndata: {dumps(_tree(event)).decode()}\n\n" if event else ""
            if time.monotonic() > until:
                return
    except FlujoError as error:
        yield f"event: failed\ndata: {dumps(refusal(error)).decode()}\n\n"


async def _page(opened: Opened, wait_s: float) -> Response:
    events: list[StreamEvent] = []
    while len(events) < MOST and (event := await opened.next(SETTLED_S if events else wait_s)) is not None:
        events.append(event)
    after = events[-1].cursor if events else opened.after
    page = {"events": [_tree(each) for each in events], "after": after, "is_over": opened.is_over}
    return Response(dumps(page), media_type="application/json", headers=HEADERS)


def _tree(event: StreamEvent) -> dict[str, Any]:
    names = ("kind", "step", "address", "attempt", "cursor")
    tree = {name: getattr(event, name) for name in names} | {"data": dict(event.data)}
    return {**tree, "text": event.text} if event.kind == "token" else tree


def _wait_of(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1
    if not 0 <= wait_s <= LONGEST_WAIT_S:
        raise ClientError(f"`wait` must be seconds from 0 to {LONGEST_WAIT_S:g}, got {text[:20]!r}")
    return wait_s

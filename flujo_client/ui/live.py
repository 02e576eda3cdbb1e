"""Tell open pages that something changed, so that they read themselves again.

All readers of a process together look once a second. What they see is a digest for the fleet, or for one run; its value means nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from flujo_client.errors import FlujoError
from flujo_client.gateway.effects import query
from flujo_client.gateway.requests import Request as Statement
from flujo_client.live.host import is_stopping, with_beats
from flujo_client.ui.reading import HOME, WITHOUT_SORTS
from flujo_client.ui.view import page_of, reading

LOOK_S: Final = 1.0
LONGEST_S: Final = 300
"""A stream ends after so many seconds; the browser opens another, for which the login is asked again."""
_FOR_EVER_S: Final = 1e9
WSGI_POLL_S: Final = 4
"""Seconds after which the browsers of a WSGI host ask again: a stream would keep one of its threads."""


class Pulse:
    """Looks for all readers of a process together, once a second, and only while there are any; the empty id is the fleet's."""

    def __init__(self, look: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        self._look, self._wanted = look, set[str]()
        self._next: asyncio.Task[Mapping[str, str]] | None = None

    async def next(self, run: str) -> str | None:
        """Wait for the next look, and return a digest; None if the database did not answer."""
        if self._next is None or self._next.done() or self._next.get_loop() is not asyncio.get_running_loop():
            self._next = asyncio.create_task(self._look_soon())
        self._wanted.add(run)
        return (await asyncio.shield(self._next)).get(run)

    async def _look_soon(self) -> Mapping[str, str]:
        await asyncio.sleep(LOOK_S)
        wanted, self._wanted, self._next = self._wanted, set(), None
        try:
            return await run_in_threadpool(self._look, wanted)
        except FlujoError:
            return {}


def watch(request: Request, run: str = "") -> None:
    """Let the page of this request follow the fleet, or one run. Call it before what the page shows is read, so that no change is missed."""
    if request.query_params.get("format") != "json":
        path = f"/live?{urlencode({'run': run})}" if run else "/live"
        request.state.live = {"path": path, "digest": reading(request).ask(_digests([run])).get(run, "")}


def live(request: Request) -> Response:
    """Stream a digest at each change; to a WSGI host, answer with one and let the browser come back."""
    run, page = request.query_params.get("run", ""), page_of(request)
    if "wsgi_environ" in request.scope:
        once = f"retry: {WSGI_POLL_S * 1000}\ndata: {reading(request).ask(_digests([run])).get(run, '')}\n\n"
        return Response(once, media_type="text/event-stream")
    pulse = page.kept("pulse", _FOR_EVER_S, lambda: Pulse(lambda runs: page.reader.perform(query(_digests(runs)))))
    texts, headers = with_beats(_stream(pulse, run)), {"x-accel-buffering": "no"}
    return StreamingResponse(texts, media_type="text/event-stream", headers=headers)


async def _stream(pulse: Pulse, run: str) -> AsyncIterator[str]:
    last, until = None, time.monotonic() + LONGEST_S
    yield f"retry: {2000 + secrets.randbelow(3000)}\n\n"
    while time.monotonic() < until and not is_stopping():
        digest = await pulse.next(run)
        yield "" if digest in (None, last) else f"data: {digest}\n\n"
        last = digest or last


def _digests(runs: Collection[str]) -> Statement[dict[str, str]]:
    known = {"runs": [run for run in runs if "\0" not in run]}
    return Statement("digests", known, lambda rows: {row["run"]: row["digest"] for row in rows}, HOME, WITHOUT_SORTS)


ROUTES: Final = [Route("/live", live)]

"""The ASGI application that sends runs' streams to browsers. What AG-UI and Vercel's AI SDK need loads with their first request."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from types import ModuleType
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.errors import ClientError, FlujoError, RunNotFound, ServiceUnreachable
from flujo_client.live import sse
from flujo_client.live.access import User, body_of
from flujo_client.live.host import HEADERS, Auth, EventResponse, Live

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 2000
MAX_BODY_BYTES: Final = 2_000_000
AWAY_S: Final = 5


def live_app(
    client: AsyncFlujoClient | None = None, *, auth: Auth | None, most_streams: int = MOST_STREAMS
) -> Starlette:
    """Return runs' streams as an ASGI application: mount it, such as by `app.mount("/live", …)`.

    It answers `GET /runs/{id}/stream` with server-sent events, and `/runs/{id}/ag-ui` and `/runs/{id}/vercel` in those protocols.

    Args:
        client: a client of the host's event loop; None makes one with the settings of flujo.toml and the environment.
        auth: the host's login: gets the request and the run's id, and returns its `User`, or None. None admits only browsers on this machine.
        most_streams: how many streams a process may have open at once; further requests get 503 and may try again later.
    """
    live = Live(client, auth, most_streams)

    @asynccontextmanager
    async def closing(_: Starlette) -> AsyncIterator[None]:
        yield
        await live.close()

    routes = [
        Route("/runs/{run}/stream", sse.stream, methods=["GET"]),
        Route("/runs/{run}/ag-ui", _ag_ui, methods=["GET", "POST"]),
        Route("/runs/{run}/vercel", _vercel, methods=["GET"]),
    ]
    handlers = dict.fromkeys([HTTPException, ClientDisconnect, FlujoError, Exception], _failed)
    app = Starlette(routes=routes, lifespan=closing, exception_handlers=handlers)
    app.state.live = live
    return app


async def _ag_ui(request: Request) -> Response:
    live, ours = await _prepared(request, "ag_ui")
    user = await live.user(request)
    given = await _input(request, user, ours) if request.method == "POST" else None
    opened = await live.open(request, user, from_start=True)
    return EventResponse(opened, ours.events(opened, given))


async def _vercel(request: Request) -> Response:
    live, ours = await _prepared(request, "vercel")
    opened = await live.open(request, await live.user(request), from_start=True)
    return EventResponse(opened, ours.events(opened), {"x-vercel-ai-ui-message-stream": "v1"})


async def _prepared(request: Request, module: str) -> tuple[Live, ModuleType]:
    if "wsgi_environ" in request.scope:
        raise HTTPException(501, "A WSGI host keeps no request open. Ask /stream for pages, or mount this by ASGI.")
    try:
        return request.app.state.live, await run_in_threadpool(import_module, f"flujo_client.live.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("ag_ui", "pydantic_ai"):
            raise
        missing = f"No module named '{error.name}': pip install 'flujo-worker[ag-ui]'."
        raise HTTPException(501, missing) from None


async def _input(request: Request, user: User, ours: ModuleType) -> object:
    """Read a browser's input. It must be JSON, which forms of other sites cannot send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Send the input of AG-UI as application/json.")
    body = await body_of(request, MAX_BODY_BYTES)
    if body is None:
        raise HTTPException(413, f"An input may have up to {MAX_BODY_BYTES} bytes.")
    try:
        given = ours.RunAgentInput.model_validate_json(body)
    except ValueError as error:
        raise HTTPException(400, f"This is no input of AG-UI: {str(error)[:500]}") from None
    if given.resume and not user.may_act:
        raise HTTPException(403, "You may read this run, but not answer its questions.")
    return given


def _failed(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] | None = None
    body = sse.refusal(error) if isinstance(error, ClientError | ServiceUnreachable) else {"error": str(error)}
    match error:
        case HTTPException(status_code=status, headers=headers):
            body = {"error": error.detail}
        case RunNotFound():
            status = 404
        case ServiceUnreachable():
            status, headers = 503, {"retry-after": str(AWAY_S)}
        case ClientError() | ClientDisconnect():
            status = 409 if getattr(error, "error_code", "") == "NO_STREAM" else 400
        case _:
            logger.error("the stream %s failed", request.url.path, exc_info=error)
            status, body = 500, {"error": "This stream is broken. The log of its process has the reason."}
    return JSONResponse(body, status, {**HEADERS, **(headers or {})})

"""Make the application that sends runs' streams to browsers: an ASGI application, which a host mounts."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.errors import ClientError, FlujoError, RunNotFound, ServiceUnreachable
from flujo_client.live import protocols, sse
from flujo_client.live.host import HEADERS, Auth, Live

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 2000
AWAY_S: Final = 5


def live_app(
    client: AsyncFlujoClient | None = None, *, auth: Auth | None, most_streams: int = MOST_STREAMS
) -> Starlette:
    """Return runs' streams as an ASGI application: mount it, such as by `app.mount("/live", …)`.

    It answers `GET /runs/{id}/stream` with server-sent events, and `/runs/{id}/ag-ui` and `/runs/{id}/vercel` as those protocols want it.

    Args:
        client: the client that it reads and answers with, of the host's event loop; one with the settings of flujo.toml and the environment
            when None.
        auth: the host's login: gets the request and the run's id, and returns its `User`, or None. With None, only browsers on this machine
            are let in.
        most_streams: the most streams that one process has open at once; whoever comes then is told to come later.
    """
    live = Live(client, auth, most_streams)

    @asynccontextmanager
    async def closing(_: Starlette) -> AsyncIterator[None]:
        yield
        await live.close()

    app = Starlette(
        routes=[
            Route("/runs/{run}/stream", sse.stream, methods=["GET"]),
            Route("/runs/{run}/ag-ui", protocols.ag_ui, methods=["GET", "POST"]),
            Route("/runs/{run}/vercel", protocols.vercel, methods=["GET"]),
        ],
        lifespan=closing,
        exception_handlers={HTTPException: _refused, ClientDisconnect: _gone, FlujoError: _failed, Exception: _broken},
    )
    app.state.live = live
    return app


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, {**HEADERS, **(error.headers or {})})


def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)


def _failed(request: Request, error: Exception) -> Response:
    match error:
        case RunNotFound():
            return sse.refuse(404, error)
        case ServiceUnreachable():
            answer = sse.refuse(503, error)
            answer.headers["retry-after"] = str(AWAY_S)
            return answer
        case ClientError():
            return sse.refuse(409 if error.error_code == "NO_STREAM" else 400, error)
    return _broken(request, error)


def _broken(request: Request, error: Exception) -> Response:
    logger.error("the stream %s failed", request.url.path, exc_info=error)
    return JSONResponse({"error": "This stream is broken. The log of its process has the reason."}, 500, HEADERS)

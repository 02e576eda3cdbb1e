"""Make the page: an ASGI application, which a host mounts or `flujo ui` serves alone."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from flujo_client.api.client import FlujoClient
from flujo_client.errors import ClientError, FlujoError, RunNotFound, SchemaVersionError, ServiceUnreachable
from flujo_client.ui import approvals, events, fleet, health, live, run, runs, spend
from flujo_client.ui.security import HEADERS, Auth, Gatekeeper, SafeHeaders
from flujo_client.ui.view import FILES, STATIC, Page, respond_error

logger = logging.getLogger(__name__)

PAGES: Final[tuple[ModuleType, ...]] = (runs, run, approvals, fleet, spend, health, live)
"""The modules with pages; each has its routes in `ROUTES`."""
AWAY_S: Final = 5
"""Seconds after which the page of a database that is away tries again."""
_TITLES: Final = {400: "This address cannot be read", 401: "Sign in", 403: "Not allowed", 404: "Not found"}


def flujo_ui(
    client: FlujoClient | None = None, *, auth: Auth | None = None, secret: str | None = None, shows_values: bool = True
) -> Starlette:
    """Return the page as an ASGI application: mount it, such as by `app.mount("/flujo", …)`, or serve it alone.

    Args:
        client: the client that it reads and acts with; one with the settings of flujo.toml and the environment when None.
        auth: the host's login: gets the request, and returns its `User`, or None. Without it, only browsers on this machine are let in.
        secret: signs the forms' tokens; the setting `ui.secret` when None, and without that each process draws its own.
        shows_values: whether prompts, inputs and outputs are shown; the setting `ui.values` may turn them off too.
    """
    page = Page(client, secret=secret, shows_values=shows_values)
    behind = [route for module in PAGES for route in module.ROUTES]
    gate = Middleware(Gatekeeper, auth=auth, secret=lambda: page.secret)

    @asynccontextmanager
    async def closing(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(page.close)

    app = Starlette(
        routes=[Mount(STATIC, _Static(directory=FILES)), *events.ROUTES, Mount("", routes=behind, middleware=[gate])],
        middleware=[Middleware(SafeHeaders)],
        lifespan=closing,
        exception_handlers=dict.fromkeys([HTTPException, FlujoError, Exception], _failed),
    )
    app.state.page = page
    return app


class _Static(StaticFiles):
    """The static files; their addresses contain a digest of them, so that browsers keep them for ever."""

    def file_response(self, *args: Any, **rest: Any) -> Response:
        answer = super().file_response(*args, **rest)
        answer.headers["cache-control"] = "public, max-age=31536000, immutable"
        return answer


def under(prefix: str, app: ASGIApp) -> ASGIApp:
    """Return the page below a path, such as `/ops/flujo`, behind a proxy that may or may not cut the path off."""

    async def at(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_whole = path == prefix or path.startswith(f"{prefix}/")
        await app({**scope, "root_path": prefix, "path": path if is_whole else f"{prefix}{path}"}, receive, send)

    return at


def _failed(request: Request, error: Exception) -> Response:
    match error:
        case HTTPException(status_code=status, detail=detail, headers=headers):
            text = "There is nothing at this address." if detail == "Not Found" else detail
            return respond_error(request, status, _TITLES.get(status, "Refused"), text, headers)
        case RunNotFound():
            return respond_error(request, 404, _TITLES[404], str(error))
        case ServiceUnreachable():
            title, wait = "The database is away", {"refresh": str(AWAY_S), "retry-after": str(AWAY_S)}
            return respond_error(request, 503, title, f"{title}. This page tries again by itself.", wait)
        case SchemaVersionError():
            return respond_error(request, 503, "The database does not fit", str(error))
        case ClientError():
            return respond_error(request, 400, _TITLES[400] if request.method == "GET" else "Not done", str(error))
    logger.error("the page %s failed", request.url.path, exc_info=error)
    return respond_error(request, 500, "This page is broken", "The log of its process has the reason.", HEADERS)

"""The addresses of AG-UI and of Vercel's AI SDK. What they need loads with their first request."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from flujo_client.live.access import User
from flujo_client.live.host import EventResponse, Live

MAX_BODY_BYTES: Final = 2_000_000
MISSING: Final = "pip install 'flujo-worker[ag-ui]'"


async def ag_ui(request: Request) -> Response:
    """Send a run as AG-UI: for `POST` as its clients want it, with the answers to questions that a browser sends."""
    live, ours = await _prepared(request, "flujo_client.live.ag_ui")
    user = await live.user(request)
    said = await _said(request, user, ours) if request.method == "POST" else None
    opened = await live.open(request, user, begins=True)
    return EventResponse(opened, ours.events(live, opened, said))


async def vercel(request: Request) -> Response:
    """Send a run as a message of Vercel's AI SDK."""
    live, ours = await _prepared(request, "flujo_client.live.vercel")
    opened = await live.open(request, await live.user(request), begins=True)
    return EventResponse(opened, ours.events(opened), {"x-vercel-ai-ui-message-stream": "v1"})


async def _prepared(request: Request, module: str) -> tuple[Live, ModuleType]:
    if "wsgi_environ" in request.scope:
        raise HTTPException(501, "A WSGI host keeps no request open. Ask /stream for pages, or mount this by ASGI.")
    try:
        return request.app.state.live, await run_in_threadpool(import_module, module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("ag_ui", "pydantic_ai"):
            raise
        raise HTTPException(501, f"No module named '{error.name}': {MISSING}.") from None


async def _said(request: Request, user: User, ours: ModuleType) -> object:
    """Read what a browser sent. A form of another site cannot send JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Send the input of AG-UI as application/json.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"An input may have up to {MAX_BODY_BYTES} bytes.")
    try:
        said = ours.RunAgentInput.model_validate_json(body)
    except ValueError as error:
        raise HTTPException(400, f"This is no input of AG-UI: {str(error)[:500]}") from None
    if said.resume and not user.may_act:
        raise HTTPException(403, "You may read this run, but not answer its questions.")
    return said

"""Webhooks: `POST /events/<token>` sends an event to a run. The token is enough: there is no login, cookie or form."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flujo_client.errors import EventError, FlujoError, RunNotFound, SerializationError, ServiceUnreachable
from flujo_client.live.access import body_of
from flujo_client.ui.view import page_of

MAX_BODY_BYTES: Final = 1_000_000
_STATUS: Final = {
    "BAD_TOKEN": 403,
    "TOKEN_EXPIRED": 403,
    "RUN_ENDED": 410,
    "RUN_NOT_FOUND": 404,
    "EVENT_CONFLICT": 409,
    "EVENT_REFUSED": 422,
    "UNKNOWN_EVENT": 422,
    "EVENT_LIMIT": 429,
}
"""The HTTP status of each code; others are 400, and 422 for values that cannot be stored."""


async def receive(request: Request) -> Response:
    """Send the event that the token is for, with the JSON of the body as its value; `id` in the query, or `Idempotency-Key`, is its id."""
    body = await body_of(request, MAX_BODY_BYTES)
    if body is None:
        return _refused(413, "BODY_TOO_LARGE", f"the body of an event may have up to {MAX_BODY_BYTES} bytes")
    try:
        value = orjson.loads(body) if body else None
    except orjson.JSONDecodeError as error:
        return _refused(400, "INVALID_JSON", f"the body must be JSON: {error}")
    event_id = request.query_params.get("id") or request.headers.get("idempotency-key") or None
    page, token = page_of(request), request.path_params["token"]
    try:
        sent = await run_in_threadpool(lambda: page.client.send_by_token(token, value, id=event_id))
    except (RunNotFound, EventError, SerializationError) as error:
        other = 422 if isinstance(error, SerializationError) else 400
        return _refused(_STATUS.get(error.error_code, other), error.error_code, error.message)
    except ServiceUnreachable as error:
        return _refused(503, error.error_code, "the database is away; send it again")
    except FlujoError as error:
        return _refused(500, error.error_code, "the event was not recorded")
    return JSONResponse({"id": sent}, 202)


def _refused(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)


ROUTES: Final = [Route("/events/{token}", receive, methods=["POST"])]

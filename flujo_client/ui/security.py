"""Who may see the page, and who may act: the host's login, the forms' tokens, and the headers that bind browsers."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flujo_client.live.access import User as User  # noqa: PLC0414 - hosts import it from here
from flujo_client.live.access import user_of

MAX_FORM_BYTES: Final = 2_000_000
LONGEST_ONCE: Final = 200
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


Auth: TypeAlias = Callable[[Request], "User | Awaitable[User | None] | None"]
"""The host's login: returns the user of a request, or None for nobody. It may raise Starlette's `HTTPException`, such as a redirect."""


def sign(secret: bytes, *texts: str) -> str:
    return hmac.digest(secret, "\0".join(("flujo.ui", *texts)).encode(errors="replace"), hashlib.sha256).hex()[:40]


def form_token(secret: bytes, user: User) -> str:
    """Return the token that every form of this user carries."""
    return sign(secret, "form", user.name)


def draw_once() -> str:
    """Draw what a form carries so that sending it again starts no second run; see `retry_key`."""
    return secrets.token_urlsafe(12)


def retry_key(form: FormData, run_id: str) -> str | None:
    """Return the idempotency key of a retry that a form asks for; None if the form was not drawn by a page."""
    once = str(form.get("once", ""))[:LONGEST_ONCE]
    return f"page:{once}:{run_id}" if once else None


class SafeHeaders:
    """Add the headers that tell browsers to run nothing of others, to guess no types, and to store nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_safe)


class Gatekeeper:
    """Let a request in if it has a user, and a form only from an operator and from the page itself.

    Handlers find `user`, and for a form `form`, in the request's state.
    """

    def __init__(self, app: ASGIApp, *, auth: Auth | None, secret: Callable[[], bytes]) -> None:
        self._app, self._auth, self._secret = app, auth, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let in a request, or raise HTTPException: 401 without a user, 403 for what this user may not do."""
        if scope["type"] == "http":
            request = Request(scope, receive)
            request.state.user = user = await user_of(self._auth, request)
            if request.method not in ("GET", "HEAD"):
                request.state.form = await self._form(request, user)
        await self._app(scope, receive, send)

    async def _form(self, request: Request, user: User) -> FormData:
        if not user.may_act:
            raise HTTPException(403, "You may look at everything here, but not change it.")
        if not is_own(request):
            raise HTTPException(403, "This form came from another site.")
        if not 0 <= _length(request) <= MAX_FORM_BYTES:
            raise HTTPException(413, f"A form may have up to {MAX_FORM_BYTES} bytes.")
        form = await request.form(max_files=0, max_fields=2000, max_part_size=MAX_FORM_BYTES)
        token = form_token(await run_in_threadpool(self._secret), user)
        if not hmac.compare_digest(str(form.get("token", "")).encode(), token.encode()):
            raise HTTPException(403, "This form is too old. Go back, reload the page, and send it again.")
        return form


def is_own(request: Request) -> bool:
    """Return whether a form was sent by a page of this site, as far as the browser tells."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    hosts = {request.headers.get("host"), request.headers.get("x-forwarded-host")}
    return origin is None or urlsplit(origin).netloc in hosts


def _length(request: Request) -> int:
    """Return the number of bytes that a request announces; -1 if it does not."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 12 else -1  # noqa: PLR2004 - no form is that long

"""The page in WSGI hosts, such as Flask and Django.

The host's login is evaluated in the host's own thread: there its request is the current one, and its database connections are those of this thread.
The page runs on an event loop in a thread of its own, which begins with the first request: servers fork after they have loaded the application.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, Final, TypeAlias

from a2wsgi import ASGIMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import Request

from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User

Environ: TypeAlias = dict[str, Any]
WsgiApp: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Answer: TypeAlias = tuple[str, list[tuple[str, str]], bytes]
_USER: Final = "flujo.user"


def flujo_wsgi(auth: Callable[[Environ], User | None], **options: Any) -> WsgiApp:
    """Return the page as a WSGI application.

    Args:
        auth: the host's login: gets the request's environ, and returns its `User`, or None, or raises Starlette's `HTTPException`. It is called in the host's thread.
        options: those of `flujo_ui`, but for `auth`.
    """
    answer = _door(options)

    def application(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, headers, body = answer(environ, lambda: auth(environ))
        start_response(status, headers)
        return [body]

    return application


def flujo_urls(auth: Callable[[Any], User | None], **options: Any) -> list[Any]:
    """Return the page as Django's URL patterns: `path("flujo/", include(flujo_urls(auth)))`.

    Args:
        auth: the project's login: gets Django's request, and returns its `User`, or None, or raises Starlette's `HTTPException`. It is called in the thread of the view.
        options: those of `flujo_ui`, but for `auth`.
    """
    from django.http import HttpResponse
    from django.urls import re_path
    from django.views.decorators.csrf import csrf_exempt

    answer = _door(options)

    def page(request: Any, path: str) -> Any:
        texts = {name: value for name, value in request.META.items() if isinstance(value, str)}
        environ = texts | {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": _latin(request.path.removesuffix(path).rstrip("/")),
            "PATH_INFO": _latin(f"/{path}"),
            "wsgi.url_scheme": request.scheme,
            "wsgi.input": BytesIO(request.body),
        }
        status, headers, body = answer(environ, lambda: auth(request))
        return HttpResponse(body, status=int(status[:3]), headers=dict(headers))

    return [re_path("^(?P<path>.*)$", csrf_exempt(page))]  # the page's forms have a token of their own


def _door(options: dict[str, Any]) -> Callable[[Environ, Callable[[], User | None]], Answer]:
    """Return what answers requests with the page: with the status, the headers, and the whole body.

    If bodies were streamed, a browser that goes away would leave a task behind on the loop for ever.
    """
    made, lock = dict[int, Any](), threading.Lock()

    def answer(environ: Environ, auth: Callable[[], User | None]) -> Answer:
        try:
            found: User | HTTPException | None = auth()
        except HTTPException as refusal:
            found = refusal
        with lock:
            if os.getpid() not in made:
                app: Any = flujo_ui(auth=_user_of_host, **options)
                made[os.getpid()] = ASGIMiddleware(app)
        head: list[Any] = []
        body = b"".join(made[os.getpid()]({**environ, _USER: found}, lambda *started: head.extend(started[:2])))
        return head[0], head[1], body

    return answer


def _user_of_host(request: Request) -> User | None:
    found: User | HTTPException | None = request.scope["wsgi_environ"][_USER]
    if isinstance(found, HTTPException):
        raise found
    return found


def _latin(path: str) -> str:
    """Write a path as WSGI has it: its bytes as Latin-1."""
    return path.encode().decode("latin-1")

"""Run our applications in WSGI hosts, such as Flask and Django.

The host's login is called in the host's own thread, where its request and its database connections are. An application runs on an event loop in
another thread, which starts with the first request: servers fork after they have loaded the application.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, Final, TypeAlias

from a2wsgi import ASGIMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import Request

from flujo_client.live.access import User
from flujo_client.live.app import live_app

Environ: TypeAlias = dict[str, Any]
WsgiApp: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Answer: TypeAlias = tuple[str, list[tuple[str, str]], bytes]
Login: TypeAlias = Callable[[], "User | None"]
_USER: Final = "flujo.user"
_RUN: Final = re.compile(r"/runs/([^/]+)/")


def live_wsgi(auth: Callable[[Environ, str], User | None], **options: Any) -> WsgiApp:
    """Return runs' streams as a WSGI application, which answers with pages of JSON.

    Args:
        auth: the host's login: gets the request's environ and the run's id, and returns its `User`, or None, or raises Starlette's `HTTPException`.
        options: those of `live_app`.
    """
    return wsgi(lambda: live_app(auth=user_of_host, **options), lambda environ, path: auth(environ, _run_in(path)))


def live_urls(auth: Callable[[Any, str], User | None], **options: Any) -> list[Any]:
    """Return runs' streams as Django's URL patterns, which answer with pages of JSON: `path("live/", include(live_urls(auth)))`.

    Args:
        auth: the project's login, as for `live_wsgi`, with Django's request.
        options: those of `live_app`.
    """
    return urls(lambda: live_app(auth=user_of_host, **options), lambda request, path: auth(request, _run_in(path)))


def wsgi(make: Callable[[], Any], auth: Callable[[Environ, str], User | None]) -> WsgiApp:
    """Return an ASGI application as a WSGI application. `auth` gets the environ, and the path below the application's."""
    answer = _door(make)

    def application(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, headers, body = answer(environ, lambda: auth(environ, environ.get("PATH_INFO", "")))
        start_response(status, headers)
        return [body]

    return application


def urls(make: Callable[[], Any], auth: Callable[[Any, str], User | None]) -> list[Any]:
    """Return an ASGI application as Django's URL patterns. `auth` gets Django's request, and the path below the application's."""
    from django.http import HttpResponse
    from django.urls import re_path
    from django.views.decorators.csrf import csrf_exempt

    answer = _door(make)

    def page(request: Any, path: str) -> Any:
        texts = {name: value for name, value in request.META.items() if isinstance(value, str)}
        environ = texts | {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": _latin(request.path.removesuffix(path).rstrip("/")),
            "PATH_INFO": _latin(f"/{path}"),
            "wsgi.url_scheme": request.scheme,
            "wsgi.input": BytesIO(request.body),
        }
        status, headers, body = answer(environ, lambda: auth(request, f"/{path}"))
        return HttpResponse(body, status=int(status[:3]), headers=dict(headers))

    return [re_path("^(?P<path>.*)$", csrf_exempt(page))]  # forms have a token of their own


def user_of_host(request: Request, *_: str) -> User | None:
    """Return or raise what the host's login did: the `auth` of an application behind `wsgi` or `urls`."""
    found: User | HTTPException | None = request.scope["wsgi_environ"][_USER]
    if isinstance(found, HTTPException):
        raise found
    return found


def _door(make: Callable[[], Any]) -> Callable[[Environ, Login], Answer]:
    """Return a function that answers requests: status, headers and the whole body. A streamed body would leave a task behind if the browser leaves."""
    made, lock = dict[int, Any](), threading.Lock()

    def answer(environ: Environ, auth: Login) -> Answer:
        try:
            found: User | HTTPException | None = auth()
        except HTTPException as refusal:
            found = refusal
        with lock:
            if os.getpid() not in made:
                made[os.getpid()] = ASGIMiddleware(make())
        head: list[Any] = []
        body = b"".join(made[os.getpid()]({**environ, _USER: found}, lambda *started: head.extend(started[:2])))
        return head[0], head[1], body

    return answer


def _run_in(path: str) -> str:
    found = _RUN.match(path)
    return found[1] if found else ""


def _latin(path: str) -> str:
    """Write a path as WSGI has it: its bytes as Latin-1."""
    return path.encode().decode("latin-1")

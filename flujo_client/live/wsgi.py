"""Applications of ours in WSGI hosts, such as Flask and Django.

The host's login is evaluated in the host's own thread: there its request is the current one, and its database connections are those of this thread.
An application runs on an event loop in a thread of its own, which begins with the first request: servers fork after they have loaded the application.
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
            It is called in the host's thread.
        options: those of `live_app`, but for `auth`.
    """
    return wsgi(lambda: live_app(auth=user_of_host, **options), lambda environ, path: auth(environ, _run_in(path)))


def live_urls(auth: Callable[[Any, str], User | None], **options: Any) -> list[Any]:
    """Return runs' streams as Django's URL patterns, which answer with pages of JSON: `path("live/", include(live_urls(auth)))`.

    Args:
        auth: the project's login: gets Django's request and the run's id, and returns its `User`, or None, or raises Starlette's `HTTPException`.
            It is called in the thread of the view.
        options: those of `live_app`, but for `auth`.
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
    """Return the user that the host's login returned, or raise what it raised: the `auth` of an application behind `wsgi` or `urls`."""
    found: User | HTTPException | None = request.scope["wsgi_environ"][_USER]
    if isinstance(found, HTTPException):
        raise found
    return found


def _door(make: Callable[[], Any]) -> Callable[[Environ, Login], Answer]:
    """Return what answers requests with an application: with the status, the headers, and the whole body.

    If bodies were streamed, a browser that goes away would leave a task behind on the loop for ever.
    """
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

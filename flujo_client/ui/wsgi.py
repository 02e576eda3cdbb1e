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
from starlette.requests import Request

from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User

Environ: TypeAlias = dict[str, Any]
WsgiApp: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
_USER: Final = "flujo.user"


def flujo_wsgi(auth: Callable[[Environ], User | None], **options: Any) -> WsgiApp:
    """Return the page as a WSGI application.

    Args:
        auth: the host's login: gets the request's environ, and returns its `User`, or None. It is called in the host's thread.
        options: those of `flujo_ui`, but for `auth`.
    """
    door = _Door(options)

    def application(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, headers, body = door.answer(environ, auth(environ))
        start_response(status, headers)
        return [body]

    return application


def flujo_urls(auth: Callable[[Any], User | None], **options: Any) -> list[Any]:
    """Return the page as Django's URL patterns: `path("flujo/", include(flujo_urls(auth)))`.

    Args:
        auth: the project's login: gets Django's request, and returns its `User`, or None. It is called in the thread of the view.
        options: those of `flujo_ui`, but for `auth`.
    """
    from django.http import HttpResponse
    from django.urls import re_path
    from django.views.decorators.csrf import csrf_exempt

    door = _Door(options)

    def page(request: Any, path: str) -> Any:
        texts = {name: value for name, value in request.META.items() if isinstance(value, str)}
        environ = texts | {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": _latin(request.path.removesuffix(path).rstrip("/")),
            "PATH_INFO": _latin(f"/{path}"),
            "wsgi.url_scheme": request.scheme,
            "wsgi.input": BytesIO(request.body),
        }
        status, headers, body = door.answer(environ, auth(request))
        return HttpResponse(body, status=int(status[:3]), headers=dict(headers))

    return [re_path("^(?P<path>.*)$", csrf_exempt(page))]  # the page's forms have a token of their own


class _Door:
    """Answers requests of a WSGI host with the page.

    Args:
        options: those of `flujo_ui`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options, self._lock = options, threading.Lock()
        self._process = 0
        self._app: Any = None

    def answer(self, environ: Environ, user: User | None) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return the status, the headers and the body. The whole body: a browser that goes away then leaves nothing behind on the loop."""
        head: list[Any] = []
        body = b"".join(self._page()({**environ, _USER: user}, lambda *started: head.extend(started[:2])))
        return head[0], head[1], body

    def _page(self) -> Any:
        with self._lock:
            if self._process != os.getpid():
                app: Any = flujo_ui(auth=_user_of_host, **self._options)
                self._app, self._process = ASGIMiddleware(app), os.getpid()
            return self._app


def _user_of_host(request: Request) -> User | None:
    user: User | None = request.scope["wsgi_environ"][_USER]
    return user


def _latin(path: str) -> str:
    """Write a path as WSGI has it: its bytes as Latin-1."""
    return path.encode().decode("latin-1")

"""The page in WSGI hosts, such as Flask and Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flujo_client.live.wsgi import Environ, WsgiApp, urls, user_of_host, wsgi
from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User


def flujo_wsgi(auth: Callable[[Environ], User | None], **options: Any) -> WsgiApp:
    """Return the page as a WSGI application.

    Args:
        auth: the host's login: gets the request's environ, and returns its `User`, or None, or raises Starlette's `HTTPException`. It is called in the host's thread.
        options: those of `flujo_ui`, but for `auth`.
    """
    return wsgi(lambda: flujo_ui(auth=user_of_host, **options), lambda environ, _: auth(environ))


def flujo_urls(auth: Callable[[Any], User | None], **options: Any) -> list[Any]:
    """Return the page as Django's URL patterns: `path("flujo/", include(flujo_urls(auth)))`.

    Args:
        auth: the project's login: gets Django's request, and returns its `User`, or None, or raises Starlette's `HTTPException`. It is called in the thread of the view.
        options: those of `flujo_ui`, but for `auth`.
    """
    return urls(lambda: flujo_ui(auth=user_of_host, **options), lambda request, _: auth(request))

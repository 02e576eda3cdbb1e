"""Who asks: the host's login, and what its users may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class User:
    """The person who looks at the page, or at a run's stream.

    Attributes:
        name: the name under which the audit records what this person does.
        may_act: whether the person may retry, cancel and answer (an operator), or only read (a reader).
        sees_values: whether the person may read prompts, inputs, outputs, questions and streams.
    """

    name: str
    may_act: bool = False
    sees_values: bool = True


LOCAL: Final = User("local", may_act=True)


async def user_of(auth: Callable[..., Any] | None, request: Request, *about: str) -> User:
    """Ask the host's login who sent a request; without one, let in whoever is on this machine.

    Args:
        auth: the host's login. A function that is not `async` is called in a thread.
        request: what was sent.
        about: what else the login is asked about.

    Raises:
        HTTPException: 401 for nobody, 403 for others than this machine's; or what the login raises.
    """
    if auth is None:
        if not is_local(request):
            raise HTTPException(403, "Without a login this is only for browsers on its own machine.")
        return LOCAL
    is_async = iscoroutinefunction(auth)
    user = auth(request, *about) if is_async else await run_in_threadpool(auth, request, *about)
    if isawaitable(user):
        user = await user
    if user is None:
        raise HTTPException(401, "Sign in first.")
    assert isinstance(user, User)
    return user


def is_local(request: Request) -> bool:
    """Return whether a browser on this machine sent a request, to a name of this machine, and not through a proxy.

    A foreign site can have its own name point to 127.0.0.1, but its pages then send that name as `Host`.
    """
    forwarded = {"forwarded", "x-forwarded-for", "x-real-ip"} & {*request.headers.keys()}
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return not forwarded and _is_loopback(request.client.host if request.client else "") and _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

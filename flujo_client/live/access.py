"""Requests of hosts: who sent one, what that user may do, and its body."""

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
    """A person who reads the page, or a run's stream.

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
    """Return the user that the host's login finds for a request; without a login, admit browsers on this machine.

    A login that is not `async` is called in a thread; `about` are its further arguments.

    Raises:
        HTTPException: 401 without a user, 403 for other machines; or what the login raises.
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


async def body_of(request: Request, most: int) -> bytes | None:
    """Return a request's body; None if it is larger than `most` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)


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

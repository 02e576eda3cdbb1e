"""Classify the failures of services: outages, refusals because of a rate, and how long a service asks to wait.

Imports no agent library and no HTTP client: their exceptions are recognised by module and class name. Only exceptions that were raised on
purpose are read: the exception itself, its `__cause__` and a group's members. In: an exception. Out: what it says of the service behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from flujo_client.errors import UnreadableResponse
from flujo_worker.runtime.http_errors import asked_wait, status_of

SERVER_ERROR = 500
WILL_NOT_HELP = {"RunCancelled", "ModelQuotaExceededError", "ModelRequestRejectedError"}
"""The class names of pydantic-ai's errors that the same call causes again."""
_OUTAGES = {
    "ModelUnavailableError",
    "ModelServerError",
    "ModelConnectionError",
    "ModelRequestTimeout",
}
_UNREACHABLE = {
    "APIConnectionError",  # openai and anthropic
    "TransportError",  # httpx
    "ModelAPIError",  # pydantic-ai
    "ConnectionError",  # requests, as the next
    "Timeout",
    "ClientConnectionError",  # aiohttp
}
"""The exceptions of common clients when a service does not answer, by class name."""
_TIMEOUTS = {
    "APITimeoutError",  # openai and anthropic
    "TimeoutException",  # httpx
    "Timeout",  # requests
    "ModelRequestTimeout",
}
"""Those of them that say that it took too long, where they are no TimeoutError."""
_TOO_MANY = {429, 529}
"""529 is Anthropic's status for an API that is overloaded."""
_REQUEST_TIMEOUT = 408


def is_timeout(error: BaseException) -> bool:
    """Return whether something took too long: for the step's own limit, or for a client's in it."""
    return any(
        isinstance(link, TimeoutError) or any(kind.__name__ in _TIMEOUTS for kind in type(link).__mro__)
        for link in explicit_chain(error)
    )


def is_outage(error: BaseException, *, by_library: bool) -> bool:
    """Return whether the provider failed, and not what it was asked or what it answered.

    Connections, timeouts, 408, 5xx and responses that are not an answer do; refused credentials, requests, rates and quotas do not.

    Args:
        error: what an agent raised.
        by_library: whether it asks through pydantic-ai, whose own errors say so; any other there is raised by a tool.
    """
    return any(_is_outage(link, by_library=by_library) for link in explicit_chain(error))


def is_rate_refusal(error: BaseException, *, by_library: bool) -> bool:
    """Return whether a provider refused a call because too many were made (HTTP 429, 529), and not because a quota is used up.

    Args:
        error: what an agent raised.
        by_library: as for `is_outage`.
    """
    return any(_is_rate_refusal(link, by_library=by_library) for link in explicit_chain(error))


def requested_wait(error: BaseException) -> float | None:
    """Return how many seconds the server behind an error asks to wait; None if it does not say."""
    now = datetime.now(UTC)
    return next((wait for link in explicit_chain(error) if (wait := asked_wait(link, now)) is not None), None)


def is_of_service(error: BaseException) -> bool:
    """Return whether a service failed, or refused a call, here or behind this error."""
    return any(status_of(link) is not None or _is_outage(link, by_library=False) for link in explicit_chain(error))


def _is_rate_refusal(error: BaseException, *, by_library: bool) -> bool:
    names = foreign_names(error)
    if (by_library and "ModelAPIError" not in names) or names & WILL_NOT_HELP:
        return False
    return status_of(error) in _TOO_MANY or "ModelRateLimitError" in names


def _is_outage(error: BaseException, *, by_library: bool) -> bool:
    if isinstance(error, UnreadableResponse):
        return True
    names = foreign_names(error)
    if by_library and "ModelAPIError" not in names:
        return False
    if names & WILL_NOT_HELP or _is_rate_refusal(error, by_library=by_library):
        return False
    if names & _OUTAGES:
        return True
    status = status_of(error)
    if status is not None:
        return status == _REQUEST_TIMEOUT or status >= SERVER_ERROR
    classes = {kind.__name__ for kind in type(error).__mro__}
    return bool(classes & _UNREACHABLE) or isinstance(error, (ConnectionError, TimeoutError))


def explicit_chain(error: BaseException) -> Iterator[BaseException]:
    """Walk what was raised on purpose, outermost first: the error, a group's members, its explicit cause."""
    waiting, seen = [error], set[int]()
    while waiting:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        members = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        waiting += [*([link.__cause__] if link.__cause__ else []), *reversed(members)]


def foreign_names(error: BaseException) -> set[str]:
    """Return the class names of an agent library's error."""
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] == "pydantic_ai"}

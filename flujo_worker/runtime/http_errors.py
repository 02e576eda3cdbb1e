"""Read what an HTTP error says: its status, how long its server asks to wait, what is left of its rate limits; tell outages from refusals.

It recognises the exceptions of pydantic-ai, openai, anthropic, httpx, requests, aiohttp and urllib by their modules, class names and
attributes, and imports none of them. Of services, only exceptions that were raised on purpose say anything. Headers have names in lower case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from flujo_client.errors import UnreadableResponse
from flujo_worker.domain.rate import Left

LONGEST_RESET_S: Final = 60.0
"""Seconds that a reset counts for at most: the whole limit is free again then, and calls may be made before."""

_CLIENT_ERROR, _NO_STATUS = 400, 600
_STATUS: Final = ("status_code", "status", "code")
"""The attribute that holds the status: of most clients, of aiohttp, of urllib."""
_LEFT: Final = {
    "requests": ("x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining"),
    "tokens": ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining"),
}
_MOST_DIGITS: Final = 15
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_IN_ONE: Final = re.compile(r"\b(?:r|remaining)=0\b.*?\b(?:t|reset)=(\d{1,15})")
"""What the one header `RateLimit` says that is used up, in the drafts of the IETF: `"default";r=0;t=30`, `limit=9, remaining=0, reset=30`."""
_TIMESTAMP: Final = 1e9
"""A reset of at least this many seconds is a time since 1970, and of a thousand times as many one in milliseconds."""


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries, itself or in its `response`; only of an error: 400 to 599."""
    for holder in (error, _carried(error, "response")):
        for name in _STATUS:
            status = _carried(holder, name)
            if isinstance(status, int) and _CLIENT_ERROR <= status < _NO_STATUS:
                return int(status)
    return None


def refusal_of(error: BaseException) -> dict[str, Any]:
    """Return how a model's provider refused a call, if the agent library reports it: HTTP status, model, the provider's message."""
    for link in explicit_chain(error):
        status = status_of(link) if "ModelAPIError" in foreign_names(link) else None
        if status is not None:
            model, answer = _carried(link, "model_name"), _words_in(_carried(link, "body"))
            found = {"status": status, "model": model, "answer": answer}
            return {name: value for name, value in found.items() if value}
    return {}


def _words_in(body: Any) -> str | None:
    """Return the message in the body of a provider's refusal: at its top, or in its `error`."""
    if isinstance(body, str):
        return body.strip()
    message = body.get("message") or body.get("error") if isinstance(body, Mapping) else None
    return message if message is None else _words_in(message)


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers of the response that an error carries, with names in lower case; none if it carries no response."""
    for holder in (error, _carried(error, "response")):
        items = _carried(_carried(holder, "headers"), "items")
        if callable(items):
            return {name.lower(): value for name, value in items() if isinstance(name, str) and isinstance(value, str)}
    return {}


def asked_wait(error: BaseException, now: datetime) -> float | None:
    """Return how many seconds the server that refused a call asks to wait; None if it does not say.

    That is its `Retry-After`, as seconds or as a date, else the time until a rate limit is restored that is used up, a minute at most. A
    date counts from the response's own, so that clocks may differ. `now` is for responses that do not say their own time.
    """
    headers = headers_of(error)
    now = _date(headers.get("date", "")) or now
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    for said in (headers.get("retry-after"), _carried(error, "retry_after")):
        wait = _number(said) if not isinstance(said, str) else _until(said, now)
        if wait is not None:
            return wait
    return reset_wait(headers, now) or None


def left_of(headers: Mapping[str, str]) -> Left:
    """Return how many requests and tokens are left."""
    return Left(*(_count(next((headers[name] for name in names if name in headers), "")) for names in _LEFT.values()))


def reset_wait(headers: Mapping[str, str], now: datetime) -> float:
    """Return the seconds until each used up limit is restored, a minute at most; 0.0 where no limit is used up."""
    return min(LONGEST_RESET_S, max(_resets(headers, now), default=0.0))


def _resets(headers: Mapping[str, str], now: datetime) -> Iterator[float]:
    for name, value in headers.items():
        if "ratelimit" not in name:
            continue
        if "remaining" in name and _count(value) == 0:
            yield _until(headers.get(name.replace("remaining", "reset"), ""), now) or 0.0
        elif used_up := _IN_ONE.search(value):
            yield float(used_up[1])


def _until(text: str, now: datetime) -> float | None:
    """Return the seconds that a text means: `7`, `6m0s`, `120ms`, seconds since 1970, or a date of HTTP or of RFC 3339."""
    text = text.strip()
    number = _number(text)
    if number is not None:
        since = number / 1000 if number >= 1000 * _TIMESTAMP else number
        return max(0.0, since - now.timestamp()) if since >= _TIMESTAMP else number
    parts = _DURATION.findall(text)
    if parts and "".join(count + unit for count, unit in parts) == text:
        return sum(float(count) * _SECONDS[unit] for count, unit in parts)
    at = _date(text)
    return None if at is None else max(0.0, (at - now).total_seconds())


def _date(text: str) -> datetime | None:
    """Read a date in one of HTTP's three forms, or in that of RFC 3339 with its time zone."""
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None
        return at if at.tzinfo is not None else None
    # HTTP's dates are in UTC, and one form does not say so
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _count(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _carried(holder: object, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - libraries raise from properties when there was no response
        return None


SERVER_ERROR = 500
WILL_NOT_HELP = {"RunCancelled", "ModelQuotaExceededError", "ModelRequestRejectedError"}
"""The class names of pydantic-ai's errors that the same call causes again."""
_OUTAGES = {"ModelUnavailableError", "ModelServerError", "ModelConnectionError", "ModelRequestTimeout"}
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
    links = explicit_chain(error)
    return any(isinstance(each, TimeoutError) or not _TIMEOUTS.isdisjoint(_names(each)) for each in links)


def is_outage(error: BaseException, *, by_library: bool) -> bool:
    """Return whether the provider failed, and not what it was asked or what it answered.

    Connections, timeouts, 408, 5xx and responses that are not an answer do; refused credentials, requests, rates and quotas do not.
    `by_library`: the agent asks through pydantic-ai, whose own errors say so; any other is raised by a tool.
    """
    return any(_is_outage(link, by_library=by_library) for link in explicit_chain(error))


def is_rate_refusal(error: BaseException, *, by_library: bool) -> bool:
    """Return whether a provider refused a call because too many were made (HTTP 429, 529), and not because a quota is used up; see `is_outage`."""
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
    return not _UNREACHABLE.isdisjoint(_names(error)) or isinstance(error, (ConnectionError, TimeoutError))


def _names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def explicit_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that were raised on purpose, outermost first: the error, a group's members, its explicit cause."""
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

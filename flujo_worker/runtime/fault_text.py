"""Describe an exception: a text without secrets that fits a message and a row, and a digest of its place. Pure."""

from __future__ import annotations

import hashlib
import traceback

from flujo_client.contract.outcome import OWN_TIMEOUT
from flujo_client.errors import FlujoError
from flujo_client.redact import redact
from flujo_worker.concurrency.event_loop import reached_limit_s

MAX_MESSAGE_BYTES = 4096
_SHOWN_MEMBERS = 5


def message_of(error: BaseException) -> str:
    """Return an error's message, without secrets and of bounded length. A timeout without a message names its limit, or says that it is not one of ours."""
    try:
        text = error.message if isinstance(error, FlujoError) else str(error)
    except Exception:  # noqa: BLE001 - an error that cannot be printed must not replace what it reports
        text = "(its message cannot be read)"
    if isinstance(error, TimeoutError) and not text:
        limit_s = reached_limit_s(error)
        text = OWN_TIMEOUT if limit_s is None else f"no answer within {limit_s:g} s"
    if isinstance(error, BaseExceptionGroup):
        shown = (named(member, message_of(member)) for member in error.exceptions[:_SHOWN_MEMBERS])
        text = f"{text}: {'; '.join(shown)}"
    return clean(text)


def named(error: BaseException, message: str) -> str:
    """Put an error's class before its message."""
    return f"{type(error).__name__}: {message}"


def outer(error: BaseException, subject: BaseException) -> str:
    """Return how the root cause was reported, as secondary detail."""
    alone = isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1
    return "" if error is subject or alone else f" (reported as {named(error, message_of(error))})"


def clean(text: str, most: int = MAX_MESSAGE_BYTES) -> str:
    """Remove secrets from a text, and bound its bytes."""
    return bounded(redact(text[: 4 * most]), most)


def bounded(text: str, most: int = MAX_MESSAGE_BYTES) -> str:
    """Cut a text to the size that fits into a message and a row."""
    data = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace")  # as it is stored
    if len(data) <= most:
        return data.decode()
    return data[: most - 3].decode(errors="ignore") + "…"


def digest_of(error: BaseException) -> str:
    """Return the place of an error: equal for the same lines of code, with any message and on any machine."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = (f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}:{line}" for frame, line in walked)
    return hashlib.sha256("\n".join([type(error).__name__, *frames]).encode()).hexdigest()[:16]

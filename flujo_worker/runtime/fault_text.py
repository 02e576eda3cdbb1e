"""Describe an exception: a text without secrets that fits a message and a row, and a digest of its place.

Pure. In: an exception. Out: texts of bounded length.
"""

from __future__ import annotations

import hashlib
import traceback

from flujo_client.errors import FlujoError
from flujo_client.redact import redact

MAX_MESSAGE_BYTES = 4096
_READ_CHARS = 4 * MAX_MESSAGE_BYTES
_SHOWN_MEMBERS = 5


def message_of(error: BaseException, timeout_s: float | None) -> str:
    """Return an error's message, without secrets and of bounded length.

    `timeout_s`, the limit in force in seconds, is named in the message of a bare timeout.
    """
    try:
        text = error.message if isinstance(error, FlujoError) else str(error)
    except Exception:  # noqa: BLE001 - an error that cannot be printed must not replace what it reports
        text = "(its message cannot be read)"
    if isinstance(error, TimeoutError) and not text:
        text = f"no answer within {timeout_s:g} s" if timeout_s is not None else "no answer in time"
    if isinstance(error, BaseExceptionGroup):
        shown = (named(member, message_of(member, timeout_s)) for member in error.exceptions[:_SHOWN_MEMBERS])
        text = f"{text}: {'; '.join(shown)}"
    return clean(text)


def named(error: BaseException, message: str) -> str:
    """Put an error's class before its message."""
    return f"{type(error).__name__}: {message}"


def outer(error: BaseException, subject: BaseException, timeout_s: float | None) -> str:
    """Return how the root cause was reported, as secondary detail."""
    alone = isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1
    return "" if error is subject or alone else f" (reported as {named(error, message_of(error, timeout_s))})"


def clean(text: str) -> str:
    """Take secrets out of a text and bound it."""
    return bounded(redact(text[:_READ_CHARS]))


def bounded(text: str) -> str:
    """Cut a text to what a message and a row take."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return data.decode()
    return data[: MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "…"


def digest_of(error: BaseException) -> str:
    """Return the place of an error: equal for the same lines of code, with any message and on any machine."""
    frames = (
        f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    )
    return hashlib.sha256("\n".join([type(error).__name__, *frames]).encode()).hexdigest()[:16]

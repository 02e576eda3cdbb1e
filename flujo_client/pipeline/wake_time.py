"""The times that runs wait for: which are valid, and how far away they are."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final

MOST_S: Final = 10 * 366 * 86_400.0
"""The longest time that a run waits, in seconds: ten years."""
_EXAMPLE: Final = "2027-01-31T09:00:00+01:00"


def seconds_problem(given: Any) -> str | None:
    """Return what is wrong with a number of seconds; None if nothing is."""
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= MOST_S:
        return None
    return f"must be a number of seconds from 0 to {MOST_S:.0f}, ten years, got {repr(given)[:40]}"


def time_problem(given: Any) -> str | None:
    """Return what is wrong with a time; None if nothing is."""
    moment = _moment(given)
    if moment is None:
        return f"must be a datetime, or a text such as {_EXAMPLE}, got {repr(given)[:40]}"
    if moment.utcoffset() is None:
        return f"must name its time zone, such as {_EXAMPLE}, got {repr(given)[:40]}"
    return "is more than ten years away" if moment.timestamp() - time.time() > MOST_S else None


def unix_seconds(given: Any) -> float:
    """Return a time in which `time_problem` finds nothing wrong as unix seconds."""
    moment = _moment(given)
    assert moment is not None, "it was checked"
    return moment.timestamp()


def _moment(given: Any) -> datetime | None:
    if not isinstance(given, str):
        return given if isinstance(given, datetime) else None
    try:
        return datetime.fromisoformat(given.strip())
    except ValueError:
        return None

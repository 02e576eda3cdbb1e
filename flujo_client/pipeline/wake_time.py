"""Read the times that runs wait for."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from flujo_client.sizes import MAX_WAIT_S

_EXAMPLE: Final = "2027-01-31T09:00:00+01:00"


def read_seconds(given: Any) -> float:
    """Return a number of seconds; raises ValueError, which continues its name: `must be …`."""
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= MAX_WAIT_S:
        return float(given)
    raise ValueError(f"must be a number of seconds from 0 to {MAX_WAIT_S:.0f}, ten years, got {repr(given)[:40]}")


def read_time(given: Any) -> float:
    """Return a time, a datetime or an ISO 8601 text, as unix seconds; raises as `read_seconds` does."""
    moment = given
    if isinstance(given, str):
        with suppress(ValueError):
            moment = datetime.fromisoformat(given.strip())
    if not isinstance(moment, datetime):
        raise ValueError(f"must be a datetime, or a text such as {_EXAMPLE}, got {repr(given)[:40]}")  # noqa: TRY004 - of texts too
    if moment.utcoffset() is None:
        raise ValueError(f"must name its time zone, such as {_EXAMPLE}, got {repr(given)[:40]}")
    if moment.timestamp() - time.time() > MAX_WAIT_S:
        raise ValueError("is more than ten years away")
    return moment.timestamp()

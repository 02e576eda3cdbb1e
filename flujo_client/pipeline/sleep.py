"""Sleep: a step at which the run waits for a time, without occupying a worker; and how such times are read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from flujo_client.pipeline.container import Container, function_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.plan import kinds
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


async def pass_on(data: Any) -> Any:
    """Return the input. This is a sleep's agent: its attempt begins when the sleep is over."""
    return data


READERS: Final = {"seconds": read_seconds, "until": read_time}


@dataclass(frozen=True, eq=False)
class Sleep(Container):
    """Wait, and continue with the input as output. No worker is held; the run wakes within a second of its time.

    Exactly one of the two is needed, as a value or as a function `(input, context) -> value`.

    Args:
        seconds: how long; from 0 to ten years.
        until: a datetime with a time zone, or one as an ISO 8601 text. The run continues at once if it has passed.
    """

    spec = kinds.SLEEP

    agent: Any = field(default_factory=lambda: pass_on, init=False)
    seconds: Any = None
    until: Any = None

    @property
    def given(self) -> tuple[str, Any]:
        """Return the option that is given, and its value."""
        return ("seconds", self.seconds) if self.until is None else ("until", self.until)

    def functions(self) -> dict[str, Any]:
        name, value = self.given
        return {name: value} if callable(value) else {}

    def traits(self) -> dict[str, Any]:
        name, value = self.given
        if callable(value):
            return {}
        return {name: value.isoformat() if isinstance(value, datetime) else value}

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        name, value = self.given
        if (self.seconds is None) == (self.until is None):
            yield "it needs either seconds or until: how long the run sleeps, or until when"
        elif callable(value):
            yield from function_findings(name, value, "input, context")
        else:
            try:
                READERS[name](value)
            except ValueError as error:
                yield f"{name} {error}"


def SleepUntil(name: str, until: Any, **options: Any) -> Sleep:  # noqa: N802 - it is used like the class
    """Return `Sleep(name, until=until, **options)`: wait until a time."""
    return Sleep(name, until=until, **options)

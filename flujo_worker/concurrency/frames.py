"""Find the present place of user code: the function that was called, and the line that it has reached.

Values of variables are not read. Pure except for reading frames that may continue meanwhile. In: a coroutine, or a thread's innermost
frame. Out: a `Place`, which says whether it is the user's: libraries that Flujo itself calls are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

from flujo_client.tracebacks import are_users


class Place(NamedTuple):
    """The function that was called, and where it is now, such as `fetch (/srv/shop/agents.py, line 12)`; and whether it is the user's."""

    function: str
    at: str
    is_users: bool = False


UNKNOWN = Place("unknown", "unknown")


def place_of(running: Any) -> Place:
    """Return the place that a coroutine waits at, or that a thread runs at."""
    is_thread = isinstance(running, FrameType)
    frames = [frame for frame, _ in walk_stack(running)][::-1] if is_thread else list(_of_coroutine(running))
    theirs = [each for each, is_users in zip(frames, are_users(frames), strict=True) if is_users]
    shown = theirs or frames[-1:]
    if not shown:
        return UNKNOWN
    innermost = shown[-1]
    at = f"{innermost.f_code.co_qualname} ({innermost.f_code.co_filename}, line {innermost.f_lineno})"
    return Place(shown[0].f_code.co_qualname, at, bool(theirs))


def _of_coroutine(awaited: Any) -> Iterator[FrameType]:
    """Walk from the outermost coroutine to the innermost one that it awaits; code written in C has no frame."""
    while awaited is not None:
        kind = next((each for each in ("cr", "gi", "ag") if hasattr(awaited, f"{each}_frame")), None)
        if kind is None:
            return
        frame = getattr(awaited, f"{kind}_frame")
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")

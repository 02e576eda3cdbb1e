"""Find the present place of user code: the function that was called, and the line that it has reached.

Values of variables are not read. Pure except for reading frames that may continue meanwhile. In: a coroutine, or a thread's innermost
frame. Out: a `Place`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_OURS = str(Path(__file__).parent)
_LIBRARY = str(Path(asyncio.__file__).parent)


class Place(NamedTuple):
    """The user's function, and where it is now, such as `fetch (/srv/shop/agents.py, line 12)`."""

    function: str
    at: str


UNKNOWN = Place("unknown", "unknown")


def place_of(running: Any) -> Place:
    """Return the place that a coroutine waits at, or that a thread runs at."""
    frames = list(_of_thread(running) if isinstance(running, FrameType) else _of_coroutine(running))
    own = max((number for number, each in enumerate(frames) if _is_in(each, _OURS)), default=-1)
    theirs = [each for each in frames[own + 1 :] if not _is_in(each, _LIBRARY)] or frames
    if not theirs:
        return UNKNOWN
    code, innermost = theirs[0].f_code, theirs[-1]
    at = f"{innermost.f_code.co_qualname} ({innermost.f_code.co_filename}, line {innermost.f_lineno})"
    return Place(code.co_qualname, at)


def _of_thread(innermost: FrameType) -> Iterator[FrameType]:
    frames: list[FrameType] = []
    frame: FrameType | None = innermost
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return reversed(frames)


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


def _is_in(frame: FrameType, folder: str) -> bool:
    return frame.f_code.co_filename.startswith(folder)

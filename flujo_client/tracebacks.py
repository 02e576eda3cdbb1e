"""The user's part of a traceback, as text: from their code inward, as Python shows it, bounded, without secrets and without locals.

Frames of Flujo, Celery, asyncio and pydantic-ai are left out, but for the innermost, where the error was raised. Model classes of
pydantic-ai call providers' clients, so what such a class calls is not the user's code either. An error without any frame
of user code has no traceback here. Reads source lines from their files, and nothing else.
"""

from __future__ import annotations

import sys
import textwrap
import traceback
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

from flujo_client.redact import redact
from flujo_client.sizes import MAX_TRACEBACK_BYTES, MAX_TRACEBACK_ERRORS, MAX_TRACEBACK_FRAMES

MACHINERY: Final = frozenset({
    "flujo_client",
    "flujo_worker",
    "celery",
    "kombu",
    "billiard",
    "asyncio",
    "concurrent",
    "anyio",
    "pydantic_ai",
    "pydantic_graph",
})  # fmt: skip
"""Packages whose frames say nothing to the author of the step; nor does what they call of the standard library."""
_MODELS: Final = ("pydantic_ai.models.", "pydantic_ai.providers.")
_CALL_USERS: Final = ("pydantic_ai.models.function", "pydantic_ai.models.test")
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""The folders that packages are installed in."""
_HEADER: Final = "Traceback (most recent call last):\n"
_CAUSE: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"
_SHOWN_MEMBERS: Final = 5
_FRAME: Final = '  File "'
_LONGEST: Final = 2 * MAX_TRACEBACK_BYTES
"""Characters of a message that are examined."""
_WIDEST: Final = 76
"""Characters of a line of markers: a longer one would be folded, and point at nothing."""


class _Place(NamedTuple):
    """One place on a stack: its code, the line in it, and the instruction, by which Python knows the columns."""

    code: CodeType
    line: int
    instruction: int
    is_users: bool
    package: str
    """The first part of its module's name."""


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error and of the errors behind it; empty if it has no frame of user code."""
    try:
        errors = list(_chain(error))
        if not any(
            isinstance(each, SyntaxError) or any(place.is_users for place in _places(each)) for each in _all_of(errors)
        ):
            return ""
        return _bounded(_text(errors, [MAX_TRACEBACK_ERRORS]))
    except Exception:  # noqa: BLE001 - an error that cannot be shown must not replace what it says
        return ""


def place_in(error: BaseException) -> str | None:
    """Return the file and line of the user's code that an error comes from; None if no code of theirs took part.

    For a SyntaxError it is the place that cannot be read.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    own = [place for place in _places(error) if place.is_users]
    return f"{own[-1].code.co_filename}, line {own[-1].line}" if own else None


def frame_of(error: BaseException, cause: BaseException) -> dict[str, Any]:
    """Return file name and line of the innermost frame of the user's own code; empty if none of it took part.

    That is the frame of `cause`, which is reported of the error; if it has none, of the innermost error that has one. Packages that the user's
    code calls are left out; if their code is installed as a package itself, it is the package of their outermost frame.
    """
    for each in (cause, *reversed(list(_chain(error)))):
        if isinstance(each, SyntaxError) and each.filename:
            return {"file": PurePath(each.filename).name, "line": each.lineno}
        users = [place for place in _places(each) if place.is_users and place.package not in sys.stdlib_module_names]
        own = [place for place in users if not _is_installed(place)]
        if users:
            place = (own or [place for place in users if place.package == users[0].package])[-1]
            return {"file": PurePath(place.code.co_filename).name, "line": place.line}
    return {}


def _is_installed(place: _Place) -> bool:
    return not INSTALLED.isdisjoint(PurePath(place.code.co_filename).parts)


def shortened(text: str, most: int) -> str:
    """Return the last traceback of what `traceback_of` returned, with its last frames only: what one looks at first."""
    lines = text[max(0, text.rfind(_HEADER)) :].splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_FRAME)]
    if len(starts) <= most:
        return "\n".join(lines)
    left = len(starts) - most
    return "\n".join([lines[0], f"  … {left} more {'frame' if left == 1 else 'frames'}", *lines[starts[-most] :]])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Walk from an error to those behind it, as Python's own traceback does."""
    seen, link = set[int](), error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)  # type: ignore[assignment]


def _all_of(errors: list[BaseException]) -> Iterator[BaseException]:
    for error in islice(errors, MAX_TRACEBACK_ERRORS):
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from _all_of([link for each in error.exceptions[:_SHOWN_MEMBERS] for link in _chain(each)])


def _text(errors: list[BaseException], left: list[int]) -> str:
    """Write a chain, innermost error first. `left` counts how many errors may still be written."""
    parts: list[str] = []
    for number, error in enumerate(errors):
        if not left[0]:
            parts.insert(0, f"({len(errors) - number} more errors behind it)\n")
            break
        left[0] -= 1
        behind = errors[number + 1] if number + 1 < len(errors) else None
        link = "" if behind is None else _CAUSE if behind is error.__cause__ else _CONTEXT
        parts.insert(0, link + _one(error, left))
    return "".join(parts)


def _one(error: BaseException, left: list[int]) -> str:
    frames = "".join(_frames(_shown(_places(error))))
    return (_HEADER + frames if frames else "") + _sentence(error) + _members(error, left)


def _sentence(error: BaseException) -> str:
    """Write what Python shows below the frames: class, message and notes; of a SyntaxError also its place."""
    formatted = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=0, lookup_lines=False, compact=True
    )
    text = "".join(formatted.format_exception_only())
    return redact(text) if len(text) <= _LONGEST else f"{redact(text[:_LONGEST])}…\n"


def _members(error: BaseException, left: list[int]) -> str:
    if not isinstance(error, BaseExceptionGroup):
        return ""
    parts, count = [], len(error.exceptions)
    for number, member in enumerate(error.exceptions[:_SHOWN_MEMBERS], 1):
        text = _text(list(_chain(member)), left)
        parts.append(f"  +---------------- {number} of {count} ----------------\n{textwrap.indent(text, '  | ')}")
    if count > _SHOWN_MEMBERS:
        parts.append(f"  and {count - _SHOWN_MEMBERS} more\n")
    return "".join(parts)


def _places(error: BaseException) -> list[_Place]:
    """List the places that an error went through, outermost first."""
    places, at = list[TracebackType](), error.__traceback__
    while at is not None:
        places.append(at)
        at = at.tb_next
    flags = are_users(each.tb_frame for each in places)
    return [
        _Place(each.tb_frame.f_code, _line(each), each.tb_lasti, is_users, _package_of(each.tb_frame))
        for each, is_users in zip(places, flags, strict=True)
    ]


def are_users(frames: Iterable[FrameType]) -> Iterator[bool]:
    """Yield for each frame of a stack, outermost first, whether it is the user's code, or what that calls."""
    in_a_client = is_users = False
    for frame in frames:
        module, package = str(frame.f_globals.get("__name__")), _package_of(frame)
        in_a_client = in_a_client or (module.startswith(_MODELS) and module not in _CALL_USERS)
        is_foreign = in_a_client or package in MACHINERY or (package in sys.stdlib_module_names and not is_users)
        is_users = not is_foreign
        yield is_users


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _line(at: TracebackType) -> int:
    return at.tb_lineno or at.tb_frame.f_code.co_firstlineno


def _shown(places: list[_Place]) -> list[_Place]:
    own = [place for place in places if place.is_users]
    return [*own, places[-1]] if own and not places[-1].is_users else own


def _frames(places: list[_Place]) -> Iterator[str]:
    """Write frames; what repeats is folded, and of too many the first and the last are shown."""
    runs = [(next(same), 1 + sum(1 for _ in same)) for _, same in groupby(places, key=lambda each: each[:2])]
    first = MAX_TRACEBACK_FRAMES // 3
    cut = len(runs) - MAX_TRACEBACK_FRAMES
    for number, (place, times) in enumerate(runs):
        if cut > 0 and first <= number < first + cut:
            if number == first:
                yield f"  … {cut} more frames\n"
            continue
        yield _frame(place)
        if times > 1:
            yield f"  [Previous line repeated {times - 1} more {'time' if times == 2 else 'times'}]\n"  # noqa: PLR2004


def _frame(place: _Place) -> str:
    code = place.code
    _, end, column, end_column = next(islice(code.co_positions(), max(0, place.instruction) // 2, None), (None,) * 4)
    summary = traceback.FrameSummary(
        code.co_filename,
        place.line,
        code.co_name,
        lookup_line=False,
        end_lineno=end,
        colno=column,
        end_colno=end_column,
    )
    text = traceback.StackSummary().format_frame_summary(summary)
    *lines, markers = text.splitlines(keepends=True)
    if not markers.strip(" ~^\n") and len(markers) > _WIDEST:
        text = "".join(lines)
    safe = redact(text)
    if safe == text:
        return text
    return redact(f'{_FRAME}{code.co_filename}", line {place.line}, in {code.co_name}\n    {summary.line}\n')


def _bounded(text: str) -> str:
    """Keep the beginning, and more of the end, where the error is."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TRACEBACK_BYTES:
        return data.decode()
    head, tail = MAX_TRACEBACK_BYTES // 4, MAX_TRACEBACK_BYTES - MAX_TRACEBACK_BYTES // 4 - 8
    return f"{data[:head].decode(errors='ignore')}\n…\n{data[-tail:].decode(errors='ignore')}"

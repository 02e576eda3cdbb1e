"""An output that pydantic refused, described so that the next attempt can fix it: each place as a JSON pointer, expected, found.

Pure. It must not repeat more of the output than a few words, nor what is under a secret's name. In: pydantic's error and what was
validated. Out: an AgentIOValidationError, to be raised `from None`: pydantic's own text repeats the whole output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flujo_client.errors import AgentIOValidationError
from flujo_client.redact import redact_tree
from flujo_client.serial import safe_serialize
from flujo_worker.aros.outcome import pointer_of

LONGEST: Final = 600
_WORD: Final = 60
_SENTENCE: Final = 160


def misfit(error: ValidationError, output: Any, *, is_cut: bool) -> AgentIOValidationError:
    """Describe an output that does not fit the agent's type.

    Args:
        error: pydantic's.
        output: what was validated, as JSON text or data.
        is_cut: the model was stopped at its token limit, which is then what is wrong (rule `cut`).
    """
    data = output
    if isinstance(output, str):
        try:
            data = orjson.loads(output)
        except orjson.JSONDecodeError:
            data = None  # no place is in it
    found = error.errors(include_url=False, include_context=False)
    places = [_pointer(each, data) for each in found]
    messages = [_message(each) for each in found]
    lines = dict.fromkeys(f"at {place or '(root)'}: {message}" for place, message in zip(places, messages, strict=True))
    return AgentIOValidationError(
        _bounded(lines),
        rule="cut" if is_cut else "schema",
        pointer=places[0],
        what=messages[0],
        more=len(lines) - 1,
        suggestion=(
            "raise the step's max_tokens: the answer was cut at the token limit"
            if is_cut
            else "name the shape in the prompt, allow a conversion in the step's `processing`, or widen the output type"
        ),
    )


def _message(each: ErrorDetails) -> str:
    expected = _short(each["msg"].replace("Input should be ", "expected ", 1), _SENTENCE)
    if each["type"] == "missing":
        return "a required member is missing"
    secret = each["loc"][-1] if each["loc"] else ""
    found = orjson.dumps(redact_tree(safe_serialize(each["input"]), secret)).decode()
    return f"{expected}, found {_short(found, _WORD)}"


def _pointer(each: ErrorDetails, data: Any) -> str:
    place = real_place(each["loc"], data)
    is_known = each["type"] != "missing" or place != real_place(each["loc"][:-1], data)
    return pointer_of(place if is_known else (*place, each["loc"][-1]))


def real_place(place: tuple[int | str, ...], data: Any) -> tuple[int | str, ...]:
    """Return a place in data, without the names of union branches and functions that pydantic puts between."""
    steps: list[int | str] = []
    for step in place:
        is_index = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if is_index or (isinstance(data, dict) and step in data):
            data = data[step]
            steps.append(step)
    return tuple(steps)


def _bounded(lines: Iterable[str]) -> str:
    """Join as many lines as there is room for, and append how many were left out."""
    whole = list(lines)
    kept: list[str] = []
    room = LONGEST
    for line in whole:
        room -= len(line) + len("; ")
        if kept and room < 0:
            break
        kept.append(line)
    more = len(whole) - len(kept)
    return _short("; ".join(kept), LONGEST) + (f"; and {more} more" if more else "")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

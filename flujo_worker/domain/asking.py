"""What tools ask people in the middle of a call: all that is open when the attempt ends is one question, and each gets its part of the answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flujo_client.frozen import frozen

_MOST: Final = 8000
"""Characters of all that is asked at once."""
NO_PART: Final = object()
"""An answer has nothing for this one."""


@frozen
class Ask:
    """What one call asks."""

    id: str
    """Names it among all that is asked at the step, the same in every attempt."""
    name: str
    """Its name in an answer to several."""
    tool: str
    title: str
    """What the person reads: a line, and more of it in `text`."""
    text: str = ""
    schema: Mapping[str, Any] | None = None
    """Of its answer; an empty one takes any."""
    expires_s: float | None = None
    """The seconds within which it must be answered; None: it stays open."""
    refused: str | None = None
    """Why the answer before was refused."""


def message_of(asks: Sequence[Ask]) -> str:
    """Write what the person reads."""
    if len(asks) == 1:
        return _shown(asks[0])
    most = _MOST // len(asks)
    listed = "\n\n".join(f"{name}: {_shown(each)}"[:most] for name, each in _named(asks).items())
    return f"{len(asks)} calls wait for an answer.\n\n{listed}"


def question_of(asks: Sequence[Ask]) -> dict[str, Any]:
    """Make the question's row, but for its message: an answer to several is an object with a part for each."""
    named, refused = _named(asks), [each for each in asks if each.refused]
    question: dict[str, Any] = {
        "tool": ", ".join(dict.fromkeys(each.tool for each in asks)),
        "asks": {name: each.id for name, each in named.items()},
        "schema": asks[0].schema if len(asks) == 1 else _schema(named),
        "expires_s": min((each.expires_s for each in asks if each.expires_s is not None), default=None),
    }
    if refused:
        question["refused"] = "; ".join(f"{each.name}: {each.refused}" for each in refused)
    return question


def part_of(question: Mapping[str, Any], ask: str, value: Any) -> Any:
    """Return what an answer has for one of those that asked; NO_PART if it has nothing. To one alone the whole may be the answer."""
    names = {each: name for name, each in question["asks"].items()}
    if isinstance(value, Mapping) and value.keys() == question["asks"].keys():
        return value[names[ask]]
    return value if len(names) == 1 else NO_PART


def _named(asks: Sequence[Ask]) -> dict[str, Ask]:
    """Name each: agents beside each other may call by the same ids."""
    named: dict[str, Ask] = {}
    for each in asks:
        name, number = each.name, 1
        while name in named:
            number += 1
            name = f"{each.name}-{number}"
        named[name] = each
    return named


def _schema(named: Mapping[str, Ask]) -> dict[str, Any]:
    properties = {name: {"title": f"{name}: {each.title}", **(each.schema or {})} for name, each in named.items()}
    return {"type": "object", "properties": properties, "required": list(named), "additionalProperties": False}


def _shown(ask: Ask) -> str:
    return f"{ask.title}\n\n{ask.text}".strip()

"""The conversions that `coercion.allow` may list, each exact or not at all.

It must not let `int()`, `float()` or `isdigit()` decide what a number is: they accept other scripts' digits, underscores and names of
non-numbers. In: a value and the type wanted; out: the values it could become, by the conversion's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from flujo_client.schemas.parts import kind_of
from flujo_worker.aros.decode import ERRORS, LONGEST_NUMBER, decode, finite

_BLANKS = r"[ \t\r\n]*+"
_INTEGER: Final = re.compile(rf"{_BLANKS}(-?(?:0|[1-9][0-9]*+)){_BLANKS}")
_NUMBER: Final = re.compile(rf"{_BLANKS}(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?){_BLANKS}")
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}
SCALARS: Final = frozenset({"integer", "number", "boolean"})


def fits(value: Any, kind: str) -> bool:
    """Return whether a value is already of a schema's type."""
    own = kind_of(value)
    return (
        own == kind
        or (kind == "number" and own == "integer")
        or (kind == "integer" and own == "number" and value.is_integer())
    )


def conversions(value: Any, kind: str) -> Iterator[tuple[str, Any]]:
    """Return what `value` could become as a `kind`: the conversion's name and the new value."""
    if isinstance(value, str):
        yield from _from_text(value, kind)
    if kind == "array" and value is not None and not isinstance(value, list):
        yield "T->[T]", [value]


def _from_text(text: str, kind: str) -> Iterator[tuple[str, Any]]:
    if kind == "boolean" and text in _BOOLEANS:
        yield "str->bool", _BOOLEANS[text]
    elif kind == "integer" and (found := _INTEGER.fullmatch(text)) and len(text) <= LONGEST_NUMBER:
        yield "str->int", int(found[1])
    elif kind == "number" and (found := _NUMBER.fullmatch(text)) and len(text) <= LONGEST_NUMBER:
        yield from _number(found[1])
    elif kind in {"array", "object"} and text.lstrip(" \t\r\n")[:1] == ("[" if kind == "array" else "{"):
        try:
            yield f"str->{kind}", decode(text)
        except ERRORS:
            return


def _number(digits: str) -> Iterator[tuple[str, Any]]:
    try:
        number = int(digits) if digits.lstrip("-").isdecimal() else finite(digits)
    except ValueError:
        return
    if isinstance(number, int):
        yield "str->int", number
    yield "str->float", number

"""The conversions that `coercion.allow` may list, each exact or not at all; and the alternatives of a union that a value can be meant for.

`int()`, `float()` and `isdigit()` must not decide what a number is: they accept other scripts' digits, underscores and names of
non-numbers. Of a value, only its type, its required members and its tag tell alternatives apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from flujo_client.schemas.parts import Part, kind_of, tags_of, telling, types_of
from flujo_client.schemas.schema import Check
from flujo_worker.aros.decode import LONGEST_NUMBER, decoded, finite, same

_BLANKS = r"[ \t\r\n]*+"
_INTEGER: Final = re.compile(rf"{_BLANKS}(-?(?:0|[1-9][0-9]*+)){_BLANKS}")
_NUMBER: Final = re.compile(rf"{_BLANKS}(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?){_BLANKS}")
_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}
SCALARS: Final = frozenset({"integer", "number", "boolean"})


def fits(value: Any, kind: str) -> bool:
    """Return whether a value is already of a schema's type."""
    own = kind_of(value)
    if kind == "integer" and own == "number":
        return bool(value.is_integer())
    return own == kind or (kind == "number" and own == "integer")


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
        yield from ((f"str->{kind}", value) for value in decoded(text))


def _number(digits: str) -> Iterator[tuple[str, Any]]:
    try:
        number = int(digits) if digits.lstrip("-").isdecimal() else finite(digits)
    except ValueError:
        return
    if isinstance(number, int):
        yield "str->int", number
    yield "str->float", number


class Alternatives:
    """The alternatives of one union, in order; `tags` are the members for which each of them that is an object names other values."""

    def __init__(self, check: Check, parts: Sequence[Part]) -> None:
        self.parts = list(parts)
        self._subs = [check.resolved(*each)[0] for each in self.parts]
        self._tags = [tags_of(sub) for sub in self._subs]
        objects = [sub for sub in self._subs if isinstance(sub, dict)]
        objects = [sub for sub in objects if sub.get("type") == "object" or "properties" in sub]
        self.tags = telling(objects) if len(objects) > 1 else ()

    def may_hold(self, value: Any) -> list[int]:
        """List those that may hold for a value as it is."""
        return [index for index, sub in enumerate(self._subs) if self._may_hold(index, sub, value)]

    def meant(self, value: Any) -> list[int]:
        """List those that a value may be converted to: the one that its tag names, or all where it has none that names one."""
        every = list(range(len(self.parts)))
        if not isinstance(value, dict):
            return every
        for name in self.tags:
            named = [index for index in every if name in value and _is_one_of(value[name], self._tags[index].get(name))]
            if named:
                return named
        return every

    def _may_hold(self, index: int, sub: Any, value: Any) -> bool:
        if not isinstance(sub, dict):
            return bool(sub)
        types = types_of(sub)
        if types and not any(fits(value, kind) for kind in types):
            return False
        if not isinstance(value, dict):
            return True
        if not all(name in value for name in sub.get("required") or ()):
            return False
        return all(_is_one_of(value[name], tag) for name, tag in self._tags[index].items() if name in value)


def _is_one_of(value: Any, tag: list[Any] | None) -> bool:
    return tag is not None and any(same(value, each) for each in tag)

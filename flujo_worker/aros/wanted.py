"""Decide quickly, without decoding, whether a part of a text can hold a value of the schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from flujo_client.schemas.parts import mappings_in
from flujo_client.schemas.schema import Check
from flujo_worker.aros.outcome import LIMIT, StageRefused

MOST: Final = 2000
"""The maximum number of different candidates: a text with more is not an answer."""
MOST_NEEDED: Final = 8
"""The maximum number of members that are counted in a text."""


@dataclass(frozen=True)
class Wanted:
    """The requirements for a bracketed part."""

    kinds: frozenset[str]
    needed: tuple[str, ...] = ()
    """The required members; empty if the schema also accepts other values than objects."""

    @classmethod
    def of(cls, check: Check) -> Wanted:
        """Return the requirements of a schema's root."""
        kinds = check.kinds()
        root, _ = check.resolved(check.root, "")
        required = root.get("required") if isinstance(root, dict) and "array" not in kinds else None
        return cls(kinds, tuple(name for name in required or () if isinstance(name, str)))

    @cached_property
    def openers(self) -> str:
        """The opening brackets of values of these kinds."""
        return "".join(sign for sign, kind in (("{", "object"), ("[", "array")) if kind in self.kinds)

    def may_be(self, part: str) -> bool:
        """Return whether a part may hold the value: it is of the right kind, and has every required member."""
        if self.openers != "{":
            return True
        return part[0] == "{" and ("\\" in part or all(map(part.__contains__, self.needed)))


class NeededPlaces:
    """The places in a text of the rarest required member, and of escapes, which may spell it."""

    def __init__(self, text: str, wanted: Wanted) -> None:
        rarest = min(wanted.needed[:MOST_NEEDED], key=text.count, default=None)
        self._text, self._next = text, 0
        escape = r"|\\" if "\\" in text else ""
        self._pattern = None if rarest is None else re.compile(re.escape(rarest) + escape)

    def after(self, position: int) -> int:
        """Return the first such place from a position on; the position itself if no member is required. Positions must not decrease."""
        if self._pattern is None:
            return position
        if self._next <= position:
            found = self._pattern.search(self._text, position)
            self._next = len(self._text) if found is None else found.start()
        return self._next


def words_of(schema: Any) -> frozenset[str]:
    """Return the texts that a schema lists as values."""
    listed: list[Any] = []
    for part in mappings_in(schema):
        listed += [part.get("const"), *(part["enum"] if isinstance(part.get("enum"), list) else ())]
    return frozenset(each for each in listed if isinstance(each, str))


def check_different(parts: int) -> None:
    """Raise `StageRefused` if a text has too many different parts that may be the value."""
    if parts > MOST:
        raise StageRefused(LIMIT, f"more than {MOST} different candidates in the text", stage="extract")

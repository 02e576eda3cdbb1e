"""What a part of a text must be to hold the value of a schema, as far as a glance at the part shows.

It must not decode. In: the kinds of value that the schema could take, and the members that it requires; out: whether a part is worth a try.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from flujo_client.contract.schema import Check
from flujo_worker.aros.outcome import LIMIT, StageRefused

MOST: Final = 2000
"""Different candidates that are tried: a text with more is not an answer."""
MOST_NEEDED: Final = 8
"""Members that are counted in a text."""


@dataclass(frozen=True)
class Wanted:
    """What a bracketed part must be.

    Attributes:
        kinds: of value that the schema could take.
        needed: members without which no part holds; empty if anything but an object may hold.
    """

    kinds: frozenset[str]
    needed: tuple[str, ...] = ()

    @classmethod
    def of(cls, check: Check) -> Wanted:
        """Return what the root of a schema asks for."""
        kinds = check.kinds()
        root, _ = check.resolved(check.root, "")
        required = root.get("required") if isinstance(root, dict) and "array" not in kinds else None
        return cls(kinds, tuple(name for name in required or () if isinstance(name, str)))

    @cached_property
    def openers(self) -> str:
        """The brackets with which a value of these kinds may begin."""
        return "".join(sign for sign, kind in (("{", "object"), ("[", "array")) if kind in self.kinds)

    def may_be(self, part: str) -> bool:
        """Return whether a part may hold the value: not if it is of another kind, or without a member that all need."""
        if self.openers != "{":
            return True
        return part[0] == "{" and ("\\" in part or all(map(part.__contains__, self.needed)))


class NeededPlaces:
    """Where a text names the member that it names least of those that every part needs, or has an escape, which may write it."""

    def __init__(self, text: str, wanted: Wanted) -> None:
        rarest = min(wanted.needed[:MOST_NEEDED], key=text.count, default=None)
        self._text, self._next = text, 0
        escape = r"|\\" if "\\" in text else ""
        self._pattern = None if rarest is None else re.compile(re.escape(rarest) + escape)

    def after(self, position: int) -> int:
        """Return the first such place from a position on, which never moves back; the position itself if nothing is needed."""
        if self._pattern is None:
            return position
        if self._next <= position:
            found = self._pattern.search(self._text, position)
            self._next = len(self._text) if found is None else found.start()
        return self._next


def check_different(parts: int) -> None:
    """Raise `StageRefused` if a text has too many different parts that may be the value."""
    if parts > MOST:
        raise StageRefused(LIMIT, f"more than {MOST} different candidates in the text", stage="extract")

"""The brackets of a text that a scan has found open so far.

It must not find any. In: openers and closers, in the order of the text; out: the region that a closer ends, and the openers that nothing
closed. Many openers in a row are unpacked only when one of them is closed: most are prose.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import islice
from typing import Final

from flujo_worker.aros.outcome import LIMIT, StageRefused
from flujo_worker.aros.region_patterns import BEGINS, OPENER, TOO_DEEP

MOST_OPEN: Final = 100_000
"""Brackets that may be open at once: most of them are prose."""
FEW: Final = 128
"""Brackets of which each may begin a value."""
ENDS: Final = 16
"""If there are more, the number of the first and the last that are examined regardless of what follows them."""
_DEEP: Final = 1000
_BRACE: Final = re.compile(r"\{")
_LIST: Final = re.compile(r"\[")
_NONE: Final = (0, 0)


class OpenBrackets:
    """Places of open brackets, by kind.

    Attributes:
        text: the text.
        braces: where `{` are open.
        lists: where `[` are open.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.braces, self.lists = list[int](), list[int]()
        self._row, self._in_row = _NONE, 0
        self._not_too_deep = -1

    def __bool__(self) -> bool:
        return bool(self.braces or self.lists)

    def __len__(self) -> int:
        return len(self.braces) + len(self.lists) + self._in_row

    def open(self, place: int) -> None:
        """Add one opener.

        Raises:
            StageRefused: at too many.
        """
        self.unpack()
        (self.braces if self.text[place] == "{" else self.lists).append(place)
        self._check_depth()

    def open_row(self, start: int, stop: int) -> int:
        """Add the openers between two places, where there are no closers and no strings, after another one; return their number.

        Raises:
            StageRefused: there are too many.
        """
        number = self.text.count("{", start, stop) + self.text.count("[", start, stop)
        if self._row[1] == start:
            self._row = (self._row[0], stop)
            self._in_row += number
        else:
            self.unpack()
            self._row, self._in_row = (start, stop), number
        self._check_depth()
        return number

    def unpack(self) -> None:
        """Add the openers of the last row to the others: only these can be closed."""
        if self._row != _NONE:
            row, self._row, self._in_row = self._row, _NONE, 0
            self.braces += [mark.start() for mark in _BRACE.finditer(self.text, *row)]
            self.lists += [mark.start() for mark in _LIST.finditer(self.text, *row)]

    def close_row(self, sign: str, number: int) -> int | None:
        """Close so many brackets of the kind of a closer; return the place of the outermost. None: it is not so simple, and nothing is closed."""
        self.unpack()
        own, others = (self.lists, self.braces) if sign == "]" else (self.braces, self.lists)
        if number > len(own) or (others and others[-1] > own[-number]):
            return None
        start = own[-number]
        del own[-number:]
        return start

    def worth_reading(self) -> tuple[int, ...]:
        """Return the places where a value may begin, outermost first: of many, not those in prose, which are seen at a glance."""
        if len(self) <= FEW:
            self.unpack()
        known = sorted(self.braces + self.lists)
        if len(known) <= FEW and self._row == _NONE:
            return tuple(known)
        start, stop = self._row
        backwards = self.text[start:stop][::-1]
        kept = {*known[:ENDS], *known[-ENDS:]}
        kept |= {mark.start() for mark in islice(OPENER.finditer(self.text, start, stop), ENDS)}
        kept |= {stop - mark.end() for mark in islice(OPENER.finditer(backwards), ENDS)}
        begins = (mark.start() for pattern in BEGINS for mark in pattern.finditer(self.text, known[0]))
        kept |= {
            place for place in begins if start <= place < stop or known[bisect_left(known, place) % len(known)] == place
        }
        return tuple(sorted(kept))

    def clear(self) -> None:
        self.braces.clear()
        self.lists.clear()
        self._row, self._in_row = _NONE, 0

    def _check_depth(self) -> None:
        """Refuse too many open brackets, and more in one another than any value has."""
        opened = len(self)
        if opened > MOST_OPEN:
            raise StageRefused(LIMIT, f"more than {MOST_OPEN} brackets are open", stage="extract")
        if opened > _DEEP and (first := min(self.braces[:1] + self.lists[:1])) != self._not_too_deep:
            if TOO_DEEP.match(self.text, first):
                raise StageRefused(LIMIT, f"brackets nested deeper than {_DEEP}", stage="extract")
            self._not_too_deep = first

"""Finds what may be JSON in a text: one pass, a stack, strings and comments respected.

It must not decode or judge. In: a text and a level; out: the maximal balanced regions, and the brackets that nothing closed. Linear in
the text; stops at a depth and a number of tokens. Whatever one pattern can see whole, it does: a step of Python costs as much as thirty
characters of a pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flujo_worker.aros.found_regions import FoundRegions
from flujo_worker.aros.outcome import LIMIT, StageRefused
from flujo_worker.aros.quoted import QuotedParts
from flujo_worker.aros.region_patterns import (
    CLOSERS,
    MARKS,
    OPENER,
    OPENERS,
    OWN_MARKS,
    PATTERNS,
    REGION,
    SINGLE,
    TOKENS,
    TOO_DEEP,
)

if TYPE_CHECKING:
    from flujo_worker.aros.scalars import ParseBudget

MOST_OPEN: Final = 100_000
"""Brackets that may be open at once: most of them are prose."""
MANY: Final = 64
"""Regions, or open brackets, from which on the scan looks for long runs of them."""
_DEEP: Final = 1000
_CLOSES: Final = {"}": "{", "]": "["}


@dataclass(frozen=True, slots=True)
class Open:
    """Brackets that nothing closed, outermost first, up to where the text, or the fence around them, ends.

    Attributes:
        starts: their positions.
        stop: the end of what may belong to them.
        finished: a fence was closed there: the model had finished.
    """

    starts: tuple[int, ...]
    stop: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass found: regions as (start, end), in the order of the text, and open brackets."""

    regions: list[tuple[int, int]]
    open: list[Open]


def scan(text: str, level: int, budget: ParseBudget, needed: re.Pattern[str] | None = None) -> Scan:
    """Find the regions of `text`.

    Args:
        text: the text.
        level: of reading.
        budget: what the text may cost.
        needed: what every region that can be the value matches; of long runs of others, none is returned.

    Raises:
        StageRefused: at the limit of depth, tokens or time.
    """
    return _Scanner(text, level, budget, needed).run()


def same_as_strict(text: str, level: int) -> bool:
    """Return whether a text has the same regions at a level as at level 0."""
    own = OWN_MARKS[level]
    return own is None or own.search(text) is None


def marks(text: str, level: int, budget: ParseBudget) -> list[tuple[int, str]]:
    """Return the brackets and commas of a region that are outside its strings and comments, with their places."""
    quoted = QuotedParts(text, level)
    found: list[tuple[int, str]] = []
    position, pattern = 0, MARKS[level]
    while (mark := pattern.search(text, position)) is not None:
        budget.spend()
        sign, position = mark.group(), mark.end()
        if sign in "{}[](),":
            found.append((mark.start(), sign))
        elif sign[:2] not in {"``", "~~"}:
            position = quoted.end_of(sign, mark.start(), position)
    return found


class _Scanner:
    def __init__(self, text: str, level: int, budget: ParseBudget, needed: re.Pattern[str] | None = None) -> None:
        self.text, self.level, self.budget = text, level, budget
        self.needed, self.needed_at = needed, 0
        self.patterns = PATTERNS[level]
        self.regions, self.open = FoundRegions(text, self.patterns), list[Open]()
        self.stack: list[int] = []
        self.count = {"{": 0, "[": 0}
        self.quoted = QuotedParts(text, level)

    def run(self) -> Scan:
        position, pattern = 0, TOKENS[self.level]
        while True:
            if not self.stack:
                position = self._outside(position)
            else:
                position = self._inside(position)
                if not self.stack:
                    continue
            mark = pattern.search(self.text, position)
            if mark is None:
                break
            self.budget.search()
            position = self._token(mark.group(), mark.start(), mark.end())
        self._end(len(self.text), finished=False)
        return Scan(self.regions.candidates(), self.open)

    def _outside(self, position: int) -> int:
        """Move to the next opener of a region that no pattern sees whole."""
        if not self.regions:
            position = _found(OPENER, self.text, position)
        place: int | None = None
        while place is None:
            known = len(self.regions)
            place, position = self._past_regions(position)
            self.budget.search(max(0, len(self.regions) - known))
        return place

    def _past_regions(self, position: int) -> tuple[int | None, int]:
        """Pass some regions that are seen whole, and surplus closers; return the place of the next opener when it is there."""
        add, regions = self.regions.append, self.regions
        for mark in self.patterns.outside.finditer(self.text, position):
            if mark.lastindex == REGION:
                add(mark.span(REGION))
                if not len(regions) % MANY:
                    regions.check_number()
                    return None, self._past_run(mark.end())
            elif mark.lastindex == CLOSERS:
                place = mark.start(CLOSERS)
                if regions.are_far_from(place):
                    return None, _found(OPENER, self.text, mark.end())
                self.budget.search()
                regions.meet_stray(place)  # only the first of several can be where a region continues to
            else:
                place = mark.end() - (mark.lastindex == SINGLE)
                return place, place
        return len(self.text), len(self.text)

    def _inside(self, position: int) -> int:
        """Move on inside of brackets: past strings, regions that are seen whole, and brackets; to a fence, or a quote in prose."""
        text, stack, steps = self.text, self.stack, 0
        while stack and (steps := steps + 1) % MANY:
            mark = self.patterns.inside.match(text, position)
            if mark is None:
                break
            position = mark.end()
            if mark.lastindex is None:
                break
            if mark.lastindex == REGION:
                self.regions.append(mark.span(REGION))
                if not len(self.regions) % MANY:
                    position = self._past_run(position)
            elif (sign := text[position - 1]) in "}]":
                self._close(sign, position - 1)
            else:
                self._open(sign, position - 1)
                if len(stack) > MANY:
                    position = self._past_openers(position)
        self.budget.search(steps)
        return position

    def _past_run(self, position: int) -> int:
        """Pass many regions at once if they are equal, or if none of them can be the value.

        Together they count as one region, which others enclose or continue; of equal ones, the first is a candidate.
        """
        repeated = self.patterns.repeated.match(self.text, position)
        if repeated is not None:
            self.regions.append(repeated.span(REGION))
            return self._passed(repeated.end(REGION), repeated.end())
        if self.needed is None:
            return position
        if self.needed_at < position:
            self.needed_at = _found(self.needed, self.text, position)
        run = self.patterns.run.match(self.text, position, self.needed_at)
        return position if run is None else self._passed(position, run.end())

    def _passed(self, position: int, end: int) -> int:
        self.regions.append_run((_found(OPENER, self.text, position), end))
        return end

    def _past_openers(self, position: int) -> int:
        """Open many brackets at once, when nothing closes between them."""
        run = OPENERS.match(self.text, position)
        if run is None:
            return position
        known = len(self.stack)
        self.stack += [opener.start() for opener in OPENER.finditer(self.text, position, run.end())]
        for sign in self.count:
            self.count[sign] += self.text.count(sign, position, run.end())
        self._check_depth(known)
        return run.end()

    def _token(self, sign: str, start: int, end: int) -> int:
        if sign in "{[":
            self._open(sign, start)
        elif sign in "}]":
            self._close(sign, start)
        elif sign[:2] in {"``", "~~"}:
            self._end(start, finished=True)
        elif self.stack:
            return self.quoted.end_of(sign, start, end)
        return end

    def _open(self, sign: str, start: int) -> None:
        self.stack.append(start)
        self.count[sign] += 1
        self._check_depth(len(self.stack) - 1)

    def _check_depth(self, known: int) -> None:
        """Stop at too many open brackets, of which so many were known before."""
        if len(self.stack) > MOST_OPEN:
            raise StageRefused(LIMIT, f"more than {MOST_OPEN} brackets are open", stage="extract")
        if known <= _DEEP < len(self.stack) and TOO_DEEP.match(self.text, self.stack[0]):
            raise StageRefused(LIMIT, f"brackets nested deeper than {_DEEP}", stage="extract")

    def _close(self, sign: str, place: int) -> None:
        wanted = _CLOSES[sign]
        if not self.count[wanted]:
            if not self.stack:
                self.regions.meet_stray(place)
            return
        while True:  # an opener that this one encloses was a stray, or is for `brackets` to settle
            start = self.stack.pop()
            self.count[self.text[start]] -= 1
            if self.text[start] == wanted:
                break
        self.regions.enclose(start, place + 1)

    def _end(self, stop: int, *, finished: bool) -> None:
        if self.stack:
            self.open.append(Open(tuple(self.stack), stop, finished))
        self.stack.clear()
        self.count = {"{": 0, "[": 0}


def _found(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return where a pattern is found from `position` on; the text's end where it is not."""
    found = pattern.search(text, position)
    return len(text) if found is None else found.start()

"""Finds what may be JSON in a text: one pass, a stack, strings and comments respected, linear in the text. Nothing is decoded or judged here.

Whatever one pattern can see whole, it does: a step of Python costs as much as thirty characters of a pattern. Openers, and then closers, with only
prose between them are passed in the tightest loops.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from flujo_client.frozen import frozen
from flujo_worker.aros.found_regions import FoundRegions, OpenBrackets, Region
from flujo_worker.aros.region_patterns import ALIKE, CLOSERS, MARKS, OPENER, PATTERNS, REGION, SINGLE, TOKENS
from flujo_worker.aros.scalars import ParseBudget
from flujo_worker.aros.strings import QuotedParts
from flujo_worker.aros.wanted import Wanted

MANY: Final = 64
"""Regions from which on the scan looks for long runs of them."""
_OPENING: Final = "{["
_CLOSING: Final = "}]"
_IN_A_ROW: Final = 1000
"""Brackets that are passed before the budget is asked."""


@frozen
class Open:
    """Unclosed brackets, outermost first, up to the end of the text, or of the fence around them."""

    starts: tuple[int, ...]
    """Their positions; of many, those where a value may begin, and some at both ends."""
    stop: int
    """The end of their text."""
    finished: bool
    """Whether a fence was closed there: the model had finished."""


@frozen
class Scan:
    """The result of one pass: regions as (start, end), in the order of the text, and open brackets."""

    regions: list[tuple[int, int]]
    open: list[Open]
    by_patterns: bool
    """Patterns saw the whole text, which see the same at all levels from 1 on."""


def scan(text: str, level: int, budget: ParseBudget, wanted: Wanted) -> Scan:
    """Find the regions of a text at a level of reading; of long runs that are not what is wanted, none is returned."""
    return _Scanner(text, level, budget, wanted).run()


def read_as_strict(text: str) -> int:
    """Return the highest level at which a text has the same regions as at level 0."""
    return next((level for level, alike in ALIKE.items() if any(each.fullmatch(text) for each in alike)), 0)


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
    def __init__(self, text: str, level: int, budget: ParseBudget, wanted: Wanted) -> None:
        self.text, self.level, self.budget = text, level, budget
        self.patterns = PATTERNS[level]
        self.regions, self.open = FoundRegions(text, self.patterns, wanted), list[Open]()
        self.opened = OpenBrackets(text)
        self.quoted = QuotedParts(text, level)
        self.matched_to = 0
        """The end of the last run of closers: what did not close at once is not matched again."""

    def run(self) -> Scan:
        position, pattern, tokens = 0, TOKENS[self.level], 0
        while True:
            if not self.opened:
                position = self._outside(position)
            else:
                position = self._inside(position)
                if not self.opened:
                    continue
            mark = pattern.search(self.text, position)
            if mark is None:
                break
            self.budget.search()
            tokens += 1
            position = self._token(mark.group(), mark.start(), mark.end())
        self._end(len(self.text), finished=False)
        return Scan(self.regions.candidates(), self.open, by_patterns=not tokens)

    def _outside(self, position: int) -> int:
        """Move to the next opener of a region that no pattern sees whole."""
        if not self.regions:
            position = _found(OPENER, self.text, position)
        place: int | None = None
        while place is None:
            known = len(self.regions)
            place, position = self._past_regions(position)
            self.regions.check_number(known)
            self.budget.search(max(0, len(self.regions) - known))
            if place is None:
                position = self._past_run(position, known)
        return place

    def _past_regions(self, position: int) -> tuple[int | None, int]:
        """Pass some regions, and surplus closers; return the place of the next opener that is not of a region, if it is there."""
        add, regions = self.regions.append, self.regions
        for mark in islice(self.patterns.outside.finditer(self.text, position), MANY):
            if mark.lastindex == REGION:
                add(mark.span(REGION))
            elif mark.lastindex == CLOSERS:
                place = mark.start(CLOSERS)
                if regions.are_far_from(place):
                    return None, _found(OPENER, self.text, mark.end())
                self.budget.search()
                regions.meet_stray(place)  # only the first of several can be where a region continues to
            elif mark.lastindex == SINGLE:
                place = mark.start(SINGLE)
                end = regions.append_decodable(place, self.level)
                return (None if end > place else place, end)
            else:
                return mark.end(), mark.end()
        return None, mark.end()

    def _inside(self, position: int) -> int:
        """Move on inside of brackets: past strings, regions that are seen whole, and brackets; to a fence, or a quote in prose."""
        while self.opened:
            mark = self.patterns.inside.match(self.text, position)
            if mark is None:
                break
            self.budget.search()
            position = mark.end()
            if mark.lastindex is None:
                break
            if mark.lastindex == REGION:
                self.regions.append(mark.span(REGION))
                position = self._past_run(position, len(self.regions) - 1)
            else:
                position = self._past_brackets(position - 1)
        return position

    def _past_run(self, position: int, known: int) -> int:
        """Pass many regions at once if they are equal, or if none of them can be the value; look where their number passes `MANY`.

        Together they count as one region, which others enclose or continue; of equal ones, the first is a candidate. `known` is how many
        regions there were before.
        """
        if known // MANY == len(self.regions) // MANY:
            return position
        part = self.regions.twice()
        equal = self.patterns.repeated(part).match(self.text, position) if part else None
        if equal is not None:
            return self._passed(position, equal.start(REGION), part)
        stop = self.regions.needed.after(position)
        run = self.patterns.run.match(self.text, position, stop) if stop > position else None
        return position if run is None else self._passed(position, run.start(REGION))

    def _passed(self, position: int, last: int, part: str | None = None) -> int:
        """Pass the regions before the last one, which something may continue."""
        end = _last(_CLOSING, self.text, position, last)
        region = _found(OPENER, self.text, position), end
        self.regions.append(region)
        self.regions.runs[region] = part
        return end

    def _past_brackets(self, place: int) -> int:
        """Pass openers from a place on, and then closers, as far as only prose is between them."""
        if self.text[place] in "{[":
            self.opened.open(place, place + 1)
            place = self._past_openers(place + 1)
        return self._past_closers(place)

    def _past_openers(self, position: int) -> int:
        """Open what only prose leads to, but no opener before a string: it begins a region that may be seen whole."""
        found = self.patterns.openers.match(self.text, position)
        stop = position if found is None else found.end()
        if stop == position:
            return position
        last = _last(_OPENING, self.text, position, stop)
        if self.text[stop : stop + 1] == '"' and not self.text[last:stop].strip():
            last = _last(_OPENING, self.text, position, last - 1)
        if last > position:
            self.budget.search(self.opened.open(position, last))
        return last

    def _past_closers(self, position: int) -> int:
        """Close what is open; an opener that a closer encloses was a stray, or is for `last_resorts` to settle."""
        closed: Region | None = None
        run = self.patterns.closers.match(self.text, position) if position >= self.matched_to else None
        if run is not None:
            # many of one kind: if nothing of the other was opened since their openers, they close at once
            self.matched_to = run.end()
            sign = self.text[run.end() - 1]
            start = self.opened.close(sign, self.text.count(sign, position, run.end()))
            if start is not None:
                closed, position = (start, run.end()), run.end()
        if self.opened:
            outer, position = self._past_single_closers(position)
            closed = outer or closed
        if closed is None:
            return position
        known = len(self.regions)
        self.regions.enclose(*closed)
        return self._past_run(position, known)

    def _past_single_closers(self, position: int) -> tuple[Region | None, int]:
        """Return the region that the last of them ends, and the place after them."""
        text, braces, lists = self.text, self.opened.braces, self.opened.lists
        region: Region | None = None
        passed = 0
        for mark in islice(self.patterns.brackets.finditer(text, position), _IN_A_ROW):
            place = mark.start()
            sign = text[place]
            if sign == "]":
                own, others = lists, braces
            elif sign == "}":
                own, others = braces, lists
            else:
                break
            passed += 1
            position = place + 1
            if own:
                start = own.pop()
                while others and others[-1] > start:
                    others.pop()
                region = (start, position)
                if not (own or others):
                    break
        self.budget.search(passed)
        return region, position

    def _token(self, sign: str, start: int, end: int) -> int:
        if sign in "{[":
            return self._past_brackets(start)
        if sign in "}]":
            if self.opened:
                return self._past_closers(start)
            self.regions.meet_stray(start)
        elif sign[:2] in {"``", "~~"}:
            self._end(start, finished=True)
        elif self.opened:
            return self.quoted.end_of(sign, start, end)
        return end

    def _end(self, stop: int, *, finished: bool) -> None:
        if self.opened:
            self.open.append(Open(self.opened.worth_reading(), stop, finished))
        self.opened.clear()


def _last(signs: str, text: str, start: int, stop: int) -> int:
    """Return the place after the last of two signs between two places; the first place where there is none."""
    return max(start, text.rfind(signs[0], start, stop) + 1, text.rfind(signs[1], start, stop) + 1)


def _found(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return where a pattern is found from `position` on; the text's end where it is not."""
    found = pattern.search(text, position)
    return len(text) if found is None else found.start()

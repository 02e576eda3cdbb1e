"""The regions of a text that a scan has found so far, what continues them, and the brackets that are still open."""

from __future__ import annotations

import json
import re
from itertools import repeat
from typing import Final

from flujo_worker.aros.outcome import LIMIT, StageRefused
from flujo_worker.aros.region_patterns import (
    BEGINS,
    BRACKET,
    CONTINUED,
    MEMBER,
    MORE,
    MORE_LISTED,
    NO_MORE,
    REGION,
    TOO_DEEP,
    TORN,
    RegionPatterns,
)
from flujo_worker.aros.wanted import NeededPlaces, Wanted, check_different

MOST_REGIONS: Final = 5_000
"""Regions, those in long runs aside, that may be found outside of all brackets."""
LONGEST_EQUAL: Final = 1000
"""Characters of a region that is looked for again."""
FAR: Final = 1024
"""Characters after a region beyond which nothing continues it."""
_AT_ONCE: Final = 64
"""Decodable regions that are added at once."""
_FAILURES: Final = 64
"""The number of failures after which the decoder is no longer tried."""
_decoded_from: Final = json.JSONDecoder().raw_decode

MOST_OPEN: Final = 100_000
"""Brackets that may be open at once: most of them are prose."""
FEW: Final = 128
"""Brackets of which each may begin a value."""
ENDS: Final = 16
"""If there are more, the number of the first and the last that are examined regardless of what follows them."""
_DEEP: Final = 1000
_BRACE: Final = re.compile(r"\{")
_LIST: Final = re.compile(r"\[")

Region = tuple[int, int]


class FoundRegions(list[Region]):
    """Regions as (start, end), none inside of another one; some of them are runs of many that cannot be the value."""

    def __init__(self, text: str, patterns: RegionPatterns, wanted: Wanted) -> None:
        super().__init__()
        self.text, self.patterns, self.wanted = text, patterns, wanted
        self.needed = NeededPlaces(text, wanted)
        self.different = set[str]()
        """The texts of those outside of all brackets that may be the value."""
        self.runs: dict[Region, str | None] = {}
        """The regions that are runs, with the text of each part if they are equal."""
        self.settled = 0
        """How many of them no later bracket continues."""
        self._failures_left = _FAILURES

    def candidates(self) -> list[Region]:
        """Return those that may be the value, at the text's end."""
        self._join_what_goes_on()
        return [region for region in self if region not in self.runs] if self.runs else list(self)

    def append_decodable(self, place: int, level: int) -> int:
        """Add some regions that are strict JSON, with only prose between them: the decoder finds their ends faster than a scan.

        The first begins at a place; return where the last one ends, or the place if there is none. From level 1 on, the text after a region
        decides whether it ends there.
        """
        text, end = self.text, place
        try:
            for _ in repeat(None, _AT_ONCE if self._failures_left else 0):
                stop = _decoded_from(text, place)[1]
                if level and text[stop : stop + 1].strip() not in {"", *",}]"}:
                    break
                self.append((place, stop))
                end = stop
                bracket = BRACKET.search(text, end)
                if bracket is None or bracket[0] in "}]":
                    break
                place = bracket.start()
        except (ValueError, RecursionError):
            self._failures_left -= 1
        return end

    def twice(self) -> str | None:
        """Return the text of the last region if the one before is equal, and both are short."""
        if len(self) < 2:  # noqa: PLR2004 - two are compared
            return None
        (first, last), (start, end) = self[-2:]
        part = self.text[start:end] if end - start <= LONGEST_EQUAL else None
        return part if part is not None and part == self.text[first:last] else None

    def check_number(self, known: int) -> None:
        """Refuse too many; of those that were added since so many were known, outside of all brackets, too many that differ."""
        if len(self) > MOST_REGIONS:
            message = f"more than {MOST_REGIONS} bracketed parts in the text"
            raise StageRefused(LIMIT, f"{message}, and too few of them can be left out at a glance", stage="extract")
        added = self[known:]
        if added and self.needed.after(added[0][0]) < added[-1][1]:
            self.different.update(filter(self.wanted.may_be, (self.text[start:end] for start, end in added)))
            check_different(len(self.different))

    def enclose(self, start: int, end: int) -> None:
        """Add a region that encloses those from `start` on."""
        while self and self[-1][0] >= start:
            self.pop()
        self.append((start, end))
        self.settled = min(self.settled, len(self))

    def are_far_from(self, place: int) -> bool:
        """Return whether nothing at a place can continue a region; if so, they are settled."""
        if self and place - self[-1][1] <= FAR:
            return False
        self.settled = len(self)
        return True

    def meet_stray(self, place: int) -> None:
        """Handle a surplus closing bracket outside of all brackets. If JSON, not prose, leads up to it from a region, that region ended too early."""
        first, after = None, place
        index, settled = len(self), max(self.settled - 1, 0)
        while index > settled:
            if self[index - 1] in self.runs:
                index += self._unfold(index - 1)
                continue
            index -= 1
            start, end = self[index]
            if self._goes_on(start, end, place + 1):
                first = start
            elif NO_MORE.fullmatch(self.text, end, after) is None:
                break
            after = start
        if first is not None:
            self.enclose(first, place + 1)
        self.settled = len(self)

    def _unfold(self, index: int) -> int:
        """Put its regions in the place of a run; return how many more there are."""
        run = self[index]
        part = self.runs.pop(run)
        if part is None:
            found = self.patterns.outside.finditer(self.text, *run)
            parts = [each.span(REGION) for each in found if each.lastindex == REGION]
        else:
            parts = [each.span() for each in re.compile(re.escape(part)).finditer(self.text, *run)]
        self[index : index + 1] = parts
        return len(parts) - 1

    def _goes_on(self, start: int, end: int, stop: int) -> bool:
        """Return whether another value, or the rest of one, follows a region directly; the stray closer ends at `stop`."""
        if MORE.match(self.text, end, stop):
            return True
        lists = self.text[start] == "[" and self.text[stop - 1] == "]"
        torn = TORN.search(self.text, max(start, end - 66), end) is not None
        return (lists or torn) and MORE_LISTED.match(self.text, end, stop) is not None

    def _join_what_goes_on(self) -> None:
        """Join regions that ended too early, because another member follows: together they are one candidate, which does not decode."""
        if CONTINUED.search(self.text) is None:
            return
        ends = [end for _, end in self]
        for index, follows in enumerate(map(MEMBER.match, repeat(self.text), ends)):
            if follows is not None:
                self[index:] = [(self[index][0], len(self.text))]
                return


class OpenBrackets:
    """Places of open brackets, by kind."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.braces, self.lists = list[int](), list[int]()
        self._not_too_deep = -1

    def __bool__(self) -> bool:
        return bool(self.braces or self.lists)

    def open(self, start: int, stop: int) -> int:
        """Add the openers between two places, where there are no closers and no strings; return their number."""
        number = self.text.count("{", start, stop) + self.text.count("[", start, stop)
        self._check_depth(len(self.braces) + len(self.lists) + number)
        self.braces += [mark.start() for mark in _BRACE.finditer(self.text, start, stop)]
        self.lists += [mark.start() for mark in _LIST.finditer(self.text, start, stop)]
        return number

    def close(self, sign: str, number: int) -> int | None:
        """Close so many brackets of the kind of a closer; return the place of the outermost. None: it is not so simple, and nothing is closed."""
        own, others = (self.lists, self.braces) if sign == "]" else (self.braces, self.lists)
        if number > len(own) or (others and others[-1] > own[-number]):
            return None
        start = own[-number]
        del own[-number:]
        return start

    def worth_reading(self) -> tuple[int, ...]:
        """Return the places where a value may begin, outermost first: of many, not those in prose, which are seen at a glance."""
        known = sorted(self.braces + self.lists)
        if len(known) <= FEW:
            return tuple(known)
        begins = {mark.start() for pattern in BEGINS for mark in pattern.finditer(self.text, known[0])}
        return tuple(sorted({*known[:ENDS], *known[-ENDS:], *begins.intersection(known)}))

    def clear(self) -> None:
        self.braces.clear()
        self.lists.clear()

    def _check_depth(self, opened: int) -> None:
        """Refuse too many open brackets, and more in one another than any value has."""
        if opened > MOST_OPEN:
            raise StageRefused(LIMIT, f"more than {MOST_OPEN} brackets are open", stage="extract")
        if opened > _DEEP and (first := min(self.braces[:1] + self.lists[:1])) != self._not_too_deep:
            if TOO_DEEP.match(self.text, first):
                raise StageRefused(LIMIT, f"brackets nested deeper than {_DEEP}", stage="extract")
            self._not_too_deep = first

"""The regions of a text that a scan has found so far, and what continues them.

It must not find any. In: regions and surplus closing brackets, in the order of the text; out: those that may be the value.
"""

from __future__ import annotations

import re
from itertools import repeat
from typing import Final

from flujo_worker.aros.outcome import LIMIT, StageRefused
from flujo_worker.aros.region_patterns import (
    CONTINUED,
    MEMBER,
    MORE,
    MORE_LISTED,
    NO_MORE,
    REGION,
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

Region = tuple[int, int]


class FoundRegions(list[Region]):
    """Regions as (start, end), none inside of another one; some of them are runs of many that cannot be the value.

    Attributes:
        text: the text.
        patterns: what the scan sees at once.
        wanted: what the value must be.
        needed: where the text names what the value has.
        different: the texts of those outside of all brackets that may be the value.
        runs: the regions that are runs, with the text of each part if they are equal.
        settled: how many of them no later bracket continues.
    """

    def __init__(self, text: str, patterns: RegionPatterns, wanted: Wanted) -> None:
        super().__init__()
        self.text, self.patterns, self.wanted = text, patterns, wanted
        self.needed = NeededPlaces(text, wanted)
        self.different = set[str]()
        self.runs: dict[Region, str | None] = {}
        self.settled = 0

    def candidates(self) -> list[Region]:
        """Return those that may be the value, at the text's end."""
        self._join_what_goes_on()
        return [region for region in self if region not in self.runs] if self.runs else list(self)

    def append_run(self, region: Region, part: str | None = None) -> None:
        self.append(region)
        self.runs[region] = part

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
            message = (
                f"more than {MOST_REGIONS} bracketed parts in the text, and too few of them can be left out at a glance"
            )
            raise StageRefused(LIMIT, message, stage="extract")
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

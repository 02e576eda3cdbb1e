"""Find the parts of a text that could be the value, best first, in one layer of encoding at a time. None is judged here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from flujo_client.frozen import frozen
from flujo_worker.aros.decode import decoded
from flujo_worker.aros.extract import MANY, Open, Scan, read_as_strict, scan
from flujo_worker.aros.found_regions import ENDS, FEW, Region
from flujo_worker.aros.grammar import REPAIR
from flujo_worker.aros.outcome import CUT, LIMIT, StageRefused
from flujo_worker.aros.reader import CLOSER, Reader
from flujo_worker.aros.region_patterns import BEGINS_STRICT
from flujo_worker.aros.scalars import ParseBudget
from flujo_worker.aros.unwrap import layers, without_codes, without_reasoning
from flujo_worker.aros.wanted import Wanted, check_different

MOST_FENCES: Final = 16
_FENCE: Final = re.compile(r"```+|~~~+")
_INFO: Final = re.compile(r"[ \t]*[\w+.-]*[ \t]*\r?\n|json\b[ \t]*", re.IGNORECASE)
_PROSE: Final = re.compile(r"\s*\n\s*(?!\w+\s*:)[^\W\d_]|\s*\n\s*[*(>-]+\s*\w")
_GOES_ON: Final = re.compile(r"[\[{]|\A[\s}\]]*+,")
_AFTER_COMMA: Final = re.compile(r"\s*+,\s*+\Z")
_LONE: Final = re.compile(r"[\[{]\s*\Z")


_AROUND: Final[Mapping[str, Callable[[str], str]]] = {
    "terminal-codes": without_codes,
    "reasoning": without_reasoning,
    "byte-order-mark": lambda text: text.lstrip("\ufeff"),
}
"""What may be around an answer, by the name of the transform that takes it off."""


@frozen
class TextCandidate:
    """A part of the text that may be the value."""

    start: int
    stop: int
    kind: str
    """`object`, `array` or `scalar`, by its first character."""
    unclosed: bool = False
    """Closing brackets are missing at its end."""
    finished: bool = True
    """More than the text's end follows: the model had come to an end."""
    refusal: StageRefused | None = None
    """Why it cannot be read at this level, when that is known."""

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(slots=True)
class CandidateLayer:
    """The candidates of one layer at one level; `cut` when the text ends inside one that nothing can close."""

    candidates: list[TextCandidate]
    cut: StageRefused | None = None


@dataclass
class Layer:
    """One text, as it came or with some layers of encoding undone."""

    text: str
    depth: int
    """The number of layers that were undone."""
    wanted: Wanted
    """The requirements for a part of it that may hold the value."""
    whole: tuple[Any, ...] = ()
    """The text's value, if it is one JSON value."""
    removed: tuple[str, ...] = ()
    """What was taken off."""
    _found: dict[int, CandidateLayer] = field(default_factory=dict)
    _scans: dict[int, Scan] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, depth: int, wanted: Wanted) -> Layer:
        """Take codes of a terminal, the thinking and the byte-order mark off, unless the text is one JSON value."""
        if whole := decoded(text):
            return cls(text, depth, wanted, whole)
        removed = []
        for name, without in _AROUND.items():
            if (rest := without(text)) != text:
                text = rest
                removed.append(name)
        return cls(text, depth, wanted, decoded(text) if removed else (), tuple(removed))

    def found(self, level: int, budget: ParseBudget) -> CandidateLayer:
        """Return the candidates at a level of reading, best first: of the schema's own kind, then the largest."""
        if level not in self._found:
            found = self._look(level, budget)
            found.candidates.sort(key=lambda one: (*self.rank(one), -one.size, one.start))
            self._found[level] = found
        return self._found[level]

    def rank(self, candidate: TextCandidate) -> tuple[bool, bool]:
        """Return how unlike the schema's kinds a candidate is: the lowest come first."""
        return candidate.kind == "scalar", candidate.kind not in self.wanted.kinds

    def _look(self, level: int, budget: ParseBudget) -> CandidateLayer:
        if self.whole or (level == 0 and self._one_region()):
            start, stop = (0, len(self.text)) if self.whole else self._span()
            return CandidateLayer([TextCandidate(start, stop, _kind(self.text, start))])
        found = self._scanned(level, budget)
        regions, opened, cut = found.regions, list[TextCandidate](), None
        for open_ in found.open:  # prose, a slip at the end, or a text that was cut
            if (taken := _opened(self.text, open_, level, budget)) is not None:
                regions = [region for region in regions if not taken.start <= region[0] < open_.stop]
                opened.append(taken)
                cut = cut if taken.finished else taken.refusal or cut
        if len(regions) > MANY:
            regions = _worth_a_look(self.text, regions, self.wanted)
        candidates = map(self._candidate, regions)
        return CandidateLayer([*opened, *candidates, *self._fenced(level)], cut)

    def _candidate(self, region: Region) -> TextCandidate:
        start, stop = region
        return TextCandidate(start, stop, _kind(self.text, start), finished=not _AFTER_COMMA.match(self.text, stop))

    def _scanned(self, level: int, budget: ParseBudget) -> Scan:
        if level and level <= self._strict_up_to:
            level = 0
        elif level > 1 and 1 in self._scans and self._scans[1].by_patterns:
            level = 1
        if level not in self._scans:
            self._scans[level] = scan(self.text, level, budget, self.wanted)
        return self._scans[level]

    @cached_property
    def _strict_up_to(self) -> int:
        return read_as_strict(self.text)

    def below(self, budget: ParseBudget) -> list[str]:
        """Return the texts one layer of encoding down."""
        if self.whole and not isinstance(self.whole[0], str):
            return []
        return layers(self.text, [] if self.whole else self._scanned(0, budget).regions)

    def _span(self) -> tuple[int, int]:
        starts = [place for place in (self.text.find("{"), self.text.find("[")) if place >= 0]
        return min(starts, default=0), max(self.text.rfind("}"), self.text.rfind("]")) + 1

    def _one_region(self) -> bool:
        """Most answers are one value with prose around it: the decoder sees that faster than a scan does."""
        start, stop = self._span()
        return start < stop and not _GOES_ON.search(self.text[stop:]) and bool(decoded(self.text[start:stop]))

    @cached_property
    def _fences(self) -> list[re.Match[str]]:
        may_be = "`" in self.text or "~" in self.text
        return list(islice(_FENCE.finditer(self.text), 2 * MOST_FENCES)) if may_be else []

    def _fenced(self, level: int) -> Iterator[TextCandidate]:
        """Yield the whole text and the fences that hold a scalar or a tuple: regions are found by their brackets."""
        marks = self._fences
        bodies = [(opening.end(), closing.start()) for opening, closing in zip(marks[::2], marks[1::2], strict=False)]
        for start, stop in [(0, len(self.text)), *bodies]:
            info = _INFO.match(self.text, start, stop) if start else None
            body = self.text[info.end() if info else start : stop].lstrip()
            if not body or body[0] in "{[":
                continue
            if body[0] != "(":
                yield TextCandidate(stop - len(body), stop, "scalar")
            elif level == REPAIR and body.rstrip()[-1] == ")":
                yield TextCandidate(stop - len(body), stop, "array")


def _worth_a_look(text: str, regions: list[Region], wanted: Wanted) -> list[Region]:
    """Drop from many regions those that cannot match, but not the best, and the duplicates, but not the first and the last of each."""
    first, last = dict[str, Region](), dict[str, Region]()
    for start, stop in regions:
        part = text[start:stop]
        if wanted.may_be(part):
            first.setdefault(part, (start, stop))
            last[part] = (start, stop)
            check_different(len(first))
    own = wanted.openers
    best = max(regions, key=lambda region: (text[region[0]] in own, region[1] - region[0], -region[0]))
    return sorted({best, *first.values(), *last.values()})


def _opened(text: str, open_: Open, level: int, budget: ParseBudget) -> TextCandidate | None:
    for start in _beginnings(text, open_.starts, level):
        reader = Reader(text, start, open_.stop, level, budget)
        kind = _kind(text, start)
        try:
            reader.read(unclosed=True)
        except StageRefused as refused:
            if refused.rule == LIMIT:
                raise
            if reader.between and _PROSE.match(text, _blank_before(text, reader.position), open_.stop):
                return TextCandidate(start, reader.position, kind, unclosed=True)
            next_value = reader.between and text[reader.position : reader.position + 1] in {"[", "{", '"'}
            if reader.progress or next_value or (refused.rule == CUT and not _is_prose(text, start)):
                finished = open_.finished or refused.rule == CLOSER  # a wrong closer does not end the text
                return TextCandidate(start, open_.stop, kind, finished=finished, refusal=refused)
        else:
            return TextCandidate(start, open_.stop, kind, unclosed=True, finished=open_.finished)
    return None


def _beginnings(text: str, starts: Sequence[int], level: int) -> Iterator[int]:
    """Yield the open brackets that may begin a value; of many, at level 0 only those where strict JSON may."""
    if len(starts) <= FEW or level:
        yield from starts
        return
    yield from starts[:ENDS]
    yield from (start for start in starts[ENDS:-ENDS] if BEGINS_STRICT.match(text, start))
    yield from starts[-ENDS:]


def _is_prose(text: str, start: int) -> bool:
    """Return whether a single bracket ends a sentence, and so does not begin a value."""
    before = text[:start].rstrip(" ")[-1:]
    return _LONE.match(text, start) is not None and before not in "\n,:[{"


def _blank_before(text: str, place: int) -> int:
    while place > 0 and text[place - 1].isspace():
        place -= 1
    return place


def _kind(text: str, start: int) -> str:
    first = text[start:].lstrip()[:1] if start == 0 else text[start]
    return {"{": "object", "[": "array"}.get(first, "scalar")

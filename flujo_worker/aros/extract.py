"""Finds what may be JSON in a text: one pass, a stack, strings and comments respected.

It must not decode or judge. In: a text and a level; out: the maximal balanced regions, and the brackets that nothing closed. Linear in
the text; stops at a depth and a number of tokens.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flujo_worker.aros.grammar import CLOSES, TRIPLE
from flujo_worker.aros.outcome import LIMIT, StageRefused
from flujo_worker.aros.scalars import REPAIR

if TYPE_CHECKING:
    from flujo_worker.aros.scalars import ParseBudget

MOST_OPEN: Final = 100_000
"""Brackets that may be open at once: most of them are prose."""
_DEEP: Final = 1000
_FENCE = r"```+|~~~+"
_TOKENS: Final = (
    re.compile(rf"[\"{{}}\[\]]|{_FENCE}"),
    re.compile(rf"[\"'{{}}\[\]]|{_FENCE}|//|/\*"),
    re.compile(rf"\"\"\"|'''|[\"'“„‘{{}}\[\]]|{_FENCE}|//|/\*|\#"),
)
_OPENER: Final = re.compile(r"[{\[]")
_OUTSIDE: Final = re.compile(r"[{\[]|[}\]][\s}\]]*+")
"""What counts outside of all brackets: openers, and closers after a region, all in one that only blanks part."""
_STRING: Final = r'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|(?!"))'
_PLAIN: Final = rf'[^{{}}\[\]"`~,:]++|[,:]\s*+{_STRING}|(?<![{{\[,:\s])"|`(?!``)|~(?!~~)'
_NESTED: Final = 3
"""Levels of brackets that are seen in one."""


def _region(opener: str, closer: str, levels: int) -> str:
    """Write the pattern of a region at level 0."""
    inner = "".join(f"|{_region(*pair, levels - 1)}" for pair in (("{", "}"), ("[", "]"))) if levels else ""
    return rf"{re.escape(opener)}\s*+{_STRING}(?:{_PLAIN}{inner})*+{re.escape(closer)}"


_REGION: Final = {
    opener: re.compile(_region(opener, closer, _NESTED), re.DOTALL) for opener, closer in (("{", "}"), ("[", "]"))
}
_INSIDE: Final = re.compile(rf"(?:{_PLAIN})*+", re.DOTALL)
_AFTER_OPENER: Final = re.compile(rf"\s*+{_STRING}(?:{_PLAIN})*+", re.DOTALL)
_TOO_DEEP: Final = re.compile(r'(?:[\[{]\s*+(?:"[^"\\]*+"\s*+:\s*+)?+){1001}')
"""Openers one in the other, deeper than any value that is decoded."""
_MARKS: Final = tuple(re.compile(f"{tokens.pattern}|[(),]") for tokens in _TOKENS)
_CLOSES: Final = {"}": "{", "]": "["}
_AFTER: Final = r"\s{0,64}+(?:[,:}\]])"
_SCALAR: Final = (
    rf"(?:[\"'][^\"'\n]{{0,200}}+[\"']{_AFTER}|-?\d[\d.eE+-]{{0,64}}+{_AFTER}"
    rf"|(?:true|false|null|True|False|None){_AFTER}|\w[\w ]{{0,200}}+[\"']{_AFTER})"
)
_MORE: Final = re.compile(
    rf"[\s}}\]]{{0,64}}+(?:[,:]\s{{0,64}}+(?:{_SCALAR}|\w{{1,200}}+\s{{0,64}}+:|[{{\[])|{_SCALAR})"
)
_MORE_LISTED: Final = re.compile(r"[\s}\]]{0,64}+[{\[]")
_TORN: Final = re.compile(r"[,:]\s{0,64}+[}\]]\Z")
_NO_MORE: Final = re.compile(r"[\s}\]]{0,64}+")
_MEMBER: Final = re.compile(r"[\s}\]]{0,64}+,\s{0,64}+[\"'][^\"'\n]{0,200}+[\"']\s{0,64}+:")
_TYPOGRAPHIC: Final = {
    "“": re.compile(r"[^“”]*+[”“]"),
    "„": re.compile(r"[^“”]*+[”“]"),
    "‘": re.compile(r"[^‘\n]*?’(?=\s*+[,:\]}])"),
}
_AFTER_VALUE = rf"\s*+(?:,|{CLOSES}|\Z|/[/*]|\#)|\s++[\"'“{{\[]"
_ENDS_VALUE: Final = re.compile(_AFTER_VALUE)
_ENDS_ANY: Final = re.compile(rf"{_AFTER_VALUE}|\s*+:")
_OPENS_VALUE: Final = re.compile(r":\s{0,64}+[\"']\Z")
_ENDS: Final = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL),
}


@dataclass(frozen=True, slots=True)
class Open:
    """Brackets that nothing closed, outermost first, up to where the text, or the fence around them, ends.

    Attributes:
        starts: where they stand.
        stop: the end of what may belong to them.
        finished: a fence was closed there: the model had finished.
    """

    starts: tuple[int, ...]
    stop: int
    finished: bool


@dataclass(slots=True)
class Scan:
    """What one pass found: regions as (start, end), in the order of the text, and open brackets."""

    regions: list[tuple[int, int]] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)


def scan(text: str, level: int, budget: ParseBudget) -> Scan:
    """Find the regions of `text`.

    Raises:
        StageRefused: at the limit of depth or tokens.
    """
    return _Scanner(text, level, budget).run()


def marks(text: str, level: int, budget: ParseBudget) -> list[tuple[int, str]]:
    """Return the brackets and commas of a region that stand outside its strings and comments, with their places."""
    scanner = _Scanner(text, level, budget)
    found: list[tuple[int, str]] = []
    position, pattern = 0, _MARKS[level]
    while (mark := pattern.search(text, position)) is not None:
        budget.spend()
        sign, position = mark.group(), mark.end()
        if sign in "{}[](),":
            found.append((mark.start(), sign))
        elif sign[:2] not in {"``", "~~"}:
            position = scanner.inside(sign, mark.start(), position)
    return found


class _Scanner:
    def __init__(self, text: str, level: int, budget: ParseBudget) -> None:
        self.text, self.level, self.budget = text, level, budget
        self.found = Scan()
        self.stack: list[int] = []
        self.count = {"{": 0, "[": 0}
        self.comment = (-1, -1)
        self.unended = False
        self.settled = 0

    def run(self) -> Scan:
        position, pattern = 0, _TOKENS[self.level]
        while True:
            if not self.stack:
                position = self._outside(position)
            elif self.level == 0:
                position = self._inside(position)
            mark = pattern.search(self.text, position)
            if mark is None:
                break
            self.budget.search()
            position = self._token(mark.group(), mark.start(), mark.end())
        self._end(len(self.text), finished=False)
        self._join_what_goes_on()
        return self.found

    def _outside(self, position: int) -> int:
        """Go to the next opener; on the way past closers too many, and over regions that are seen in one."""
        text, regions = self.text, self.found.regions
        while (mark := (_OUTSIDE if regions else _OPENER).search(text, position)) is not None:
            self.budget.search()
            start = mark.start()
            whole = _REGION.get(text[start])
            if whole is None:
                self._stray(start)  # only the first of several can be where a region goes on to
                position = mark.end()
                continue
            region = whole.match(text, start) if self.level == 0 else None
            if region is None:
                return start
            position = region.end()
            self._add_candidate(start, position)
        return len(text)

    def _inside(self, position: int) -> int:
        """Go over what is no bracket, at level 0: strings, and what stands between."""
        pattern = _AFTER_OPENER if self.text[position - 1] in "{[" else _INSIDE
        plain = pattern.match(self.text, position)
        return position if plain is None else plain.end()

    def _join_what_goes_on(self) -> None:
        """Join regions that ended too early, because another member follows: together they are one candidate, which does not decode."""
        if _MEMBER.search(self.text) is None:
            return
        for index, (start, end) in enumerate(self.found.regions):
            if _MEMBER.match(self.text, end):
                self.found.regions[index:] = [(start, len(self.text))]
                return

    def _token(self, sign: str, start: int, end: int) -> int:
        if sign in "{[":
            self._open(sign, start)
        elif sign in "}]":
            self._close(sign, start)
        elif sign[:2] in {"``", "~~"}:
            self._end(start, finished=True)
        elif self.stack:
            return self.inside(sign, start, end)
        return end

    def _open(self, sign: str, start: int) -> None:
        if len(self.stack) >= MOST_OPEN:
            raise StageRefused(LIMIT, f"more than {MOST_OPEN} brackets are open", stage="extract")
        if len(self.stack) == _DEEP and _TOO_DEEP.match(self.text, self.stack[0]):
            raise StageRefused(LIMIT, f"brackets nested deeper than {_DEEP}", stage="extract")
        self.stack.append(start)
        self.count[sign] += 1

    def _close(self, sign: str, place: int) -> None:
        wanted = _CLOSES[sign]
        if not self.count[wanted]:
            self._stray(place)
            return
        while True:  # an opener that this one encloses was a stray, or is for `brackets` to settle
            start = self.stack.pop()
            self.count[self.text[start]] -= 1
            if self.text[start] == wanted:
                break
        self._add_candidate(start, place + 1)

    def _add_candidate(self, start: int, end: int) -> None:
        regions = self.found.regions
        while regions and regions[-1][0] >= start:
            regions.pop()
        regions.append((start, end))
        self.settled = min(self.settled, len(regions))

    def _stray(self, place: int) -> None:
        """Handle a superfluous closing bracket. If JSON, not prose, leads up to it from a region, that region ended too early."""
        if self.stack:
            return
        regions, first, after = self.found.regions, None, place
        for start, end in reversed(regions[max(self.settled - 1, 0) :]):
            if self._goes_on(start, end, place + 1):
                first = start
            elif _NO_MORE.fullmatch(self.text, end, after) is None:
                break
            after = start
        if first is not None:
            self._add_candidate(first, place + 1)
        self.settled = len(regions)

    def _goes_on(self, start: int, end: int, stop: int) -> bool:
        """Tell whether another value, or the rest of one, stands right after a region; the stray closer ends at `stop`."""
        if _MORE.match(self.text, end, stop):
            return True
        lists = self.text[start] == "[" and self.text[stop - 1] == "]"
        torn = _TORN.search(self.text, max(start, end - 66), end) is not None
        return (lists or torn) and _MORE_LISTED.match(self.text, end, stop) is not None

    def _end(self, stop: int, *, finished: bool) -> None:
        if self.stack:
            self.found.open.append(Open(tuple(self.stack), stop, finished))
        self.stack.clear()
        self.count = {"{": 0, "[": 0}

    def inside(self, sign: str, start: int, end: int) -> int:
        if sign in {"//", "#", "/*"}:
            return self._comment(sign, start, end)
        if not self._opens(start):
            return end
        if sign in TRIPLE:
            found = self.text.find(sign, end)
            return found + 3 if found >= 0 else len(self.text)
        if sign in _TYPOGRAPHIC:
            found_end = _TYPOGRAPHIC[sign].match(self.text, end)
            return found_end.end() if found_end else end
        return self._well_ended(sign, end) if self.level == REPAIR else string_end(self.text, end, sign)

    def _comment(self, sign: str, start: int, end: int) -> int:
        before = self.text[start - 1 : start]
        if before == ":" or (sign == "#" and not before.isspace()):  # an address, or a mark inside a word
            return start + 1
        mark = "*/" if sign == "/*" else "\n"
        found = self.text.find(mark, end)
        stop = found + (2 if sign == "/*" else 0) if found >= 0 else len(self.text)
        goes_on = self.text[self.comment[1] : start].isspace() or self.comment[1] == start
        self.comment = (self.comment[0] if goes_on else start, stop)
        return stop

    def _opens(self, place: int) -> bool:
        also = "(\"'}])”’" if self.level == REPAIR else ""
        if opens_string(self.text, place, also=also):
            return True
        start, end = self.comment
        blank = 0 <= end <= place <= end + 256 and not self.text[end:place].strip()
        return blank and opens_string(self.text, start, also=also)

    def _well_ended(self, quote: str, position: int) -> int:
        """At level 2 a quote ends a string only where JSON continues after it; once none does, none further on will."""
        if not self.unended:
            place = position
            is_value = _OPENS_VALUE.search(self.text, max(0, position - 66), position)
            ends = _ENDS_VALUE if is_value else _ENDS_ANY
            while (place := string_end(self.text, place, quote)) < len(self.text):
                if ends.match(self.text, place):
                    return place
            if self.text.endswith(quote):
                return place
            self.unended = True
        return string_end(self.text, position, quote)


def opens_string(text: str, place: int, *, also: str = "") -> bool:
    """Tell whether the quote at `place` is where JSON has a string: after `{ [ , :` or one of `also`.

    In prose a quote is a quote: this alone ends the trouble with apostrophes.
    """
    before = place - 1
    while before >= 0 and text[before].isspace():
        before -= 1
    return before >= 0 and text[before] in "{[,:" + also


def string_end(text: str, position: int, quote: str = '"') -> int:
    """Find where the string whose text begins at `position` ends: after its closing quote, or where the text does."""
    found = _ENDS[quote].match(text, position)
    return found.end() if found else len(text)

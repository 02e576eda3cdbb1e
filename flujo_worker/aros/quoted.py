"""Finds where strings and comments end, at one of three levels.

It must not know brackets beyond what opens a string. In: a text and the place of a quote or a comment's mark; out: the place after it.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

from __future__ import annotations

from typing import Final

from flujo_client.patterns import compiled
from flujo_worker.aros.grammar import CLOSES, PLAIN_BODY, TRIPLE
from flujo_worker.aros.scalars import REPAIR

_TYPOGRAPHIC: Final = {
    "“": compiled(r"[^“”]*+[”“]"),
    "„": compiled(r"[^“”]*+[”“]"),
    "‘": compiled(r"[^‘\n]*?’(?=\s*+[,:\]}])"),
}
_AFTER_VALUE = rf"\s*+(?:,|{CLOSES}|\Z|/[/*]|\#)|\s++[\"'“{{\[]"
_ENDS_VALUE: Final = compiled(_AFTER_VALUE)
_ENDS_ANY: Final = compiled(rf"{_AFTER_VALUE}|\s*+:")
_OPENS_VALUE: Final = compiled(r":\s{0,64}+[\"']\Z")


class QuotedParts:
    """The strings and comments of one text, from front to back."""

    def __init__(self, text: str, level: int) -> None:
        self.text, self.level = text, level
        self.comment = (-1, -1)
        self.unended = False

    def end_of(self, sign: str, start: int, end: int) -> int:
        """Return the end of what a quote or a comment's mark begins; the end of the sign itself where it is text."""
        if sign[0] in "/#":
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
        if before == ":" or (sign[0] == "#" and not before.isspace()):  # an address, or marks inside a word
            return end if sign[0] == "#" else start + 1
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
    """Return whether the quote at `place` is where JSON has a string: after `{ [ , :` or one of `also`.

    In prose a quote is a quote: this alone ends the trouble with apostrophes.
    """
    before = place - 1
    while before >= 0 and text[before].isspace():
        before -= 1
    return before >= 0 and text[before] in "{[,:" + also


def string_end(text: str, position: int, quote: str = '"') -> int:
    """Find where the string whose text begins at `position` ends: after its closing quote, or where the text does."""
    found = PLAIN_BODY[quote].match(text, position)
    return found.end() if found else len(text)

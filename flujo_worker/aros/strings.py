"""The text between two quotes: where it ends, and its value; and where comments end.

It must not lose a character: an escape that JSON does not know is left unchanged or refused, never shortened.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Final

from flujo_client.patterns import compiled
from flujo_worker.aros.grammar import (
    CLOSES,
    ENDS_ELEMENT,
    ENDS_IN_TUPLE,
    ENDS_KEY,
    ENDS_MEMBER,
    PLAIN_BODY,
    REPAIR,
    TRIPLE,
)
from flujo_worker.aros.outcome import CUT, LOSSY, NOT_JSON, StageRefused

_ESCAPES: Final = {
    **{sign: sign for sign in "\"\\/'"},
    **dict(zip("bfnrtv0", "\b\f\n\r\t\v\0", strict=True)),
    **dict.fromkeys(("\n", "\r\n", "\r", "\u2028", "\u2029"), ""),
}
_KNOWN: Final = r"""u[0-9a-fA-F]{4}|["\\/bfnrt]"""
_KNOWN5: Final = rf"""{_KNOWN}|x[0-9a-fA-F]{{2}}|\r\n|['v0\n\r\u2028\u2029]"""
_ESCAPE: Final = tuple(compiled(rf"\\({known})") for known in (_KNOWN, _KNOWN5))
_UP_TO_UNKNOWN: Final = tuple(compiled(rf"(?:[^\\]++|\\(?:{known}))*+\\(?s:.)") for known in (_KNOWN, _KNOWN5))
_UP_TO_KNOWN: Final = tuple(compiled(rf"(?:[^\\]++|\\(?!{known})(?s:.))*+\\(?s:.)") for known in (_KNOWN, _KNOWN5))
_SURROGATE: Final = compiled("[\ud800-\udfff]")
_MARK = {quotes: compiled(rf"\\.|[{quotes}]", re.DOTALL) for quotes in ('"', "'", '”“"', "’‘'")}
_ANY_QUOTE: Final = compiled('["“”„]')
_NEXT: Final = compiled(r"\s*+(?:,[\s,]*+[a-zA-Z]{0,2}+[\"'“„]|:)")
_NEXT_TO_WORD: Final = compiled(r"\s*+(?:,[\s,]*+[a-zA-Z]{0,2}+[\"'“„]|[\"“„{\[:])")
_INCHES: Final = compiled(r"(?:\A|[\s(x×])\d[\d./-]*\Z")
_LIKE_JSON: Final = compiled(
    r"(?:(?<=[\[{,:])|(?<=[\[{,:]\s)|\A)[\[{]|[\[{](?=\s*+[\"'“„{\[])|[\]}](?=\s*+(?:[,\]}]|\Z))|(?<=[\"'”])[\]}]"
)
"""A bracket where JSON may have one: after a separator, before a quote or another bracket; a closer before a separator, or after a quote."""
_STRUCTURE: Final = compiled(r"[,:{}\[\]\n]")
_ENDS: Final = {"key": ENDS_KEY, "member": ENDS_MEMBER, "element": ENDS_ELEMENT, "in-tuple": ENDS_IN_TUPLE}
_TYPOGRAPHIC: Final = {
    "“": compiled(r"[^“”]*+[”“]"),
    "„": compiled(r"[^“”]*+[”“]"),
    "‘": compiled(r"[^‘\n]*?’(?=\s*+[,:\]}])"),
}
_AFTER_VALUE = rf"\s*+(?:,|{CLOSES}|\Z|/[/*]|\#)|\s++[\"'“{{\[]"
_ENDS_VALUE: Final = compiled(_AFTER_VALUE)
_ENDS_ANY: Final = compiled(rf"{_AFTER_VALUE}|\s*+:")
_OPENS_VALUE: Final = compiled(r":\s{0,64}+[\"']\Z")


def closing(text: str, start: int, stop: int, quotes: str, role: str | None) -> tuple[int, int]:
    """Find the closing quote of the string whose text begins at `start`: its place, and how many quotes are inside.

    The role is `key`, `member`, `element` or `in-tuple` where quotes may be inside the string; None where the first one closes.
    """
    if role is None and quotes in PLAIN_BODY:
        found = PLAIN_BODY[quotes].match(text, start, stop)
        if found is not None:
            return found.end() - 1, 0
        raise StageRefused(CUT, "the text ends inside a string")
    return _well_followed(text, start, stop, quotes, _ENDS[role or "member"])


def _well_followed(text: str, start: int, stop: int, quotes: str, follow: re.Pattern[str]) -> tuple[int, int]:
    inside = 0
    for place in _quotes_from(text, start, stop, quotes):
        if follow.match(text, place + 1, stop):
            return place, inside
        inside += not _is_apostrophe(text, place)
    if inside:
        raise StageRefused(NOT_JSON, "a string whose end cannot be distinguished from the quotes inside it")
    raise StageRefused(CUT, "the text ends inside a string")


def closing_mixed(text: str, start: int, stop: int, role: str) -> int | None:
    """Find the typographic quote that closes what a straight one opened: only where no other quote is between."""
    found = _ANY_QUOTE.search(text, start, stop)
    if found is None or found.group() != "”" or _ENDS[role].match(text, found.end(), stop) is None:
        return None
    return found.start()


def is_torn(body: str, quotes: str, role: str) -> bool:
    """Return whether quotes inside a string may as well be the structure's: closed too late, or doubled at an end."""
    places = [place for place in _quotes_from(body, 0, len(body), quotes) if not _is_apostrophe(body, place)]
    if role == "key" and _STRUCTURE.search(body):
        return True
    if any(_closes_late(body, place) for place in places[::2]):
        return True
    if len(places) % 2:
        return not _match(body) or _is_doubled(body, places)
    # or all are where JSON has none
    return not (_match(body) or _match("".join(mark[0] for mark in _LIKE_JSON.finditer(body))))


def _closes_late(body: str, place: int) -> bool:
    """Return whether a quote that should open a quotation looks like the string's end: another value follows, or a key's value."""
    after_word = body[place - 1 : place].isalnum()
    if (_NEXT_TO_WORD if after_word else _NEXT).match(body, place + 1) is None:
        return False
    return _INCHES.search(body[max(0, place - 16) : place]) is None


def _is_doubled(body: str, places: list[int]) -> bool:
    last = places[-1]
    is_at_end = not body[last + 1 :].strip(" \t\r\n,") and not _INCHES.search(body[max(0, last - 16) : last])
    return is_at_end or not body[: places[0]].strip()


def _match(brackets: str) -> bool:
    depth = {"[": 0, "{": 0}
    for char in brackets:
        if char in depth:
            depth[char] += 1
        elif char in "]}":
            depth["[" if char == "]" else "{"] -= 1
            if min(depth.values()) < 0:
                return False
    return not any(depth.values())


def _is_apostrophe(text: str, place: int) -> bool:
    return text[place] in "'’" and text[place - 1].isalpha() and text[place + 1 : place + 2].isalpha()


def _quotes_from(text: str, start: int, stop: int, quotes: str) -> Iterator[int]:
    for mark in _MARK[quotes].finditer(text, start, stop):
        if text[mark.start()] != "\\":
            yield mark.start()


def unescape(body: str, level: int) -> str:
    """Undo the escapes of a string's text, or raise StageRefused for one that is unclear, or half a character."""
    spoken = _unescaped(body, level) if "\\" in body else body
    if not _SURROGATE.search(spoken):
        return spoken
    try:  # of each escaped pair one character
        return spoken.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise StageRefused(LOSSY, "half of a surrogate pair in a string") from None


def _unescaped(body: str, level: int) -> str:
    json5 = min(level, 1)
    unknown = _UP_TO_UNKNOWN[json5].match(body)
    if unknown is None:
        try:
            return str(json.loads(f'"{body}"', strict=False))  # the standard library is fast
        except ValueError:
            return _ESCAPE[json5].sub(lambda found: _meant(found[1]), body)
    escape = unknown.group()[-2:]
    if level < REPAIR:
        raise StageRefused(NOT_JSON, f"unknown escape {escape!r} in a string; write the backslash twice")
    if _UP_TO_KNOWN[json5].match(body):
        message = f"{escape!r} is not an escape, but the same string has escapes; write the backslash twice"
        raise StageRefused(LOSSY, message)
    return body


@functools.lru_cache(maxsize=1024)
def _meant(escape: str) -> str:
    """Return the meaning of an escape, by the text after its backslash."""
    return chr(int(escape[1:], 16)) if escape[0] in "ux" else _ESCAPES[escape]


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
    """Return whether the quote at `place` is where JSON has a string: after `{ [ , :` or one of `also`; else it may be an apostrophe."""
    before = place - 1
    while before >= 0 and text[before].isspace():
        before -= 1
    return before >= 0 and text[before] in "{[,:" + also


def string_end(text: str, position: int, quote: str = '"') -> int:
    """Find where the string whose text begins at `position` ends: after its closing quote, or where the text does."""
    found = PLAIN_BODY[quote].match(text, position)
    return found.end() if found else len(text)

"""The patterns by which `extract` finds regions: brackets, what is between them, and what continues a region.

Every pattern is linear: no two parts of one can match the same characters, and repetitions are possessive.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

from flujo_client.patterns import compiled
from flujo_worker.aros.grammar import PLAIN_BODY

FENCE: Final = r"```+|~~~+"
TOKENS: Final = (
    compiled(rf"[\"{{}}\[\]]|{FENCE}"),
    compiled(rf"[\"'{{}}\[\]]|{FENCE}|//|/\*"),
    compiled(rf"\"\"\"|'''|[\"'“„‘{{}}\[\]]|{FENCE}|//|/\*|\#++"),
)
MARKS: Final = tuple(compiled(f"{tokens.pattern}|[(),]") for tokens in TOKENS)
OPENER: Final = compiled(r"[{\[]")
BRACKET: Final = compiled(r"[{}\[\]]")
REGION: Final = 1
"""The group of a region that is seen whole, in the patterns that find other brackets too."""
SINGLE: Final = 2
CLOSERS: Final = 3
_NESTED: Final = 3
"""Levels of brackets that are seen in one."""
_NESTED_LISTS: Final = 16
"""Levels of lists without strings that are seen in one."""
_LONGEST: Final = 500
"""Parts of a region that is seen whole: looking for the end of one that nothing closes costs no more."""
_STRING, _SINGLE_QUOTED = (quote + body.pattern for quote, body in PLAIN_BODY.items())
_BEFORE_CLOSER: Final = r"[}\]](?=[\s,}\]]|\Z)"
_FENCE_NOT: Final = r"`(?!``)|~(?!~~)"


class RegionPatterns:
    """The patterns of one level. Each pattern is compiled when it is first needed, which takes some milliseconds.

    Their parts: a `first` string, which is a key or an element, a string that is a `value` after a colon, `marks`, which may begin a
    string or a comment, and `no_mark`, such a mark where it begins neither.
    """

    def __init__(self, first: str, value: str, marks: str, no_mark: str) -> None:
        self._signs = f"{marks}`~"
        self._marks = rf"{{}}\[\]{self._signs}"
        self._prose_mark = rf"{no_mark}|{_FENCE_NOT}"
        self._text = rf"[^{self._marks}]*+(?:(?:{self._prose_mark})[^{self._marks}]*+)*+"
        self._prose = rf"(?!\s*+[,:}}\]]){self._text}"
        self._first = rf'(?:{first}|(?!"))'
        self._plain = rf"[^{self._marks},:]*+"
        self._special = rf',\s*+{self._first}|:\s*+(?:{value}|(?!"))|{self._prose_mark}'

    @cached_property
    def outside(self) -> re.Pattern[str]:
        """Match prose, and then a region that is seen whole, an opener, or closers, all in one that only blanks part."""
        return self._compiled(rf"[^{{}}\[\]]*+(?:({self._whole})|([{{\[])|([}}\]][\s}}\]]*+)|\Z)")

    @cached_property
    def inside(self) -> re.Pattern[str]:
        """Match what is between brackets, and then a region that is seen whole, or a bracket."""
        string = rf"(?:(?<=[{{\[])\s*+{self._first})?+"
        parts = rf"{self._plain}(?:(?:{self._special}){self._plain})*+"
        return self._compiled(rf"{string}{parts}(?:({self._whole})|([{{}}\[\]]))?+")

    @cached_property
    def run(self) -> re.Pattern[str]:
        """Match many regions with only prose between them."""
        return self._compiled(rf"(?:{self._prose}({self._whole})){{9,}}+")

    def repeated(self, part: str) -> re.Pattern[str]:
        """Match many regions of the same text with only prose between them."""
        return self._compiled(rf"(?:{self._prose}({re.escape(part)})){{9,}}+")

    @cached_property
    def brackets(self) -> re.Pattern[str]:
        """Match a bracket, or what may begin a string, a comment or a fence."""
        return self._compiled(rf"[{self._marks}]")

    @cached_property
    def openers(self) -> re.Pattern[str]:
        """Match openers and the prose around them."""
        return self._compiled(rf"(?:[^}}\]{self._signs}]++|{self._prose_mark})*+")

    @cached_property
    def closers(self) -> re.Pattern[str]:
        """Match many closers of one kind with only prose between them."""
        return self._compiled("|".join(rf"(?:{self._text}{closer}){{8,}}+" for closer in (r"\]", r"\}")))

    @property
    def _whole(self) -> str:
        simple = rf"\[[^{self._marks}]*+\]|\{{[^{self._marks}]*+\}}"
        return f"{simple}|{self._lists(_NESTED_LISTS)}|{self._regions(_NESTED)}"

    def _lists(self, levels: int) -> str:
        """Return the pattern of lists of lists without strings, as matrices are."""
        inner = rf"(?:{self._lists(levels - 1)}[^{self._marks}]*+){{0,{_LONGEST}}}+" if levels else ""
        return rf"\[[^{self._marks}]*+{inner}\]"

    def _regions(self, levels: int) -> str:
        inner = f"|{self._regions(levels - 1)}" if levels else ""
        body = rf"\s*+{self._first}{self._plain}(?:(?:{self._special}{inner}){self._plain}){{0,{_LONGEST}}}+"
        return rf"\{{{body}\}}|\[{body}\]"

    @staticmethod
    def _compiled(pattern: str) -> re.Pattern[str]:
        return compiled(pattern, re.DOTALL)


_MARKS: Final = "\"'“„‘#/"
_NO_MARK: Final = r"(?<=\w)(?!\"\"\"|''')[\"'“„‘]|/(?![/*])"
_STRICT: Final = RegionPatterns(_STRING, _STRING, '"', r'(?<![{\[,:\s])"')
_TOLERANT: Final = RegionPatterns(
    rf"(?:{_STRING}|{_SINGLE_QUOTED})(?=\s*+(?:[,:]|{_BEFORE_CLOSER}))",
    rf"(?:{_STRING}|{_SINGLE_QUOTED})(?=\s*+(?:,|{_BEFORE_CLOSER}))",
    _MARKS,
    _NO_MARK,
)
"""Only what is read alike at levels 1 and 2: no comments, no typographic quotes, and strings that end at their first quote."""
PATTERNS: Final = (_STRICT, _TOLERANT, _TOLERANT)
_BARE_STRING: Final = r'"[^"\\{}\[\]]*+(?:\\[^{}\[\]][^"\\{}\[\]]*+)*+"'
_BETWEEN: Final = rf"[^{_MARKS}{{\[,:]*+"
ALIKE: Final = {
    2: (
        compiled(rf"[^{_MARKS}]*+(?:(?:{_NO_MARK})[^{_MARKS}]*+)*+"),
        compiled(
            rf"{_BETWEEN}(?:(?:[{{\[,]\s*+(?:{_BARE_STRING}(?=\s*+(?:[,:]|{_BEFORE_CLOSER}))|(?!\"))"
            rf"|:\s*+(?:{_BARE_STRING}(?=\s*+(?:,|{_BEFORE_CLOSER}))|(?!\"))|{_NO_MARK}){_BETWEEN})*+",
            re.DOTALL,
        ),
    ),
    1: (compiled(rf"(?:[^\"'/{{\[,:]++|[{{\[,:]\s*+(?:{_BARE_STRING}|(?!\"))|\"++|/(?![/*]))*+", re.DOTALL),),
}
"""Texts that have the same regions at a level, and those below, as at level 0: no other quotes, no comments, no brackets in strings."""
BEGINS: Final = (
    compiled(r"\{\s*+(?:[\"'“„‘}\#]|/[/*]|[\w$][\w$.-]{0,200}+\s*+:)"),
    compiled(r"\[\s*+(?:[\"'“„‘{\[\]\-+.\dtfnTFN\#]|/[/*]|\w[\w .-]{0,200}+,)"),
)
"""An opener after which a value may begin, by kind: a pattern that begins with one character is found faster."""
BEGINS_STRICT: Final = compiled(r'\{\s*+["}]|\[\s*+["{\[\]\-\dtfnTFN]')
"""An opener after which a value may begin at level 0."""
TOO_DEEP: Final = compiled(r'(?:[\[{]\s*+(?:"[^"\\]*+"\s*+:\s*+)?+){1001}')
"""Openers one in the other, deeper than any value that is decoded."""
_AFTER: Final = r"\s{0,64}+(?:[,:}\]])"
_SCALAR: Final = (
    rf"(?:[\"'][^\"'\n]{{0,200}}+[\"']{_AFTER}|-?\d[\d.eE+-]{{0,64}}+{_AFTER}"
    rf"|(?:true|false|null|True|False|None){_AFTER}|\w[\w ]{{0,200}}+[\"']{_AFTER})"
)
MORE: Final = compiled(rf"[\s}}\]]{{0,64}}+(?:[,:]\s{{0,64}}+(?:{_SCALAR}|\w{{1,200}}+\s{{0,64}}+:|[{{\[])|{_SCALAR})")
MORE_LISTED: Final = compiled(r"[\s}\]]{0,64}+[{\[]")
TORN: Final = compiled(r"[,:]\s{0,64}+[}\]]\Z")
NO_MORE: Final = compiled(r"[\s}\]]{0,64}+")
CONTINUED: Final = compiled(r",\s{0,64}+[\"'][^\"'\n]{0,200}+[\"']\s{0,64}+:")
MEMBER: Final = compiled(rf"[\s}}\]]{{0,64}}+{CONTINUED.pattern}")

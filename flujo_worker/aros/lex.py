"""The two questions every scan asks of a quote: does it open a string here, and where does that string end?

In prose a quote is a quote. In JSON it opens a string only after a bracket, a comma or a colon: this alone ends the trouble with
apostrophes.
"""

from __future__ import annotations

import re
from typing import Final

_BLANK: Final = re.compile(r"\s*\Z")
_ENDS: Final = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+'", re.DOTALL),
}


def opens_string(text: str, place: int, *, also: str = "") -> bool:
    """Tell whether the quote at `place` stands where JSON has a string: after `{ [ , :` or one of `also`."""
    before = place - 1
    while before >= 0 and text[before].isspace():
        before -= 1
    return before >= 0 and text[before] in "{[,:" + also


def string_end(text: str, position: int, quote: str = '"') -> int:
    """Find where the string whose text begins at `position` ends: after its closing quote, or where the text does."""
    found = _ENDS[quote].match(text, position)
    return found.end() if found else len(text)

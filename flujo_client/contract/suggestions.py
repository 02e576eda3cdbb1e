"""The word that was likely meant by another, for whoever refuses a word and knows what may stand in its place.

Pure, and in bounded time whatever was written: of long texts the beginning is looked at, and of many known words the first.
"""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST, MOST = 60, 100
"""Characters of a word, and words that it is compared with."""


def closest_match(given: str, known: Iterable[str]) -> str | None:
    """Find the known word that was likely meant; None where none is near."""
    words = [each for each in islice(known, MOST) if len(each) <= LONGEST]
    close = difflib.get_close_matches(given[:LONGEST], words, n=1)
    return close[0] if close else None


def did_you_mean(given: object, known: Iterable[str]) -> str | None:
    """Say it as a way out."""
    word = closest_match(str(given), known)
    return f"did you mean {word!r}?" if word is not None else None

"""Suggest the known word closest to an unknown one.

Pure, and in bounded time for any input: only the beginning of long texts is compared, and only the first of many known words.
"""

import difflib
from collections.abc import Iterable
from itertools import islice

LONGEST, MOST = 60, 500
"""Characters of a word, and words that it is compared with."""


def closest_match(given: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest, or None if none is close."""
    words = [each for each in islice(known, MOST) if len(each) <= LONGEST]
    close = difflib.get_close_matches(given[:LONGEST], words, n=1)
    return close[0] if close else None


def did_you_mean(given: object, known: Iterable[str]) -> str | None:
    """Return the suggestion as a sentence, or None if no known word is close."""
    word = closest_match(str(given), known)
    return f"did you mean {word!r}?" if word is not None else None

"""One slip in the brackets: every text that one closer more, less or of the other kind, or two that change places, make balanced (level 2).

It must not choose between them: more than one that holds is a refusal. In: a region whose brackets do not match; out: the
few texts to try.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flujo_worker.aros.extract import marks
from flujo_worker.aros.outcome import TWO_READINGS, StageRefused
from flujo_worker.aros.scalars import ParseBudget

MOST_BRACKETS: Final = 300
MOST_VARIANTS: Final = 64
WRONG: Final = "a closing bracket is missing or wrong"
_SHOWN: Final = 24
_PAIRS: Final = {"{": "}", "[": "]"}
Marks = list[tuple[int, str]]


def balanced(brackets: list[str]) -> bool:
    """Return whether the brackets are those of one value."""
    open_: list[str] = []
    for index, char in enumerate(brackets):
        if char in _PAIRS:
            open_.append(_PAIRS[char])
        elif not open_ or open_.pop() != char or (not open_ and index < len(brackets) - 1):
            return False
    return not open_


def variants(text: str, level: int, budget: ParseBudget) -> dict[str, str]:
    """Return the texts one bracket away from `text` whose brackets match, with what is changed; none when they match already.

    Raises:
        StageRefused: when there are too many to try.
    """
    found = [mark for mark in marks(text, level, budget) if mark[1] not in "()"]
    brackets = [mark for mark in found if mark[1] != ","]
    if len(brackets) > MOST_BRACKETS or balanced([char for _, char in brackets]):
        return {}
    texts: dict[str, str] = {}
    for place, removed, put in _edits(text, found, brackets):
        texts.setdefault(text[:place] + put + text[place + removed :], _named(text, place, removed, put))
        if len(texts) > MOST_VARIANTS:
            first, last = next(iter(texts.values())), texts.popitem()[1]
            raise StageRefused(TWO_READINGS, f"{WRONG}: {first}, or {last}, or at many places between")
    return texts


def _named(text: str, place: int, removed: int, put: str) -> str:
    """Describe an edit, by the text before it."""
    before = text[max(0, place - _SHOWN) : place]
    if not removed:
        return f"{put!r} may be missing after {before!r}"
    gone = text[place : place + removed]
    return f"{gone!r} after {before!r} may be {f'meant as {put!r}' if put else 'too many'}"


def _edits(text: str, found: Marks, brackets: Marks) -> Iterator[tuple[int, int, str]]:
    """Yield each edit as (place, characters removed, characters put)."""
    chars = [char for _, char in brackets]
    for index, (place, char) in enumerate(brackets):
        if char not in _PAIRS:
            if balanced(chars[:index] + chars[index + 1 :]):
                yield place, 1, ""
            other = "]" if char == "}" else "}"
            if balanced([*chars[:index], other, *chars[index + 1 :]]):
                yield place, 1, other
            next_place, next_char = brackets[index + 1] if index + 1 < len(brackets) else (place, char)
            between = text[place + 1 : next_place]
            if (
                next_char == other
                and not between.strip()
                and balanced([*chars[:index], other, char, *chars[index + 2 :]])
            ):
                yield place, 2 + len(between), other + between + char
    for gap in range(1, len(brackets) + 1):
        for closer in "}]":
            if balanced([*chars[:gap], closer, *chars[gap:]]):
                yield from ((place, 0, closer) for place in _ends_of_values(found, brackets, gap, len(text.rstrip())))


def _ends_of_values(found: Marks, brackets: Marks, gap: int, end: int) -> Iterator[int]:
    """Between two brackets, a closer can come before each comma, before a closer, and at the end."""
    before = brackets[gap - 1][0]
    after, char = brackets[gap] if gap < len(brackets) else (end, "")
    yield from (place for place, mark in found if mark == "," and before < place < after)
    if char not in _PAIRS:
        yield after

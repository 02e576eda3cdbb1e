"""Try, at level 2, to read a region that the reader cannot read: with one bracket elsewhere, and then with json-repair.

Every text that one closer more, less or of the other kind, or two that change places, make balanced is tried: the caller refuses more than
one that holds. json-repair must not be believed: its value counts only if its scalars, in order, are the text without brackets, separators,
quotes and comments, its brackets are the text's own, nothing was missing where a value belongs, and no number became a string.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from flujo_worker.aros.extract import marks
from flujo_worker.aros.grammar import NO_TEXT, REPAIR, SUM
from flujo_worker.aros.outcome import TWO_READINGS, StageRefused
from flujo_worker.aros.scalars import ParseBudget

try:
    import json_repair
except ImportError:
    json_repair = None  # type: ignore[assignment]

MOST_BRACKETS: Final = 300
MOST_VARIANTS: Final = 64
WRONG: Final = "a closing bracket is missing or wrong"
_SHOWN: Final = 24
_PAIRS: Final = {"{": "}", "[": "]"}
Marks = list[tuple[int, str]]
LONGEST: Final = 20_000
"""Characters: json-repair has been quadratic."""
_PUNCTUATION: Final = re.compile(r"[\s{}\[\](),:\"'“”„‘’]+")
_HOLE: Final = re.compile(
    SUM.pattern + r"|[\[{:,(]\s*[,:]|:\s*[}\])]|\.\.\.|…|\\|//|/\*|#|```|\b(?:NaN|Infinity|undefined)\b"
)

_LIKE_JSON: Final = re.compile(r"[,:{}\[\]]|\A\s*(?:-?[\d.]+|true|false|null|None)\s*\Z", re.IGNORECASE)
"""A string of these says that a separator was taken for text, or a number or a word for a string: only quotes allow that."""


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
    """Return the texts one bracket away from `text` whose brackets match, with what is changed; none when they match already."""
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
            swapped = [*chars[:index], other, char, *chars[index + 2 :]]
            if next_char == other and not between.strip() and balanced(swapped):
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


def salvaged(text: str, budget: ParseBudget) -> Any:
    """Return the value that json-repair reads from `text` if nothing was lost or invented; None otherwise."""
    if json_repair is None or len(text) > LONGEST or _HOLE.search(text) or text.count('"') % 2:
        return None
    budget.spend(len(text))
    try:
        value = json_repair.loads(text, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - any error means that there is no value
        return None
    return value if isinstance(value, dict | list) and _is_lossless(value, text, budget) else None


def _is_lossless(value: Any, text: str, budget: ParseBudget) -> bool:
    pieces = list(_pieces(value))
    strings = (piece for piece, kind in pieces if kind == "string" and piece not in budget.words)
    doubtful = (string for string in strings if _LIKE_JSON.search(string) or NO_TEXT.fullmatch(string))
    if not all(any(f"{quote}{string}{quote}" in text for quote in "\"'") for string in doubtful):
        return False
    brackets = [piece for piece, kind in pieces if kind == "bracket"]
    own = [mark for _, mark in marks(text, REPAIR, budget) if mark != ","]
    content = "".join(piece for piece, kind in pieces if kind != "bracket")
    return brackets == own and '"' not in content and _PUNCTUATION.sub("", content) == _PUNCTUATION.sub("", text)


def _pieces(value: Any) -> Iterator[tuple[str, str]]:
    """Yield what a value consists of, in the order of its text, and what each piece is."""
    if isinstance(value, dict):
        yield "{", "bracket"
        for key, member in value.items():
            yield str(key), "key"
            yield from _pieces(member)
        yield "}", "bracket"
    elif isinstance(value, list):
        yield "[", "bracket"
        for element in value:
            yield from _pieces(element)
        yield "]", "bracket"
    elif isinstance(value, str):
        yield value, "string"
    else:
        yield json.dumps(value), "literal"

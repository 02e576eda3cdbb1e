"""Choose between the values of one text that all match the schema, or reject them: size never decides.

A fence or an answer tag around one of the values decides, or a word such as "final answer" before the last one; not if two of these disagree.
"""

# ruff: noqa: RUF001 - typographic apostrophes are what models write

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from flujo_client.patterns import compiled
from flujo_worker.aros.outcome import SEVERAL_VALUES, StageRefused

_FENCE: Final = compiled(r"```+|~~~+")
_TAG: Final = compiled(r"<(/?)(final[_-]?answer|answer|final|result|output|response)(?:\s[^<>]*)?>", re.IGNORECASE)
_MARK: Final = compiled(r"(?<![^\W_])(?:final|answer|results?|output|corrected)(?![^\W_])", re.IGNORECASE)
_NOT_MEANT: Final = compiled(
    r"n['’]t\b|\^|↑|\b(?:not?|never|neither|nor|unlike|instead|wrong|incorrect|above|this|that|it|if|or|was|were|before|previous|earlier|old"
    r"|original|other|another|alternative|different|possible|expected|may|might|could|maybe|draft|first|initial|partial|intermediate"
    r"|preliminary|tentative|example|instance|sample|format|template|schema)\b",
    re.IGNORECASE,
)
"""Words that say that a value is not the answer, or that the answer came before it."""
_CORRECTED: Final = compiled(r"\b(corrected(?: \w+)?) (?:of|for|from|to) (?:the|my|that) [\w ]+", re.IGNORECASE)
"""Whatever was corrected, the result is meant."""
_FILLER: Final = compiled(
    r"(?:\W|\b(?:is|are|be|becomes|would|will|should|so|then|thus|therefore|hence|now|here|as|follows|below|the|in|my|your|json|object|array"
    r"|list|value|version)\b)*+\Z",
    re.IGNORECASE,
)
_LEADS: Final = compiled(r"(?::|\b(?:is|are|be|becomes)|\b(?:follows|below)[.!]?)\Z", re.IGNORECASE)
"""The end of a clause that leads to what comes next, even on another line."""
_SENTENCE: Final = compiled(r"[.!?;]\s|\n")
_OPENING_FENCE: Final = compiled(r"(?:```+|~~~+)[ \t]*[\w+.-]*\s*\Z")
_ORNAMENT: Final = " \t\r\n*_`#>"
_LOOKED_AT: Final = 300
"""Characters before a value in which a mark is looked for."""
_HEADING: Final = 2
"""Words that a heading may have beside its mark."""
_SHOWN: Final = 40


class Match(NamedTuple):
    """A part of a text that matches the schema."""

    start: int
    stop: int
    value: str
    """Its value's canonical text."""


def meant(text: str, found: Sequence[Match]) -> tuple[Match, str | None]:
    """Return the part that is the answer, and what decided: `fence`, `tag`, `mark`, or None if there is only one value."""
    found = sorted(found)
    if len({each.value for each in found}) == 1:
        return found[0], None
    marked = list(_marked(text, found))
    pointed = {
        "fence": {each.value for each in _fenced(text, found)},
        "tag": {each.value for each in _tagged(text, found)},
        "mark": {each.value for each in marked},
    }
    single = {name: next(iter(values)) for name, values in pointed.items() if len(values) == 1}
    deciding = [name for name in single if name != "mark" or found[-1] in marked]
    if deciding and len(set(single.values())) == 1:
        value = single[deciding[0]]
        return next(each for each in reversed(found) if each.value == value), deciding[0]
    raise _several([(text, each) for each in found])


def called_final(text: str, found: Sequence[Match], others: Sequence[Match]) -> Match | None:
    """Return the part that the text calls final although it does not match: the last of all parts, and no draft replaces it."""
    last = max(others, default=None)
    if last is None or last < max(found):
        return None
    together = [*sorted(found), last]
    return last if last in {*_marked(text, together), *_tagged(text, together)} else None


def check_one(found: Sequence[tuple[str, Match]]) -> None:
    """Raise StageRefused unless parts of different texts, that were encoded in one, have the same value."""
    if len({match.value for _, match in found}) > 1:
        raise _several(found)


def _several(found: Sequence[tuple[str, Match]]) -> StageRefused:
    last = found[-1]
    other = next(each for each in found if each[1].value != last[1].value)
    places = " and ".join(_place(text, match) for text, match in (other, last))
    number = len({match.value for _, match in found})
    message = f"{number} different values in the text match the schema: {places}. Give one, or write 'Final answer:' before the last"
    return StageRefused(SEVERAL_VALUES, message, stage="extract")


def _outside(pattern: re.Pattern[str], text: str, found: Sequence[Match]) -> Iterator[re.Match[str]]:
    """Yield what a pattern finds outside of the parts."""
    starts = [each.start for each in found]
    for mark in pattern.finditer(text):
        index = bisect(starts, mark.start()) - 1
        if index < 0 or mark.start() >= found[index].stop:
            yield mark


def _fenced(text: str, found: Sequence[Match]) -> Iterator[Match]:
    fences = [mark.start() for mark in _outside(_FENCE, text, found)]
    return (each for each in found if bisect(fences, each.start) % 2)


def _tagged(text: str, found: Sequence[Match]) -> Iterator[Match]:
    """Yield the parts in closed answer tags."""
    starts = [each.start for each in found]
    opened: dict[str, int] = {}
    for tag in _outside(_TAG, text, found):
        name = tag[2].lower()
        if not tag[1]:
            opened.setdefault(name, tag.end())
        elif name in opened:
            yield from found[bisect(starts, opened.pop(name) - 1) : bisect(starts, tag.start())]


def _marked(text: str, found: Sequence[Match]) -> Iterator[Match]:
    """Yield the parts that follow a mark of finality. Before the last one it must be meant; before another one, any mark counts."""
    before = 0
    for each in found:
        lead = text[max(before, each.start - _LOOKED_AT) : each.start]
        clause, follows = _clause(_OPENING_FENCE.sub("\n", _TAG.sub(" ", lead)), at_start=not before)
        mark = next(reversed(list(_MARK.finditer(clause))), None)
        if mark is not None and (each is not found[-1] or (follows and _is_meant(clause, mark))):
            yield each
        before = each.stop


def _clause(lead: str, *, at_start: bool) -> tuple[str, bool]:
    """Return the end of a lead-in: its last sentence, and whether that leads to the value, not from the one before it."""
    said = lead.rstrip(_ORNAMENT)
    breaks = [each.end() for each in _SENTENCE.finditer(said)]
    clause = said[breaks[-1] if breaks else 0 :].strip(_ORNAMENT)
    goes_on = at_start or bool(breaks)
    has_line_break = "\n" in lead[len(said) :]
    if _LEADS.search(clause):
        return clause, True
    if clause.endswith((".", ",", "!", "?", ";")) or (has_line_break and not goes_on):
        return clause, False
    is_heading = len(_MARK.sub(" ", clause).split()) <= _HEADING
    return clause, is_heading if has_line_break else True


def _is_meant(clause: str, mark: re.Match[str]) -> bool:
    if _NOT_MEANT.search(_CORRECTED.sub(r"\1", clause)):
        return False
    return clause.endswith(":") or _FILLER.match(clause, mark.end()) is not None


def _place(text: str, part: Match) -> str:
    shown = " ".join(text[part.start : part.start + _SHOWN].split()) if part.stop - part.start > _SHOWN else None
    line, column = text.count("\n", 0, part.start) + 1, part.start - text.rfind("\n", 0, part.start)
    return f"{shown + '…' if shown else text[part.start : part.stop]} in line {line}, column {column}"

"""The fixes of `flujo validate --fix`. Pure.

A fix keeps the meaning, or replaces a word without meaning: an unknown key, an unknown name, a path to nothing. A word is fixed only if
exactly one known word differs from it by a single typo. The text is edited in place and never rewritten, so comments and layout stay; an
edit that would change anything else in the data is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final

from flujo_client.blueprint.editor import json_schema
from flujo_client.blueprint.finding import written
from flujo_client.blueprint.read import Source, read
from flujo_client.blueprint.rules.document_index import value_at, walk
from flujo_client.blueprint.shapes import IN_QUOTES
from flujo_client.contract.validation import Finding
from flujo_client.errors import BlueprintError, BlueprintTextError
from flujo_client.expressions.tokens import Token, tokens
from flujo_client.pipeline.compiled_text import expression_of, template_of

MOST: Final = 200
"""Fixes of one text."""

SHORTEST: Final = 3
"""Letters that a word must have at least to be distinguished from others."""

MENDED: Final[Mapping[str, str]] = {
    "Y-KEY": "a key that is one typing error away from an accepted key: it is renamed",
    "Y-VALUE": "a word that is one typing error away from an accepted one: it is replaced",
    "Y-TYPE": "a number where a text is expected: it gets quotes",
    "V-A2": "`agents.<name>`, one typing error away from exactly one agent's name: it is replaced",
    "V-I1": "`imports.<name>`, likewise",
    "V-SM1": "a state's name, likewise",
    "V-T2": "`this` outside a map: it becomes `previous_step`, which is the same there",
    "V-T3": "`steps.x.field`, which never exists, becomes `steps.x.output.field`; and `previous_step.output` of a text loses its `.output`",
    "V-T4": "`steps.x`, one typing error away from exactly one step's name: it is replaced",
    "V-T6": "a misspelled field of an output, one typing error away from exactly one property of its schema: it is replaced",
}
"""The fixes, by the rule that finds the fault."""
_OPENING: Final = re.compile(r"\{\{[ \t\r\n]*(?:#if|#each)?")
_OTHER_TAG: Final = re.compile(r"\{\{[ \t\r\n]*(?:/if|/each|else)[ \t\r\n]*\}\}")
_PLAIN: Final = re.compile(r"\s*([^\s,\]}]+)")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text in [start, end) with `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SourceEntry:
    """A key with its value, or an item of a list, in a text. Between the places there may be comments: what is found twice is not replaced."""

    source: str
    """The whole text."""
    key: str
    """The key, or the item's index."""
    value: str
    """The value; empty if it is not a text."""
    siblings: frozenset[str]
    """All keys of the mapping around it."""
    start: int
    begin: int
    end: int
    """`start`, `begin`, `end`: the places of the key, of the value, and of what comes after it."""

    @cached_property
    def paths(self) -> frozenset[tuple[str, ...]]:
        """Return the paths that the value reads, as a template or an expression."""
        try:
            return (template_of if "{{" in self.value else expression_of)(self.value).names
        except BlueprintTextError:
            return frozenset()

    def key_replaced(self, other: str) -> Edit | None:
        return self._replaced(self.key, other, self.start, self.begin)

    def value_replaced(self, other: str) -> Edit | None:
        return self._replaced(self.value, other, self.begin, self.end) if self.value else None

    def value_quoted(self) -> Edit | None:
        found = _PLAIN.match(self.source, self.begin, self.end)
        return Edit(*found.span(1), f'"{found[1]}"') if found else None

    def part_replaced(self, start: int, end: int, other: str) -> Edit | None:
        """Replace the text from `start` to `end` in the value, even if the same text occurs there more than once."""
        part = self.value[start:end]
        if self.source.count(part, self.begin, self.end) != self.value.count(part):
            return None
        at = self.begin - 1
        for _ in range(self.value.count(part, 0, end)):
            at = self.source.index(part, at + 1, self.end)
        return Edit(at, at + len(part), other)

    def _replaced(self, given: str, other: str, start: int, end: int) -> Edit | None:
        if self.source.count(given, start, end) != 1:
            return None
        at = self.source.index(given, start, end)
        return Edit(at, at + len(given), other)


def _entry_at(text: str, source: Source, finding: Finding) -> SourceEntry | None:
    """Find the entry that a finding is about; None if that is the document itself."""
    there = (path for path, mark in source.marks.items() if mark == (finding.line, finding.column))
    path = next((path for path in there if path and written(path) == finding.key), None)
    if path is None:
        return None
    lines = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    here = source.marks[path]
    after = min((mark for mark in source.marks.values() if mark > here), default=None)
    start, end = (len(text) if mark is None else lines[mark.line - 1] + mark.column - 1 for mark in (here, after))
    key, value, around = str(path[-1]), value_at(source.data, path), value_at(source.data, path[:-1])
    begin = text.find(":", start + len(key), end) + 1 if isinstance(around, Mapping) else start
    siblings = frozenset(map(str, around)) if isinstance(around, Mapping) else frozenset()
    return SourceEntry(text, key, value if isinstance(value, str) else "", siblings, start, begin, end)


@dataclass(frozen=True, slots=True)
class Autofixed:
    """The result of fixing a text; `findings` are those that were fixed, round by round, in the order of their places."""

    text: str
    findings: tuple[Finding, ...]


def autofix(text: str, find: Callable[[str], Sequence[Finding]]) -> Autofixed:
    """Fix a blueprint until no fixable fault is left; `find` returns the findings about a text, with their places in it."""
    done: list[Finding] = []
    while (mended := _round(text, find(text), MOST - len(done))).findings:
        text = mended.text
        done += mended.findings
    return Autofixed(text, tuple(done))


def _round(text: str, found: Sequence[Finding], most: int) -> Autofixed:
    """Apply one round of fixes, the last place first, so that earlier places do not move."""
    done: list[Finding] = []
    for finding in sorted(found, key=lambda each: (each.line or 0, each.column or 0), reverse=True):
        mended = _mended(text, finding) if len(done) < most else None
        if mended is not None:
            text = mended
            done.append(finding)
    return Autofixed(text, tuple(reversed(done)))


def is_slip(given: str, meant: str) -> bool:
    """Return whether one typo is between two words: a letter missing, too many or wrong, or two swapped."""
    if len(meant) < SHORTEST:
        return False
    while given and meant and given[0] == meant[0]:
        given, meant = given[1:], meant[1:]
    while given and meant and given[-1] == meant[-1]:
        given, meant = given[:-1], meant[:-1]
    letters = all(each.isalpha() or each == "_" for each in given + meant)
    swapped = len(given) == 2 and given == meant[::-1]  # noqa: PLR2004 - two
    return letters and given != meant and (swapped or max(len(given), len(meant)) == 1)


def _mended(text: str, finding: Finding) -> str | None:
    if finding.rule not in MENDED or finding.line is None:
        return None
    try:
        source = read(text)
        entry = _entry_at(text, source, finding)
        edit = None if entry is None else _edit(finding, entry, source.data)
        if edit is None:
            return None
        mended = text[: edit.start] + edit.text + text[edit.end :]
        return mended if _differences(source.data, read(mended).data) == 1 else None
    except BlueprintError:
        return None


def _edit(finding: Finding, entry: SourceEntry, document: Any) -> Edit | None:
    meant = finding.nearest
    if meant is None:
        return entry.value_quoted() if finding.message.endswith(IN_QUOTES) else None
    match finding.rule:
        case "Y-KEY":
            is_sure = meant not in entry.siblings and _is_sure(entry.key, meant, _ours())
            return entry.key_replaced(meant) if is_sure else None
        case "Y-VALUE":
            return entry.value_replaced(meant) if _is_sure(entry.value, meant, _ours()) else None
        case "V-A2" | "V-I1" | "V-SM1":
            return entry.value_replaced(meant) if _is_sure(entry.value, meant, _names(document)) else None
        case _:
            return _in_text(finding, entry, meant, document)


def _in_text(finding: Finding, entry: SourceEntry, meant: str, document: Any) -> Edit | None:
    path = meant.split(".")
    if finding.rule == "V-T2":
        return None if "#each" in entry.value else path_replaced(entry, ["this"], path)
    if finding.rule == "V-T3":
        wrong = [path[0], "output", *path[1:]] if path[0] == "previous_step" else [*path[:2], *path[3:]]
        is_sure = path[0] == "steps" or finding.severity == "error"
        return path_replaced(entry, wrong, path) if is_sure else None
    if finding.severity != "error":
        return None
    read_there = {each[: len(path)] for each in entry.paths if each[: len(path) - 1] == tuple(path[:-1])}
    names = frozenset(_names(document))
    wrong_ones = [each for each in read_there if len(each) == len(path) and _is_sure(each[-1], path[-1], names)]
    return path_replaced(entry, wrong_ones[0], path) if len(wrong_ones) == 1 else None


def _is_sure(given: str, meant: str, known: Iterable[str]) -> bool:
    """Return whether one typo is between the last parts of two words, and between the first's and no other known word."""
    given, meant = given.rpartition(".")[2], meant.rpartition(".")[2]
    return is_slip(given, meant) and {each for each in known if is_slip(given, each)} == {meant}


@lru_cache(maxsize=1)
def _ours() -> frozenset[str]:
    """Return the keys and words that blueprints may have."""
    schemas = list(_mappings(json_schema()))
    words = (word for each in schemas for word in (*each.get("properties", ()), *each.get("enum", ())))
    return frozenset(word for word in words if isinstance(word, str))


def _names(value: Any) -> Iterator[str]:
    """Return every name of a document: keys, and what is under `name` and `step`."""
    for each in _mappings(value):
        yield from (key for key in each if isinstance(key, str))
        yield from (name for key in ("name", "step") if isinstance(name := each.get(key), str))


def _mappings(value: Any) -> Iterator[Mapping[Any, Any]]:
    return (each for _, each in walk(value) if isinstance(each, Mapping))


def _differences(one: Any, other: Any) -> int:
    if isinstance(one, Mapping) and isinstance(other, Mapping) and len(one) == len(other):
        pairs = list(zip(one.items(), other.items(), strict=True))
        return sum((key != name) + _differences(each, value) for (key, each), (name, value) in pairs)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return sum(_differences(*pair) for pair in zip(one, other, strict=True))
    return int(type(one) is not type(other) or one != other)


def path_replaced(entry: SourceEntry, path: Sequence[str], other: Sequence[str]) -> Edit | None:
    """Replace the first occurrence of a path, outside of quotes, plain text and longer paths; None if it is not written out as `a.b.c`."""
    try:
        words = list(_path_words(entry.value))
    except BlueprintTextError:
        return None
    wanted = [word for part in path for word in (part, ".")][:-1]
    for index, word in enumerate(words):
        is_root = index == 0 or words[index - 1].text != "."
        if is_root and [each.text for each in words[index : index + len(wanted)]] == wanted:
            return entry.part_replaced(word.at, words[index + len(wanted) - 1].end, ".".join(other))
    return None


def _path_words(text: str) -> Iterator[Token]:
    if "{{" not in text:
        yield from tokens(text)
        return
    at = 0
    while opening := _OPENING.search(text, at):
        other = _OTHER_TAG.match(text, opening.start())
        if other is not None:
            at = other.end()
            continue
        words = tokens(text, opening.end(), closed_by="}}")
        yield from words
        at = words[-1].end

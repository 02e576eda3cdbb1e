"""Find the spans of keys and values in a blueprint's text.

Pure. It must not judge them. In: a text that `read` takes, and a finding about it; out: the entry that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import yaml

from flujo_client.blueprint.finding import shown
from flujo_client.contract.validation import Finding
from flujo_client.errors import BlueprintTextError
from flujo_client.pipeline.compiled_text import expression_of, template_of

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace what is from `start` to before `end` by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SourceEntry:
    """A key with its value, or an item of a list, which has no key."""

    source: str
    """The whole text."""
    key_node: Any
    value_node: Any
    """`key_node`, `value_node`: nodes of the YAML library; the value is a scalar."""
    siblings: frozenset[str] = frozenset()
    """All keys of the mapping around it."""

    @property
    def key(self) -> str:
        return str(self.key_node.value)

    @property
    def value(self) -> str:
        """Return the value as a text; empty for a list or a mapping."""
        return str(self.value_node.value) if isinstance(self.value_node, yaml.ScalarNode) else ""

    @cached_property
    def paths(self) -> frozenset[tuple[str, ...]]:
        """Return the paths that the value reads, as a template or an expression."""
        try:
            return (template_of if "{{" in self.value else expression_of)(self.value).names
        except BlueprintTextError:
            return frozenset()

    def key_replaced(self, other: str) -> Edit | None:
        """Replace the key."""
        return self._replaced(self.key_node, self.key, other)

    def value_replaced(self, other: str) -> Edit | None:
        """Replace the value."""
        return self._replaced(self.value_node, self.value, other) if self.value else None

    def value_quoted(self) -> Edit | None:
        """Put a plain value into quotes."""
        if not isinstance(self.value_node, yaml.ScalarNode) or self.value_node.style:
            return None
        start, end = _span(self.value_node)
        return Edit(start, end, f'"{self.source[start:end]}"')

    def part_replaced(self, start: int, end: int, other: str) -> Edit | None:
        """Replace the text from `start` to `end` in the value, even if the same text occurs there more than once."""
        part = self.value[start:end]
        begin, stop = _span(self.value_node)
        if self.source.count(part, begin, stop) != self.value.count(part):
            return None
        at = begin - 1
        for _ in range(self.value.count(part, 0, end)):
            at = self.source.index(part, at + 1, stop)
        return Edit(at, at + len(part), other)

    def _replaced(self, node: Any, given: str, other: str) -> Edit | None:
        start, end = _span(node)
        if self.source.count(given, start, end) != 1:
            return None
        at = self.source.index(given, start, end)
        return Edit(at, at + len(given), other)


def entry_at(text: str, finding: Finding) -> SourceEntry | None:
    """Find the entry that a finding is about; None if it is not a key or item, or is elsewhere through an alias."""
    last = finding.key.rpartition(".")[2]
    is_item = last.endswith("]") and "[" in last  # a key may have either in it
    ending = last[last.rindex("[") :] if is_item else last
    return _entries_of(text).get((finding.line, finding.column, ending))


@lru_cache(maxsize=4)
def _entries_of(text: str) -> Mapping[tuple[int | None, int | None, str], SourceEntry]:
    """Return every entry by its place, and how a finding's key ends: a list's item and its first key begin at one place."""
    return {
        (node.start_mark.line + 1, node.start_mark.column + 1, ending): entry
        for ending, node, entry in _entries(text, yaml.compose(text, Loader=_LOADER), set())
    }


def _entries(text: str, node: Any, seen: set[int]) -> Iterator[tuple[str, Any, SourceEntry]]:
    if id(node) in seen:  # an alias: what it names was there before
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        siblings = frozenset(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield shown(key.value).rpartition(".")[2], key, SourceEntry(text, key, value, siblings)
            yield from _entries(text, value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            yield f"[{index}]", each, SourceEntry(text, None, each)
            yield from _entries(text, each, seen)


def _span(node: Any) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index

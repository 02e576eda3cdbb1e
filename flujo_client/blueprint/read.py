"""Read text as data, with the place of every value: YAML as blueprints use it; and write data as such text.

It must not make objects: no tags, no classes. YAML 1.2's plain scalars (so that `on:` and `yes` stay texts), unique keys, anchors and merge
keys only while they stay small; all in bounded time and memory.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import yaml

from flujo_client.blueprint.finding import Mark, Path, refuse, shown, written
from flujo_client.contract.validation import Finding
from flujo_client.sizes import MAX_BLUEPRINT_BYTES, MAX_BLUEPRINT_DEPTH, MAX_BLUEPRINT_VALUES

_TOO_DEEP: Final = f"more than {MAX_BLUEPRINT_DEPTH} lists and mappings in each other"
_MOST_EVENTS: Final = 4 * MAX_BLUEPRINT_VALUES
"""The maximum number of nodes in a document of that many values: with keys, and the ends of lists and mappings."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is there: 1 MiB takes it half a second, and the one in Python five."""

_CORE: Final = "tag:yaml.org,2002:"
_WHOLE: Final = re.compile(r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_NUMBER: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORD: Final = {
    "null": re.compile(r"(~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"),
    "merge": re.compile(r"<<\Z"),
}
"""What YAML 1.2's core schema does not take for texts."""

_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Source:
    """A document as data."""

    data: Any
    """Mappings, lists, texts, numbers, true, false and null."""
    marks: Mapping[Path, Mark]
    """The position of each value, by its path; for a mapping's entry, the position of its key."""
    file: str
    """The name of the text in findings."""

    def finding(self, rule: str, path: Path, message: str, **more: Any) -> Finding:
        """Make a finding about what is at a path, or would if it were there."""
        here = path
        while here not in self.marks and here:
            here = here[:-1]
        line, column = self.marks.get(here, (None, None))
        return Finding(rule, message, written(path), self.file, line, column, **more)


def read(text: str | bytes, *, file: str = "<text>") -> Source:
    """Read a document. Raises BlueprintError: it is too large, no UTF-8, no YAML, or YAML that blueprints do not use."""
    try:
        text = _decoded(text)
        reading = _Reading(file)
        data = reading.value(_compose(text), (), 0)
    except _Refused as refused:
        found = Finding(refused.rule, refused.message, "", file, *(refused.mark or (None, None)))
        raise refuse(file, [found]) from None
    except yaml.YAMLError as error:
        raise refuse(file, [_odd_space_in(text, file) or _syntax(error, file)]) from None
    if reading.findings:
        raise refuse(file, reading.findings)
    return Source(data, reading.marks, file)


_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML does not allow. libyaml rejects them too, without their place."""


_ODD_SPACE: Final = re.compile("^[ \\-{]*[\\w.-]+:(?P<space>[\xa0\u2000-\u200b\u202f\u3000])", re.MULTILINE)
"""A key whose colon is followed by a character that looks like a space, as word processors and web pages write it."""


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `read` would not read as text, and writes repeated values in full."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - an anchor would mean that two places must stay equal
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        """Write a text of several lines as a block, one with other line breaks in quotes, because YAML would change them."""
        style = '"' if any(each in data for each in "\x85\u2028\u2029") else "|" if "\n" in data else None
        return self.represent_scalar(f"{_CORE}str", data, style=style)


_Dumper.yaml_implicit_resolvers = {}
for _tag, _pattern in {**_WORD, "int": _WHOLE, "float": _NUMBER}.items():
    _Dumper.add_implicit_resolver(f"{_CORE}{_tag}", _pattern, None)
_Dumper.yaml_implicit_resolvers[""] = [(f"{_CORE}null", _WORD["null"])]
_Dumper.add_representer(str, _Dumper.text)


def dump(document: Any) -> str:
    """Write a document so that `read` reads the same data: keys in their order, long texts in one line."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return text


class _Refused(Exception):
    def __init__(self, rule: str, message: str, mark: Mark | None = None) -> None:
        self.rule, self.message, self.mark = rule, message, mark


def _decoded(text: str | bytes) -> str:
    size = len(text if isinstance(text, bytes) else text.encode(errors="replace"))
    if size > MAX_BLUEPRINT_BYTES:
        raise _Refused(
            "Y-LIMIT", f"it has {size:,} bytes; at most {MAX_BLUEPRINT_BYTES:,} are allowed; put parts into imports"
        )
    if isinstance(text, bytes):
        text = _of_bytes(text)
    if odd := _UNREADABLE.search(text):
        what = f"not YAML: the control character U+{ord(odd[0]):04X} is not allowed"
        if "\ud800" <= odd[0] <= "\udfff":
            what = "half of a surrogate pair"
        raise _Refused("Y-SYNTAX", f"this is {what}", _end_of(text[: odd.start()]))
    return text.removeprefix("\ufeff")


def _of_bytes(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(errors="replace")
        raise _Refused("Y-SYNTAX", "this is not UTF-8; save the file as UTF-8", _end_of(before)) from None


def _end_of(text: str) -> Mark:
    return Mark(text.count("\n") + 1, len(text) - text.rfind("\n"))


def _syntax(error: yaml.YAMLError, file: str) -> Finding:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    if "cannot start any token" in problem:
        problem += "; a tab cannot indent, and a text that begins with @, ` or % needs quotes"
    if "mapping values are not allowed" in problem:
        problem += "; a text with ': ' in it needs quotes, and keys of one mapping begin in one column"
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    return Finding("Y-SYNTAX", f"this is not YAML: {problem}", "", file, line, column)


def _odd_space_in(text: str | bytes, file: str) -> Finding | None:
    """Return the finding about the first colon that YAML does not read as the end of a key, if the text has one."""
    if not isinstance(text, str) or (odd := _ODD_SPACE.search(text)) is None:
        return None
    line, column = _end_of(text[: odd.start("space")])
    return Finding("Y-SYNTAX", _odd(odd["space"]), "", file, line, column)


def _odd(space: str) -> str:
    name = unicodedata.name(space).lower()
    return f"U+{ord(space):04X} ({name}) follows a colon, and YAML does not read it as a space; write an ordinary one"


def _at(node: Any) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


@dataclass(slots=True, eq=False)
class _Node:
    """A value as it is in the text: a scalar's `items` is None. An alias is the same node that it names."""

    event: Any
    items: list[_Node] | None = None

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.event, yaml.MappingStartEvent)


def _compose(text: str) -> _Node:
    """Make the tree of nodes, without recursion: how deep it is, is counted before anything walks it."""
    top = _Node(None, [])
    trail, anchors = [top], dict[str, _Node]()
    for count, event in enumerate(_events(text)):
        if count > _MOST_EVENTS:
            raise _Refused("Y-LIMIT", f"more than {MAX_BLUEPRINT_VALUES:,} values")
        if isinstance(event, yaml.CollectionEndEvent):
            trail.pop()
            continue
        if isinstance(event, yaml.DocumentStartEvent) and top.items:
            raise _Refused("Y-SYNTAX", "a blueprint is one document; this is a second one", _at(event))
        if not isinstance(event, yaml.NodeEvent):
            continue
        is_alias = isinstance(event, yaml.AliasEvent)
        node = _aliased(event, anchors, trail) if is_alias else _Node(event)
        assert trail[-1].items is not None, "only lists and mappings can be open"
        trail[-1].items.append(node)
        if event.anchor and not is_alias:
            anchors[event.anchor] = node
        if isinstance(event, yaml.CollectionStartEvent):
            node.items = []
            trail.append(node)
            if len(trail) > MAX_BLUEPRINT_DEPTH:
                raise _Refused("Y-LIMIT", _TOO_DEEP, _at(event))
    if not top.items:
        raise _Refused("Y-SYNTAX", "it is empty; a blueprint must have `steps`")
    return top.items[0]


def _events(text: str) -> Iterator[Any]:
    loader = _LOADER(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


def _aliased(event: Any, anchors: Mapping[str, _Node], trail: Sequence[_Node]) -> _Node:
    node = anchors.get(event.anchor)
    if node is None:
        raise _Refused("Y-SYNTAX", f"no anchor '&{shown(event.anchor)}' comes before this", _at(event))
    if node in trail:
        raise _Refused("Y-SYNTAX", f"'*{shown(event.anchor)}' is inside the value that it names", _at(event))
    return node


@dataclass(slots=True)
class _Reading:
    file: str
    findings: list[Finding] = field(default_factory=list)
    marks: dict[Path, Mark] = field(default_factory=dict)
    count: int = 0

    def value(self, node: _Node, path: Path, depth: int) -> Any:
        self.count += 1
        if self.count > MAX_BLUEPRINT_VALUES:
            raise _Refused(
                "Y-LIMIT", f"more than {MAX_BLUEPRINT_VALUES:,} values, those that aliases repeat counted each time"
            )
        if depth > MAX_BLUEPRINT_DEPTH:
            raise _Refused("Y-LIMIT", _TOO_DEEP, _at(node.event))
        self.marks.setdefault(path, _at(node.event))
        self._check_tag(node, path)
        if node.items is None:
            return self._scalar(node, path)
        if node.is_mapping:
            return self._mapping(node, path, depth)
        return [self.value(each, (*path, index), depth + 1) for index, each in enumerate(node.items)]

    def _mapping(self, node: _Node, path: Path, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        items = node.items or []
        for key_node, each in zip(items[::2], items[1::2], strict=True):
            if key_node.items is not None:
                self._find("Y-SYNTAX", key_node, path, "a key must be a text, not a list or mapping")
                continue
            if not key_node.event.style and (odd := _ODD_SPACE.match(key_node.event.value)):
                self._find("Y-SYNTAX", key_node, path, _odd(odd["space"]))
                continue
            if key_node.event.value == "<<" and key_node.event.implicit[0]:
                merged = self._merged(each, path, depth) | merged
                continue
            key = self._scalar(key_node, path)
            if not isinstance(key, str | int):
                message = f"{shown(key)} is not a text or a whole number, as keys must be; put it in quotes"
                self._find("Y-SYNTAX", key_node, path, message)
            elif key in found:  # `true` and `1` are one key too
                first = self.marks[*path, key]
                self._find("Y-DUPLICATE", key_node, (*path, key), f"is used twice; first in line {first.line}")
            else:
                self.marks[*path, key] = _at(key_node.event)
                found[key] = self.value(each, (*path, key), depth + 1)
        return merged | found

    def _merged(self, node: _Node, path: Path, depth: int) -> dict[Any, Any]:
        """Read what `<<` adds: a mapping, or a list of mappings of which the first takes precedence."""
        several = node.items is not None and not node.is_mapping
        found: dict[Any, Any] = {}
        for each in (node.items or []) if several else [node]:
            if not each.is_mapping:
                self._find("Y-SYNTAX", each, path, "`<<` must name mappings")
                continue
            found = self.value(each, path, depth + 1) | found
        return found

    def _scalar(self, node: _Node, path: Path) -> Any:
        event = node.event
        text = event.value
        if event.tag == f"{_CORE}str" or event.style or (not event.implicit[0] and event.tag is None):
            return text
        if _WORD["null"].match(text):
            return None
        if _WORD["bool"].match(text):
            return text.lower() == "true"
        is_whole = _WHOLE.match(text)
        if is_whole and len(text) <= _MOST_DIGITS:
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        if not is_whole and not _NUMBER.match(text):
            return text
        number = inf if is_whole or len(text) > 10 * _MOST_DIGITS else float(text)
        if abs(number) == inf:
            self._find("Y-VALUE", node, path, f"{shown(text)} is too large a number; a text needs quotes")
            return 0
        return number

    def _check_tag(self, node: _Node, path: Path) -> None:
        tag = node.event.tag
        if tag not in (None, "!", *(f"{_CORE}{each}" for each in ("str", "map", "seq"))):
            name = tag.replace(_CORE, "!!")
            self._find("Y-TAG", node, path, f"tag '{shown(name)}' is not known; blueprints do not create objects")

    def _find(self, rule: str, node: _Node, path: Path, message: str) -> None:
        self.findings.append(Finding(rule, message, written(path), self.file, *_at(node.event)))

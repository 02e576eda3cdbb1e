"""Split large trees into fragments of JSON, at places where a later version of the value is likely to be split too (ADR 5).

A large list, in which whole fragments contain only items, can be read and written without these: its outline has placeholders for them. So
appending to it, or changing other parts of the value, takes the same time for any length of the list. Pure. In: a tree, or the outline of
one. Out: fragments of its JSON, which joined are the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flujo_client.errors import SerializationError
from flujo_client.serial.tree import Tree, dumps, loads

FRAGMENT_BYTES: Final = 16 * 1024
"""From how many bytes on a fragment is complete."""
_OPENED: Final = 2  # levels: a model's own mapping, and that of its fields
_DEEPEST: Final = 5  # a level deeper, everything below is written again
_FEW: Final = 64
_WORTH_CUTTING: Final = 512  # bytes of an item on average: a cut costs about what writing them does
_HELD: Final = "held"
_MARK: Final = b'{"$":"held",'

Held = Sequence[Sequence[bytes]]
"""The fragments that an outline leaves out, by the number of their placeholder."""


def is_run(fragment: bytes) -> bool:
    """Return whether a fragment contains only items of a list, each after its comma: without it, the JSON is that of a shorter list."""
    if fragment[:1] != b",":
        return False
    try:
        loads(b"[0" + fragment + b"]")
    except SerializationError:
        return False
    return True


def placeholder(number: int) -> bytes:
    """Return the item that an outline has for fragments that it leaves out."""
    return b',{"$":"held","v":%d}' % number


def held_at(item: Tree) -> int | None:
    """Return the number of a placeholder; None for any other item. No value has a mapping like it: `encode` escapes them."""
    return item["v"] if isinstance(item, dict) and item.get("$") == _HELD else None


def items_of(fragment: bytes) -> list[Tree]:
    """Return the items that a run has."""
    items: list[Tree] = loads(b"[" + fragment[1:] + b"]")
    return items


def fragments(tree: Tree, held: Held = ()) -> list[bytes]:
    """Write a large tree as JSON in pieces, which joined are its JSON. Raises SerializationError if it is not a tree.

    A large text is a separate piece. Lists and mappings of large items are cut between them, from the front, so that a list that
    only grows keeps its pieces. Small parts are combined. The cuts depend only on the tree.
    For an outline, `held` are the fragments that it leaves out.
    """
    cutter = _Cutter(held)
    cutter.write(tree, 0)
    cutter.cut()
    return cutter.done


class _Cutter:
    def __init__(self, held: Held) -> None:
        self._held = held
        self.done: list[bytes] = []
        self._pending: list[bytes] = []
        self._length = 0

    def write(self, node: Tree, level: int) -> None:
        if level < _OPENED and type(node) is dict and len(node) <= _FEW:
            self._open(node, level)
            return
        json = dumps(node)
        is_outline = bool(self._held) and _MARK in json
        if len(json) < FRAGMENT_BYTES and not is_outline:
            self._add(json)
            return
        self.cut()
        is_worth_cutting = type(node) in (dict, list) and len(json) >= _WORTH_CUTTING * len(node)
        if is_outline or (level < _DEEPEST and is_worth_cutting):
            self._open(node, level)
            self.cut()
        else:
            self.done.append(json)

    def _open(self, node: dict[str, Any] | list[Any], level: int) -> None:
        is_dict = isinstance(node, dict)
        separator = b"{" if is_dict else b"["
        for key in node:
            number = held_at(key) if self._held and not is_dict else None
            if number is not None:
                self.cut()
                self.done += self._held[number]
                continue
            self._add(separator)
            separator = b","
            if isinstance(node, dict):
                self._add(dumps({key: 0})[1:-2])  # the key and its colon
                self.write(node[key], level + 1)
            else:
                self.write(key, level + 1)
        self._add((b"" if node else separator) + (b"}" if is_dict else b"]"))

    def _add(self, json: bytes) -> None:
        self._pending.append(json)
        self._length += len(json)
        if self._length >= FRAGMENT_BYTES:
            self.cut()

    def cut(self) -> None:
        if self._pending:
            self.done.append(b"".join(self._pending))
            self._pending.clear()
            self._length = 0

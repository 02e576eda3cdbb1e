"""Cuts the JSON of a large tree where a later version of the value is likely to be cut too.

A large text is a fragment of its own. Lists and mappings of large items are cut between them, from the front, so that a list that only
grows keeps its fragments. Everything small is taken together. It depends on the tree alone, and the fragments joined are the tree's JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flujo_client.serial.tree import dumps

if TYPE_CHECKING:
    from flujo_client.serial.tree import Tree

FRAGMENT_BYTES: Final = 16 * 1024
"""From how many bytes on a fragment is complete."""
_OPENED: Final = 2  # levels: a model's own mapping, and that of its fields
_DEEPEST: Final = 5  # a level deeper, all below is written once more
_FEW: Final = 64
_WORTH_CUTTING: Final = 512  # bytes of an item on average: a cut costs about what writing them does


def fragments(tree: Tree) -> list[bytes]:
    """Write a large tree as JSON in pieces. Raises SerializationError if it is not a tree."""
    cutter = _Cutter()
    cutter.write(tree, 0)
    cutter.cut()
    return cutter.done


class _Cutter:
    def __init__(self) -> None:
        self.done: list[bytes] = []
        self._pending: list[bytes] = []
        self._length = 0

    def write(self, node: Tree, level: int) -> None:
        if level < _OPENED and type(node) is dict and len(node) <= _FEW:
            self._open(node, level)
            return
        json = dumps(node)
        if len(json) < FRAGMENT_BYTES:
            self._add(json)
            return
        self.cut()
        if level < _DEEPEST and type(node) in (dict, list) and len(json) >= _WORTH_CUTTING * len(node):
            self._open(node, level)
            self.cut()
        else:
            self.done.append(json)

    def _open(self, node: dict[str, Any] | list[Any], level: int) -> None:
        is_dict = isinstance(node, dict)
        separator = b"{" if is_dict else b"["
        for key in node:
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

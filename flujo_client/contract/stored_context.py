"""A context in its stored form, for code that does not need the live one: decoding a large context costs more than most steps.

Pure. In: a packed context. Out: parts of it, decoded one by one; the context with an output or an item added. A context whose model would
check or change the value must be decoded instead.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from flujo_client.serial import Packed, decode, held_at, is_plain_key, items_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from flujo_client.serial import Outline, Tree

OUTPUTS: Final = "step_outputs"
DEPTH_OF_OUTPUTS: Final = 2
"""The depth of step outputs in a context."""
_MODEL: Final = "model"


class StoredContext:
    """A context that no one has looked at.

    Args:
        packed: the context.
        resolve: finds the classes in it.
    """

    def __init__(self, packed: Packed, resolve: Callable[[str], Any]) -> None:
        self._packed, self._resolve = packed, resolve
        self._is_changed = self._is_shared = False

    def live(self) -> Any:
        """Return the context as it was given, a new one each time; raises SerializationError."""
        read = None if self._is_shared else self.__dict__.pop("_outline", None)  # what was parsed is not parsed again
        tree = self._packed.tree() if read is None or read.held else read.tree
        return decode(tree, resolve=self._resolve)

    @property
    def outline(self) -> Tree:
        """Return its tree, without what is in the middle of its largest lists."""
        return self._outline.tree

    def part(self, tree: Tree) -> Any:
        """Decode a part of it; one that is plain JSON is returned as it is."""
        return decode(tree, resolve=self._resolve)

    def items(self, field: str) -> list[Tree] | None:
        """Return the items of a list in stored form; None if the field is not a list."""
        found = self._list(field)
        return None if found is None else [item for each in found for item in self._whole(each)]

    def newest(self, field: str) -> list[Tree] | None:
        """Return the last items of a list in stored form, at least one if there are any; None if the field is not a list."""
        found = self._list(field)
        return None if found is None else [item for each in found[-1:] for item in self._whole(each)]

    def add_output(self, step: str, output: Tree) -> bool:
        """Add a step's output to `step_outputs`, if the context has that; return False if only the live context can say."""
        self._is_shared, fields = True, self._fields
        if fields is None:
            return False
        if OUTPUTS not in fields:
            return "x" not in self._outline.tree
        outputs = fields[OUTPUTS]
        if not isinstance(outputs, dict) or "$" in outputs or not is_plain_key(step):
            return False
        outputs[step] = output
        self._is_changed = True
        return True

    def add_item(self, field: str, item: Tree, kind: type) -> bool:
        """Append an item to a list, if the model takes it unseen: it declares a list of that class, and validates nothing itself."""
        items = self._list(field)
        if items is None or not _is_plain_list(self._resolve(self._outline.tree["c"]), field, kind):
            return False
        items.append(item)
        self._is_changed = True
        return True

    def packed(self) -> Packed:
        """Return the context with what was added."""
        if not self._is_changed:
            return self._packed
        return Packed.of(self._outline.tree, like=(self._packed,), held=self._outline.held)

    @cached_property
    def _outline(self) -> Outline:
        return self._packed.outline()

    @property
    def _fields(self) -> dict[str, Tree] | None:
        tree = self._outline.tree
        return tree["v"] if isinstance(tree, dict) and tree.get("$") == _MODEL else None

    def _list(self, field: str) -> list[Tree] | None:
        self._is_shared = True
        found = None if self._fields is None else self._fields.get(field)
        return found if isinstance(found, list) else None

    def _whole(self, item: Tree) -> list[Tree]:
        """Return an item of an outline, or the items that it is the placeholder of."""
        number = held_at(item)
        if number is None:
            return [item]
        return [each for fragment in self._outline.held[number] for each in items_of(fragment)]


def _is_plain_list(model: type[BaseModel], field: str, kind: type) -> bool:
    declared, own = model.model_fields.get(field), model.__pydantic_decorators__
    if declared is None or declared.metadata or declared.annotation != list[kind]:  # type: ignore[valid-type]
        return False
    return not (own.validators or own.field_validators or own.root_validators or own.model_validators)
